"""The semi-parametric view's cost, linear in m: factoring once, and a round's answer (two passes
over C).
"""

import numpy as np
import pytest

from coreg_core.agreement.views import make_view
from coreg_core.kernels import Gaussian
from coreg_core.selection import paper_bandwidth, paper_ridge
from coreg_core.spans import LabelledPoints
from coreg_core.threads import pin_threads

N = 100
D = 8


def view_of(m):
    pin_threads(1)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, D))
    kernel = Gaussian(paper_bandwidth(X))
    ridge = paper_ridge(X)
    return lambda: make_view(
        LabelledPoints(), kernel, X, X.sum(axis=1), rng.normal(size=(m, D)), ridge
    )


@pytest.mark.parametrize("m", [10_000, 100_000, 1_000_000])
def bench_respond(benchmark, m):
    benchmark.group = f"respond, semi-parametric, n={N}"
    view = view_of(m)()
    target = np.random.default_rng(1).normal(size=(m, 1))
    benchmark.pedantic(lambda: view.respond(target, np.array([0.1])), rounds=10, warmup_rounds=2)


@pytest.mark.parametrize("m", [10_000, 100_000])
def bench_factor(benchmark, m):
    benchmark.group = f"factor, semi-parametric, n={N}"
    benchmark.pedantic(view_of(m), rounds=3, warmup_rounds=1)
