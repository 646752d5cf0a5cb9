"""Problems for the tests of the additive objective: sites of random features and smoothers, and small federations of rows.

`federation` deals columns of one smooth function out among sites. The dense oracle of
`coreg_core.additive.closed_form` is itself held to 60-digit values (test_additive_golden.py) and to
numerical gradients of J (test_additive_view.py).
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from benchmarks.additive_reference.in_memory import run_in_memory
from coreg_core.additive.closed_form import blocks, covariance, solve_dense
from coreg_core.additive.model.grouping import ResidualPolicy
from coreg_core.additive.model.smoother import Smoothed
from coreg_core.additive.model.terms import Additive
from coreg_core.additive.model.view import AdditiveView, Hyper
from coreg_core.additive.question_types import NO_SCALARS, Answer, Question
from coreg_core.additive.site import AdditiveSite
from coreg_core.additive.solver.block_gmres import BlockGmres, GmresState
from coreg_core.additive.training import Training

EVERYTHING = ResidualPolicy(grouped_at_least=3, open_residuals=True)


@dataclass(frozen=True)
class Algebra:
    """Sites below the level of rows: what a training reduces to once features and smoothers are chosen."""

    views: list[AdditiveView]
    hypers: list[Hyper]
    intercept_prior: float

    @property
    def n_unlabelled(self) -> int:
        return self.views[0].n_unlabelled

    def answer(self, question: Question, labels: list[np.ndarray] | None = None) -> Answer:
        """The sum of the answers, in site order; ``labels`` stand for y where columns are probes."""
        total = None
        right = labels or [view.y[:, None] for view in self.views]
        for view, hyper, y in zip(self.views, self.hypers, right, strict=True):
            said = view.answer(question.targets, y if question.part == "affine" else None, hyper)
            total = said if total is None else total + said
        return Answer(total, NO_SCALARS)

    def solve(self, solver: BlockGmres, labels: list[np.ndarray] | None = None, **start: Any) -> GmresState:
        state = solver.start(self.n_unlabelled, **start)
        while not solver.finished(state):
            state = solver.step_with(state, self.answer(solver.query(state), labels))
        return state

    def score(self, w: list[np.ndarray]) -> np.ndarray:
        """s."""
        return np.sum([view.shared @ part for view, part in zip(self.views, w, strict=True)], axis=0)


def random_view(rng: np.random.Generator, n: int, m: int) -> AdditiveView:
    """Features centred over Z, and a ridge smoother of some others."""
    d, other = int(rng.integers(1, 6)), int(rng.integers(1, 5))

    def centred(columns: int) -> tuple[np.ndarray, np.ndarray]:
        X, Z = rng.normal(size=(n, columns)), rng.normal(size=(m, columns))
        shift = Z.mean(axis=0) if m else np.zeros(columns)
        return X - shift, Z - shift

    labelled, shared = centred(d)
    reading_X, reading_Z = centred(other)
    eta = float(10 ** rng.uniform(-1, 1))
    left = reading_X @ np.linalg.inv(reading_Z.T @ reading_Z + eta * np.eye(other))
    y, intercept = rng.normal(size=n), float(rng.choice([0.0, 0.3]))
    return AdditiveView(y, labelled, shared, Smoothed(left, reading_Z), intercept)


def weighted(view: AdditiveView, weights: np.ndarray) -> AdditiveView:
    """The view with rows of these weights."""
    roots = np.sqrt(weights)
    labelled, coupling = view.labelled * roots[:, None], view.coupling.weighed(roots)
    return replace(view, y=view.y * roots, labelled=labelled, coupling=coupling, weighted=roots)


@st.composite
def algebras(
    draw: st.DrawFn,
    *,
    sites: tuple[int, int] = (1, 4),
    rows: tuple[int, int] = (0, 9),
    unlabelled: tuple[int, int] = (0, 12),
) -> Algebra:
    """Sites of unequal n_v and d_v, some without labels; noise and priors over two decades."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    m = draw(st.integers(*unlabelled))
    views = [random_view(rng, draw(st.integers(*rows)), m) for _ in range(draw(st.integers(*sites)))]
    hypers = [Hyper(float(10 ** rng.uniform(-2, 0)), float(10 ** rng.uniform(-1.5, 0.5))) for _ in views]
    return Algebra(views, hypers, float(rng.choice([0.5, 1.0, 10.0])))


