"""Problems for the tests of the mathematics, and an oracle that shares no code with what it judges.

A `Problem` is a list of sites and a coupling. `reference` solves it by one dense least squares over
orthonormal features (an SVD; nothing squared, nothing factored by Cholesky), with kernels from
scikit-learn: slow and independent.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.random import default_rng
from scipy.linalg import eigh, lstsq
from sklearn.metrics.pairwise import linear_kernel, rbf_kernel

from coreg_core.agreement.objective import objective
from coreg_core.agreement.solver import SolverTerms
from coreg_core.agreement.views import Solution, View, make_view
from coreg_core.kernels import Gaussian, Kernel, Linear
from coreg_core.spans import (
    RANK_TOLERANCE,
    EveryPoint,
    LabelledPoints,
    Landmarks,
    LinearFeatures,
    Span,
)

EPS = float(np.finfo(float).eps)
_NAMES = sorted(path.stem for path in (Path(__file__).parent / "core" / "golden").glob("*.json"))
NARROW = [
    name for name in _NAMES if name.startswith("narrow")
]  # Gram matrices with pivots down to 1e-42
GOLDEN = [name for name in _NAMES if name not in NARROW]


@cache
def golden(name: str) -> dict[str, Any]:
    """One file of 60-digit solutions."""
    return json.loads((Path(__file__).parent / "core" / "golden" / f"{name}.json").read_text())


@dataclass(frozen=True)
class Site:
    kernel: Kernel
    X: np.ndarray
    y: np.ndarray
    Z: np.ndarray
    ridge: float
    span: Span

    def view(self) -> View:
        return make_view(self.span, self.kernel, self.X, self.y, self.Z, self.ridge)


@dataclass(frozen=True)
class Problem:
    sites: tuple[Site, ...]
    coupling: float

    @property
    def n_unlabelled(self) -> int:
        return len(self.sites[0].Z)

    @property
    def scale(self) -> float:
        """Q(0)."""
        return sum(float(s.y @ s.y) for s in self.sites)

    def views(self) -> list[View]:
        return [s.view() for s in self.sites]

    def with_coupling(self, coupling: float) -> "Problem":
        return replace(self, coupling=coupling)


def golden_problem(name: str, form: str) -> Problem:
    case = golden(name)
    span: Span = LabelledPoints()
    if form == "exact":
        span = EveryPoint()
    return Problem(
        tuple(
            Site(
                Gaussian(v["sigma"]),
                np.array(v["X"]),
                np.array(v["y"]),
                np.array(v["Z"]),
                v["nu"],
                span,
            )
            for v in case["views"]
        ),
        case["lam"],
    )


def terms(problem: Problem, views: Sequence[View], **changes: Any) -> SolverTerms:
    """Terms with tolerances that arithmetic can meet on a small problem."""
    values: dict[str, Any] = {
        "coupling": (problem.coupling,),
        "bounds": tuple(view.bound() for view in views),
        "initial_objective": problem.scale,
        "tolerance": 1e-20,
        "prediction_tolerance": 1e-9 * max(float(np.abs(s.y).max()) for s in problem.sites),
        "max_rounds": 10_000,
    }
    return SolverTerms(**(values | changes))


def amplification(problem: Problem) -> float:
    """1/√s of the least relative eigenvalue s that a finite span keeps: what its features make of a
    rounded kernel.
    """
    worst = 1.0
    for site in problem.sites:
        if isinstance(site.span, LabelledPoints):
            eigenvalues = np.linalg.eigvalsh(site.kernel(site.X, site.X))
            kept = eigenvalues[eigenvalues > RANK_TOLERANCE * eigenvalues[-1]]
            worst = max(worst, float(np.sqrt(eigenvalues[-1] / kept.min())))
    return worst


def value(solutions: Sequence[Solution], coupling: float) -> float:
    """Q of these models."""
    return objective(
        [s.local_objective for s in solutions],
        np.array([s.prediction for s in solutions]),
        coupling,
    )


# --- the oracle -----------------------------------------------------------------------------------


def gram(kernel: Kernel, A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """k(A, B) by scikit-learn."""
    if len(A) == 0 or len(B) == 0:
        return np.zeros((len(A), len(B)))
    match kernel:
        case Gaussian(bandwidth):
            return rbf_kernel(A, B, gamma=1 / bandwidth)
        case Linear():
            return linear_kernel(A, B)
    raise NotImplementedError(kernel)


def features(site: Site) -> tuple[np.ndarray, np.ndarray]:
    """(Φ_X, Φ_Z) with f(x) = φ(x)·w and ‖f‖ = ‖w‖, over the span of the site."""
    match site.span:
        case EveryPoint():
            points = np.concatenate([site.X, site.Z])
            cut = 1e-15
        case LabelledPoints():
            points = site.X
            cut = RANK_TOLERANCE
        case Landmarks(count, seed):
            pool = np.concatenate([site.X, site.Z])
            drawn = np.sort(default_rng(seed).choice(len(pool), size=count, replace=False))
            points = pool[drawn]
            cut = RANK_TOLERANCE
        case LinearFeatures():
            return site.X, site.Z
    s, E = eigh(gram(site.kernel, points, points))
    keep = s > cut * s[-1]
    W = E[:, keep] / np.sqrt(s[keep])
    return gram(site.kernel, site.X, points) @ W, gram(site.kernel, site.Z, points) @ W


def brute_force_response(site: Site, target: np.ndarray, weight: float) -> tuple[np.ndarray, float]:
    """(f(Z), local objective) of argmin ‖y − f(X)‖² + ν‖f‖² + μ‖f(Z) − t‖², by the SVD of the
    stacked rows.
    """
    Phi_X, Phi_Z = features(site)
    r = Phi_X.shape[1]
    rows = np.concatenate([Phi_X, np.sqrt(site.ridge) * np.eye(r), np.sqrt(weight) * Phi_Z])
    w = lstsq(rows, np.concatenate([site.y, np.zeros(r), np.sqrt(weight) * target]))[0]
    residual = site.y - Phi_X @ w
    return Phi_Z @ w, float(residual @ residual + site.ridge * (w @ w))


def reference(problem: Problem) -> tuple[np.ndarray, float]:
    """(ŷ* (M, m), Q*), by the SVD of all rows of Q at once: one row a label, a coordinate, and a
    pair's difference.
    """
    M = len(problem.sites)
    m = problem.n_unlabelled
    lam = problem.coupling
    maps = [features(site) for site in problem.sites]
    ends = np.cumsum([0, *(Phi_X.shape[1] for Phi_X, _ in maps)])
    rows = []
    right = []
    for v, (site, (Phi_X, _)) in enumerate(zip(problem.sites, maps, strict=True)):
        for block, values in (
            (Phi_X, site.y),
            (np.sqrt(site.ridge) * np.eye(Phi_X.shape[1]), np.zeros(Phi_X.shape[1])),
        ):
            row = np.zeros((len(block), ends[-1]))
            row[:, ends[v] : ends[v + 1]] = block
            rows.append(row)
            right.append(values)
    for v in range(M):
        for u in range(v):
            row = np.zeros((m, ends[-1]))
            row[:, ends[v] : ends[v + 1]] = np.sqrt(2 * lam) * maps[v][1]  # both orders of the pair
            row[:, ends[u] : ends[u + 1]] = -np.sqrt(2 * lam) * maps[u][1]
            rows.append(row)
            right.append(np.zeros(m))
    A = np.concatenate(rows)
    b = np.concatenate(right)
    w = lstsq(A, b)[0]
    residual = b - A @ w
    predictions = np.array([maps[v][1] @ w[ends[v] : ends[v + 1]] for v in range(M)])
    return predictions, float(residual @ residual)


# --- random problems ------------------------------------------------------------------------------

KERNELS = ("gaussian", "linear")
SPANS = ("exact", "semi-parametric", "landmarks", "linear")


def random_site(
    rng: np.random.Generator, n: int, m: int, *, kernel: str = "gaussian", span: str = "exact"
) -> Site:
    """A site with its own number of features, ridge and bandwidth.

    Bandwidths lie well below the paper's rule and rows are few, so that Gram matrices are far from
    singular and the rank tolerance decides nothing: what is compared is algebra, not the rounding
    of a cut. Singular matrices have their own tests.
    """
    d = int(rng.integers(2, 5))
    X = rng.normal(size=(n, d))
    Z = rng.normal(size=(m, d))
    bandwidth = float(d * rng.uniform(0.3, 1.0))
    kernels: dict[str, Kernel] = {"gaussian": Gaussian(bandwidth), "linear": Linear()}
    spans: dict[str, Span] = {
        "exact": EveryPoint(),
        "semi-parametric": LabelledPoints(),
        "landmarks": Landmarks(max(1, (n + m) // 2), seed=int(rng.integers(100))),
        "linear": LinearFeatures(),
    }
    ridge = float(10 ** rng.uniform(-1.5, 0.5))
    return Site(
        Linear() if span == "linear" else kernels[kernel],
        X,
        rng.normal(size=n),
        Z,
        ridge,
        spans[span],
    )


@st.composite
def problems(
    draw: st.DrawFn,
    *,
    forms: Sequence[str] = ("exact", "semi-parametric"),
    kernels: Sequence[str] = ("gaussian",),
    sites: tuple[int, int] = (1, 4),
    couplings: tuple[float, float] = (-3.0, 1.0),
    mixed: bool = False,
) -> Problem:
    """Sites of unequal n_v, d_v, ν_v and bandwidth; λ = 10^u. All of one form, unless ``mixed``."""
    rng = default_rng(draw(st.integers(0, 2**32 - 1)))
    M = draw(st.integers(*sites))
    m = draw(st.integers(1, 10))
    form = draw(st.sampled_from(forms))
    chosen = []
    for _ in range(M):
        span = form
        if mixed:
            span = draw(st.sampled_from(forms))
        n = draw(st.integers(1, 12))
        kernel = draw(st.sampled_from(kernels))
        chosen.append(random_site(rng, n, m, kernel=kernel, span=span))
    return Problem(tuple(chosen), float(10 ** draw(st.floats(*couplings))))
