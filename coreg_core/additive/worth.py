r"""What each partner's columns bring to the score, from the moments that all members have.

    error²   = rss/count/(1 − leverage)² − variance of the noise on labels
    worth_u  = error without the features of site u / error − 1          (its labels stay)
    se       = wider · ratio · √((1 − ρ²)/count)      ρ: correlation of both fits' residuals

ρ follows from the moments: r₁ᵀr₂ = Σ wy² − b·β₁ − b·β₂ + β₁ᵀGβ₂. The standard error is the delta
method's for two normal residuals of correlation ρ.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool

from coreg_core.additive.moments import Fit, Moments, Sums, fit

LEAST_MEAN_LABELS = 50.0  # of the sites with labels
WIDER = 2.0  # two of three true values are then within one standard error
STEPS = 20  # of a fit without a site: further ones change no shown digit
MOST_NOISE = 0.8  # of the squared error


@dataclass(frozen=True)
class Worth:
    """The relative growth of the score's error without a site's columns, and its standard error."""

    change: float
    standard_error: float


def without(moments: Moments, site: int) -> Moments:
    """The moments of a federation in which a site has labels and no features."""
    kept = np.ones(len(moments.C), dtype=bool)
    kept[moments.blocks[site]] = False
    d = tuple(0 if v == site else size for v, size in enumerate(moments.d))
    parts = tuple(_kept(part, kept) for part in moments.parts)
    return replace(moments, d=d, C=moments.C[np.ix_(kept, kept)], parts=parts)


def _kept(part: Sums, kept: Bool[np.ndarray, " D"]) -> Sums:
    return replace(part, P=part.P[np.ix_(kept, kept)], o=part.o[:, kept], b=part.b[kept])


def worths(
    whole: Fit, partners: Sequence[int], label_noise: float = 0.0
) -> dict[int, Worth | None]:
    """Those of the ``partners``, the largest first; ``label_noise``: the variance of the noise on
    the labels, in their unit squared. None: with few labels, or much noise, only the order is near
    the truth.
    """
    m = whole.moments
    noise = label_noise / m.deviation**2
    error = _squared_error(whole)
    known = m.n.sum() >= LEAST_MEAN_LABELS * np.count_nonzero(m.n) and noise < MOST_NOISE * error
    compared = []
    for site in partners:
        less = fit(without(m, site), STEPS)
        ratio = np.sqrt(max(_squared_error(less) - noise, 0.0) / max(error - noise, 1e-300))
        spread = WIDER * ratio * _spread(whole, less, site)
        compared.append((site, Worth(float(ratio) - 1.0, float(spread))))
    compared.sort(key=lambda each: -each[1].change)
    return {site: worth if known else None for site, worth in compared}


def _squared_error(of: Fit) -> float:
    """rss/count/(1 − leverage)² of the first part, in squared deviations of the labels."""
    _, b, squares = of.moments.standard(of.moments.parts[0])
    rss = squares - 2.0 * b @ of.beta + of.beta @ of.grams[0] @ of.beta
    return max(float(rss), 0.0) / of.moments.parts[0].count / (1.0 - of.leverage()) ** 2


def _spread(whole: Fit, less: Fit, site: int) -> float:
    """√((1 − ρ²)/count)."""
    m = whole.moments
    G, b, squares = m.standard(m.parts[0])
    others = np.ones(len(whole.beta), dtype=bool)
    others[m.blocks[site]] = False
    beta = np.zeros((2, len(others)))
    beta[0] = whole.beta
    beta[1, others] = less.beta
    products = squares - (beta @ b)[:, None] - beta @ b + beta @ G @ beta.T
    sizes = max(float(products[0, 0] * products[1, 1]), 1e-300)
    rho2 = min(float(products[0, 1]) ** 2 / sizes, 1.0)
    return float(np.sqrt((1.0 - rho2) / m.parts[0].count))
