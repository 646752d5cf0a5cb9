r"""What each partner's columns bring to the score, from the moments that all members have.

    error²   = rss/count/(1 − leverage)² − variance of the noise on labels
    worth_u  = error without the features of site u / error − 1          (its labels stay)
    se       = wider · ratio · √((a² + b² − 2abρ²)/(2 count))     ρ: correlation of the residuals

a and b are each error² with the noise over that without it: 1 and 1, so √((1 − ρ²)/count), if there
is no noise. ρ follows from the moments: r₁ᵀr₂ = Σ wy² − b·β₁ − b·β₂ + β₁ᵀGβ₂. The standard error is
the delta method's for two normal residuals of correlation ρ.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from coreg_core.additive.fit import Fit, fit
from coreg_core.additive.moments import Moments

LEAST_MEAN_LABELS = 50.0  # of the sites with labels
WIDER = 2.0  # two of three true values are then within one standard error
STEPS = 20  # of a fit without a site: further ones change no shown digit
LEAST_SHARE = 0.2  # of an error² that the noise on labels can leave


@dataclass(frozen=True)
class Worth:
    """The relative growth of the score's error without a site's columns, and its standard error."""

    change: float
    standard_error: float


def without(moments: Moments, site: int) -> Moments:
    """The moments where a site has labels, and features that are 0: their weights are then 0."""
    kept = np.ones(len(moments.C))
    kept[moments.blocks[site]] = 0.0
    parts = [
        replace(part, P=kept[:, None] * part.P * kept, o=part.o * kept, b=part.b * kept)
        for part in moments.parts
    ]
    return replace(moments, parts=tuple(parts))


def worths(
    whole: Fit, partners: Sequence[int], label_noise: float = 0.0
) -> dict[int, Worth | None]:
    """Those of the ``partners``, the largest first; ``label_noise``: the variance of the noise on
    the labels, in their unit squared. None: with few labels only the order is near the truth.
    """
    n = whole.moments.n
    worth_of = {site: _compared(whole, site, label_noise) for site in partners}
    order = sorted(partners, key=lambda site: -worth_of[site].change)
    if n.sum() < LEAST_MEAN_LABELS * np.count_nonzero(n):
        return dict.fromkeys(order)
    return {site: worth_of[site] for site in order}


def _compared(whole: Fit, site: int, label_noise: float) -> Worth:
    m = whole.moments
    count = m.parts[0].count
    G, b, squares = m.standard(m.parts[0])
    less = fit(without(m, site), STEPS)
    beta = np.array([whole.beta, less.beta])
    explained = beta @ b
    products = squares - explained[:, None] - explained + beta @ G @ beta.T
    rss = np.maximum(np.diag(products), 1e-12)
    noisy = rss / count / (1.0 - np.array([whole.leverage(), less.leverage()])) ** 2
    errors = np.maximum(noisy - label_noise / m.deviation**2, LEAST_SHARE * noisy)
    ratio = float(np.sqrt(errors[1] / errors[0]))
    shares = noisy / errors
    common = 2.0 * np.prod(shares) * products[0, 1] ** 2 / np.prod(rss)
    unlike = max(float(shares @ shares - common), 0.0)
    return Worth(ratio - 1.0, WIDER * ratio * float(np.sqrt(unlike / 2.0 / count)))
