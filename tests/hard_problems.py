"""Random problems of the hard kind, one a seed: what `benchmarks/certify.py` and CI's sample are drawn from.

M 1–8, m 0–300, n 1–60, λ 1e-8–1e4, ν 1e-10–1e3 or the paper's rule, four kernels, repeated rows (also between X and Z), constant
labels, features scaled by 1e±8, one feature, outliers, rows far from the origin, Z that reaches further than X.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Hard:
    """A problem as `CoRLSR` takes it."""

    parameters: dict[str, Any]
    Xs: list[np.ndarray]
    ys: list[np.ndarray]
    Zs: list[np.ndarray]
    traits: tuple[str, ...]

    def digest(self) -> str:
        """Of all numbers: another numpy may draw others."""
        return hashlib.sha256(b"".join(a.tobytes() for a in (*self.Xs, *self.ys, *self.Zs))).hexdigest()[:16]


def _scale(rng: np.random.Generator) -> float:
    return float(10.0 ** rng.choice([0.0, 0.0, 0.0, rng.uniform(-8, 8), rng.choice([-8.0, 8.0, 4.0, -4.0])]))


def hard_problem(seed: int, largest_m: int = 300) -> Hard:
    """The problem of that seed."""
    rng = np.random.default_rng([20_260_000, seed])
    traits: list[str] = []
    M = int(rng.choice([1, 2, 2, 2, 3, 3, 4, 5, 8]))
    m = int(rng.choice([0, 1, 2, int(rng.integers(3, 20)), int(rng.integers(10, 60)), int(10 ** rng.uniform(1, 2.48))]))
    m = min(m, largest_m)
    kernel = str(rng.choice(["gaussian", "gaussian", "gaussian", "laplacian", "linear", "polynomial"]))
    Xs, ys, Zs, ridges, bandwidths = [], [], [], [], []
    narrow = rng.random() < 0.4
    far, wide = rng.random() < 0.1, rng.random() < 0.25
    for _ in range(M):
        n = int(rng.choice([1, 2, int(rng.integers(3, 20)), int(rng.integers(10, 61))]))
        d = int(rng.integers(1, 3)) if narrow else int(rng.choice([1, 2, 3, 5, 8, 20]))
        X, Z = rng.normal(size=(n, d)), rng.normal(size=(m, d)) * (2.0 if wide else 1.0)
        if rng.random() < 0.2 and n > 1:
            X[rng.integers(0, n, size=max(1, n // 3))] = X[0]
            traits.append("repeated")
        if rng.random() < 0.15 and m:
            Z[rng.integers(0, m, size=max(1, m // 3))] = X[rng.integers(0, n)]
            traits.append("shared")
        if rng.random() < 0.1:
            X, Z = np.round(X * 2) / 2, np.round(Z * 2) / 2
            traits.append("grid")
        if rng.random() < 0.15:
            target = X if rng.random() < 0.5 or not m else Z
            target[rng.integers(0, len(target)), rng.integers(0, d)] = 10.0 ** rng.uniform(2, 8)
            traits.append("outlier")
        if far:
            shift = 10.0 ** rng.uniform(2, 8)
            X, Z = X + shift, Z + shift
            traits.append("far")
        s = _scale(rng)
        X, Z = X * s, Z * s
        y = rng.normal(size=n) * float(10 ** rng.choice([0.0, 0.0, rng.uniform(-4, 4)]))
        if rng.random() < 0.15:
            y[:] = float(rng.choice([0.0, 1.0, 3e5]))
            traits.append("constant y")
        Xs.append(X)
        ys.append(y)
        Zs.append(Z)
        spread = float(((X - X.mean(axis=0)) ** 2).sum() / n)
        norms = float(np.linalg.norm(X, axis=1).mean())
        ruled = n > 1 and spread > 1e-20 * norms**2 > 0.0
        size = s * s if kernel in ("gaussian", "polynomial") else s
        numeric = float(size * d * 10.0 ** rng.uniform(-1.5, 2.0))
        bandwidths.append(str(rng.choice(["paper", "median"])) if ruled and rng.random() < 0.6 else numeric)
        if bandwidths[-1] == "median" and n > 1:
            D = ((X[:, None] - X[None]) ** 2).sum(-1)[np.triu_indices(n, 1)]
            if np.median(D) <= 0:
                bandwidths[-1] = numeric
        ridges.append("paper" if norms > 0 and rng.random() < 0.4 else float(10 ** rng.uniform(-10, 3)))
    parameters = {
        "form": str(rng.choice(["exact", "semi-parametric"])),
        "kernel": kernel,
        "bandwidth": bandwidths,
        "ridge": ridges,
        "coupling": float(10 ** rng.uniform(-8, 4)),
        "degree": int(rng.integers(1, 4)),
        "tol": float(rng.choice([1e-10, 1e-10, 1e-6, 1e-16])),
        "prediction_tol": rng.choice([None, None, 1e-6]),
        "max_rounds": 400,
    }
    return Hard(parameters, Xs, ys, Zs, tuple(sorted(set(traits))))
