"""The closed form against the paper's stacked system, and the solvers against each other, on one
problem.

Compare times within one run: the ratio holds on any machine. Every solver's answer is checked
first.
"""

import numpy as np
import pytest

from benchmarks.one_table import one_table
from benchmarks.stacked_system import solve_stacked, textbook_view
from coreg_core.estimators import CoRLSR
from coreg_core.estimators.corlsr import SOLVERS
from coreg_core.kernels import Gaussian
from coreg_core.selection import paper_ridge
from coreg_core.threads import pin_threads
from coreg_sim.problems import generated

M = 3
N = 50
UNLABELLED = 400
COUPLING = 0.1


@pytest.fixture(scope="module")
def problem():
    pin_threads(1)
    data = generated(M, N, UNLABELLED, 5, seed=0).sites.values()
    return [d.X for d in data], [d.y - d.y.mean() for d in data], [d.Z for d in data]


def fit(form, solver, problem):
    # A narrow kernel: with the rule of the paper its own stacked system is singular on these rows.
    views, table = one_table(*problem)
    return CoRLSR(
        preset="paper", views=views, form=form, solver=solver, bandwidth=1.0, coupling=COUPLING,
        tol=1e-12,
        prediction_tol=1e-6,
    ).fit(**table)  # fmt: skip


def stacked(form, problem):
    """Predictions on Z of the paper's own system."""
    views = [
        textbook_view(Gaussian(1.0), X, y, Z, paper_ridge(X), exact=form == "exact")
        for X, y, Z in zip(*problem, strict=True)
    ]
    return np.array(
        [view.U @ c for view, c in zip(views, solve_stacked(views, COUPLING), strict=True)]
    )


@pytest.mark.parametrize("form", ["exact", "semi-parametric"])
def bench_stacked(benchmark, problem, form):
    benchmark.group = f"fit {form}: M={M}, n={N}, m={UNLABELLED}, coupling={COUPLING}"
    truth = fit(form, "closed-form", problem).predictions_unlabelled_
    assert np.abs(stacked(form, problem) - truth).max() < 1e-5
    benchmark.pedantic(lambda: stacked(form, problem), rounds=5, warmup_rounds=1)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("form", ["exact", "semi-parametric"])
def bench_fit(benchmark, problem, form, solver):
    benchmark.group = f"fit {form}: M={M}, n={N}, m={UNLABELLED}, coupling={COUPLING}"
    truth = fit(form, "closed-form", problem).predictions_unlabelled_
    fitted = fit(form, solver, problem)
    assert np.abs(fitted.predictions_unlabelled_ - truth).max() < 1e-5
    benchmark.extra_info["rounds"] = fitted.n_rounds_
    benchmark.pedantic(lambda: fit(form, solver, problem), rounds=5, warmup_rounds=1)
