r"""One run at this site: its offer to an attempt, the attempt's log of steps, and an answer to each.

    Proposal → Offer     Step 0 … → Answer …

Every site takes the same steps in its job (`site_agent.machine.job`). ``chain`` is the digest of everything that all sites
received. Every mask, seal and tag is bound to it and to the question, so nothing opens if a site received or asks something else.
A repeated step gets the same answer again. Nothing of an attempt is kept beyond it: the next one begins with new keys.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from math import isfinite, log10
from typing import Any, Protocol

import numpy as np

from coreg_core.agreement.schedules import Progress
from coreg_core.computation.question import Lengths, Question
from coreg_core.errors import BadData, Refused
from coreg_core.messages import Answer, Offer, Part, Report, Step, Words
from coreg_core.outcomes import Outcome
from coreg_core.plan import Plan
from coreg_core.secure.sums import WORD
from site_agent.machine.job import Delivery, Fold, Job, Made, Reply, Row, each_by_itself


def canonical(*about: Any) -> bytes:
    """An injective encoding of names, numbers and texts: different values have different bytes."""
    return json.dumps(about, separators=(",", ":"), sort_keys=True).encode()


def transcript_of(plan: Plan, roster: Iterable[Offer]) -> bytes:
    """T: the digest of plan and roster. Keys, masks and the log are bound to it."""
    return hashlib.sha256(
        canonical("coreg attempt 1", plan.run, plan.digest, *map(asdict, roster))
    ).digest()


class Seal(Protocol):
    """The keys that all members of an attempt share. They exist in memory only."""

    tag_words: int  # that a masked row is longer than its words

    def mask(self, context: bytes, words: Row, answering: tuple[str, ...]) -> Row:
        """The masked words of this site's answer; once for each context."""

    def open(self, context: bytes, words: Row, n_words: int, answering: tuple[str, ...]) -> Row:
        """The opened sum of these sites' words."""

    def close(self, context: bytes, text: bytes, receiver: str = "") -> bytes:
        """A text for one other site, or for all members (""); once for each context and receiver."""

    def open_text(self, context: bytes, sealed: bytes, sender: str, *, to_all: bool) -> bytes:
        """A text that another site sealed for this one, or for all members."""

    def blind(self, context: bytes, words: Row, senders: tuple[str, ...], receiver: str) -> Row:
        """Words for one receiver, blinded so that only the sum over all senders can be read."""

    @property
    def members_key(self) -> bytes:
        """A key that the members of the attempt share, for their own use."""


class Secrets(Protocol):
    """This site's own secrets of one attempt."""

    @property
    def offer(self) -> Offer:
        """The signed public part."""

    def wrap(self, roster: tuple[Offer, ...], transcript: bytes) -> dict[str, str]:
        """This site's contribution to the key, sealed for each other site; ``transcript`` is that of plan and roster."""

    def unwrap(self, wrapped: Mapping[str, str]) -> Seal:
        """The attempt's keys, from the contributions of all members."""


class Keys(Protocol):
    """Makes secrets; each call draws new ones."""

    def draw(self, offer: Offer) -> Secrets:
        """Secrets for this offer, whose fields of keys and signature are still empty."""


class PlaintextSeal:
    """No keys: sums in plaintext."""

    members_key, tag_words = b"", 0

    def mask(self, context: bytes, words: Row, answering: tuple[str, ...]) -> Row:  # noqa: ARG002
        return words

    def open(self, context: bytes, words: Row, n_words: int, answering: tuple[str, ...]) -> Row:  # noqa: ARG002
        return words

    def _no_keys(self, *_args: Any, **_options: Any) -> Any:
        raise Refused(
            'aggregation = "plaintext" has no keys: what is for some sites only cannot be sealed.'
        )

    close = open_text = blind = _no_keys


SEAL_BYTES = 16  # that a sealed text is longer than the text


class Breach(Refused):
    """The coordinator violated the protocol."""


class Behind(Refused):
    """The coordinator starts an attempt that has started already: its records are older than this site's keys."""


