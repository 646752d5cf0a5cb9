r"""A whole training with all sites in memory, solved densely: the same questions to the same sites, without rounds of a solve.

    K α = Y,  K = diag N_v + c 11ᵀ + Σ_u τ_u² B_u B_uᵀ,  w_u = τ_u² B_uᵀ α,  x = (Σ Z_u w_u, Σ S_vᵀ α_v, c 1ᵀα)

One Cholesky factor of all labels takes the place of 10 to 80 rounds, so thousands of federations can be tried (`coreg-sim
benefit`). Everything else (units, scores, smoothers, traces, steps, the grid of common rows, folds, models) is asked of the
sites as the schedules ask it. So the result equals that of messages, to their tolerance; a test compares them.
Needs every site's arrays: for simulation, never a service.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from scipy.linalg import cho_factor, cho_solve

from coreg_core.additive.closed_form import blocks, noise_of
from coreg_core.additive.forecast import Forecast
from coreg_core.additive.model.terms import NOISE_GRID, PRIOR_GRID, Additive
from coreg_core.additive.model.view import AdditiveView, Hyper
from coreg_core.additive.question_rules import grid_columns
from coreg_core.additive.question_types import (
    Answer,
    Ask,
    Column,
    Operator,
    Question,
    folds_of,
    right_sides,
    stack,
)
from coreg_core.additive.site import AdditiveSite
from coreg_core.additive.training import Training
from coreg_core.additive.training_state import Phase
from coreg_core.numerics.arrays import Arr, Ints

_GETTING_READY = (Phase.LABELS, Phase.SPREAD, Phase.SCORE, Phase.SMOOTHER)


@dataclass(frozen=True, eq=False)
class DenseRun:
    """The end of a training, as in `TrainingState`."""

    x: Float64[Arr, "r 1"]
    units: tuple[float, float]
    step: int
    multiplier: float
    operator: tuple[float, float]
    joint: Float64[Arr, " j"]  # the grid's errors, one an operator; empty without a grid


class DenseSystem:
    """The blocks of K, once; then any noise and prior, and any rows left out, by one factor each."""

    def __init__(self, views: Sequence[AdditiveView], intercept_prior: float):
        self._views, self._c = views, intercept_prior
        self._blocks = blocks(views)
        self._grams = [B @ B.T for B in self._blocks]
        self._level = np.concatenate([view.level for view in views])
        self._ends = np.cumsum([0, *(view.n_labelled for view in views)])

    def solve(
        self, hypers: Sequence[Hyper], right: Float64[Arr, "N k"], left_out: Sequence[Ints] | None = None
    ) -> Float64[Arr, "r k"]:
        """x for every column of ``right``; ``left_out`` names the rows of each site to leave out."""
        K = noise_of(self._views, hypers) + self._c * np.outer(self._level, self._level)
        for gram, hyper in zip(self._grams, hypers, strict=True):
            K += hyper.prior * gram
        kept = np.ones(len(K), dtype=bool)
        for start, rows in zip(self._ends, left_out or (), strict=False):
            kept[start + rows] = False
        alpha = np.zeros_like(right)
        if kept.any():
            factor = cho_factor(K[np.ix_(kept, kept)], lower=True, overwrite_a=True, check_finite=False)
            alpha[kept] = cho_solve(factor, right[kept], check_finite=False)
        m = self._views[0].n_unlabelled
        s, q = np.zeros((m, right.shape[1])), np.zeros((m, right.shape[1]))
        for v, (view, B, hyper) in enumerate(zip(self._views, self._blocks, hypers, strict=True)):
            s += view.shared @ (hyper.prior * (B.T @ alpha))
            q += view.coupling.backward(alpha[self._ends[v] : self._ends[v + 1]])
        return stack(s, q, self._c * (self._level @ alpha))


def train_dense(terms: Additive, sites: Sequence[AdditiveSite], n_unlabelled: int) -> DenseRun:
    """Train; every site has its model at the end."""
    training = Training(terms)
    state = training.start(n_unlabelled)
    while Phase(state.phase) in _GETTING_READY:
        state = training.step_with(state, _sum(sites, training.query(state)))
    system = DenseSystem([site.view for site in sites], terms.intercept_prior)
    right = np.concatenate([right_sides(training.columns, site.view.y, site.signs) for site in sites])
    multiplier = 1.0
    for step in range(terms.tuning_steps):
        hypers = _hypers(sites, Operator(), step, multiplier, n_unlabelled)
        aside = state.probe_sum if step == 0 else None
        points = system.solve(hypers, right)
        said = _sum(sites, Question(Ask.TRACES, points, training.columns, "affine", step, aside=aside))
        ratio, gamma = said.scalars.tolist()
        multiplier = ratio / gamma
    step = terms.tuning_steps
    _hypers(sites, Operator(), step, multiplier, n_unlabelled)  # the last step is made
    operator, joint = Operator(), np.zeros(0)
    if terms.rows == "common" and terms.residuals == "smoothed":
        operator, joint = _best_of_grid(terms, sites, system, right[:, :1], step)
    hypers = [site.at(operator, step)[1] for site in sites]
    x = system.solve(hypers, right[:, :1])
    _sum(sites, Question(Ask.MODEL, x, (Column(operator=operator),), "affine", step))
    mean, deviation = state.units.tolist()
    return DenseRun(x, (mean, deviation), step, multiplier, (operator.noise, operator.prior), joint)


def forecast_dense(terms: Additive, sites: Sequence[AdditiveSite], run: DenseRun) -> float:
    """The folds of a forecast: the federation's summed gain; each site has its rows in ``left_out``.

    Raises
    ------
    UsageError
        grouped or open residuals.
    """
    schedule = Forecast.after(terms, run.units, run.step, run.multiplier, run.operator)
    state = schedule.start(sites[0].view.n_unlabelled)
    for _ in (Ask.SCORE, Ask.SMOOTHER):
        state = schedule.step_with(state, _sum(sites, schedule.query(state)))
    points = []
    for column in schedule.columns:
        at = [site.at(column.operator, run.step) for site in sites]
        system = DenseSystem([view for view, _ in at], terms.intercept_prior)
        y = np.concatenate([view.y for view, _ in at])[:, None]
        points.append(system.solve([hyper for _, hyper in at], y))
    question = Question(Ask.FORECAST, np.concatenate(points, axis=1), schedule.columns, "affine", run.step)
    joined, alone, rows = _sum(sites, question).scalars.tolist()
    return float(np.sqrt(joined / alone) - 1.0) if rows and alone > 0.0 else float("nan")


def _hypers(
    sites: Sequence[AdditiveSite], operator: Operator, step: int, multiplier: float, n_unlabelled: int
) -> list[Hyper]:
    """σ² and τ² at a step: a site makes a step at the question that begins its solve, here at x = 0."""
    zero = np.zeros((2 * n_unlabelled + 1, 1))
    begin = Question(Ask.FIXED_POINT, zero, (Column(),), "affine", step, (multiplier,) if step else ())
    for site in sites:
        site.answer(begin)
    return [site.at(operator, step)[1] for site in sites]


def _best_of_grid(
    terms: Additive, sites: Sequence[AdditiveSite], system: DenseSystem, right: Float64[Arr, "N 1"], step: int
) -> tuple[Operator, Float64[Arr, " j"]]:
    """Noise and prior multipliers of common rows, by folds of the joint score."""
    columns = grid_columns(terms)
    rows = [folds_of(site.view.n_labelled, terms.folds, terms.seed) for site in sites]
    points = []
    for column in columns:
        fold = column.operator.fold
        assert fold is not None
        hypers = [site.at(column.operator, step)[1] for site in sites]
        points.append(system.solve(hypers, right, [each[fold] for each in rows]))
    said = _sum(sites, Question(Ask.JOINT, np.concatenate(points, axis=1), columns, "affine", step))
    errors = said.scalars.reshape(-1, terms.folds).sum(axis=1)
    noise, prior = [(n, p) for n in NOISE_GRID for p in PRIOR_GRID][int(errors.argmin())]
    return Operator(noise=noise, prior=prior), errors


def _sum(sites: Sequence[AdditiveSite], question: Question) -> Answer:
    total = sites[0].answer(question)
    for site in sites[1:]:
        total = total + site.answer(question)
    return total
