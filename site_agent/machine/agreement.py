r"""A site's part in a run of the agreement: sizes first, then respond(t, μ) of its view, and its models at the end.

The share of one label in a sum at one instance, measured on this site's rows before it accepts a plan.

    share(z, i) = H_zi² / (Σ_j H_zj² + (M − 1) h),   H = ∂ respond(t, μ) / ∂y,   h = the median of Σ_j H_zj² over z,

is the r² with which the sum of M sites' answers at z predicts label i. It assumes that labels have the same variance at
every site, and that the other sites' labels weigh as much at z as this site's labels do at its median instance. The share
is near 1 if an instance has the features of a labelled row and the plan is sharp: a narrow kernel, a small ridge, or a
strong coupling, which holds the answer to the target 0 at 0 except at labelled rows. Masks cannot hide such a label,
because the other sites add almost nothing there.
"""

import hashlib
from collections.abc import Callable, Iterable

import numpy as np
from jaxtyping import Float64

from coreg_core.agreement.objective import powered, stays, sweep_weight, weight_of
from coreg_core.agreement.schedules import FinalTargets
from coreg_core.agreement.views import LabelledFit, PathChoice, Solution, View, choose_on, make_view
from coreg_core.arrays import Arr, Ints
from coreg_core.computation.agreement import AgreementComputation
from coreg_core.computation.question import Question
from coreg_core.errors import BadData, CoregError, Refused
from coreg_core.kernels import (
    EveryPoint,
    LabelledPoints,
    Landmarks,
    Linear,
    LinearFeatures,
    Span,
    kernel_rule,
    make_kernel,
    some_rows,
)
from coreg_core.objectives.agreement import Agreement, LabelUnits
from coreg_core.outcomes import Outcome
from coreg_core.plan import Plan
from site_agent.machine.job import SiteResult, Sums
from site_agent.site_data import PrivateData

# The most entries of H that are computed in full. A larger H is reduced to instances equal to a labelled row and OTHERS more.
MOST_ENTRIES = 4_000_000
OTHERS = 500
LABEL_SHARE_MAX = 0.95  # above it, every agent refuses the plan


