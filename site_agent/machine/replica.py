r"""One run at this site: the log of an attempt, the state computed from it, and the answers to its steps.

    Proposal → Offer     Step 0 … → Answer …     Finished → result

Every site steps the same computation on the same sums (`coreg_core.computation`). Masks are bound to the log and the
question, so they do not cancel if a site has another log or question. A repeated step gets the same answer again. An
attempt that is over is never resumed.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from coreg_core.computation.additive import ExchangeState
from coreg_core.computation.computation import Computation, computation_of
from coreg_core.computation.reports import report_of
from coreg_core.computation.rounds import Round
from coreg_core.errors import BadData, Refused
from coreg_core.masking.fixed_point import WORD
from coreg_core.masking.words import opened, summand
from coreg_core.names import TAG_WORDS
from coreg_core.protocol.messages import Answer, Finished, Head, Offer, Part, Report, Step
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan
from coreg_core.protocol.words import Words
from site_agent.machine.additive import AdditiveJob, Heard, Lengths, Next, Row, Telling
from site_agent.machine.job import Fold, Job, Made, each_by_itself
from site_agent.machine.rosters import common_position, heads_fault, roster_fault
from site_agent.machine.run_keys import Keys, PlaintextSeal, Seal, Secrets, canonical, transcript_of
from site_agent.machine.run_log import Ended, Kept, RunLog, Sum, Total

NO_VALUES = np.zeros((0, 0))
SEAL_BYTES = 16  # that a sealed text is longer than the text


def _padded(n_bytes: int) -> int:
    """Bytes of whole words."""
    return -(-n_bytes // 8) * 8


def _words_of(lengths: Lengths) -> int:
    """Words of one site's answer beyond those that are added."""
    texts = [*([] if lengths.to_all is None else [lengths.to_all]), *lengths.to_each.values()]
    return lengths.shown + sum(_padded(n + SEAL_BYTES) for n in texts) // 8


class Breach(Refused):
    """The coordinator violated the protocol."""


class Behind(Refused):
    """The coordinator starts an attempt that has started already: its records are older than this site's keys."""


class Outdated(Refused):
    """What this site kept of the run is older than its end, and this process has answered nothing in it."""


@dataclass(frozen=True)
class Stopped:
    """The state after a sum that honest sites cannot produce: the computation ends at every site with the same reason."""

    reason: str


