"""The additive objective against solutions in 60-digit arithmetic (tools/golden_additive.py makes them, from J alone)."""

import json
from pathlib import Path

import numpy as np
import pytest
from additive_problems import Algebra, exact_traces
from numpy.testing import assert_allclose

from coreg_core.additive.closed_form import objective, solve_dense
from coreg_core.additive.model.features import Candidate, CentredFeatures
from coreg_core.additive.model.smoother import choose_smoother
from coreg_core.additive.model.view import AdditiveView, Hyper
from coreg_core.additive.question_types import Column
from coreg_core.additive.solver.block_gmres import BlockGmres
from coreg_core.kernels.bases import Basis
from coreg_core.kernels.functions import Linear

FOLDER = Path(__file__).parent / "golden" / "additive"
CASES = sorted(path.stem for path in FOLDER.glob("*.json"))


def case(name):
    truth = json.loads((FOLDER / f"{name}.json").read_text())
    views, hypers = [], []
    for site in truth["sites"]:
        d = len((site["labelled"] or site["shared"])[0])
        y = np.array(site["y"], dtype=float)
        m = len(site["shared"])
        labelled = np.array(site["labelled"], dtype=float).reshape(len(y), d)
        shared = np.array(site["shared"], dtype=float).reshape(m, d)
        rows = site["reading_labelled"] or site["reading_shared"]
        other = len(rows[0])
        reading = Candidate(
            CentredFeatures(Basis(Linear(), np.eye(other), np.eye(other)), np.zeros(other)),
            np.array(site["reading_labelled"], dtype=float).reshape(len(y), other),
            np.array(site["reading_shared"], dtype=float).reshape(m, other),
        )
        score = reading.shared[:, 0] if m else None
        # The grid of one η is that η, whatever the score; without shared rows S has no column.
        smoother = choose_smoother([reading], score, np.array([site["eta"]]))
        views.append(AdditiveView(y, labelled, shared, smoother.of(reading)))
        hypers.append(Hyper(site["noise"], site["prior"]))
    return truth, Algebra(views, hypers, truth["c"])


def scale(truth):
    """The largest number in the solution: errors are relative to it."""
    return max(1.0, *(abs(value) for part in truth["w"] for value in part))


# K's condition number is at most about 1e6 (the least noise is 1e-4): 1e6 eps, and a margin of ten.
DENSE = 2e-9
MESSAGES = 1e-8


def test_there_are_cases():
    assert len(CASES) == 5


@pytest.mark.parametrize("name", CASES)
def test_the_dense_oracle(name):
    truth, problem = case(name)
    dense = solve_dense(problem.views, problem.hypers, problem.intercept_prior)
    for w, expected in zip(dense.w, truth["w"], strict=True):
        assert_allclose(w, expected, atol=DENSE * scale(truth))
    assert dense.intercept == pytest.approx(truth["intercept"], abs=DENSE * scale(truth))
    assert_allclose(problem.score(dense.w), truth["s"], atol=DENSE * scale(truth))
    c = problem.intercept_prior
    exact = [np.array(part) for part in truth["w"]]
    assert objective(problem.views, problem.hypers, exact, truth["intercept"], c) == pytest.approx(
        truth["objective"], rel=1e-9
    )
    moved = [part + 0.125 for part in exact]
    assert objective(problem.views, problem.hypers, moved, truth["intercept"] + 0.125, c) == pytest.approx(
        truth["objective_off"], rel=1e-12
    )
    gamma, kappa = exact_traces(problem.views, problem.hypers, c)
    assert_allclose(gamma, truth["gamma"], atol=1e-8)
    assert_allclose(kappa, truth["kappa"], atol=1e-8)


@pytest.mark.parametrize("name", CASES)
def test_messages_alone(name):
    truth, problem = case(name)
    solver = BlockGmres((Column(),), (1e-14,), problem.intercept_prior)
    state = problem.solve(solver)
    m = problem.n_unlabelled
    assert_allclose(state.x[:m, 0], truth["s"], atol=MESSAGES * scale(truth))
    assert_allclose(
        state.x[m : 2 * m, 0], truth["q"], rtol=1e-7, atol=MESSAGES * max(1.0, *map(abs, truth["q"] or [0]))
    )
    assert state.x[-1, 0] == pytest.approx(truth["intercept"], abs=MESSAGES * scale(truth))
    for view, hyper, expected in zip(problem.views, problem.hypers, truth["w"], strict=True):
        _, w = view.solve(state.x, view.y[:, None], hyper)
        # w(x) = τ²(Ψᵀα + Zᵀq) subtracts numbers some hundred times its own size: T's spectral radius.
        assert_allclose(w[:, 0], expected, atol=1e2 * MESSAGES * scale(truth))
