r"""Leave-one-out of a site's functions on its own labels, in closed form, and the choice of λ on a path.

A site's function at a target t and a weight μ has residuals y − c − f(X) = G (y − c) − g, with c the shift of its
labels and

    G = I − Φ_X A⁻¹ Φ_Xᵀ,   A = Φ_XᵀΦ_X + νI + μ Φ_ZᵀΦ_Z                                    (n × n, symmetric)

so that without the rows S the function errs there by e_S = G_SS⁻¹ r_S, and the rows that are kept by r_R − G_RS e_S
with G_RR − G_RS G_SS⁻¹ G_SR in G's place (docs/research/mathematics.md, "Leave-one-out on a site's own labels"). The target
is fixed: the influence of a left-out label on it remains, which makes a strong coupling look slightly too good. So t is
the mean of the others, without the site's own prediction.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

from coreg_core.numerics.arrays import Arr, Ints

# A row whose fit is its own label alone (G_ii = 0) has no left-out error; the floor keeps its quotient finite and large.
_LEAST_FREEDOM = 1e-9
# Folds of the nested estimate, and the seed of their shuffle: local to the site, and the same at every run.
FOLDS, SEED = 5, 0


@dataclass(frozen=True, eq=False)
class LabelledFit:
    """A function on its own labelled rows: residuals ``r`` (n,) at the shift that was taken, and ``G`` (n, n).

    ``y`` is (n,) in the units of r; ``centred`` says that the shift is the mean of the labels, so that it is left out with
    the rows.
    """

    r: Float64[Arr, " n"]
    G: Float64[Arr, "n n"]
    y: Float64[Arr, " n"]
    centred: bool = True

    def without(self, rows: Int64[Ints, " s"]) -> "Kept":
        """The same function trained without these rows."""
        kept = np.setdiff1d(np.arange(len(self.y)), rows)
        shift = float(self.y[kept].mean() - self.y.mean()) if self.centred and len(kept) else 0.0
        ones = self.G.sum(axis=1)
        r = self.r - shift * ones
        G_SS = self.G[np.ix_(rows, rows)]
        eye = _LEAST_FREEDOM * np.eye(len(rows))
        solved = np.linalg.solve(G_SS + eye, np.column_stack([r[rows], self.G[np.ix_(rows, kept)], ones[rows]]))
        G_RS = self.G[np.ix_(kept, rows)]
        return Kept(
            missed=solved[:, 0],
            r=r[kept] - G_RS @ solved[:, 0],
            G=self.G[np.ix_(kept, kept)] - G_RS @ solved[:, 1:-1],
            ones=ones[kept] - G_RS @ solved[:, -1],
            y=self.y[kept],
            centred=self.centred,
        )

    @property
    def left_out(self) -> Float64[Arr, " n"]:
        """Each label left out in turn: y_i − f₋ᵢ(x_i)."""
        return Kept(np.zeros(0), self.r, self.G, self.G.sum(axis=1), self.y, self.centred).left_out


@dataclass(frozen=True, eq=False)
class Kept:
    """A function without some rows: its errors on them, and its residuals and G on the kept rows."""

    missed: Float64[Arr, " s"]
    r: Float64[Arr, " k"]
    G: Float64[Arr, "k k"]
    ones: Float64[Arr, " k"]  # G 1, over all rows of the shift
    y: Float64[Arr, " k"]
    centred: bool

    @property
    def left_out(self) -> Float64[Arr, " k"]:
        """Each kept row left out in turn; the mean of the others is their shift."""
        n = len(self.y)
        r = self.r
        if self.centred and n > 1:  # c₋ᵢ − c = (c − y_i)/(n − 1)
            r = r - (self.y.mean() - self.y) / (n - 1) * self.ones
        errors: Arr = r / np.maximum(np.diag(self.G), _LEAST_FREEDOM)
        return errors


def best_of(path: Sequence[Float64[Arr, " n"]]) -> int:
    """The member of least mean squared left-out error; in a tie the first, which has the weakest coupling."""
    return int(np.argmin([float(np.mean(errors * errors)) for errors in path]))


@dataclass(frozen=True, eq=False)
class PathChoice:
    """The choice on a path by own labels: the ``chosen`` member, every member's left-out errors, and the choice's own.

    ``nested`` are the errors of rows that neither the function nor the choice between members has seen. Reports use them,
    because the smallest of several left-out errors is biased by the choice. None with too few labels for folds.
    """

    chosen: int
    left_out: tuple[Float64[Arr, " n"], ...]
    nested: Float64[Arr, " n"] | None


def choose_on(path: Sequence[LabelledFit], folds: int = FOLDS, seed: int = SEED) -> PathChoice:
    """Choose a member of a path by its left-out labels, and estimate the error of such a choice on unseen labels."""
    errors = tuple(fit.left_out for fit in path)
    n = len(path[0].y)
    nested: Arr | None = None
    if n >= 2 * folds:
        nested = np.empty(n)
        order = np.random.default_rng([seed, n]).permutation(n)
        for fold in range(folds):
            rows = np.sort(order[fold::folds])
            kept = [fit.without(rows) for fit in path]
            nested[rows] = kept[best_of([k.left_out for k in kept])].missed
    return PathChoice(best_of(errors), errors, nested)