class Replica:
    """See the module's docstring. ``accept`` has the reason against a sum with some sites, ``may_answer`` raises `Refused`."""

    def __init__(
        self,
        name: str,
        plan: Plan,
        job: Job,
        keys: Keys | None,
        *,
        accept: Callable[[tuple[str, ...]], str | None] = lambda sites: None,  # noqa: ARG005
        may_answer: Callable[[Question], None] = lambda asked: None,  # noqa: ARG005
        release: str = "",
        token: str = "",
        fold: Fold = each_by_itself,
    ):
        self.name, self.plan, self.job = name, plan, job
        self.attempt, self.sites = -1, tuple[str, ...]()
        self.asked: Question | None = None  # the open question
        self.ended = False  # the job has its result
        self._keys, self._accept, self._may_answer = keys, accept, may_answer
        self._release, self._token, self._fold = release, token, fold
        self._offer: Offer | None = None
        self._secrets: Secrets | None = None
        self._seal: Seal | None = None
        self._roster: tuple[Offer, ...] = ()
        self._chain, self._step = b"", 0  # the step that is expected
        self._context = b""  # of the open question: chain and question
        self._answer: Answer | None = None  # the last one
        self._reply: Reply | None = None

    @property
    def took_part(self) -> bool:
        """Whether this process has answered a step of the attempt."""
        return self._step > 0

    @property
    def name_of_result(self) -> str:
        """Equal at all members of an attempt, and at no one else."""
        return self._chain.hex()

    # --- an attempt begins ----------------------------------------------------------------------------------------

    def offer(self, attempt: int) -> Offer:
        """This site's offer for an attempt, the same at each call. A later attempt than asked corrects the coordinator."""
        if self._offer is not None and attempt <= self.attempt:
            return self._offer
        self.attempt, self._seal, self._step, self._answer = (
            attempt,
            None,
            0,
            None,
        )  # drops the old keys first
        self.asked, self._reply, self.ended = None, None, False
        plain = Offer(
            run=self.plan.run,
            attempt=attempt,
            plan_digest=self.plan.digest,
            site=self.name,
            n_unlabelled=self.job.n_unlabelled,
            ids_digest=self.job.ids_digest,
            data_digest=self.job.data_digest,
            key="" if self._keys is not None else self._token,
            release=self._release,
            identity="",
            signature="",
        )
        self._secrets = self._keys.draw(plain) if self._keys is not None else None
        self._offer = plain if self._secrets is None else self._secrets.offer
        return self._offer

    # --- steps ----------------------------------------------------------------------------------------------------

    def answer(self, step: Step) -> Answer | None:
        """The next step's answer, or the stored one of a repetition; None: its attempt is over. Raises `Breach` or `Refused`."""
        if step.attempt < self.attempt or self._offer is None:
            return None
        # Step 0 with another roster is no repetition: the coordinator's records are older than this attempt.
        said = self._answer
        repeated = said is not None and (step.attempt, step.step) == (self.attempt, said.step)
        if repeated and (step.step or step.roster == self._roster):
            return said
        if self._step > 0 and (step.attempt, step.step) == (self.attempt, 0):
            raise Behind(f"attempt {self.attempt} of run {self.plan.run} has started already.")
        if (step.attempt, step.step) != (self.attempt, self._step) or self.ended:
            raise Refused(
                f"received step {step.step} of attempt {step.attempt}; expected step {self._step} of {self.attempt}."
            )
        if self._step == 0:
            parts = self._parts_of(step.roster)
            if self._secrets is not None:
                return self._answered(
                    parts=tuple(Part(site, text) for site, text in sorted(parts.items()))
                )
            self._seal = PlaintextSeal()
            self.asked = self.job.begin(self.sites, self._seal.members_key, self._shared)
        elif self._seal is None:
            assert self._secrets is not None, "plaintext has its seal from step 0 on"
            # The first tag shows whether all sites have the same key.
            self._seal = self._secrets.unwrap({part.site: part.data for part in step.parts})
            self.asked = self.job.begin(self.sites, self._seal.members_key, self._shared)
        else:
            self._hear(step, self._seal)
        return self._next(self._seal)

    def _parts_of(self, roster: tuple[Offer, ...]) -> Mapping[str, str]:
        assert self._offer is not None
        if (fault := roster_fault(self.plan, self._offer, roster)) is not None:
            raise Refused(fault)
        sites = tuple(offer.site for offer in roster)
        if (fault := self._accept(sites)) is not None:
            raise Refused(fault)
        self._roster, self.sites = roster, sites
        self._chain = self._shared("transcript", lambda: transcript_of(self.plan, roster))
        return {} if self._secrets is None else self._secrets.wrap(roster, self._chain)

    def _shared(self, key: Any, make: Callable[[], Made]) -> Made:
        """``make()`` through the cache that members in one process share."""
        return self._fold((self.plan.run, self.attempt, self._step, key), make)

    def _answering(self, asked: Question) -> tuple[str, ...]:
        every = len(asked.answering) == len(self.sites)
        return self.sites if every else tuple(self.sites[i] for i in asked.answering)

    # --- a question -----------------------------------------------------------------------------------------------

    def _next(self, seal: Seal) -> Answer:
        """The answer to the open question; at the end, the outcome."""
        job, asked, words, passed = self.job, self.asked, None, 0
        phase, over = ("", job.outcome) if asked is None else (asked.phase, None)
        report = self._shared("report", lambda: report_of(job.rounds, phase, job.progress, over))
        if asked is None:
            self.ended = True
        else:
            question = self._shared("question", lambda: asked.words)
            self._context = hashlib.sha256(
                canonical("coreg step 2", self._chain.hex()) + question
            ).digest()
            if self.name in self._answering(asked):
                words, passed = self._sealed_reply(asked, seal)
        return self._answered(report, words=words, passed=passed)

    def _sealed_reply(self, asked: Question, seal: Seal) -> tuple[Words, int]:
        """The words of this site's answer, and how many of the last ones are passed on."""
        self._may_answer(asked)
        reply, context = self.job.reply(asked, self._chain), self._context
        self._reply, row, sealed = reply, list[Row](), list[bytes]()
        if reply.summed is not None:
            row.append(seal.mask(context, reply.summed, self._answering(asked)))
        added = sum(map(len, row))
        row += [] if reply.shown is None else [reply.shown]
        sealed += [] if reply.to_all is None else [seal.close(context, reply.to_all)]
        for u, text in sorted(reply.to_each.items()):
            if reply.blinded:
                senders = tuple(site for site in self.sites if site != self.sites[u])
                text = seal.blind(
                    context, np.frombuffer(text, WORD), senders, self.sites[u]
                ).tobytes()
            sealed.append(seal.close(context, text, self.sites[u]))
        if sealed:
            row.append(
                np.frombuffer(
                    b"".join(text.ljust(_padded(len(text)), b"\0") for text in sealed), WORD
                )
            )
        whole = row[0] if len(row) == 1 else np.concatenate([*row, np.zeros(0, dtype=WORD)])
        return Words(whole), sum(map(len, row)) - added

    def _hear(self, step: Step, seal: Seal) -> None:
        """Open the answers to the open question, and take the next one."""
        asked = self.asked
        assert asked is not None
        if step.words is None:
            raise Breach(
                f"sent step {step.step} of run {self.plan.run} without the answers to the step before."
            )
        context, n, row = self._context, asked.layout.size, step.words.values
        end = n + seal.tag_words * bool(n)
        if len(row) != end + sum(map(_words_of, asked.lengths)):
            raise BadData(
                f"the answers to step {step.step - 1} have {len(row)} words, which is not their number."
            )
        delivery, digest = Delivery(None), hashlib.sha256(self._chain + canonical(step.step))
        total = seal.open(context, row[:end], n, self._answering(asked)) if n else None
        if asked.lengths:
            digest.update(row[:end].tobytes())
            delivery = self._read(asked.lengths, row[end:], context, seal, total, digest.update)
        else:
            digest.update(
                step.words.digest.encode()
            )  # the message has it: members in one process share it
            delivery = Delivery(total)
        self._chain = digest.digest()
        self.asked = self.job.receive(asked, delivery, self._chain)

    def _read(
        self,
        lengths: Sequence[Lengths],
        row: Row,
        context: bytes,
        seal: Seal,
        total: Row | None,
        pin: Callable[[bytes | memoryview], None],
    ) -> Delivery:
        """What each site sent beside the sum. ``pin`` takes what all members received."""
        reply, me = self._reply, self.sites.index(self.name)
        assert reply is not None
        shown, texts, to_me = list[Row](), list[bytes](), dict[int, bytes]()
        for v, (site, each) in enumerate(zip(self.sites, lengths, strict=True)):
            mine, row = row[: _words_of(each)], row[_words_of(each) :]
            public, sealed = mine[: each.shown], mine[each.shown :].tobytes()
            if (
                v == me and reply.shown is not None
            ):  # as this site made it: with a changed copy the chains differ
                public = reply.shown
            shown.append(public)
            pin(public.data.cast("B") if public.size else b"")
            if each.to_all is not None:
                text, sealed = (
                    sealed[: each.to_all + SEAL_BYTES],
                    sealed[_padded(each.to_all + SEAL_BYTES) :],
                )
                own = reply.to_all if v == me else None
                texts.append(own or seal.open_text(context, text, site, to_all=True))
                pin(texts[-1])
            for u, size in sorted(each.to_each.items()):
                text, sealed = sealed[: size + SEAL_BYTES], sealed[_padded(size + SEAL_BYTES) :]
                if u == me:
                    to_me[v] = seal.open_text(context, text, site, to_all=False)
        return Delivery(total, shown, texts, to_me)

    def _answered(
        self,
        report: Report | None = None,
        parts: tuple[Part, ...] = (),
        words: Words | None = None,
        passed: int = 0,
    ) -> Answer:
        self._answer = said = Answer(
            self.plan.run, self.attempt, self._step, report or Report(), parts, words, passed
        )
        self._step += 1
        return said


