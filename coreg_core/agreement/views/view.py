r"""The protocol of every view, for schedules, estimators and sites, and the function that a site owns at the end.

respond(t, μ) = f(Z),   f = argmin_f ‖y − f(X)‖² + ν‖f‖² + μ‖f(Z) − t‖²            (docs/research/mathematics.md)
"""

from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from jaxtyping import Float64, Int64

from coreg_core.kernels.functions import Kernel, expand
from coreg_core.kernels.precise import expand_precisely
from coreg_core.numerics.arrays import Arr, Ints

Part: TypeAlias = Literal["affine", "linear"]
# b_v of the certificates: the sharp value known to the site, or m κ / ν, which discloses less of the data.
BoundRule: TypeAlias = Literal["tight", "a-priori"]

# A bound b_v below this part of m κ/ν is stated as that: predictions are then rounding, and rounding is stated in units of √b_v.
LEAST_BOUND = 1e-12
# A computed bound must never fall below the true one: rounding of an eigenvalue or a norm is a few n · eps.
ROUND_UP = 1.0 + 1e-10


# u = 2⁻⁵³, the rounding of one operation; the error bounds below use it.
UNIT = 2.0**-53
# A sum of p terms, and a factor of order p, round by about √p u of their norms: errors as independent numbers (Higham and Mary
# 2019, "A new approach to probabilistic rounding error analysis"), with this factor. Norms are bounded by traces and Frobenius
# norms and errors are taken to conspire, so that over 1 000 hard problems the truth stays 50 times below (benchmarks/certify.py).
SPREAD = 1.5


@dataclass(frozen=True)
class KernelExpansion:
    """f(x) = k(x, B) c: the function that a site owns at the end, and the content of its model file.

    In a narrow view (bases.span_basis) coefficients reach 1e20 and cancel; c is then ``coef`` + ``coef_low``, a double-double,
    and predictions are computed in that arithmetic.
    """

    kernel: Kernel
    points: Float64[Arr, "p d"]
    coef: Float64[Arr, " p"]
    coef_low: Float64[Arr, " p"] | None = None

    def predict(self, X: Float64[Arr, "n d"]) -> Float64[Arr, " n"]:
        """f(X), in blocks: memory does not grow with n × p."""
        if self.coef_low is None:
            return expand(self.kernel, X, self.points, self.coef[:, None])[:, 0]
        return expand_precisely(self.kernel, X, self.points, (self.coef[:, None], self.coef_low[:, None]))[:, 0]


@dataclass(frozen=True)
class Solution:
    """The function that answers one (t, μ), with its terms of the objective."""

    function: KernelExpansion
    prediction: Float64[Arr, " m"]
    local_objective: float  # ‖y − f(X)‖² + ν‖f‖²
    function_rounding: float = (
        0.0  # of the function beside the prediction, in the norm √(Q − Q*), where coefficients cancel
    )

    def predict(self, X: Float64[Arr, "n d"]) -> Float64[Arr, " n"]:
        """f(X)."""
        return self.function.predict(X)


@runtime_checkable
class View(Protocol):
    """The interface of a view for schedules, estimators and sites."""

    @property
    def n_unlabelled(self) -> int:
        """m."""
        ...

    @property
    def ridge(self) -> float:
        """ν."""
        ...

    @property
    def rank(self) -> int:
        """Dimension of the span in use."""
        ...

    @property
    def n_basis(self) -> int:
        """Dimension of the requested span: more than ``rank`` where it was cut."""
        ...

    def response_error(self, weight: float) -> float:
        """ρ_v: the relative distance of the data behind computed answers from the true data, in the metric of Q, at μ or below.

        The computed answers are those of a view whose kernel entries, features and factors are off by rounding, and of a
        span that may be cut. Replacing the true view by it moves Q's optimum by at most ρ_v √F_v in the norm √(Q − Q*), with
        F_v ≤ Q(0) the view's share ‖y − f(X)‖² + ν‖f‖² + μ‖f(Z) − z‖² of Q, and predictions on Z by at most √b_v times that
        (docs/research/mathematics.md). Rises with the weight. Never below 0, and large where
        digits are gone; `objective.consensus_certificate` takes it.
        """
        ...

    def cut_cost(self, weight: float) -> float:
        """The part of ``response_error`` that directions cut from the span may cost, an upper bound; 0 where none is cut."""
        ...

    def bound(self, rule: BoundRule = "tight") -> float:
        """b_v: at least the largest s² of this view, for the certificates of docs/research/mathematics.md."""
        ...

    def respond(
        self, targets: Float64[Arr, "m k"], weights: Float64[Arr, " k"], part: Part = "affine"
    ) -> Float64[Arr, "m k"]:
        """f(Z) for every column; with part="linear" only R t, in which no label appears."""
        ...

    def solve(self, target: Float64[Arr, " m"], weight: float) -> Solution:
        """The function behind respond(target, weight)."""
        ...

    def label_map(self, weight: float, rows: Int64[Ints, " k"] | None = None) -> Float64[Arr, "k n"]:
        """H = ∂ respond(t, μ)/∂y, the same at every target: each label's weight in the answer, at these instances or at all."""
        ...

    def on_labels(
        self, target: Float64[Arr, " m"], weight: float, rows: Int64[Ints, " k"] | slice = slice(None)
    ) -> tuple[Float64[Arr, " n"], Float64[Arr, "n n"]]:
        """Residuals y − f(X) of the function behind respond(target, weight), and the G of `views.left_out`, of these rows.

        A block of G leaves these rows out exactly, while the function keeps all others.
        """
        ...
