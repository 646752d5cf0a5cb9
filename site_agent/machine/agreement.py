r"""The agreement at a site: sizes first, then respond(t, μ) of its view, and its models at the end.

    sizes → respond affine → respond linear → … → verified → the models

A site factors its data once, before it accepts the plan. Then each question is a target t and a
weight μ, and the answer is the prediction of the function that fits its labels and t best. The
labels appear in an affine answer only. A linear answer is the change that a change of t makes.

All sites see the same sums, and step the same solver on them, so each knows the next question.
At the end a site solves once more at the verified target: that function is its model. Of a path of
λ it keeps the one that its own left-out labels prefer, which may be λ = 0.

Masks cannot hide a label that makes up almost all of an answer. A site measures the share of one
label before it accepts a plan (`coreg_core.agreement.label_share`), and refuses above a limit.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf, isfinite

import numpy as np
from jaxtyping import Float64

from coreg_core.agreement.label_share import share_of_one_label
from coreg_core.agreement.left_out import LabelledFit, PathChoice, choose_on
from coreg_core.agreement.objective import powered, stays, sweep_weight, weight_of
from coreg_core.agreement.rounds import RoundQuestion, Rounds, RoundsState
from coreg_core.agreement.solver import FinalTargets, Progress
from coreg_core.agreement.views import Solution, View, make_view
from coreg_core.arrays import Arr, evenly
from coreg_core.errors import BadData, CoregError, Refused
from coreg_core.kernels import Linear, make_kernel
from coreg_core.objectives.agreement import Agreement, LabelUnits
from coreg_core.outcomes import Notice, Outcome
from coreg_core.plan import Plan
from coreg_core.secure.sums import opened, summand
from coreg_core.selection import MANY, kernel_rule
from coreg_core.shapes import Shape
from coreg_core.spans import EveryPoint, LabelledPoints, Landmarks, LinearFeatures, Span
from site_agent.machine.objective import Answers, Fold, Question, Reply
from site_agent.machine.results import AgreementResult
from site_agent.site_data import PrivateData

LABEL_SHARE_MAX = 0.95  # above it, every agent refuses the plan
FACTOR_MEMORY = 4.0  # GiB of factors that an agent keeps in the exact form
# Leave-one-out needs as many labels. With fewer, all members of the path are kept, and none is
# chosen.
LEAST_TO_CHOOSE = 3
SMALLEST_LABEL = 2.0**-400  # squares of larger labels, and of their rounding, are normal numbers
_NONE = np.zeros((0, 0))


def units(y: Float64[Arr, " n"], rule: LabelUnits) -> tuple[float, float]:
    """Shift and divisor: the run sees (y − shift) / divisor."""
    if rule == "centred" or not np.ptp(y) > 0.0:
        # The computed standard deviation of equal targets is a rounding error, not zero.
        return float(y.mean()), 1.0
    return float(y.mean()), float(y.std())


def factor(terms: Agreement, data: PrivateData, y: Float64[Arr, " n"]) -> View:
    """The site's view of its own rows and the shared ones."""
    X = data.X
    Z = data.Z
    n_weights = sum(coupling > 0.0 for coupling in set(terms.coupling))
    if terms.form == "exact":
        _require_room(n_weights, len(X), len(Z))
    kind = "linear" if terms.form == "linear" else terms.kernel
    bandwidth, ridge = kernel_rule(X, y, kind, terms.bandwidth, terms.ridge)
    if terms.form == "linear":
        return make_view(LinearFeatures(), Linear(), X, y, Z, ridge)
    kernel = make_kernel(terms.kernel, bandwidth=bandwidth)
    return make_view(_span(terms, len(X)), kernel, X, y, Z, ridge, n_weights=n_weights)


def _span(terms: Agreement, n_labelled: int) -> Span:
    if terms.form == "exact":
        return EveryPoint()
    if n_labelled <= terms.landmarks:
        return LabelledPoints()
    return Landmarks(terms.landmarks, terms.seed)