def _padded(n_bytes: int) -> int:
    """Bytes of whole words."""
    return -(-n_bytes // 8) * 8


def _words_of(lengths: Lengths) -> int:
    """Words of one site's answer beyond those that are added."""
    texts = [*([] if lengths.to_all is None else [lengths.to_all]), *lengths.to_each.values()]
    return lengths.shown + sum(_padded(n + SEAL_BYTES) for n in texts) // 8


def roster_fault(plan: Plan, own: Offer, roster: Sequence[Offer]) -> str | None:
    """Why this roster does not fit the plan, or None."""
    sites = [offer.site for offer in roster]
    if own not in roster:
        return f"the roster of run {plan.run} does not contain this site's unchanged offer."
    if sites != sorted(set(sites)):
        return f"the roster lists {', '.join(sites)}; expected every site once, in site order."
    if unknown := sorted(set(sites) - set(plan.sites)):
        return f"the roster lists {', '.join(unknown)}, which the plan does not."
    if len(sites) < plan.membership.min_sites:
        return f"the roster has {len(sites)} sites; the plan needs at least {plan.membership.min_sites}."
    for offer in roster:
        if (offer.run, offer.attempt, offer.plan_digest) != (own.run, own.attempt, own.plan_digest):
            return f"the offer of {offer.site} is for another plan or attempt."
        if (offer.n_unlabelled, offer.ids_digest) != (own.n_unlabelled, own.ids_digest):
            return (
                f"{offer.site} lists {offer.n_unlabelled} shared instances, and {own.site} lists {own.n_unlabelled}: not the "
                "same ids. Compare them with `coreg-agent check` at both sites."
            )
    return None


def power_of_ten(value: float) -> float:
    """The nearest power of ten; 0 stays 0, and -1 stands for a value that is not finite."""
    if not isfinite(value) or value < 0.0:
        return -1.0
    return float(f"1e{round(log10(value))}") if value else 0.0


def report_of(
    rounds: int, phase: str, progress: Progress | None, over: tuple[Outcome, str] | None
) -> Report:
    """The report beside an answer; ``phase`` is that of the open question, ``over`` the outcome at the end."""
    return Report(
        round=rounds,
        phase=phase,
        verified=progress is not None and progress.verified,
        residual=() if progress is None else tuple(map(power_of_ten, progress.residual.tolist())),
        gap=() if progress is None else tuple(map(power_of_ten, progress.gap.tolist())),
        outcome="" if over is None else over[0].name,
        reason="" if over is None else over[1],
    )
