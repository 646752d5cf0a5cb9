"""Steps per second of OCA-1-1 on two views: independent of the number of rows, and of the features
that a row lacks.

    python benchmarks/online.py [--quick]

Dense rows of 20 features, and sparse ones of 201 740 features with 200 non-zeros (the dimension of
the paper's language experiment; its data is not available, so the rows are random). "plain" is the
same step on a bare weight vector, w ← (1 − ηλ)w − …, whose cost grows with the dimension; the ratio
is the saving of w = a·v, in one run.
"""

import time

import numpy as np
from harness import arguments, least
from scipy import sparse

from benchmarks.papers.methods import OCA
from coreg_core.threads import pin_threads

STEPS = 20_000


def dense(rows: int, features: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(-1, 1, size=(rows, features))


def language(rows: int, features: int = 201_740, non_zeros: int = 200) -> sparse.csr_array:
    rng = np.random.default_rng(0)
    columns = np.sort(
        np.array([rng.choice(features, non_zeros, replace=False) for _ in range(rows)]), axis=1
    )
    values = rng.uniform(-1, 1, size=rows * non_zeros)
    return sparse.csr_array(
        (values, columns.ravel(), np.arange(rows + 1) * non_zeros), shape=(rows, features)
    )


def ours(X, steps: int) -> float:
    half = X.shape[0] // 2
    model = OCA(eta0=0.01, ridge=0.1, n_steps=steps, random_state=0)
    y = np.random.default_rng(1).normal(size=half)
    return steps / least(lambda: model.fit([X[:half], X[:half]], y, [X[half:], X[half:]]), 1)[0]


def plain(X: sparse.csr_array, steps: int) -> float:
    rng = np.random.default_rng(0)
    half = X.shape[0] // 2
    w = [np.zeros(X.shape[1]) for _ in range(2)]
    y = rng.normal(size=half)
    since = time.perf_counter()
    for t in range(steps):
        i = rng.integers(half)
        j = half + rng.integers(half)
        eta = 0.01 / (1 + 0.001 * t)
        spans = [slice(X.indptr[r], X.indptr[r + 1]) for r in (i, j)]
        (a, x), (b, z) = ((X.indices[s], X.data[s]) for s in spans)
        own = [x @ v[a] for v in w]
        others = [z @ v[b] for v in w]
        for v in range(2):
            w[v] *= 1 - eta * 0.1
            w[v][a] -= eta * (own[v] - y[i]) * x
            w[v][b] -= 4 * eta * 0.1 * (others[v] - others[1 - v]) * z
    return steps / (time.perf_counter() - since)


def main() -> None:
    quick = arguments(__doc__, quick=False).quick
    pin_threads(1)
    steps = STEPS // 20 if quick else STEPS
    print(f"{'rows':>8} {'features':>9} {'non-zeros':>9} {'steps/s':>9}")
    for rows in (1000, 10_000) if quick else (1000, 10_000, 100_000):
        print(f"{rows:8} {20:9} {20:9} {ours(dense(rows, 20), steps):9.0f}", flush=True)
    for rows in (500, 1000) if quick else (1000, 3000, 9000):
        print(f"{rows:8} {201_740:9} {200:9} {ours(language(rows), steps):9.0f}", flush=True)
    X = language(1000)
    fast = ours(X, steps)
    slow = plain(X, max(100, steps // 40))
    print(f"\nw = a·v: {fast:.0f} steps/s, plain: {slow:.0f} steps/s, ratio {fast / slow:.0f}")


if __name__ == "__main__":
    main()
