r"""A site as a function: one message of the coordinator in, a list of answers out. No socket, no clock, no file.

Knows the site's own arrays, its policy (as a function from a plan to an objection) and the messages; nothing of other
sites. Nothing is answered outside a plan that was accepted; a repeated question gets the same answer from the cache,
and another question under an old number is refused.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import numpy as np
from jaxtyping import Float64

from coreg_core.arrays import Arr
from coreg_core.bases import EveryPoint, LabelledPoints, Landmarks, LinearFeatures, Span
from coreg_core.errors import CoregError
from coreg_core.kernels import Linear, make_kernel, resolve_bandwidth, resolve_ridge
from coreg_core.messages import (
    PROTOCOL_VERSION,
    Ask,
    Fault,
    Finished,
    FromSite,
    Hello,
    Leaving,
    Plan,
    PlanAccepted,
    PlanRefused,
    Prediction,
    Rejected,
    ToSite,
    Vector,
)
from coreg_core.rounds.questions import most_questions, question_fault
from coreg_core.rounds.schedule import Query, Stop
from coreg_core.views import KernelExpansion, Solution, View, make_view


class SitePhase(Enum):
    """Where a site is in a run."""

    OUTSIDE = "no plan accepted"
    TAKING_PART = "answering rounds"
    OVER = "the run is over for this site"


@dataclass(frozen=True)
class PrivateData:
    """What never leaves: the preprocessed labelled rows, the targets in their own units, the unlabelled rows."""

    X: Float64[Arr, "n d"]
    y: Float64[Arr, " n"]
    Z: Float64[Arr, "m d"]
    ids_digest: str
    salt: bytes = b""  # a secret of the site, so that its data digest cannot be guessed at


@dataclass(frozen=True)
class SiteResult:
    """How the run ended for this site; ``solutions`` are its models in transformed targets, one a column (λ)."""

    stop: Stop
    reason: str
    plan: Plan | None
    solutions: tuple[Solution, ...]
    alone: Solution | None
    shift: float
    scale: float

    @property
    def functions(self) -> tuple[KernelExpansion, ...]:
        """One for each coupling of the plan; empty where no round was verified."""
        return tuple(s.function for s in self.solutions)


def accept_everything(plan: Plan) -> str | None:  # noqa: ARG001 - the shape of a policy
    """A policy without an objection."""
    return None


class Site:
    """See the module's docstring."""

    def __init__(
        self,
        name: str,
        data: PrivateData,
        objection: Callable[[Plan], str | None] = accept_everything,
        pin_threads: Callable[[int], int] = lambda threads: threads,
    ):
        self.name, self.phase = name, SitePhase.OUTSIDE
        self.plan: Plan | None = None
        self.result: SiteResult | None = None
        self.answered = 0
        self._data, self._objection, self._pin_threads = data, objection, pin_threads
        self.view: View | None = None  # the factored data, once a plan is accepted
        self._acceptance: PlanAccepted | None = None
        self._shift, self._scale = 0.0, 1.0
        # The last answer, by (run, round, attempt). Only the last question can be repeated: the coordinator writes an
        # answered round down before it asks the next.
        self._last: tuple[tuple[str, int, int], Ask, Prediction] | None = None

    def hello(self) -> Hello:
        """The first message of every session."""
        return Hello(self.name, PROTOCOL_VERSION, len(self._data.Z), self._data.ids_digest)

    def handle(self, message: ToSite) -> list[FromSite]:
        """The answers to one message."""
        match message:
            case Plan():
                return [self._planned(message)]
            case Ask():
                return [self._asked(message)]
            case Finished():
                return self._finished(message)
            case Rejected():
                return []

    # --- the plan -------------------------------------------------------------------------------------------------

    def _planned(self, plan: Plan) -> FromSite:
        if self._acceptance is not None and self.plan == plan:
            return self._acceptance  # a new session of the same run: nothing has to be factored again
        if self.phase is not SitePhase.OUTSIDE and self.plan is not None and self.plan.run == plan.run:
            return PlanRefused(plan.run, "the plan changed in the middle of the run.")
        if self.name not in plan.sites:
            return PlanRefused(plan.run, f"the plan does not list {self.name}.")
        if reason := self._objection(plan):
            return PlanRefused(plan.run, reason)
        try:
            threads = self._pin_threads(plan.threads)
            shift, scale = self._units(plan)
            y = (self._data.y - shift) / scale
            self.view = self._factor(plan, y)
        except CoregError as error:
            return PlanRefused(plan.run, str(error))
        except MemoryError:
            m = len(self._data.Z)
            return PlanRefused(
                plan.run, f"not enough memory to factor form={plan.form!r} with {m} unlabelled instances."
            )
        # What was answered is not forgotten with a new run: the coordinator begins one whenever it likes.
        self.plan, self.phase, self.result, self._last = plan, SitePhase.TAKING_PART, None, None
        self._shift, self._scale = shift, scale
        self._acceptance = PlanAccepted(
            plan.run, plan.digest, self._digest(plan), self.view.bound(plan.bound), float(y @ y), threads
        )
        return self._acceptance

    def _units(self, plan: Plan) -> tuple[float, float]:
        """Shift and scale: the targets that the run sees are (y - shift) / scale."""
        y = self._data.y
        match plan.target:
            case "raw":
                return 0.0, 1.0
            case "centred":
                return float(y.mean()), 1.0
            case "standardised":  # equal targets have a standard deviation of rounding errors, not of zero
                return float(y.mean()), float(y.std()) if np.ptp(y) > 0.0 else 1.0

    def _factor(self, plan: Plan, y: Float64[Arr, " n"]) -> View:
        X, Z = self._data.X, self._data.Z
        ridge = resolve_ridge(plan.ridge, X)
        span: Span
        match plan.form:
            case "exact":
                span = EveryPoint()
            case "semi-parametric":
                span = LabelledPoints()
            case "landmarks":
                span = Landmarks(plan.landmarks, plan.seed)
            case "linear":
                return make_view(LinearFeatures(), Linear(), X, y, Z, ridge)
        bandwidth = resolve_bandwidth(plan.bandwidth, X, plan.kernel)
        kernel = make_kernel(plan.kernel, bandwidth=bandwidth, degree=plan.degree, offset=plan.offset)
        return make_view(span, kernel, X, y, Z, ridge)

    def _digest(self, plan: Plan) -> str:
        digest = hashlib.sha256(self._data.salt + plan.run.encode())
        for array in (self._data.X, self._data.y, self._data.Z):
            digest.update(np.ascontiguousarray(array).tobytes())
            digest.update(str(array.shape).encode())
        return digest.hexdigest()

    # --- rounds ---------------------------------------------------------------------------------------------------

    def _asked(self, ask: Ask) -> FromSite:
        number = (ask.run, ask.round, ask.attempt)
        if self.phase is not SitePhase.TAKING_PART or self.plan is None or self.view is None:
            return Fault(*number, "no plan is accepted, so nothing is answered.")
        if ask.run != self.plan.run:
            return Fault(*number, f"asked for run {ask.run}, this site takes part in {self.plan.run}.")
        if self._last is not None and self._last[0] == number:
            if self._last[1] == ask:
                return self._last[2]
            return Fault(*number, "the same question number came with another target; only the first was answered.")
        if self._last is not None and number[1:] < self._last[0][1:]:
            return Fault(*number, f"question {ask.round} is older than the last answered, {self._last[0][1]}.")
        if reason := self._unanswerable(ask):
            return Fault(*number, reason)
        try:
            values = self.view.respond(ask.targets.values, np.array(ask.weights), ask.part)
        except CoregError as error:
            return Fault(*number, str(error))
        except MemoryError:
            return Fault(*number, f"not enough memory to answer with {len(self._data.Z)} unlabelled instances.")
        prediction = Prediction(*number, Vector(values))
        self._last = (number, ask, prediction)
        self.answered += 1
        return prediction

    def _unanswerable(self, ask: Ask) -> str | None:
        assert self.plan is not None
        expected = (len(self._data.Z), len(self.plan.coupling))
        if ask.targets.shape != expected or len(ask.weights) != expected[1]:
            return f"a target of shape {ask.targets.shape} with {len(ask.weights)} weights, expected {expected}."
        if not ask.targets.finite or not all(np.isfinite(w) and w >= 0 for w in ask.weights):
            return "a target or a weight is not finite, or a weight is negative."
        last = None if self._last is None else self._last[1]
        if last is not None and last.attempt == ask.attempt and last.weights != ask.weights:
            return "other weights than before in the same attempt, so another membership under its number."
        query = Query(ask.targets.values, np.array(ask.weights), ask.part)
        n_views = range(max(1, min(self.plan.min_sites, len(self.plan.sites))), len(self.plan.sites) + 1)
        if reason := question_fault(self.plan.schedule, self.plan.coupling, n_views, query):
            return f"nothing that the plan's schedule asks: {reason}"
        if self.answered >= (most := most_questions(self.plan.max_rounds)):
            return (
                f"more than {most} questions, the most that this agent answers under the plan's "
                f"max_rounds={self.plan.max_rounds}, counted over attempts and runs since it was started. "
                "Its operator may start it again."
            )
        return None

    # --- the end --------------------------------------------------------------------------------------------------

    def _finished(self, finished: Finished) -> list[FromSite]:
        if self.plan is not None and finished.run != self.plan.run:
            return []
        solutions: tuple[Solution, ...] = ()
        alone: Solution | None = None
        if self.view is not None and finished.targets is not None and finished.targets.finite:
            targets = finished.targets.values
            if targets.shape == (len(self._data.Z), len(finished.weights)):
                solutions = tuple(
                    self.view.solve(np.ascontiguousarray(targets[:, j]), weight)
                    for j, weight in enumerate(finished.weights)
                )
            alone = self.view.solve(np.zeros(len(self._data.Z)), 0.0)
        self.result = SiteResult(finished.stop, finished.reason, self.plan, solutions, alone, self._shift, self._scale)
        self.phase = SitePhase.OVER
        return [Leaving("the run is over")]
