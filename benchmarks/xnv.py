"""XNV against exact SSSL in one run, and XNV's time and memory up to a million rows.

    python benchmarks/xnv.py [--quick]

The paper (McWilliams et al. 2013, section 3) prints 72 s against 0.9 s (80 times) at N = 4096 and
2300 s against 1.3 s (1800 times) at N = 10 320, with Matlab's dense eigenvectors. Here SSSL runs
with both that (LAPACK) and Lanczos for its s = 100 eigenfunctions, which is fairer to it. M = 200
features a view, n = 200 labels, 8 attributes, one BLAS thread.
"""

import numpy as np
from harness import apart, arguments, least, memory

from benchmarks.papers.methods import SSSL, XNV, NystromSSSL
from coreg_core.threads import pin_threads


def problem(rows: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(rows)
    X = rng.normal(size=(rows, 8))
    return X, np.where(np.arange(rows) < 200, np.sin(X).sum(axis=1), np.nan)


def seconds(model, data, repeats: int = 1) -> float:
    return least(lambda: model.fit(*data), repeats)[0]


def main() -> None:
    quick = arguments(__doc__, quick=False).quick
    pin_threads(1)
    print(
        f"{'N':>8} {'SSSL':>8} {'Lanczos':>8} {'SSSL_2M':>8} {'XNV':>8} {'sketched':>8}"
        f" {'SSSL/XNV':>9} {'Lanczos/XNV':>11}"
    )
    for rows in (1000, 2000) if quick else (2000, 4096, 10_320):
        data = problem(rows)
        dense = seconds(SSSL(n_eigenfunctions=100), data)
        lanczos = seconds(SSSL(n_eigenfunctions=100, eigen_solver="lanczos"), data)
        nystrom = seconds(NystromSSSL(n_components=400, random_state=0), data, 3)
        xnv = seconds(XNV(n_components=200, random_state=0), data, 3)
        sketched = seconds(
            XNV(n_components=200, cca="randomised", sketch=2000, random_state=0), data, 3
        )
        print(
            f"{rows:8} {dense:8.2f} {lanczos:8.2f} {nystrom:8.3f} {xnv:8.3f} {sketched:8.3f} "
            f"{dense / xnv:9.1f} {lanczos / xnv:11.1f}",
            flush=True,
        )
    print(
        f"\n{'N':>8} {'XNV':>8} {'us a row':>9} {'sketched':>8} {'us a row':>9} {'data MB':>8}"
        f" {'peak MB':>8}"
    )
    for rows in (10_000, 20_000) if quick else (10_000, 100_000, 1_000_000):
        print(apart(linear, rows), flush=True)  # for a peak of its own


def linear(rows: int) -> str:
    pin_threads(1)
    data = problem(rows)
    exact = seconds(XNV(n_components=200, random_state=0), data)
    sketched = seconds(XNV(n_components=200, cca="randomised", random_state=0), data)
    peak = memory() / 2**20
    size = 64 * rows / 2**20
    return (
        f"{rows:8} {exact:8.2f} {1e6 * exact / rows:9.1f} {sketched:8.2f}"
        f" {1e6 * sketched / rows:9.1f} {size:8.0f} {peak:8.0f}"
    )


if __name__ == "__main__":
    main()
