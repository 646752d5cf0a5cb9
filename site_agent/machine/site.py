r"""One run at this site, as a function: a message of the coordinator in, a list of actions out.

    Proposal → Offer        Step 0 → keys        Step 1 → Answer        Step 2 → Answer …

An attempt is a log of numbered steps. All members read the same log, so each of them steps its own
copy of the computation (`objective.Computation`) and asks itself the next question. Nobody sends
questions. What has to be the same at all members is pinned instead: ``chain`` is the digest of
everything that all sites received, and every mask, seal and tag is bound to the chain and to the
open question. So nothing opens if one site received or asks something else than the others.

Three things cannot happen. A question is never answered twice with other words: a repeated step
gets the stored answer. An attempt never continues in another process: its keys are in memory only,
and the next attempt draws new ones. An answer never leaves before what it discloses was judged and
written down: it is returned beside its `Disclosure`, and whoever performs the actions does that
first (`site_agent.consent.participant`).

What is not beautiful: the coordinator's records can be older than this site's keys, after a restore
of its store. It then begins an attempt that has begun. The offer for a later attempt shows it the
number.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf, isfinite, log10
from typing import Any, TypeAlias

import numpy as np

from coreg_core.errors import BadData, CoregError, Refused
from coreg_core.messages import (
    Answer,
    Fault,
    Fetched,
    Finished,
    FromSite,
    Offer,
    Part,
    PlanRefused,
    Proposal,
    Report,
    Step,
    Words,
    payload_size,
)
from coreg_core.objectives.setting import KEYS
from coreg_core.plan import Plan
from coreg_core.secure.sums import WORD
from coreg_core.shapes import KEY_SIZE, SEAL_BYTES, TAG_WORDS
from site_agent.disclosure import Disclosure
from site_agent.machine.objective import (
    Answers,
    Computation,
    Fold,
    Made,
    Question,
    Reply,
    Row,
)
from site_agent.machine.results import Result
from site_agent.machine.roster import roster_fault, transcript_of
from site_agent.machine.seal import Keys, PlaintextSeal, Seal, Secrets

# --- actions ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Send:
    """Send a message; before it, judge and write down what it discloses."""

    message: FromSite
    disclosure: Disclosure | None = None


@dataclass(frozen=True)
class Store:
    """Store the run's result, before the message that confirms it."""

    result: Result


@dataclass(frozen=True)
class Missed:
    """The run ended with a result that this site does not have; the reason."""

    reason: str


Action: TypeAlias = Send | Store | Missed


# --- one attempt --------------------------------------------------------------------------------


def each_by_itself(key: tuple[str, bytes], make: Callable[[], Made]) -> Made:  # noqa: ARG001
    """The fold of a service: no member shares its process with another."""
    return make()


@dataclass
class _Attempt:
    """What this process knows of one attempt. Nothing of it is kept beyond it."""

    number: int
    offer: Offer
    secrets: Secrets | None
    roster: tuple[Offer, ...] = ()
    sites: tuple[str, ...] = ()
    seal: Seal | None = None
    expected: int = 0  # the number of the step that comes next
    chain: bytes = b""
    question: Question | None = None
    context: bytes = b""  # of the open question: the chain and the question
    reply: Reply = field(default_factory=Reply)  # this site's own to it
    begun: bool = False
    last: Send | None = None  # the last answer
    ended: bool = False