def _require_room(n_weights: int, n: int, m: int) -> None:
    """Refuse an exact form that does not fit: 8 m² bytes for each coupling, and 8 n² for labels."""
    factors = max(n_weights, 1)
    needed = (8 * factors * m * m + 8 * n * n) / 2**30
    if needed > FACTOR_MEMORY:
        raise BadData(
            f'form = "exact" needs {needed:,.3g} GiB of factors ({factors} couplings, {m} '
            f"unlabelled and {n} labelled rows). An agent has at most {FACTOR_MEMORY:g} GiB for "
            'them. Use form = "semi-parametric", or fewer couplings in a run.'
        )


def many_labels(terms: Agreement, n: int) -> tuple[str, ...]:
    """The finding that a site's rows are too many for the span of all of them, if they are."""
    if terms.form != "semi-parametric" or n <= terms.landmarks:
        return ()
    return (
        (
            f"This site has {n} labelled rows, more than landmarks = {terms.landmarks}: its"
            " function uses so many points, drawn from the labelled and the shared rows, instead"
            " of all labelled rows."
        ),
    )


class TooMuchOfOneLabel(Refused):
    """Masks cannot hide a label. The text leaves the site.

    ``here`` is for its operator alone, because it depends on the rows.
    """

    def __init__(self, share: float):
        super().__init__(
            "at some shared instance, one label of this site would make up more than "
            f"{LABEL_SHARE_MAX:g} of the variance of the sum, which masks cannot hide. Use a "
            "smaller coupling, a wider kernel, a larger ridge, or shared instances other than this "
            "site's labelled rows."
        )
        self.here = f"here the largest share of one label would be {share:.2g}"


@dataclass(frozen=True, eq=False)
class _Place:
    """Where an attempt is, and its open question."""

    state: RoundsState
    round_question: RoundQuestion | None = None  # of the mathematics
    question: Question | None = None  # the same as the machine of a site asks it


