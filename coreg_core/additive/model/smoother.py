r"""The operator S_v that maps the others' sum from Z to a site's labelled rows, and back.

| rows, residuals | S_v | disclosed by Sᵀα |
|---|---|---|
| private or common, smoothed | Φ'_v (Z'_vᵀZ'_v + ηI)⁻¹ Z'_vᵀ | smooth vectors on Z; no labelled id |
| common, open | the selection of own labelled rows | every label, and which ids are labelled |
| common, grouped | means over groups of k of these | means over k labels, ids and groups |

Source: design, sections 7.1 and 7.4.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float64, Int64

from coreg_core.additive.model.features import Candidate
from coreg_core.kernels.leave_one_out import weigh
from coreg_core.numerics.arrays import Arr, Ints, block_rows

ETAS: Arr = np.logspace(-2.0, 3.0, 8)
# Leverage over Z: with m rows and at most 100 features a row's own share is small. The floor only keeps quotients finite.
_LEAST_FREEDOM = 1e-3


@runtime_checkable
class Coupling(Protocol):
    """S_v (n, m), never formed."""

    def forward(self, t: Float64[Arr, "m k"]) -> Float64[Arr, "n k"]:
        """S t."""
        ...

    def backward(self, alpha: Float64[Arr, "n k"]) -> Float64[Arr, "m k"]:
        """Sᵀ α."""
        ...

    def keep(self, rows: Int64[Ints, " k"]) -> "Coupling":
        """S with only these rows: the others are left out."""
        ...

    def compressed(self) -> Float64[Arr, "n p"]:
        """L with S = L Qᵀ for some Q of orthonormal columns: S without its m."""
        ...


@dataclass(frozen=True, eq=False)
class Smoothed:
    r"""$S = \Phi'(Z'^\top Z' + \eta I)^{-1} Z'^\top$ as ``left`` (n, d') times ``shared``ᵀ (d', m); S 1 = 0, O((n + m) d')."""

    left: Float64[Arr, "n d"]
    shared: Float64[Arr, "m d"]

    def forward(self, t: Float64[Arr, "m k"]) -> Float64[Arr, "n k"]:
        """S t."""
        return self.left @ (self.shared.T @ t)

    def backward(self, alpha: Float64[Arr, "n k"]) -> Float64[Arr, "m k"]:
        """Sᵀ α."""
        return self.shared @ (self.left.T @ alpha)

    def keep(self, rows: Int64[Ints, " k"]) -> "Smoothed":
        """Some rows."""
        return Smoothed(self.left[rows], self.shared)

    def weighed(self, roots: Float64[Arr, " n"] | None) -> "Smoothed":
        """The rows times √ω."""
        return Smoothed(weigh(self.left, roots, centred=False), self.shared)

    def compressed(self) -> Float64[Arr, "n p"]:
        """left Rᵀ with shared = Q R."""
        return self.left @ triangle_of(self.shared).T


@dataclass(frozen=True, eq=False)
class Grouped:
    """C E: means over groups of labelled rows, at ``positions`` among the shared; groups of one are open residuals."""

    averages: Float64[Arr, "g n"]
    positions: Int64[Ints, " n"]
    n_unlabelled: int

    def forward(self, t: Float64[Arr, "m k"]) -> Float64[Arr, "g k"]:
        """C t[positions]."""
        return self.averages @ t[self.positions]

    def backward(self, alpha: Float64[Arr, "g k"]) -> Float64[Arr, "m k"]:
        """Eᵀ Cᵀ α: zero off the labelled rows."""
        out = np.zeros((self.n_unlabelled, alpha.shape[1]))
        np.add.at(out, self.positions, self.averages.T @ alpha)
        return out

    def keep(self, rows: Int64[Ints, " k"]) -> "Grouped":
        """Some groups."""
        return Grouped(self.averages[rows], self.positions, self.n_unlabelled)

    def compressed(self) -> Float64[Arr, "g n"]:
        """C: a selection of distinct rows is orthonormal."""
        return self.averages


def triangle_of(tall: Float64[Arr, "m d"]) -> Float64[Arr, "p d"]:
    """R of tall = Q R, in blocks of rows: memory O(d²) whatever m is."""
    R = np.zeros((0, tall.shape[1]))
    step = max(block_rows(tall.shape[1]), 2 * tall.shape[1])
    for start in range(0, len(tall), step):
        R = np.asarray(np.linalg.qr(np.concatenate([R, tall[start : start + step]]), mode="r"))
    return R


@dataclass(frozen=True, eq=False)
class Smoother:
    """The chosen features and η of the label-free smoother, with its leave-one-out r²."""

    candidate: int
    eta: float
    r2: float  # with which this site's columns predict the others' score on Z: the forecast before anything is trained
    filter: Float64[Arr, "d d"]  # V (Λ + ηI)⁻¹ Vᵀ from the eigenvectors of Z'ᵀWZ', whose condition is at most λ_max/η

    def of(self, features: Candidate) -> Smoothed:
        """S on the labelled rows."""
        return Smoothed(features.labelled @ self.filter, features.shared)

    def coefficients(self, features: Candidate, t: Float64[Arr, " m"]) -> Float64[Arr, " d"]:
        """u with smooth(t)(x) = mean t + (φ'(x) − shift')·u."""
        centred = t - t.mean() if len(t) else t
        return self.filter @ (features.shared.T @ centred)


def choose_smoother(
    features: list[Candidate],
    score: Float64[Arr, " m"] | None,
    etas: Float64[Arr, " g"] = ETAS,
    *,
    default: int = 0,
) -> Smoother:
    r"""Width and η by closed-form leave-one-out over Z for the others' mean score; O(m d²).

    Parameters
    ----------
    features
        the site's candidates, centred over Z.
    score
        the others' joint prediction on Z; None if no other site has one: ``default`` and η = 1.
    etas
        the grid.
    default
        which candidate without a score.
    """
    if score is None or len(score) == 0:
        return Smoother(default, 1.0, 0.0, _filter(*features[default].spectrum, 1.0))
    t, count = score - score.mean(), len(score)
    best: tuple[float, int, int] | None = None
    spectra = [candidate.spectrum for candidate in features]
    for j, (candidate, (values, V)) in enumerate(zip(features, spectra, strict=True)):
        weights = 1.0 / (values[:, None] + etas)
        beta = weights * (V.T @ (candidate.shared.T @ t))[:, None]
        squares = np.zeros(len(etas))
        step = block_rows(candidate.shared.shape[1])
        for start in range(0, len(score), step):
            part = slice(start, start + step)
            rows = candidate.shared[part] @ V
            leverage = (rows * rows) @ weights + 1.0 / count
            errors = (t[part, None] - rows @ beta) / np.maximum(1.0 - leverage, _LEAST_FREEDOM)
            squares += (errors * errors).sum(axis=0)
        i = int(squares.argmin())
        if best is None or squares[i] < best[0]:
            best = (float(squares[i]), j, i)
    assert best is not None
    total = max(float(t @ t), 1e-12 * count)
    values, V = spectra[best[1]]
    return Smoother(best[1], float(etas[best[2]]), 1.0 - best[0] / total, _filter(values, V, float(etas[best[2]])))


def smoother_at(features: list[Candidate], candidate: int, eta: float, r2: float) -> Smoother:
    """The smoother that was chosen before, recomputed with the same bits."""
    return Smoother(candidate, eta, r2, _filter(*features[candidate].spectrum, eta))


def _filter(values: Arr, V: Arr, eta: float) -> Arr:
    filtered: Arr = (V / (values + eta)) @ V.T
    return filtered
