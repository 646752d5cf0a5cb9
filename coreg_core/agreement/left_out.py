r"""Leave-one-out on a site's own labels: errors of left-out rows, and the choice of λ on a path.

A site's function at a target t and a weight μ has residuals y − c − f(X) = G (y − c) − g, with c
the shift of its labels and

    G = I − Φ_X A⁻¹ Φ_Xᵀ,   A = Φ_XᵀΦ_X + νI + μ Φ_ZᵀΦ_Z    (n × n, symmetric)

so that without the rows S the function errs there by e_S = G_SS⁻¹ r_S, and the rows that are kept
by r_R − G_RS e_S with G_RR − G_RS G_SS⁻¹ G_SR in G's place (docs/research/mathematics.md,
"Leave-one-out on a site's own labels"). The target is fixed: the influence of a left-out label on
it remains, which makes a strong coupling look slightly too good. So t is the mean of the others,
without the site's own prediction.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

from coreg_core.arrays import Arr, Ints

# A row whose fit is its own label alone (G_ii = 0) has no left-out error; the floor keeps its
# quotient finite and large.
_LEAST_FREEDOM = 1e-9
# Folds of the nested estimate, and the seed of their shuffle: local to the site, and the same at
# every run.
FOLDS = 5
SEED = 0


@dataclass(frozen=True, eq=False)
class LabelledFit:
    """A function on its own labelled rows."""

    r: Float64[Arr, " n"]  # residuals at the shift that was taken
    G: Float64[Arr, "n n"]
    y: Float64[Arr, " n"]  # in the units of r
    centred: bool = True  # the shift is the mean of the labels, and is left out with the rows
    ones: Float64[Arr, " n"] | None = (
        None  # G 1 over all rows of the shift, where these are some of them
    )

    def _ones(self) -> Float64[Arr, " n"]:
        if self.ones is None:
            return np.asarray(self.G.sum(axis=1))
        return self.ones

    def without(self, rows: Int64[Ints, " s"]) -> tuple[Float64[Arr, " s"], "LabelledFit"]:
        """The errors on these rows of the function trained without them, and that function on the
        others.
        """
        kept = np.setdiff1d(np.arange(len(self.y)), rows)
        ones = self._ones()
        shift = float(self.y[kept].mean() - self.y.mean()) if self.centred and len(kept) else 0.0
        r = self.r - shift * ones
        G_SS = self.G[np.ix_(rows, rows)]
        eye = _LEAST_FREEDOM * np.eye(len(rows))
        solved = np.linalg.solve(
            G_SS + eye, np.column_stack([r[rows], self.G[np.ix_(rows, kept)], ones[rows]])
        )
        G_RS = self.G[np.ix_(kept, rows)]
        missed = np.asarray(solved[:, 0], dtype=np.float64)
        return missed, LabelledFit(
            r[kept] - G_RS @ missed,
            self.G[np.ix_(kept, kept)] - G_RS @ solved[:, 1:-1],
            self.y[kept],
            self.centred,
            ones[kept] - G_RS @ solved[:, -1],
        )

    @property
    def left_out(self) -> Float64[Arr, " n"]:
        """Each label left out in turn, y_i − f₋ᵢ(x_i); the mean of the others is their shift."""
        n = len(self.y)
        r = self.r
        if self.centred and n > 1:  # c₋ᵢ − c = (c − y_i)/(n − 1)
            r = r - (self.y.mean() - self.y) / (n - 1) * self._ones()
        errors: Arr = r / np.maximum(np.diag(self.G), _LEAST_FREEDOM)
        return errors


def best_of(path: Sequence[Float64[Arr, " n"]]) -> int:
    """The member of least mean squared left-out error; in a tie the first, which has the weakest
    coupling.
    """
    return int(np.argmin([float(np.mean(errors * errors)) for errors in path]))


@dataclass(frozen=True, eq=False)
class FoldErrors:
    """Errors on the same folds, so that they can be compared."""

    choice: Float64[Arr, " n"]  # of rows that neither the function nor the choice has seen
    members: tuple[Float64[Arr, " n"], ...]
    mean: Float64[Arr, " n"]  # of the other labels


@dataclass(frozen=True, eq=False)
class PathChoice:
    """The choice on a path by own labels: the ``chosen`` member, and every member's left-out
    errors.
    """

    chosen: int
    left_out: tuple[Float64[Arr, " n"], ...]
    folds: FoldErrors | None = None  # None with too few labels
    y: Float64[Arr, " n"] | None = None


def choose_on(path: Sequence[LabelledFit]) -> PathChoice:
    """Choose a member of a path by its left-out labels, and estimate the error of such a choice on
    unseen labels.
    """
    errors = tuple(fit.left_out for fit in path)
    y = path[0].y
    n = len(y)
    if n < 2 * FOLDS:
        return PathChoice(best_of(errors), errors, y=y)
    choice = np.empty(n)
    mean = np.empty(n)
    members = tuple(np.empty(n) for _ in path)
    order = np.random.default_rng([SEED, n]).permutation(n)
    for fold in range(FOLDS):
        rows = np.sort(order[fold::FOLDS])
        without = [fit.without(rows) for fit in path]
        for member, (missed, _) in zip(members, without, strict=True):
            member[rows] = missed
        choice[rows] = members[best_of([kept.left_out for _, kept in without])][rows]
        mean[rows] = y[rows] - np.delete(y, rows).mean()
    return PathChoice(best_of(errors), errors, FoldErrors(choice, members, mean), y)
