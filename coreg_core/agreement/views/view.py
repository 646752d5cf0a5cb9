r"""The protocol of every view, for schedules, estimators and sites, and the function that a site owns at the end.

respond(t, μ) = f(Z),   f = argmin_f ‖y − f(X)‖² + ν‖f‖² + μ‖f(Z) − t‖²            (docs/research/mathematics.md)
"""

from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from jaxtyping import Float64, Int64

from coreg_core.kernels.functions import Kernel, expand
from coreg_core.numerics.arrays import Arr, Ints

Part: TypeAlias = Literal["affine", "linear"]
# b_v of the certificates: the sharp value known to the site, or m κ / ν, which discloses less of the data.
BoundRule: TypeAlias = Literal["tight", "a-priori"]


@dataclass(frozen=True)
class KernelExpansion:
    """f(x) = k(x, B) c: the function that a site owns at the end, and the content of its model file."""

    kernel: Kernel
    points: Float64[Arr, "p d"]
    coef: Float64[Arr, " p"]

    def predict(self, X: Float64[Arr, "n d"]) -> Float64[Arr, " n"]:
        """f(X), in blocks: memory does not grow with n × p."""
        return expand(self.kernel, X, self.points, self.coef[:, None])[:, 0]


@dataclass(frozen=True)
class Solution:
    """The function that answers one (t, μ), with its terms of the objective."""

    function: KernelExpansion
    prediction: Float64[Arr, " m"]
    local_objective: float  # ‖y − f(X)‖² + ν‖f‖²

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
