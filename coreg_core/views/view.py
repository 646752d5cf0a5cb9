r"""What every view is to a schedule, an estimator and a site: one protocol, and the function that a site owns at the end.

    respond(t, μ) = f(Z),   f = argmin_f ‖y − f(X)‖² + ν‖f‖² + μ‖f(Z) − t‖²            (docs/mathematics.md)

Knows one site's arrays; nothing of other sites, of rounds, of messages or of files.
"""

from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from jaxtyping import Float64

from coreg_core.arrays import Arr
from coreg_core.kernels import Kernel, expand

Part: TypeAlias = Literal["affine", "linear"]
# b_v of the certificates: the sharp value known to the site, or m κ / ν, which tells less of the data.
BoundRule: TypeAlias = Literal["tight", "a-priori"]

# A computed bound must never fall below the true one: rounding of an eigenvalue or a norm is a few n · eps.
ROUND_UP = 1.0 + 1e-10


@dataclass(frozen=True)
class KernelExpansion:
    """f(x) = k(x, B) c: what a site owns at the end, and all that its model file needs to hold."""

    kernel: Kernel
    points: Float64[Arr, "p d"]
    coef: Float64[Arr, " p"]

    def predict(self, X: Float64[Arr, "n d"]) -> Float64[Arr, " n"]:
        """f(X), in blocks: memory does not grow with n × p."""
        return expand(self.kernel, X, self.points, self.coef[:, None])[:, 0]


@dataclass(frozen=True)
class Solution:
    """The function that answers one (t, μ), with what the objective needs of it."""

    function: KernelExpansion
    prediction: Float64[Arr, " m"]
    local_objective: float  # ‖y − f(X)‖² + ν‖f‖²

    def predict(self, X: Float64[Arr, "n d"]) -> Float64[Arr, " n"]:
        """f(X)."""
        return self.function.predict(X)


@runtime_checkable
class View(Protocol):
    """What every schedule, estimator and site needs of a view, and nothing else."""

    @property
    def n_unlabelled(self) -> int:
        """m."""
        ...

    @property
    def rank(self) -> int:
        """Dimension of the span that is really used."""
        ...

    def bound(self, rule: BoundRule = "tight") -> float:
        """b_v: at least the largest s² of this view, for the certificates of docs/mathematics.md."""
        ...

    def respond(
        self, targets: Float64[Arr, "m k"], weights: Float64[Arr, " k"], part: Part = "affine"
    ) -> Float64[Arr, "m k"]:
        """f(Z) for every column; with part="linear" only R t, in which no label appears."""
        ...

    def solve(self, target: Float64[Arr, " m"], weight: float) -> Solution:
        """The function behind respond(target, weight)."""
        ...