class Replica:
    """See the module's docstring.

    Parameters
    ----------
    name, plan, job, log
        this site and its run.
    keys
        None if the plan has no masks.
    accept
        returns a reason against a sum with these sites, or None; called once per attempt.
    may_answer
        raises `Refused` if the site must not answer a question; called before each answer.
    token
        identifies this process if there are no keys.
    """

    def __init__(
        self,
        name: str,
        plan: Plan,
        job: Job,
        log: RunLog,
        keys: Keys | None,
        *,
        accept: Callable[[tuple[str, ...]], str | None] = lambda sites: None,  # noqa: ARG005
        may_answer: Callable[[Round], None] = lambda asked: None,  # noqa: ARG005
        release: str = "",
        token: str = "",
        fold: Fold = each_by_itself,
    ):
        self.name, self.plan, self.job = name, plan, job
        self.attempt, self.sites = -1, tuple[str, ...]()
        self.asked: Round | None = None  # the open question
        self.state: Any = None
        self.last: Report | None = None
        self._log, self._keys, self._accept, self._may_answer = log, keys, accept, may_answer
        self._release, self._token, self._fold = release, token, fold
        self.kept = log.load(job.data_digest)
        self._offer: Offer | None = None
        self._secrets: Secrets | None = None
        self._seal: Seal | None = None
        self._roster: tuple[Offer, ...] = ()
        self._computation: Computation | None = None
        self._chain, self._position, self._step = b"", 0, 0
        self._answers: dict[int, Answer] = {}
        self._head: Head | None = None
        self._following = Next("end")
        self._telling: Telling | None = None

    # --- an attempt begins ----------------------------------------------------------------------------------------

    def offer(self, attempt: int) -> Offer:
        """This site's offer for an attempt; a repeated call returns the same one.

        A coordinator with records older than this site's attempt receives the later offer, which shows it the number.
        """
        if self._offer is not None and attempt <= self.attempt:
            return self._offer
        self.attempt, self._seal, self._step, self._answers = attempt, None, 0, {}  # drops the old keys first
        self.asked, self._head = None, None
        plain = Offer(
            run=self.plan.run,
            attempt=attempt,
            plan_digest=self.plan.digest,
            site=self.name,
            n_unlabelled=self.job.n_unlabelled,
            ids_digest=self.job.ids_digest,
            data_digest=self.job.data_digest,
            key="" if self._keys is not None else self._token,
            resume=() if self.kept is None or not self.job.resumes else self.kept.resume,
            release=self._release,
            identity="",
            signature="",
        )
        self._secrets = self._keys.draw(plain) if self._keys is not None else None
        self._offer = plain if self._secrets is None else self._secrets.offer
        return self._offer

    # --- steps ----------------------------------------------------------------------------------------------------

    def answer(self, step: Step) -> Answer | None:
        """The answer to the next step, or the stored answer to a repeated one; None for a step of an attempt that is over.

        Raises
        ------
        Breach
            the coordinator violated the protocol.
        Refused
            this site does not continue with these sites.
        CoregError
            its rows do not allow an answer, or the sum was changed.
        """
        if step.attempt < self.attempt or self._offer is None:
            return None
        # Step 0 with another roster is no repetition: the coordinator's records are older than this attempt.
        if step.attempt == self.attempt and step.step in self._answers and (step.step or step.roster == self._roster):
            return self._answers[step.step]
        if self._step > 0 and (step.attempt, step.step) == (self.attempt, 0):
            raise Behind(f"attempt {self.attempt} of run {self.plan.run} has started already.")
        if (step.attempt, step.step) != (self.attempt, self._step):
            raise Refused(
                f"received step {step.step} of attempt {step.attempt}; expected step {self._step} of {self.attempt}."
            )
        if self._step == 0:
            parts = self._met(step.roster)
            if self._secrets is not None:
                return self._said(parts=tuple(Part(site, text) for site, text in sorted(parts.items())))
            self._seal = PlaintextSeal()
            self._start()
        elif self._seal is None:
            assert self._secrets is not None, "plaintext has its seal from step 0 on"
            self._seal = self._secrets.unwrap({part.site: part.data for part in step.parts})
            self._start()  # the first tag shows whether all sites have the same key
        else:
            self._take(step)
        return self._next()

    def _met(self, roster: tuple[Offer, ...]) -> Mapping[str, str]:
        assert self._offer is not None
        if (fault := roster_fault(self.plan, self._offer, roster)) is not None:
            raise Refused(fault)
        sites = tuple(offer.site for offer in roster)
        if (fault := self._accept(sites)) is not None:
            raise Refused(fault)
        self._roster, self.sites = roster, sites
        self._chain = self._shared("transcript", lambda: transcript_of(self.plan, roster))
        return {} if self._secrets is None else self._secrets.wrap(self.plan, roster, self._chain)

    def _start(self) -> None:
        """Start from the latest state that all sites have."""
        assert self._seal is not None
        found = self._shared("common position", lambda: common_position(self._roster))
        if self.kept is not None and self.kept.sites == self.sites and found is not None:
            self.kept = self.kept.upto(found[0])
        else:
            self.kept = Kept(self.sites, self.job.data_digest, self._seal.resume_key)
        self._log.begin(self.kept)
        self._chain = hashlib.sha256(self._chain + self.kept.digests[-1].encode()).digest()
        self._replay(self.kept)

    def _replay(self, kept: Kept) -> None:
        """Compute the state that follows from these sums."""
        self._computation = computation_of(self.plan, len(kept.sites), self.job.n_unlabelled)
        self._position, self.sites = 0, kept.sites
        self.job.begin(kept.sites, kept.key)
        self.state, self.asked = self._folded(self._computation.start, "start")
        if self._exchange is not None:
            self._following = self._exchange.first(len(kept.sites))
            for record in kept.sums:
                assert record.values is not None
                self._exchange.recall(record.values[:, 0].view(WORD))
                self.state, self.asked = ExchangeState("end"), None
            return
        for total in kept.sums:
            assert self.asked is not None, "a sum follows a question"
            if self._mine(self.asked):
                self.job.answer(self.asked)  # restores the job's state after this answer
            self._fold_in(total)

    def _folded(self, make: Callable[[], Any], name: object) -> tuple[Any, Round | None]:
        computation = self._computation
        assert computation is not None

        def made() -> tuple[Any, Round | None]:
            try:
                state = make()
                return state, None if computation.outcome(state) is not None else computation.round(state)
            except BadData as error:
                return Stopped(str(error)), None

        return self._shared(name, made)

    def _shared(self, name: object, make: Callable[[], Made]) -> Made:
        """``make()`` through the cache that members in one process share."""
        return self._fold((self.plan.run, self.attempt, self._position, name), make)

    def _fold_in(self, total: Total) -> None:
        computation, state, asked, values = self._computation, self.state, self.asked, total.values
        assert computation is not None
        assert asked is not None
        self._position += 1
        self.state, self.asked = self._folded(
            lambda: computation.step(state, asked, NO_VALUES if values is None else values, total.scalars),
            ("step", values is None),
        )

    def _answering(self, asked: Round) -> tuple[str, ...]:
        every = len(asked.answering) == len(self.sites)
        return self.sites if every else tuple(self.sites[i] for i in asked.answering)

    @property
    def _exchange(self) -> AdditiveJob | None:
        """The job, if its stages are more than sums."""
        return self.job if isinstance(self.job, AdditiveJob) else None

    def _mine(self, asked: Round) -> bool:
        return self.name in self._answering(asked)

    def _take(self, step: Step) -> None:
        """Open the sum of the answers to the open question, and step the computation."""
        asked, head = self.asked, self._head
        assert asked is not None
        assert head is not None
        assert self._seal is not None
        assert self.kept is not None
        if step.words is None:
            raise Breach(f"sent step {step.step} of run {self.plan.run} without the sum of its answers.")

        def compared() -> str | None:
            return heads_fault(step.heads, head, self.sites)

        if step.heads and (fault := self._shared(("heads", head.chain, head.state), compared)) is not None:
            raise Breach(f"sent heads that differ between sites: {fault}")
        if self._exchange is not None:
            self._hear(step.step, step.words.values, self._exchange)
            return
        row, layout = step.words.values, asked.layout
        words = self._seal.open(self._context(head), row, layout.size, self._answering(asked), private=asked.private)
        if words is None:
            total = Sum(None, ())
        elif len(words) != layout.size:
            raise BadData(f"a sum has {len(words)} words; expected {layout.size}.")
        else:
            read = words
            total = self._shared("sum", lambda: Sum(*opened(layout, read, asked.exponents)))
        self._chain = hashlib.sha256(self._chain + canonical(step.step, step.words.digest)).digest()
        self.kept = self._log.append(self.kept.with_sum(total))
        self._fold_in(total)

    # --- an exchange of second moments ------------------------------------------------------------------------------

    def _hear(self, number: int, row: Row, job: AdditiveJob) -> None:
        """Read the answers of the open stage of an exchange, and take its next stage."""
        asked, head, seal, told, stage = self.asked, self._head, self._seal, self._telling, self.state.stage
        assert asked is not None
        assert head is not None
        assert seal is not None
        assert told is not None
        context, n = self._context(head), asked.layout.size
        added, rest = row[: n + TAG_WORDS * bool(n)], row[n + TAG_WORDS * bool(n) :]
        total = seal.open(context, added, n, self.sites, private=False) if n else None
        if len(rest) != sum(map(_words_of, self._following.lengths)):
            raise BadData(f"the answers of stage {stage} have {len(row)} words, which is not their number.")
        shown, texts, to_me = list[Row](), list[bytes](), dict[int, bytes]()
        digest = hashlib.sha256(self._chain + canonical(number) + added.tobytes())
        me = self.sites.index(self.name)
        for v, (site, lengths) in enumerate(zip(self.sites, self._following.lengths, strict=True)):
            mine, rest = rest[: _words_of(lengths)], rest[_words_of(lengths) :]
            public, sealed = mine[: lengths.shown], mine[lengths.shown :].tobytes()
            if v == me and told.shown is not None:  # as this site made it: with a changed copy the chains differ
                public = told.shown
            shown.append(public)
            digest.update(public.data.cast("B") if public.size else b"")
            if lengths.to_all is not None:
                text, sealed = sealed[: lengths.to_all + SEAL_BYTES], sealed[_padded(lengths.to_all + SEAL_BYTES) :]
                own = told.to_all if v == me else None
                texts.append(own or seal.open_text(context, text, site, to_all=True))
                digest.update(texts[-1])
            for u, size in sorted(lengths.to_each.items()):
                text, sealed = sealed[: size + SEAL_BYTES], sealed[_padded(size + SEAL_BYTES) :]
                if u == me:
                    to_me[v] = seal.open_text(context, text, site, to_all=False)
        self._chain = digest.digest()
        self._position += 1
        self._following = job.hear(stage, Heard(total, shown, texts, to_me), self._chain)
        self.state = ExchangeState(self._following.stage, self._following.added, self.state.done + 1)
        self.asked = None if self.state.stage == "end" else self.computation.round(self.state)
        if self.asked is None:  # written before the answer leaves: another process can make the models
            assert self.kept is not None
            self.kept = self._log.append(self.kept.with_sum(Sum(job.record.view(np.float64)[:, None], ())))

    def _told(self, asked: Round, head: Head, job: AdditiveJob) -> tuple[Words, int]:
        """The words of this site's answer in the open stage, and how many of the last ones are passed on."""
        assert self._seal is not None
        self._may_answer(asked)
        told, context = job.tell(self.state.stage, self._chain), self._context(head)
        self._telling, row, sealed = told, list[Row](), list[bytes]()
        if told.summed is not None:
            row.append(self._seal.mask(context, told.summed, self.sites, private=False))
        added = sum(map(len, row))
        row += [] if told.shown is None else [told.shown]
        sealed += [] if told.to_all is None else [self._seal.close(context, told.to_all)]
        for u, text in sorted(told.to_each.items()):
            if told.blinded:
                senders = tuple(site for site in self.sites if site != self.sites[u])
                text = self._seal.blind(context, np.frombuffer(text, WORD), senders, self.sites[u]).tobytes()
            sealed.append(self._seal.close(context, text, self.sites[u]))
        row.append(np.frombuffer(b"".join(text.ljust(_padded(len(text)), b"\0") for text in sealed), WORD))
        return Words(np.concatenate(row)), sum(map(len, row)) - added

    # --- answers --------------------------------------------------------------------------------------------------

    def _next(self) -> Answer:
        """The answer to the open question; at the end, the outcome."""
        report = self._shared("report", self._reported)
        head = self._headed(self._shared("head", self._digest))
        words, passed = None, 0
        if self.asked is not None and self._exchange is not None:
            words, passed = self._told(self.asked, head, self._exchange)
        elif self.asked is not None and self._mine(self.asked):
            words = self._words(self.asked, head)
        answer = self._said(report, words=words, head=head, passed=passed)
        if self.asked is None:
            assert self.kept is not None
            ended = Ended(answer.head, self.sites, len(self.kept.sums))
            self.kept = replace(self.kept, ended=ended)
            self._log.end(ended)
        return answer

    def _reported(self) -> Report:
        if isinstance(self.state, Stopped):
            return Report(outcome=Outcome.SITE_FAULT.name, reason=self.state.reason)
        return report_of(self.computation, self.state, self.asked)

    def _digest(self) -> str:
        """The keyed digest of the open question; at the end, of the result."""
        assert self._seal is not None
        if isinstance(self.state, Stopped):
            return self._seal.digest(canonical("stopped", self.state.reason), ())
        if self.asked is not None:
            return self._seal.digest(self.asked.words, self.asked.vectors)
        over, final = self.computation.outcome(self.state), self.computation.final(self.state)
        return self._seal.digest(
            canonical("end", "" if over is None else over[0].name), map(np.ascontiguousarray, final)
        )

    def _words(self, asked: Round, head: Head) -> Words:
        assert self._seal is not None
        self._may_answer(asked)
        values, scalars = self.job.answer(asked)
        row = summand(asked.layout, values, scalars, asked.exponents, len(self.sites))
        return Words(self._seal.mask(self._context(head), row, self._answering(asked), private=asked.private))

    def _headed(self, state: str) -> Head:
        return Head(self.name, self._chain.hex(), state)

    def _context(self, head: Head) -> bytes:
        return hashlib.sha256(canonical("coreg step 1", head.chain, head.state)).digest()

    def _said(
        self,
        report: Report | None = None,
        parts: tuple[Part, ...] = (),
        words: Words | None = None,
        head: Head | None = None,
        passed: int = 0,
    ) -> Answer:
        head = head or self._headed("")
        said = Answer(self.plan.run, self.attempt, self._step, head, report or Report(), parts, words, passed)
        self._head, self.last = head, said.report
        self._answers = {self._step - 1: self._answers[self._step - 1]} if self._step - 1 in self._answers else {}
        self._answers[self._step] = said
        self._step += 1
        return said

    # --- the end --------------------------------------------------------------------------------------------------

    def finish(self, finished: Finished) -> bool:
        """Whether the computation has ended in the same state at every site; `state` is then the last one.

        Raises
        ------
        Breach
            the computation has not ended, or it ended in another state at some site.
        Outdated
            see there: a backup of this site was restored.
        """
        if not finished.heads:
            if finished.outcome.good:
                raise Breach(f"ended run {self.plan.run} as converged without the head of any site.")
            return False
        kept = self.kept
        ended = None if kept is None else kept.ended  # here, or in an earlier process
        if ended is None and self._step == 0:
            raise Outdated(
                f"run {self.plan.run} has ended, and this site's sums of it are older or missing (was a backup restored?). If it "
                "has the model of this run already, start the agent again."
            )
        if ended is None or kept is None:
            raise Breach(f"ended run {self.plan.run} before this site received the last step.")
        fault = heads_fault(finished.heads, ended.head, ended.sites)
        if fault is not None:
            raise Breach(f"ended run {self.plan.run} with heads that differ between sites: {fault}")
        if self._computation is None or self.asked is not None:
            self._replay(kept)
        return self.outcome is not None

    @property
    def outcome(self) -> tuple[Outcome, str] | None:
        """Outcome and reason of the computation; None before its end."""
        if isinstance(self.state, Stopped):
            return Outcome.SITE_FAULT, self.state.reason
        return None if self._computation is None else self._computation.outcome(self.state)

    @property
    def began(self) -> bool:
        """Whether the computation has a state."""
        return self._computation is not None

    @property
    def stopped(self) -> bool:
        """Whether the computation ended by a sum that honest sites cannot produce."""
        return isinstance(self.state, Stopped)

    @property
    def computation(self) -> Computation:
        """The computation of this membership; available after the first step of the log."""
        assert self._computation is not None
        return self._computation
