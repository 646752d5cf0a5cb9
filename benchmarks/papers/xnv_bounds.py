r"""`xnv-bounds`: the bounds of theorems 1 and 3 beside the measured errors (McWilliams et al.,
2013, sections 2.1 and 2.3).

The population is 2,000 rows of a set: attributes of variance 1, targets centred and scaled to [−1,
1], as theorem 1 asks (E[y² | x] ≤ 1). So every expectation over rows is a mean over these rows.
Gaussian kernel with the paper's rule for the width.

Theorem 1: E_T loss(f_v) − loss(f) ≤ 5ε + Σ λ_j² / n for the shrinkage estimator (equation 4) on n
rows drawn from the population. Two Nyström views of 200 features; f is the best linear predictor of
both views, ε the larger excess of the best ones of each. The canonical basis has no ridge, as the
theorem has none; features beyond float64's rank are dropped. The last column is XNV itself
(equation 9 with γ = 0.01).

Theorem 3: E ‖y − ŷ_Nyström‖² ≤ (1 + 4η) E ‖y − ŷ_kernel‖² "for sufficiently large M, see [5]".
There (Bach, COLT 2013, theorem 1) that is M ≥ (32 d/η + 2) log(N R² / (ηγ)), d = N max_i [K (K +
NγI)⁻¹]_ii, R² = max_i K_ii. γ has the least leave-one-out error of kernel ridge, and that error is
the variance of the noise ξ.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh

from benchmarks.papers.jobs import JSON, Job
from benchmarks.papers.methods.xnv import canonical_basis, canonical_ridge
from benchmarks.papers.pool import Pool
from benchmarks.papers.report import Cell, Report, ReportTable
from benchmarks.papers.views import standardised
from benchmarks.papers.xnv import RIDGES, TASKS, inputs
from coreg_core.arrays import Arr
from coreg_core.kernels import Gaussian
from coreg_core.selection import paper_bandwidth
from coreg_core.spans import orthonormal_basis

ROWS = 2000
COMPONENTS = 200
DRAWS = 32
SIZES = (100, 500)
GAMMA = 0.01
RANK = 1e-10
"""Directions of a view with a smaller share of its largest eigenvalue are dropped."""


@dataclass(frozen=True)
class XnvBounds:
    """See the module's docstring."""

    name: str = "xnv-bounds"
    title: str = "The bounds of theorems 1 and 3 beside the errors"
    source: str = "McWilliams, Balduzzi, Buhmann (NIPS 2013), theorems 1 and 3"
    sets: tuple[str, ...] = tuple(dict.fromkeys(TASKS.values()))

    def jobs(self, pool: Pool, *, quick: bool) -> list[Job]:
        """One for each regression task; quick: one task, 300 rows, 20 features, 2 draws."""
        there = [
            task
            for task, name in TASKS.items()
            if pool.has(name) and pool.load(name).task == "regression"
        ]
        rows, M, draws = (300, 20, 2) if quick else (ROWS, COMPONENTS, DRAWS)
        return [
            Job(t, {"task": t, "rows": rows, "M": M, "draws": draws})
            for t in (there[:1] if quick else there)
        ]

    def run(self, job: Job, pool: Pool) -> dict[str, JSON]:
        """Both theorems' terms, and the errors."""
        a = job.arguments
        X, y, _ = inputs(pool.load(TASKS[a["task"]]), a["task"])
        rng = np.random.default_rng([2013, *a["task"].encode()])
        chosen = rng.permutation(len(y))[: a["rows"]]
        X = standardised(X, chosen)[chosen]
        y = y[chosen] - y[chosen].mean()
        y = y / np.abs(y).max()
        kernel = Gaussian(paper_bandwidth(X))
        landmarks = [rng.choice(len(X), size=2 * a["M"], replace=False) for _ in range(a["draws"])]
        views = [
            orthonormal_basis(kernel, X[half]).features(X) for half in np.split(landmarks[0], 2)
        ]
        nystrom = [orthonormal_basis(kernel, X[each[: a["M"]]]).features(X) for each in landmarks]
        return {
            "first": theorem_1(*views, y, a["draws"], rng),
            "third": theorem_3(kernel(X, X), y, nystrom),
        }

    def report(self, results: Mapping[str, dict[str, JSON]], *, quick: bool) -> Report:
        """A table for each theorem."""
        first = {task: result["first"] for task, result in results.items()}
        third = {task: result["third"] for task, result in results.items()}
        cases = [(one, str(n)) for one in first.values() for n in SIZES]
        ratios = [one["bound"][n] / one["excess"][n] for one, n in cases]
        empty = sum(one["bound"][n] > one["variance"] for one, n in cases)
        M = max(one["M"] for one in third.values())
        growth = [one["ratio"] for one in third.values()]
        return Report(
            (
                f"Theorem 1 holds in {sum(r >= 1 for r in ratios)} of {len(ratios)} cases (a set and n = {SIZES[0]} or "
                f"{SIZES[1]}). Its bound is {min(ratios):.0f} to {max(ratios):.0f} times the measured excess loss, and above the "
                f"variance of the targets in {empty} cases.",
                f"Theorem 3 at η = 1 lets the error grow fivefold, with {min(t['needed'] for t in third.values()):,.0f} or more "
                f"Nyström features for {ROWS:,} rows. Measured with {M} features: a factor of {min(growth):.2f} to "
                f"{max(growth):.2f}.",
            ),
            (
                ReportTable(
                    "Theorem 1: excess loss of the shrinkage estimator and its bound",
                    (
                        "set", "variance", "5ε", "Σ λ²",
                        *(f"{what}, n = {n}" for n in SIZES for what in ("bound", "excess", "XNV's excess")),
                    ),
                    tuple(_first(task, one) for task, one in first.items()),
                    "Mean squared errors of targets in [−1, 1]; excess: over the best linear predictor of both views.",
                ),
                ReportTable(
                    "Theorem 3: growth of the error by Nyström features",
                    ("set", "γ", "d", "features asked for, η = 1", f"growth, M = {M}"),
                    tuple(
                        (task, f"{t['gamma']:.0e}", f"{t['d']:.0f}", f"{t['needed']:.0f}", t["ratio"])
                        for task, t in third.items()
                    ),
                    "The theorem allows a factor of 1 + 4η over the error of kernel ridge with all rows: at η = 1 a factor of 5.",
                ),
            ),
        )  # fmt: skip