class AgreementComputation:
    """`site_agent.machine.objective.Computation`: factors the site's data under the plan."""

    within = inf  # seconds between two answers of an attempt
    rounds = 0
    progress: Progress | None = None

    def __init__(
        self,
        plan: Plan,
        terms: Agreement,
        name: str,
        data: object,
        pin_threads: Callable[[int], int],
        _random_bytes: object = None,
    ):
        if not isinstance(data, PrivateData):
            raise Refused("this site was started with a model for scoring, so it cannot train.")
        pin_threads(plan.iteration.threads)
        self.plan = plan
        self.terms = terms
        self.name = name
        self.data = data
        self.n_unlabelled = len(data.Z)
        self.ids_digest = data.ids_digest
        self.data_digest = data.digest(plan.run)
        fault = terms.target_fault(data.positive)
        if fault is not None:
            raise BadData(fault)
        if len(data.y) == 0:
            raise BadData(
                "the agreement objective needs labelled rows, and this site has none. Use the "
                "additive objective."
            )
        self.shift, self.divisor = units(data.y, terms.label_units)
        self._y = (data.y - self.shift) / self.divisor
        self._factor()
        self._require_hidden_labels(len(plan.sites), plan.membership.min_sites)

    def _factor(self) -> None:
        """The site's view, and what the first question asks: its bound and its labels' squares."""
        largest_label = float(np.abs(self._y).max())
        if 0.0 < largest_label < SMALLEST_LABEL:
            raise BadData(
                "the squares of the labels are too small for float64. Scale the labels by a power "
                "of ten."
            )
        kernel = self.terms.kernel
        with _as_bad_data(f'these rows cannot be factored under kernel = "{kernel}"'):
            self.view: View = factor(self.terms, self.data, self._y)
            self._bound = self.view.bound()
            self._label_squares = float(self._y @ self._y)
            first_answer = self.view.respond(np.zeros((self.n_unlabelled, 1)), np.zeros(1))
        sizes = [self._bound, self._label_squares]
        if not (np.isfinite(sizes).all() and np.isfinite(first_answer).all()):
            raise BadData(f'kernel = "{kernel}" overflows on these rows. Scale the features.')
        self._bound_powered = powered(self._bound)

    def _require_hidden_labels(self, n_sites: int, n_summed: int) -> None:
        """Check the share of one label, at the weights of ``n_sites``, in sums over ``n_summed``.

        The worst case has the largest weights, of all sites, and the smallest sum.
        """
        if not self.plan.masked:
            return
        name = self.plan.iteration.name
        weights = [weight_of(name, coupling, n_sites) for coupling in self.terms.coupling]
        share = share_of_one_label(self.view, self.data.X, self.data.Z, weights, n_summed)
        if share > LABEL_SHARE_MAX:
            raise TooMuchOfOneLabel(share)

    # --- rounds ---------------------------------------------------------------------------------

    def begin(self, sites: tuple[str, ...], key: bytes, chain: bytes, fold: Fold) -> None:  # noqa: ARG002
        self._require_hidden_labels(len(sites), len(sites))
        self._sites = sites
        self._fold = fold
        self._rounds = Rounds(self.terms, self.plan.iteration, len(sites), self.n_unlabelled)
        self._place = fold(("start", chain), lambda: self._at(self._rounds.start()))
        self.rounds = 0
        self.progress = None
        self._told = 0

    def _at(self, state: RoundsState) -> _Place:
        """The state with the next question, the same at all sites."""
        if state.outcome is not None:
            return _Place(state)
        round_question = self._rounds.ask(state)
        asked_site = round_question.site
        sites = self._sites if asked_site is None else (self._sites[asked_site],)
        layout = round_question.layout
        question = Question(
            round_question.kind,
            dict.fromkeys(sites, Shape(summed=layout.size)),
            summed=layout.size,
            has_parts=False,
            numbers=layout.plain + layout.scalars,
            about=round_question.about,
        )
        return _Place(state, round_question, question)

    def ask(self) -> Question | None:
        return self._place.question

    def answer(self, question: Question, chain: bytes) -> Reply:  # noqa: ARG002
        asked = self._place.round_question
        assert asked is not None, "a question is open"
        values = _NONE
        scalars = tuple[float, ...]()
        if asked.kind == "sizes":  # in the order of `RoundsState.sums`
            shrinkage = stays(self._bound, self._rounds.weights.tolist())
            scalars = (self._bound_powered, self._label_squares, float(len(self._y)), *shrinkage)
        else:
            values = self._predictions(asked)
        M = len(self._sites)
        return Reply(summed=summand(asked.layout, values, scalars, asked.exponents, M))

    def _predictions(self, asked: RoundQuestion) -> Arr:
        """respond(t, μ): the fitted function at the shared rows, a column for each coupling."""
        with _as_bad_data("cannot be computed"):
            values: Arr = self.view.respond(asked.targets, self._rounds.weights, asked.part)
        if not np.isfinite(values).all():
            raise BadData(
                "its own answer is not finite: features or label column are too large for this "
                "kernel. Scale them."
            )
        return values

    def take(self, question: Question, answers: Answers, chain: bytes) -> None:  # noqa: ARG002
        place = self._place
        total = answers.total

        def stepped() -> _Place:
            assert total is not None
            assert place.round_question is not None
            values, scalars = opened(
                place.round_question.layout, total, place.round_question.exponents
            )
            return self._at(self._rounds.step(place.state, place.round_question, values, scalars))

        self._place = self._fold(("step", chain), stepped)
        self.rounds = self._place.state.round
        self.progress = self._place.state.progress

    def news(self, run: str) -> Notice | None:
        progress = self.progress
        if progress is None or progress.round <= self._told:
            return None
        self._told = progress.round
        return progressed(run, progress)

    @property
    def outcome(self) -> tuple[Outcome, str]:
        outcome = self._place.state.outcome
        assert outcome is not None, "the solver has ended"
        return outcome, ""

    # --- the end --------------------------------------------------------------------------------

    def result(self) -> AgreementResult:
        """The site's models, one for each column, if a round was verified."""
        models = self._rounds.models(self._place.state)
        solutions = tuple[Solution, ...]()
        couplings = tuple[float, ...]()
        choice: PathChoice | None = None
        if models is not None:
            targets = models.of(self._sites.index(self.name))
            couplings = tuple(column.coupling for column in self._rounds.columns)
            solutions = tuple(
                self.view.solve(np.ascontiguousarray(targets[:, j]), float(weight))
                for j, weight in enumerate(models.weights)
            )
            choice = self._own_choice(models, targets, couplings, solutions)
        return AgreementResult(
            *self.outcome,
            findings=many_labels(self.terms, len(self._y)),
            solutions=solutions,
            alone=self.view.solve(np.zeros(self.n_unlabelled), 0.0),
            shift=self.shift,
            divisor=self.divisor,
            couplings=couplings,
            choice=choice,
        )

    def _own_choice(
        self,
        models: FinalTargets,
        targets: Arr,
        couplings: tuple[float, ...],
        solutions: tuple[Solution, ...],
    ) -> PathChoice | None:
        """The member of the path with the least left-out error.

        The common target z of conjugate gradients is the mean of all M predictions, this site's p
        among them, at μ = 2λM. It would know a label that is left out. The same function is the
        best one at the mean of the other sites, (M z − p)/(M − 1), with μ = 2λ(M − 1): there the
        labels are left out. Targets of Algorithm 1 are that mean already.
        """
        if len(couplings) < 2 or len(self._y) < LEAST_TO_CHOOSE:
            return None
        target_is_of_others = self.plan.iteration.name == "block-coordinate-descent"
        M = len(self._sites)
        rows = evenly(len(self._y), MANY)
        # Of some rows alone, the shift stays that of all: one label moves it by 1/n.
        centred = len(rows) == len(self._y)
        fits = list[LabelledFit]()
        with np.errstate(all="ignore"):
            for j, (coupling, solution) in enumerate(zip(couplings, solutions, strict=True)):
                t = targets[:, j]
                mu = float(models.weights[j])
                if mu > 0.0 and not target_is_of_others:
                    t = (M * t - solution.prediction) / (M - 1)
                    mu = sweep_weight(coupling, M)
                r, G = self.view.on_labels(np.ascontiguousarray(t), mu, rows)
                fits.append(LabelledFit(r, G, self._y[rows], centred))
            choice = choose_on(fits)
        if all(np.isfinite(errors).all() for errors in choice.left_out):
            return choice
        return None


def progressed(run: str, progress: Progress) -> Notice:
    """The exact figures of a round. Members have them; the coordinator has a coarse level."""
    figures = (
        ("residual", progress.residual),
        ("gap", progress.gap),
        ("predictions within", progress.prediction_bound),
    )
    text = f"run {run}: round {progress.round}"
    for place, (name, values) in enumerate(figures):
        if isfinite(worst := float(values.max())):  # of all λ
            text += f"{', ' if place else ': '}{name} {worst:.1e}"
    text += " (certified)" if progress.verified else " (estimated)"
    fields = {"round": progress.round}
    return Notice("progress", text, run=run, private=True, fields=fields)


@contextmanager
def _as_bad_data(what: str) -> Iterator[None]:
    """Faults of the mathematics in terms of the rows, without a datum."""
    try:
        with np.errstate(all="ignore"):  # a number that is not finite is looked for afterwards
            yield
    except MemoryError:
        raise BadData("not enough memory for this form and so many instances.") from None
    except CoregError:
        raise
    except (np.linalg.LinAlgError, ValueError, OverflowError) as error:
        raise BadData(f"{what} ({error}).") from None
