"""A job whose answers are only added: every site takes the steps of one computation on the same sums."""

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from coreg_core.agreement.schedules.schedule import Progress
from coreg_core.computation.agreement import AgreementComputation
from coreg_core.computation.alignment import AlignmentComputation
from coreg_core.computation.question import Question
from coreg_core.errors import BadData
from coreg_core.numerics.arrays import Arr
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan
from coreg_core.secure.sums import opened, summand
from site_agent.machine.job import Heard, Share, SiteResult, Telling

Computation: TypeAlias = AgreementComputation | AlignmentComputation


class Summand(Protocol):
    """A site's own part: its summands, and its result from the last state."""

    ids_digest: str
    n_unlabelled: int
    data_digest: str

    def begin(self, sites: tuple[str, ...], key: bytes) -> None: ...

    def computation(self, n_sites: int) -> Computation: ...

    def answer(self, asked: Question) -> tuple[Arr, tuple[float, ...]]:
        """Vectors and scalars.

        Raises
        ------
        CoregError
            these rows do not allow an answer; the message names no datum.
        """
        ...

    def result(self, computation: Any, state: Any, position: int, outcome: Outcome, reason: str) -> SiteResult:
        """From the computation's last state; ``position``: this site's, in site order."""
        ...


class Sums:
    """See `site_agent.machine.job.Job`."""

    def __init__(self, plan: Plan, name: str, own: Summand):
        self.own, self._plan, self._name = own, plan, name
        self.ids_digest, self.n_unlabelled, self.data_digest = own.ids_digest, own.n_unlabelled, own.data_digest
        self.state: Any = None
        self.progress: Progress | None = None
        self._fault = ""  # of a sum that honest sites cannot give: the run ends at every site with this reason
        self._computation: Computation | None = None

    @property
    def computation(self) -> Computation:
        """Of this membership."""
        assert self._computation is not None, "begun"
        return self._computation

    def begin(self, sites: tuple[str, ...], key: bytes, share: Share) -> Question:
        """See `Job.begin`."""
        self.own.begin(sites, key)
        self._sites, self._share, self._fault, self.progress = sites, share, "", None
        self._computation = computation = self.own.computation(len(sites))
        first = self._stepped("start", computation.start)
        assert first is not None, "no computation ends without a question"
        return first

    def tell(self, asked: Question, chain: bytes) -> Telling:  # noqa: ARG002
        """See `Job.tell`."""
        values, scalars = self.own.answer(asked)
        return Telling(summand(asked.layout, values, scalars, asked.exponents, len(self._sites)))

    def hear(self, asked: Question, heard: Heard, chain: bytes) -> Question | None:  # noqa: ARG002
        """See `Job.hear`."""
        total, computation, state = heard.total, self.computation, self.state
        assert total is not None
        values, scalars = self._share("sum", lambda: opened(asked.layout, total, asked.exponents))
        return self._stepped("step", lambda: computation.step(state, asked, values, scalars))

    def _stepped(self, name: str, step: Callable[[], Any]) -> Question | None:
        computation = self.computation

        def made() -> tuple[Any, Question | None, Progress | None, str]:
            try:
                state = step()
                asked = None if computation.outcome(state) is not None else computation.round(state)
                return state, asked, computation.progress(state), ""
            except BadData as error:
                return self.state, None, None, str(error)

        self.state, asked, self.progress, self._fault = self._share(name, made)
        return asked

    @property
    def rounds(self) -> int:
        """See `Job.rounds`."""
        return 0 if self._fault else self.computation.rounds(self.state)

    @property
    def portion(self) -> float | None:
        """How much of an alignment is done; None for other runs."""
        return None if self._computation is None else self._computation.portion(self.state)

    @property
    def outcome(self) -> tuple[Outcome, str] | None:
        """See `Job.outcome`."""
        return (Outcome.SITE_FAULT, self._fault) if self._fault else self.computation.outcome(self.state)

    def result(self) -> SiteResult:
        """See `Job.result`."""
        assert self.outcome is not None
        if self._fault:
            return SiteResult(*self.outcome, self._plan)
        return self.own.result(self.computation, self.state, self._sites.index(self._name), *self.outcome)
