r"""A site that knows some of the shared instances, as a view of all of them.

    respond(t, μ)_i = f(z_i) where the site knows instance i, 0 elsewhere
    f = argmin_f ‖y − f(X)‖² + ν‖f‖² + μ Σ_i c_i (f(z_i) − t_i/c_i)²,   c_i = k_i/M

The mean of the answers over the M sites is then c_i times the mean of the k_i sites that know instance i, so a schedule
solves M z = Σ respond_v(z) as it is. The linear part is symmetric and positive, and Σ_v R_v ⪯ M max_v x_v/(1 + x_v).
Derivation: docs/research/mathematics.md, "Partial overlap".
"""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float64, Int64

from coreg_core.agreement.views.view import BoundRule, Part, Solution, View
from coreg_core.alignment.overlap import Overlap
from coreg_core.numerics.arrays import Arr, Ints


@dataclass(frozen=True, eq=False)
class PartialView:
    """`View` over all shared instances. ``known``: the view of the known ones, made with ``row_scale`` = √c."""

    known: View
    overlap: Overlap
    row_scale: Float64[Arr, " z"]

    def _asked(self, targets: Float64[Arr, "m ..."]) -> Float64[Arr, "z ..."]:
        """√c t of the known instances, as targets are c t."""
        return np.ascontiguousarray((targets[self.overlap.places].T / self.row_scale).T)

    @property
    def n_unlabelled(self) -> int:
        """m."""
        return len(self.overlap.counts)

    @property
    def ridge(self) -> float:
        """ν."""
        return self.known.ridge

    @property
    def rank(self) -> int:
        """Of the span."""
        return self.known.rank

    @property
    def n_basis(self) -> int:
        """Of the requested span."""
        return self.known.n_basis

    def response_error(self, weight: float) -> float:
        """ρ of the known view."""
        return self.known.response_error(weight)

    def cut_cost(self, weight: float) -> float:
        """Of the known view."""
        return self.known.cut_cost(weight)

    def bound(self, rule: BoundRule = "tight") -> float:
        """b of the known view, in units of √c."""
        return self.known.bound(rule)

    def respond(
        self, targets: Float64[Arr, "m k"], weights: Float64[Arr, " k"], part: Part = "affine"
    ) -> Float64[Arr, "m k"]:
        """f(Z) at the known instances, 0 elsewhere."""
        found = self.known.respond(self._asked(targets), weights, part)
        return self.overlap.spread(found / self.row_scale[:, None])

    def solve(self, target: Float64[Arr, " m"], weight: float) -> Solution:
        """The function; its prediction has zeros at unknown instances."""
        found = self.known.solve(self._asked(target), weight)
        return replace(found, prediction=self.overlap.spread(found.prediction / self.row_scale))

    def label_map(self, weight: float, rows: Int64[Ints, " k"] | None = None) -> Float64[Arr, "k n"]:
        """∂ f(Z)/∂y at the *known* instances; ``rows`` counts among these."""
        root = self.row_scale if rows is None else self.row_scale[rows]
        return self.known.label_map(weight, rows) / root[:, None]

    def on_labels(
        self, target: Float64[Arr, " m"], weight: float, rows: Int64[Ints, " k"] | slice = slice(None)
    ) -> tuple[Float64[Arr, " n"], Float64[Arr, "n n"]]:
        """Residuals of the function behind respond(target, weight), and G."""
        return self.known.on_labels(self._asked(target), weight, rows)