def truth(A: np.ndarray) -> np.ndarray:
    """Parts that add up, and one product that crosses two sites."""
    return np.sin(2 * A[:, 0]) + 0.5 * A[:, 1] ** 2 + np.cos(A[:, 2]) + 0.7 * A[:, 3] + 0.3 * A[:, 0] * A[:, 2]


@dataclass(frozen=True)
class Federation:
    sites: list[AdditiveSite]
    tables: list[tuple[np.ndarray, np.ndarray]]  # test rows of each site's columns, and their targets
    n_unlabelled: int


def federation(
    terms: Additive,
    *,
    n: tuple[int, ...] = (20, 15, 0),
    m: int = 80,
    seed: int = 0,
    mean: float = 3.0,
    policy: ResidualPolicy = EVERYTHING,
    labels: Any = None,
    weights: float | None = None,
) -> Federation:
    """Two or more sites with a correlated pair of columns each; ``labels`` changes a site's y before it is used.

    ``weights``: the scale of random weights of the labelled rows.
    """
    rng = np.random.default_rng(seed)
    p = max(4, 2 * len(n))
    mix = np.eye(p) + 0.3 * rng.normal(size=(p, p))
    Z = rng.normal(size=(m, p)) @ mix
    test = rng.normal(size=(60, p)) @ mix
    sites, tables = [], []
    for v, count in enumerate(n):
        columns = slice(2 * v, 2 * v + 2)
        positions = rng.choice(m, size=count, replace=False) if terms.rows == "common" else None
        rows = Z[positions] if positions is not None else rng.normal(size=(count, p)) @ mix
        y = mean + 2.0 * truth(rows) + 0.1 * rng.normal(size=count)
        y = y if labels is None else labels(v, y)
        sites.append(
            AdditiveSite(
                rows[:, columns], y, Z[:, columns], terms, name=f"s{v}", positions=positions, policy=policy,
                weights=None if weights is None else weights * np.random.default_rng(v).uniform(0.2, 5.0, size=count),
            )
        )  # fmt: skip
        tables.append((test[:, columns], mean + 2.0 * truth(test)))
    return Federation(sites, tables, m)


QUICK = Additive(landmarks=25, tuning_steps=2, probes=4)
TIGHT = replace(QUICK, final_tolerance=1e-13)


def own_intercepts(views, dense):
    """κ 1ᵀα of each site, from α over all rows."""
    ends = np.cumsum([0, *(view.n_labelled for view in views)])
    return [
        view.random_intercept * float(view.level @ dense.alpha[start:end])
        for view, start, end in zip(views, ends[:-1], ends[1:], strict=True)
    ]


def train(made, terms, on_step=lambda _state: None):
    training = Training(terms)
    return training, run_in_memory(training, training.start(made.n_unlabelled), made.sites, on_step)


def oracle(made, terms, state):
    """(s, a, hypers) of the dense solution at the noise and the priors that the sites ended with."""
    noise, prior = state.operator.tolist()
    hypers = [site.hypers[state.step].times(noise, prior) for site in made.sites]
    dense = solve_dense([site.view for site in made.sites], hypers, terms.intercept_prior)
    s = np.sum([site.view.shared @ w for site, w in zip(made.sites, dense.w, strict=True)], axis=0)
    return s, dense.intercept, dense


def exact_traces(views, hypers, intercept_prior=1.0):
    """(γ_u, κ_v): τ_u² tr(B_uᵀK⁻¹B_u) over every label, σ_v² tr((K⁻¹)_vv) over the rows of v. Probes estimate both."""
    inverse = np.linalg.inv(covariance(views, hypers, intercept_prior))
    gamma = [h.prior * np.sum(B * (inverse @ B)) for B, h in zip(blocks(views), hypers, strict=True)]
    rows = np.split(np.diag(inverse), np.cumsum([v.n_labelled for v in views])[:-1])
    return np.array(gamma), np.array([h.noise * own.sum() for h, own in zip(hypers, rows, strict=True)])