def share_of_one_label(
    view: View, data: PrivateData, weights: Iterable[float], n_sites: int
) -> float:
    """The largest share over instances, labels and weights."""
    m = len(data.Z)
    if m == 0 or len(data.y) == 0:
        return 0.0
    rows = None if m * len(data.y) <= MOST_ENTRIES else _some(data)
    step = max(1, MOST_ENTRIES // len(data.y))
    blocks = (
        [rows]
        if rows is None
        else [rows[start : start + step] for start in range(0, len(rows), step)]
    )
    return max(
        _largest((view.label_map(weight, block) for block in blocks), n_sites)
        for weight in set(weights)
    )


def _largest(blocks: Iterable[Arr], n_sites: int) -> float:
    sizes, largest = [], []
    for H in blocks:
        squares = np.multiply(H, H, out=H)  # in place: no one else uses H
        sizes.append(squares.sum(axis=1))
        largest.append(squares.max(axis=1))
    size = np.concatenate(sizes)
    hidden = size + (n_sites - 1) * float(np.median(size))
    share: Arr = np.divide(
        np.concatenate(largest), hidden, out=np.zeros(len(size)), where=hidden > 0.0
    )
    return float(share.max())


def _some(data: PrivateData) -> Ints:
    """Instances equal to a labelled row, and others spread evenly over the list."""
    labelled = {
        row.tobytes() for row in np.ascontiguousarray(data.X) + 0.0
    }  # + 0.0 turns -0.0 into 0.0
    alike = [
        i for i, row in enumerate(np.ascontiguousarray(data.Z) + 0.0) if row.tobytes() in labelled
    ]
    others = np.linspace(0, len(data.Z) - 1, OTHERS).astype(np.int64)
    return np.unique(np.concatenate([np.array(alike[: 4 * OTHERS], np.int64), others]))


def units(y: Float64[Arr, " n"], rule: LabelUnits) -> tuple[float, float]:
    """Shift and divisor: the run sees (y − shift) / divisor."""
    match rule:
        case "centred":
            return float(y.mean()), 1.0
        case (
            "standardised"
        ):  # the computed standard deviation of equal targets is a rounding error, not zero
            return float(y.mean()), float(y.std()) if np.ptp(y) > 0.0 else 1.0


# GiB of factors that an agent keeps in the exact form.
FACTOR_MEMORY = 4.0


def factor(objective: Agreement, data: PrivateData, y: Float64[Arr, " n"]) -> View:
    """The site's view of its own rows and the shared ones."""
    X, Z = data.X, data.Z
    n_weights = sum(coupling > 0.0 for coupling in set(objective.coupling))
    if objective.form == "exact":
        _require_room(n_weights, len(X), len(Z))
    kind = "linear" if objective.form == "linear" else objective.kernel
    bandwidth, ridge = kernel_rule(X, y, kind, objective.bandwidth, objective.ridge)
    span: Span
    match objective.form:
        case "exact":
            span = EveryPoint()
        case "semi-parametric" if len(X) <= objective.landmarks:
            span = LabelledPoints()
        case "semi-parametric":
            span = Landmarks(objective.landmarks, objective.seed)
        case "linear":
            return make_view(LinearFeatures(), Linear(), X, y, Z, ridge)
    kernel = make_kernel(objective.kernel, bandwidth=bandwidth)
    return make_view(span, kernel, X, y, Z, ridge, n_weights=n_weights)


def many_labels(objective: Agreement, n: int) -> tuple[str, ...]:
    """The finding that a site's rows are too many for the span of all of them, if they are."""
    if objective.form != "semi-parametric" or n <= objective.landmarks:
        return ()
    return (
        f"This site has {n} labelled rows, more than landmarks = {objective.landmarks}: its function uses so many points, drawn "
        "from the labelled and the shared rows, instead of all labelled rows.",
    )


def _require_room(n_weights: int, n: int, m: int) -> None:
    """Refuse an exact form that does not fit: 8 m² bytes for each coupling, and 8 n² for the labelled rows."""
    factors = max(n_weights, 1)
    if (needed := (8 * factors * m * m + 8 * n * n) / 2**30) > FACTOR_MEMORY:
        raise BadData(
            f'form = "exact" needs {needed:,.3g} GiB of factors ({factors} couplings, {m} unlabelled and {n} labelled rows). '
            f'An agent has at most {FACTOR_MEMORY:g} GiB for them. Use form = "semi-parametric", or fewer couplings in a run.'
        )


def data_digest(data: PrivateData, run: str) -> str:
    """A digest salted with the site's secret and the run: it shows whether the rows changed, and reveals nothing about them."""
    digest = hashlib.sha256(data.salt + run.encode() + data.ids_digest.encode())
    for array in (data.X, data.y, data.Z):
        digest.update(np.ascontiguousarray(array).tobytes())
        digest.update(str(array.shape).encode())
    return digest.hexdigest()


# Leave-one-out needs as many labels; with fewer, all members of the path are kept and none is chosen.
LEAST_TO_CHOOSE = 3
SMALLEST_LABEL = 2.0**-400  # squares of larger labels, and of their rounding, are normal numbers
_NONE = np.zeros((0, 0))


class TooMuchOfOneLabel(Refused):
    """Masks cannot hide a label. The text leaves the site; ``here`` is for its operator alone, because it depends on the rows."""

    def __init__(self, share: float):
        super().__init__(
            f"at some shared instance, one label of this site would make up more than {LABEL_SHARE_MAX:g} of the variance of the "
            "sum, which masks cannot hide. Use a smaller coupling, a wider kernel, a larger ridge, or shared instances other "
            "than this site's labelled rows."
        )
        self.here = f"here the largest share of one label would be {share:.2g}"


class AgreementJob(Sums):
    """Factors the site's data under the plan. Its errors name no datum."""

    def __init__(
        self,
        plan: Plan,
        objective: Agreement,
        name: str,
        data: PrivateData,
        pin_threads: Callable[[int], int],
    ):
        super().__init__(plan, name, m := len(data.Z), data.ids_digest, data_digest(data, plan.run))
        pin_threads(plan.iteration.threads)
        self.objective, self.data = objective, data
        if data.positive:
            raise BadData(
                "this site declares a yes/no target (positive). Use the additive objective with task = classification."
            )
        self._n_sites = len(plan.sites)
        if len(data.y) == 0:
            raise BadData(
                "the agreement objective needs labelled rows, and this site has none. Use the additive objective."
            )
        self.shift, self.divisor = units(data.y, objective.label_units)
        self._y = (data.y - self.shift) / self.divisor
        largest = float(np.abs(self._y).max())
        if 0.0 < largest < SMALLEST_LABEL:
            raise BadData(
                "the squares of the labels are too small for float64. Scale the labels by a power of ten."
            )
        try:
            with np.errstate(all="ignore"):  # an overflow raises BadData below
                self.view: View = factor(objective, data, self._y)
                self._bound, self._norm = self.view.bound(), float(self._y @ self._y)
                alone = self.view.respond(np.zeros((m, 1)), np.zeros(1))
        except MemoryError:
            raise BadData(
                f'not enough memory to factor form = "{objective.form}" with {m} unlabelled instances.'
            ) from None
        except CoregError:
            raise
        except (np.linalg.LinAlgError, ValueError, OverflowError) as error:
            raise BadData(
                f'these rows cannot be factored under kernel = "{objective.kernel}" ({error}).'
            ) from None
        if not (np.isfinite([self._bound, self._norm]).all() and np.isfinite(alone).all()):
            raise BadData(
                f'kernel = "{objective.kernel}" overflows on these rows. Scale the features.'
            )
        self._require_hidden_labels(plan.membership.min_sites)

    def enter(self, sites: tuple[str, ...], key: bytes) -> AgreementComputation:  # noqa: ARG002
        self._n_sites = len(sites)
        self._require_hidden_labels(len(sites))
        return AgreementComputation(
            self.objective, self.plan.iteration, len(sites), self.n_unlabelled
        )

    def answer(self, asked: Question) -> tuple[Arr, tuple[float, ...]]:
        weights = np.array([column.weight for column in asked.columns])
        match asked.kind:
            case "sizes":
                kept = stays(self._bound, weights.tolist())
                return _NONE, (powered(self._bound), self._norm, float(len(self._y)), *kept)
            case _:
                try:
                    with np.errstate(all="ignore"):
                        values: Arr = self.view.respond(asked.targets, weights, asked.part)
                except np.linalg.LinAlgError as error:
                    raise BadData(f"cannot be computed ({error}).") from None
                except MemoryError:
                    raise BadData(
                        f"not enough memory to answer with {self.n_unlabelled} instances."
                    ) from None
                if not np.isfinite(values).all():
                    raise BadData(
                        "its own answer is not finite: features or label column are too large for this kernel. Scale them."
                    )
                return values, ()

    def _require_hidden_labels(self, summed: int) -> None:
        """Check the share of one label in sums over so many sites, at the weights of the sites in hand."""
        if self.plan.masked:
            weights = [
                weight_of(self.plan.iteration.name, c, self._n_sites)
                for c in self.objective.coupling
            ]
            share = share_of_one_label(self.view, self.data, weights, summed)
            if share > LABEL_SHARE_MAX:
                raise TooMuchOfOneLabel(share)

    # --- the end --------------------------------------------------------------------------------------------------

    def ended(self, outcome: Outcome, reason: str) -> SiteResult:
        """The site's models, one for each column, if a round was verified."""
        models = self.computation.models(self.state)
        solutions, couplings, choice = tuple[Solution, ...](), tuple[float, ...](), None
        if models is not None:
            targets = models.of(self.sites.index(self.name))
            couplings = tuple(column.coupling for column in self.computation.columns(self.state))
            solutions = tuple(
                self.view.solve(np.ascontiguousarray(targets[:, j]), float(weight))
                for j, weight in enumerate(models.weights)
            )
            choice = self._own_choice(models, targets, couplings, solutions)
        alone = self.view.solve(np.zeros(self.n_unlabelled), 0.0)
        units = (self.shift, self.divisor)
        findings = many_labels(self.objective, len(self._y))
        return SiteResult(
            outcome,
            reason,
            self.plan,
            solutions,
            alone,
            *units,
            couplings=couplings,
            choice=choice,
            findings=findings,
        )

    def _own_choice(
        self,
        models: FinalTargets,
        targets: Arr,
        couplings: tuple[float, ...],
        solutions: tuple[Solution, ...],
    ) -> PathChoice | None:
        """The member of the path with the least left-out error; leave-one-out is against the *others'* mean at 2λ(M−1)."""
        if len(couplings) < 2 or len(self._y) < LEAST_TO_CHOOSE:
            return None
        sweeps = (
            self.plan.iteration.name == "block-coordinate-descent"
        )  # whose targets are the others' mean already
        fits, rows = [], some_rows(len(self._y))
        # Of some rows alone, the shift stays that of all: one label moves it by 1/n.
        centred = len(rows) == len(self._y)
        with np.errstate(all="ignore"):
            for j, (coupling, solution) in enumerate(zip(couplings, solutions, strict=True)):
                t, mu, M = targets[:, j], float(models.weights[j]), self._n_sites
                if mu > 0.0 and not sweeps:
                    t, mu = (M * t - solution.prediction) / (M - 1), sweep_weight(coupling, M)
                r, G = self.view.on_labels(np.ascontiguousarray(t), mu, rows)
                fits.append(LabelledFit(r, G, self._y[rows], centred))
            choice = choose_on(fits)
        return choice if all(np.isfinite(errors).all() for errors in choice.left_out) else None