def theorem_1(
    first: Arr, second: Arr, y: Arr, draws: int, rng: np.random.Generator
) -> dict[str, JSON]:
    """ε, Σ λ², and by n the bound and the mean excess losses of the shrinkage estimator and
    of XNV.
    """
    first = _independent(first)
    second = _independent(second)
    basis = canonical_basis(first, second, len(y), 0.0)
    Z = first @ basis.first
    lam = basis.correlations
    best = _least(np.hstack([first, second]), y)
    epsilon = max(_least(view, y) for view in (first, second)) - best
    out: dict[str, JSON] = {
        "variance": float(y.var()),
        "epsilon": epsilon,
        "squares": float((lam**2).sum()),
    }
    bound = {}
    excess = {}
    xnv = {}
    for n in SIZES:
        losses = []
        for _ in range(draws):
            rows = rng.integers(0, len(y), size=n)
            shrunk = lam * (Z[rows].T @ y[rows]) / n
            tuned = canonical_ridge(Z[rows], y[rows], lam, GAMMA)
            losses.append([float(np.mean((Z @ beta - y) ** 2)) for beta in (shrunk, tuned)])
        excess[str(n)], xnv[str(n)] = (np.mean(losses, axis=0) - best).tolist()
        bound[str(n)] = 5 * epsilon + out["squares"] / n
    return out | {"bound": bound, "excess": excess, "xnv": xnv}


def theorem_3(K: Arr, y: Arr, nystrom: list[Arr]) -> dict[str, JSON]:
    """γ, d, the features that the theorem asks for at η = 1, and the measured growth of the
    error.
    """
    N = len(y)
    s, V = eigh(K)
    s = np.maximum(s, 0.0)
    rotated = V.T @ y

    def left_out(gamma: float) -> float:
        shrunk = s / (s + N * gamma)
        return float(np.mean(((y - V @ (shrunk * rotated)) / (1.0 - V**2 @ shrunk)) ** 2))

    gamma = min(RIDGES, key=left_out)
    noise = left_out(gamma)
    shrunk = s / (s + N * gamma)

    def error(shrunk: Arr, along: Arr, rest: float) -> float:
        return float(np.sum(((1.0 - shrunk) * along) ** 2) + rest + noise * np.sum(shrunk**2))

    ours = []
    for Z in nystrom:
        U, singular, _ = np.linalg.svd(Z, full_matrices=False)
        along = U.T @ y
        ours.append(
            error(singular**2 / (singular**2 + N * gamma), along, float(y @ y - along @ along))
        )
    d = N * float((V**2 @ shrunk).max())
    needed = (32 * d + 2) * np.log(N * K.diagonal().max() / gamma)
    ratio = float(np.mean(ours)) / error(shrunk, rotated, 0.0)
    return {
        "gamma": gamma,
        "d": d,
        "needed": float(needed),
        "ratio": ratio,
        "M": nystrom[0].shape[1],
    }


def _independent(view: Arr) -> Arr:
    """Its directions that float64 resolves, with unit variance."""
    s, V = eigh(view.T @ view)
    kept = s > RANK * s[-1]
    return np.asarray(view @ (V[:, kept] / np.sqrt(s[kept] / len(view))))


def _least(view: Arr, y: Arr) -> float:
    """The loss of the best linear predictor."""
    return float(np.mean((y - view @ np.linalg.lstsq(view, y)[0]) ** 2))


def _first(task: str, one: Mapping[str, JSON]) -> tuple[Cell, ...]:
    each = [one[key][str(n)] for n in SIZES for key in ("bound", "excess", "xnv")]
    return (task, one["variance"], 5 * one["epsilon"], f"{one['squares']:.0f}", *each)


EXPERIMENT = XnvBounds()