@dataclass(eq=False)
class SiteMachine:
    """See the module's docstring.

    ``room``: the most bytes of payload in a step that can come now, the next one or the last again.
    """

    name: str
    plan: Plan
    computation: Computation
    keys: Keys | None  # None in plaintext
    release: str = ""
    token: str = ""  # stands for the key in a plaintext offer
    fold: Fold = each_by_itself
    result: Result | None = field(default=None, init=False)
    room: int = field(default=0, init=False)
    _of_next: int = field(default=0, init=False)  # the room of the next step alone
    attempt: _Attempt | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if not self.plan.masked:
            self.keys = None

    def handle(self, message: Proposal | Step | Finished) -> list[Action]:
        match message:
            case Proposal():
                return [Send(self.offer(message.attempt))]
            case Step():
                return self._step(message)
            case Finished():
                return self._finished(message)

    # --- an attempt begins ----------------------------------------------------------------------

    def offer(self, number: int) -> Offer:
        """This site's offer for an attempt, the same at each call.

        A later attempt than asked corrects the coordinator.
        """
        if self.attempt is not None and number <= self.attempt.number:
            return self.attempt.offer
        self.attempt = None  # drops the old keys first
        self.result = None
        offer = Offer(
            run=self.plan.run,
            attempt=number,
            plan_digest=self.plan.digest,
            site=self.name,
            n_unlabelled=self.computation.n_unlabelled,
            ids_digest=self.computation.ids_digest,
            data_digest=self.computation.data_digest,
            key="" if self.keys is not None else self.token,
            release=self.release,
            identity="",
            signature="",
        )
        secrets = None if self.keys is None else self.keys.draw(offer)
        self.attempt = _Attempt(number, offer if secrets is None else secrets.offer, secrets)
        return self.attempt.offer

    # --- a step ---------------------------------------------------------------------------------

    def _step(self, step: Step) -> list[Action]:
        """(1) is it the next step? (2) what it brings, (3) this site's answer to it."""
        attempt = self.attempt
        if attempt is None:
            return self._refused("the coordinator sent a step before this site had made an offer.")
        # (1)
        if step.attempt < attempt.number:
            return []
        if (step.attempt, step.step) != (attempt.number, attempt.expected) or attempt.ended:
            return self._not_the_next(attempt, step)
        heard = False
        try:
            # (2)
            self._hear(attempt, step)
            heard = True
            # (3)
            actions = self._answer(attempt)
        except Refused as error:
            return self._refused(str(error))
        except CoregError as error:
            where = step.run, step.attempt, step.step
            return [Send(Fault(*where, str(error), received=not heard))]
        answer = actions[-1]
        assert isinstance(answer, Send)
        attempt.last = Send(answer.message)  # what it discloses is judged and written once
        attempt.expected += 1
        return actions

    def _not_the_next(self, attempt: _Attempt, step: Step) -> list[Action]:
        """The stored answer to a repeated step, or another attempt, or a refusal."""
        if step.attempt == attempt.number:
            roster = attempt.roster if step.step == 0 else ()
            repeated = step.step == attempt.expected - 1 and step.roster == roster
            if repeated and attempt.last is not None:
                return [attempt.last]
            # Step 0 with another roster: the coordinator's records are older than this attempt.
            if step.step == 0 and attempt.expected > 0:
                return [Send(self.offer(step.attempt + 1))]
        received = f"step {step.step} of attempt {step.attempt}"
        expected = f"step {attempt.expected} of attempt {attempt.number}"
        return self._refused(f"received {received}; expected {expected}.")

    def _refused(self, reason: str) -> list[Action]:
        return [Send(PlanRefused(self.plan.run, reason))]

    # --- what a step brings ---------------------------------------------------------------------

    def _hear(self, attempt: _Attempt, step: Step) -> None:
        if step.step == 0:
            self._hear_roster(attempt, step.roster)
        elif attempt.seal is None:
            assert attempt.secrets is not None, "plaintext has its seal from step 0 on"
            wrapped = {part.sender: part.data for part in step.parts if part.receiver == self.name}
            # The first tag shows whether all sites have the same key.
            attempt.seal = attempt.secrets.unwrap(wrapped)
        else:
            self._hear_answers(attempt, attempt.seal, step)

    def _hear_roster(self, attempt: _Attempt, roster: tuple[Offer, ...]) -> None:
        fault = roster_fault(self.plan, attempt.offer, roster)
        if fault is not None:
            raise Refused(fault)
        attempt.roster = roster
        attempt.sites = tuple(offer.site for offer in roster)
        of_attempt = f"{self.plan.run} {attempt.number}".encode()
        key = "transcript", of_attempt
        attempt.chain = self.fold(key, lambda: transcript_of(self.plan, roster))
        if attempt.secrets is None:
            attempt.seal = PlaintextSeal()

    def _hear_answers(self, attempt: _Attempt, seal: Seal, step: Step) -> None:
        """(1) the sum, (2) the parts, (3) the chain, (4) the next question."""
        question = attempt.question
        assert question is not None, "the attempt has not ended"
        # (1)
        total: Row | None = None
        digest = hashlib.sha256(attempt.chain + b"%d" % step.step)
        if question.summed:
            if step.summed is None:
                raise BadData(f"step {step.step} has no sum of the answers to the step before.")
            words = step.summed.values
            total = seal.open(attempt.context, words, question.summed, tuple(question.shapes))
            digest.update(step.summed.digest.encode())
        # (2)
        to_all = dict[str, bytes]()
        to_me = dict[str, bytes]()
        if question.has_parts:
            to_all, to_me = self._open_parts(attempt, seal, question, step)
        elif step.parts:
            raise BadData(f"step {step.step} has parts, where none is expected ({question.kind}).")
        # (3)
        for sender in sorted(to_all):
            digest.update(to_all[sender])
        chain = digest.digest()
        # (4)
        self.computation.take(question, Answers(total, to_all, to_me), chain)
        attempt.chain = chain
        attempt.question = self.computation.ask()

    def _open_parts(
        self, attempt: _Attempt, seal: Seal, question: Question, step: Step
    ) -> tuple[dict[str, bytes], dict[str, bytes]]:
        """The texts for all members, and those for this site, by sender."""
        sizes = _sizes(question, self.name)
        received = {
            (part.sender, part.receiver): part.data
            for part in step.parts
            if part.sender != self.name
        }
        received_sizes = {key: len(data) - SEAL_BYTES for key, data in received.items()}
        if received_sizes != sizes:
            raise BadData(
                f"step {step.step} has {len(received_sizes)} parts, where {len(sizes)} of known"
                f" sizes are expected ({question.kind})."
            )
        to_all = dict[str, bytes]()
        to_me = dict[str, bytes]()
        for (sender, receiver), data in sorted(received.items()):
            text = seal.open_text(attempt.context, data, sender, to_all=not receiver)
            (to_me if receiver else to_all)[sender] = text
        if self.name in question.shapes and question.shapes[self.name].to_all:
            # As this site made it. Had the others received another text, their chains would differ.
            to_all[self.name] = attempt.reply.to_all
        return to_all, to_me

    # --- an answer ------------------------------------------------------------------------------

    def _answer(self, attempt: _Attempt) -> list[Action]:
        if attempt.seal is None:
            return [self._keys_answer(attempt)]
        if not attempt.begun:
            key = attempt.seal.members_key
            self.computation.begin(attempt.sites, key, attempt.chain, self.fold)
            attempt.question = self.computation.ask()
            attempt.begun = True
        question = attempt.question
        if question is None:
            return self._end(attempt)
        self._grant(_room(question, self.name))
        if self.plan.masked:  # masks and seals are bound to it
            attempt.context = hashlib.sha256(_of_question(attempt.chain, question)).digest()
        report = self._report(attempt, question)
        place = self.plan.run, attempt.number, attempt.expected
        if self.name not in question.shapes:
            return [Send(Answer(*place, report))]
        attempt.reply = self.computation.answer(question, attempt.chain)
        summed, parts = self._sealed(attempt, attempt.seal, question, attempt.reply)
        answer = Answer(*place, report, summed, parts)
        return [Send(answer, self._disclosure(attempt, question, answer))]

    def _grant(self, room: int) -> None:
        """The room of the step after this answer; the step before it can come again."""
        self.room = max(self._of_next, room)
        self._of_next = room

    def _keys_answer(self, attempt: _Attempt) -> Send:
        """This site's contributions to the run's key, for each other site."""
        assert attempt.secrets is not None
        self._grant(len(attempt.sites) * (KEY_SIZE + SEAL_BYTES))
        wrapped = attempt.secrets.wrap(attempt.roster, attempt.chain)
        parts = tuple(Part(self.name, site, text) for site, text in sorted(wrapped.items()))
        place = self.plan.run, attempt.number, attempt.expected
        answer = Answer(*place, Report(question=KEYS), parts=parts)
        return Send(answer, Disclosure(KEYS, attempt.sites))

    def _report(self, attempt: _Attempt, question: Question | None) -> Report:
        """How far the computation has come, as the coordinator may know it."""
        computation = self.computation
        progress = computation.progress
        kind = ""
        asked = ""
        if question is not None:
            kind = question.kind
            every = len(question.shapes) == len(attempt.sites)
            asked = "" if every else next(iter(question.shapes))
        if progress is None:
            return Report(kind, asked, computation.rounds)
        return Report(
            kind,
            asked,
            computation.rounds,
            verified=progress.verified,
            residual=tuple(map(power_of_ten, progress.residual.tolist())),
            gap=tuple(map(power_of_ten, progress.gap.tolist())),
        )

    def _sealed(
        self, attempt: _Attempt, seal: Seal, question: Question, reply: Reply
    ) -> tuple[Words | None, tuple[Part, ...]]:
        context = attempt.context
        summed: Words | None = None
        if reply.summed is not None:
            summed = Words(seal.mask(context, reply.summed, tuple(question.shapes)))
        parts = list[Part]()
        if reply.to_all:
            parts.append(Part(self.name, "", seal.close(context, reply.to_all)))
        for receiver, text in sorted(reply.to_each.items()):
            if not text:
                continue
            if reply.blinded:
                senders = tuple(site for site in attempt.sites if site != receiver)
                words = np.frombuffer(text, WORD)
                text = seal.blind(context, words, senders, receiver).tobytes()
            parts.append(Part(self.name, receiver, seal.close(context, text, receiver)))
        return summed, tuple(parts)

    def _disclosure(self, attempt: _Attempt, question: Question, answer: Answer) -> Disclosure:
        reply = attempt.reply
        return Disclosure(
            question=question.kind,
            sites=attempt.sites,
            numbers=question.numbers or -(-payload_size(answer) // WORD.itemsize),
            sealed=self.plan.masked,
            may_change=self.plan.privacy.membership_changes,
            rows=reply.rows,
            labelled=reply.labelled,
            opens=reply.opens,
            scores=reply.scores,
            asked=tuple(sorted(reply.asked.items())),
            within=self.computation.within if reply.opens else inf,
        )

    # --- the end --------------------------------------------------------------------------------

    def _end(self, attempt: _Attempt) -> list[Action]:
        """The result, and the answer that confirms it."""
        attempt.ended = True
        computation = self.computation
        outcome, reason = computation.outcome
        report = self._report(attempt, None)
        report = replace(report, outcome=outcome.name, reason=reason)
        self.result = replace(
            computation.result(),
            progress=computation.progress,
            name=attempt.chain.hex(),
            sites=attempt.sites,
        )
        answer = Answer(self.plan.run, attempt.number, attempt.expected, report)
        self._grant(0)
        return [Store(self.result), Send(answer)]

    def _finished(self, finished: Finished) -> list[Action]:
        fetched = Send(Fetched(finished.run))
        if self.result is not None:
            return [fetched]
        self.result = Result(finished.outcome, finished.reason)
        took_part = self.attempt is not None and self.attempt.expected > 0
        # An earlier process of this agent can have the result: it answered last, and was killed.
        if finished.outcome.good and took_part:
            return [
                fetched,
                Missed(
                    f"the coordinator ended run {finished.run} with a result before this site "
                    "had received its last step. This site has no model of it."
                ),
            ]
        return [fetched]


def _sizes(question: Question, site: str) -> dict[tuple[str, str], int]:
    """The sizes of the texts that other sites send to this one, by sender and receiver."""
    sizes = dict[tuple[str, str], int]()
    for sender, shape in question.shapes.items():
        if sender == site:
            continue
        if shape.to_all:
            sizes[sender, ""] = shape.to_all
        size = shape.to_each.get(site, 0)
        if size > 0:
            sizes[sender, site] = size
    return sizes


def _room(question: Question, site: str) -> int:
    """The most bytes of payload in the step after the answers to this question."""
    room = 8 * (question.summed + TAG_WORDS) if question.summed else 0
    if question.has_parts:
        for shape in question.shapes.values():
            sizes = shape.to_all, shape.to_each.get(site, 0)
            room += sum(size + SEAL_BYTES for size in sizes if size)
    return room


def _of_question(chain: bytes, question: Question) -> bytes:
    """What all members must have alike, in canonical form."""
    shapes = list[Any]()
    if question.has_parts:
        shapes += [
            [shape.to_all, sorted(shape.to_each.items())] for shape in question.shapes.values()
        ]
    asked = list(question.shapes)
    agreed = ["coreg step 3", chain.hex(), question.kind, question.summed, asked, shapes]
    return json.dumps(agreed, separators=(",", ":")).encode() + question.about


def power_of_ten(value: float) -> float:
    """The nearest power of ten; 0 stays 0, and -1 stands for a value that is not finite."""
    if not isfinite(value) or value < 0.0:
        return -1.0
    if value:
        return float(f"1e{round(log10(value))}")
    return 0.0
