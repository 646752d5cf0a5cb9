r"""coRLSR in finite features: the closed form on a path of λ, and each site's choice of λ by leave-one-out.

    Q = Σ_v [‖y_v − a_v − Φ_v w_v‖² + ν_v‖w_v‖²] + 2Mλ Σ_v ‖f_v(Z) − f̄(Z)‖²,   f_v(Z) = a_v + Z_v w_v

The features, widths and ridges are those of the site alone (`AdditiveSite`), so λ = 0 is the site alone. The intercept a_v is
a feature with a small penalty. There are two choices of λ. The site's own choice uses the product's rule: labels are left out
while the target is held (`coreg_core.agreement.views.left_out`). The other is exact leave-one-out of the whole federation,
which in the product would need a column per label. Both need the arrays of all sites. Source: Brefeld et al. (2006), equation 2.
"""

import itertools
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from scipy.linalg import cho_factor, cho_solve

from coreg_core.additive.model.local_fit import LEAST_LABELS
from coreg_core.agreement.objective import consensus_weight
from coreg_core.agreement.views.left_out import LabelledFit, choose_on
from coreg_core.evaluation.losses import Paired, paired
from coreg_core.numerics.arrays import Arr

COUPLINGS = (0.0, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 1.0)
# Prior variance of an intercept, in units of the target's variance: the square of its feature, at ridge ν.
_INTERCEPT = 100.0


@dataclass(frozen=True, eq=False)
class SiteFeatures:
    """One site: features of labelled, shared and test rows, centred labels (by the federation's mean), and the ridge."""

    labelled: Float64[Arr, "n r"]
    shared: Float64[Arr, "m r"]
    test: Float64[Arr, "t r"]
    y: Float64[Arr, " n"]
    ridge: float

    def with_intercept(self) -> "SiteFeatures":
        constant = np.sqrt(_INTERCEPT * self.ridge)

        def widened(A: Arr) -> Arr:
            return np.concatenate([np.full((len(A), 1), constant), A], axis=1)

        return SiteFeatures(widened(self.labelled), widened(self.shared), widened(self.test), self.y, self.ridge)


@dataclass(frozen=True, eq=False)
class Path:
    """For each site: predictions of test rows at every λ, and the index of each choice (None: too few labels).

    ``beside`` compares the choice with the site alone in nested folds.
    """

    test: list[Float64[Arr, "k t"]]
    chosen: list[int | None]
    chosen_exactly: list[int | None]
    beside: list[Paired | None]


def agree(parts: list[SiteFeatures]) -> Path:
    """Solve the path of λ, and make each site's choices."""
    parts = [part.with_intercept() for part in parts]
    M = len(parts)
    ends = np.cumsum([0, *(part.shared.shape[1] for part in parts)])
    spans = [slice(start, end) for start, end in itertools.pairwise(ends)]
    Z = np.concatenate([part.shared for part in parts], axis=1)
    gram = Z.T @ Z
    own, right = np.zeros_like(gram), np.zeros(len(gram))
    within = np.zeros_like(gram)  # the diagonal blocks of the Gram matrix
    for part, span in zip(parts, spans, strict=True):
        own[span, span] = part.labelled.T @ part.labelled + part.ridge * np.eye(part.labelled.shape[1])
        right[span] = part.labelled.T @ part.y
        within[span, span] = gram[span, span]
    solutions, exact = [], [np.full((len(COUPLINGS), len(part.y)), np.inf) for part in parts]
    for j, coupling in enumerate(COUPLINGS):
        # 2Mλ Σ_v ‖f_v − f̄‖² = 2λ (M Σ_v ‖f_v‖² − ‖Σ_v f_v‖²).
        factor = cho_factor(own + 2.0 * coupling * (M * within - gram), lower=True, check_finite=False)
        w: Arr = cho_solve(factor, right, check_finite=False)
        solutions.append(w)
        for errors, part, span in zip(exact, parts, spans, strict=True):
            rows = np.zeros((len(gram), len(part.y)))
            rows[span] = part.labelled.T
            leverage = np.einsum("ij,ji->i", part.labelled, cho_solve(factor, rows, check_finite=False)[span])
            errors[j] = (part.y - part.labelled @ w[span]) / np.maximum(1.0 - leverage, 1e-6)
    mean = np.mean(
        [[part.shared @ w[span] for w in solutions] for part, span in zip(parts, spans, strict=True)], axis=0
    )
    chosen: list[int | None] = []
    beside: list[Paired | None] = []
    for part in parts:
        if len(part.y) < LEAST_LABELS:
            chosen.append(None)
            beside.append(None)
            continue
        fits = [_on_labels(part, z, consensus_weight(lam, M)) for z, lam in zip(mean, COUPLINGS, strict=True)]
        choice, alone = choose_on(fits), choose_on(fits[:1])
        chosen.append(choice.chosen)
        nested = choice.nested, alone.nested
        beside.append(None if nested[0] is None or nested[1] is None else paired(nested[0], nested[1]))
    exactly = [int(np.argmin(np.mean(e**2, axis=1))) if e.shape[1] >= LEAST_LABELS else None for e in exact]
    test = [np.array([part.test @ w[span] for w in solutions]) for part, span in zip(parts, spans, strict=True)]
    return Path(test, chosen, exactly, beside)


def _on_labels(part: SiteFeatures, target: Float64[Arr, " m"], weight: float) -> LabelledFit:
    """The site's answer to a target and a weight at its labelled rows: residuals and G."""
    A = part.labelled.T @ part.labelled + part.ridge * np.eye(part.labelled.shape[1])
    factor = cho_factor(A + weight * (part.shared.T @ part.shared), lower=True, check_finite=False)
    w = cho_solve(factor, part.labelled.T @ part.y + weight * (part.shared.T @ target), check_finite=False)
    G = np.eye(len(part.y)) - part.labelled @ cho_solve(factor, part.labelled.T, check_finite=False)
    return LabelledFit(part.y - part.labelled @ w, G, part.y, centred=False)
