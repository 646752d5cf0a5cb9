r"""The refined score: a forest of a site's own columns and of its score, for what the score misses
at its own labels.

    t_i     = (columns of i, left-out score of i)
    forest  : t_i ↦ left-out residual r_i of the score          (out of bag at own labels: f_i)
    w       = Σ r_i f_i/(Σ f_i² + pull),  pull = PULL/n · mean r²,  0 ≤ w ≤ 1
    refined = score + w · forest(columns, score)                (left-out residuals: r_i − w f_i)

The score is additive over sites; the forest adds what own columns and the score make together.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from coreg_core.additive.features import Forest, grown
from coreg_core.arrays import Arr
from coreg_core.spread import mean_and_deviation

LEAST_LABELS = 40
TREES = 100
LEAST_IN_LEAF = 3
COLUMNS = 0.5  # of the columns, tried at a split
PULL = 50.0  # the weight is pulled to 0 by PULL/n labels


@dataclass(frozen=True, eq=False)
class Refinement:
    """What a site adds to its score, in the labels' units."""

    mean: Float64[Arr, " q"]  # of own columns and the score, as is the next
    deviation: Float64[Arr, " q"]
    forest: Forest
    weight: float

    def __call__(self, X: Float64[Arr, "n p"], score: Float64[Arr, " n"]) -> Float64[Arr, " n"]:
        """w · forest (n,); 0 where the site has no record (NaN in ``X``) or there is no score."""
        rows = np.column_stack([X, score])
        out = np.zeros(len(rows))
        complete = ~np.isnan(rows).any(axis=1)
        out[complete] = self.weight * self.forest.predict(
            (rows[complete] - self.mean) / self.deviation
        )
        return out


def refined(
    X: Float64[Arr, "n p"], scores: Float64[Arr, " n"], left_out: Float64[Arr, " n"], *, seed: int
) -> tuple[Refinement | None, Float64[Arr, " n"]]:
    """The refinement by own labels, and the left-out residuals under it, from the left-out
    ``scores`` and residuals of these labels. None, and the same residuals: too few labels, or no
    gain at them.
    """
    n = len(scores)
    if n < LEAST_LABELS or not np.ptp(left_out) > 0.0:
        return None, left_out
    rows = np.column_stack([X, scores])
    mean, deviation = mean_and_deviation(rows)
    forest, out_of_bag = grown(
        (rows - mean) / deviation,
        left_out,
        seed,
        trees=TREES,
        least_in_leaf=LEAST_IN_LEAF,
        columns=COLUMNS,
    )
    pull = PULL / n * float(left_out @ left_out) / n
    weight = float(left_out @ out_of_bag) / (float(out_of_bag @ out_of_bag) + pull)
    if weight <= 0.0:
        return None, left_out
    weight = min(weight, 1.0)
    return Refinement(mean, deviation, forest, weight), left_out - weight * out_of_bag
