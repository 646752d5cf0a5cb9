r"""What a training of the additive objective can ask of one site, and in which order: a site holds every question to
this.

    LABELS → SPREAD → SCORE → SMOOTHER → (solve → TRACES) × tuning_steps → [grid → JOINT] → solve → SMOOTHED → GRADIENT → MODEL

A solve is one affine question, then linear ones. Kinds, columns, steps, shapes and scalars all follow from the terms
and from the question before; only the numbers in the vectors are the coordinator's.
"""

from dataclasses import dataclass, replace
from itertools import product
from typing import Literal, TypeAlias

import numpy as np

from coreg_core.additive.model.terms import NOISE_GRID, OWN, PRIOR_GRID, Additive, tries_grid
from coreg_core.additive.question_types import Ask, Column, Operator, Question
from coreg_core.additive.solver.block_gmres import direction_columns
from coreg_core.agreement.schedules.schedule import column_norms

Solve: TypeAlias = Literal["none", "tuning", "grid", "final", "forecast"]
# Questions beside the solves: LABELS, SPREAD, SCORE, SMOOTHER; JOINT; SMOOTHED, GRADIENT, MODEL.
_BESIDE = 8
_HUGE = 1e300
# Of a forecast: SCORE, SMOOTHER, FORECAST.
_FORECAST = 3


@dataclass(frozen=True)
class Position:
    """Where a training stands for a site: the last question that it answered, less its numbers."""

    ask: Ask
    solve: Solve = "none"
    step: int = 0
    noise: float = 1.0
    prior: float = 1.0

    @property
    def operator(self) -> Operator:
        """Of the final solve and what follows it."""
        return Operator(noise=self.noise, prior=self.prior)


def max_questions(terms: Additive) -> int:
    """How many questions of one run a site answers at most, twice what an undisturbed training can ask (as for the agreement)."""
    solves = terms.tuning_steps + 1 + tries_grid(terms)
    forecast = terms.max_rounds + 1 + _FORECAST if terms.forecast else 0
    return 2 * (solves * (terms.max_rounds + 1) + terms.tuning_steps + _BESIDE + forecast)


def position_after(terms: Additive, question: Question) -> Position:
    """Where the training stands once this question is answered."""
    operator = question.columns[0].operator if question.columns else Operator()
    at = Position(question.ask, _solve_of(terms, question), question.step)
    last = question.ask in (Ask.SMOOTHED, Ask.GRADIENT, Ask.MODEL) or at.solve in ("final", "forecast")
    return replace(at, noise=operator.noise, prior=operator.prior) if last else at


def question_fault(terms: Additive, n_unlabelled: int, before: Position | None, question: Question) -> str | None:
    """Why no training under these terms asks this after what it asked before; None where one does.

    Parameters
    ----------
    terms
        of the plan.
    n_unlabelled
        m.
    before
        None at the beginning of an attempt.
    question
        with arrays that are finite.
    """
    here = position_after(terms, question)
    if (here.ask, here.solve, here.step) not in _following(terms, before):
        after = "at the beginning" if before is None else f"after {_told(before)}"
        return f"{_told(here)}, which is not what comes {after}."
    operator = before.operator if before is not None and here.ask is not Ask.FIXED_POINT else here.operator
    if before is not None and before.solve in ("final", "forecast"):
        operator = before.operator
    return (
        _part_fault(before, here, question)
        or _columns_fault(terms, here, question, operator)
        or _shape_fault(n_unlabelled, question)
        or _scalars_fault(here, question)
    )


def grid_columns(terms: Additive) -> tuple[Column, ...]:
    """The columns of the grid of common rows, in order."""
    grid = product(NOISE_GRID, PRIOR_GRID, range(terms.folds))
    return tuple(Column(operator=Operator(fold, False, noise, prior)) for noise, prior, fold in grid)


def forecast_columns(terms: Additive, operator: Operator) -> tuple[Column, ...]:
    """The columns of a forecast, one a fold, chosen again there; ``operator`` is the final solve's."""
    return tuple(Column(operator=Operator(fold, True, operator.noise, operator.prior)) for fold in range(terms.folds))


def _told(at: Position) -> str:
    solve = "" if at.solve == "none" else f" of the {at.solve} solve"
    return f"a question {at.ask.name}{solve} at step {at.step}"


def _solve_of(terms: Additive, question: Question) -> Solve:
    if any(column.operator.refit for column in question.columns):
        return "forecast"
    if question.ask is not Ask.FIXED_POINT:
        return "none"
    if any(column.operator.fold is not None for column in question.columns):
        return "grid"
    return "tuning" if question.step < terms.tuning_steps else "final"


def _following(terms: Additive, before: Position | None) -> list[tuple[Ask, Solve, int]]:
    last = terms.tuning_steps
    final: tuple[Ask, Solve, int] = (Ask.FIXED_POINT, "final", last)
    grid: tuple[Ask, Solve, int] = (Ask.FIXED_POINT, "grid", last)
    if before is None:
        return [(Ask.LABELS if terms.targets == "federation" else Ask.SCORE, "none", 0)]

    def solve(step: int) -> tuple[Ask, Solve, int]:
        if step < last:
            return (Ask.FIXED_POINT, "tuning", step)
        return grid if tries_grid(terms) else final

    folds: tuple[Ask, Solve, int] = (Ask.FIXED_POINT, "forecast", last)
    match before.ask, before.solve:
        case Ask.MODEL, _:
            return [(Ask.SCORE, "forecast", 0)] if terms.forecast else []
        case Ask.SCORE, "forecast":
            return [(Ask.SMOOTHER, "forecast", 0)]
        case Ask.SMOOTHER, "forecast":
            return [folds]
        case Ask.FIXED_POINT, "forecast":
            return [folds, (Ask.FORECAST, "forecast", last)]
        case Ask.LABELS, _:
            return [(Ask.SPREAD, "none", 0)]
        case Ask.SPREAD, _:
            return [(Ask.SCORE, "none", 0)]
        case Ask.SCORE, _:
            return [(Ask.SMOOTHER, "none", 0)]
        case Ask.SMOOTHER, _:
            return [solve(0)]
        case Ask.FIXED_POINT, "tuning":
            return [(Ask.FIXED_POINT, "tuning", before.step), (Ask.TRACES, "none", before.step)]
        case Ask.TRACES, _:
            return [solve(before.step + 1)]
        case Ask.FIXED_POINT, "grid":
            return [grid, (Ask.JOINT, "none", last)]
        case Ask.JOINT, _:
            return [final]
        case Ask.FIXED_POINT, _:
            return [final, (Ask.SMOOTHED, "none", last)]
        case Ask.SMOOTHED, _:
            return [(Ask.GRADIENT, "none", last)]
        case Ask.GRADIENT, _:
            return [(Ask.MODEL, "none", last)]
        case _:
            return []


def _part_fault(before: Position | None, here: Position, question: Question) -> str | None:
    if here.ask is Ask.FIXED_POINT:
        goes_on = before is not None and (before.ask, before.solve, before.step) == (here.ask, here.solve, here.step)
        wanted = "linear" if goes_on else "affine"
    else:
        wanted = "affine" if here.ask in (Ask.TRACES, Ask.JOINT, Ask.MODEL, Ask.FORECAST) else "linear"
    if question.part != wanted:
        return f"{_told(here)} with part {question.part!r}, where it is {wanted!r}: labels would be told once more."
    return None


def _columns_fault(terms: Additive, here: Position, question: Question, operator: Operator) -> str | None:
    probes = tuple(Column("probe", p) for p in range(terms.probes))
    allowed = tries_grid(terms) and operator.noise in NOISE_GRID and operator.prior in PRIOR_GRID
    good: bool
    match here.ask, here.solve:
        case ((Ask.LABELS | Ask.SPREAD), _):
            good = not question.columns
        case _, "forecast":
            every = forecast_columns(terms, operator)
            good = _in_order(every, question) if here.ask is Ask.FIXED_POINT else question.columns == every
        case ((Ask.SCORE | Ask.SMOOTHER), _):
            good = question.columns == (Column(),)
        case Ask.TRACES, _:
            good = question.columns == (Column(), *probes)
        case Ask.JOINT, _:
            good = question.columns == grid_columns(terms)
        case _, "grid":
            good = _in_order(grid_columns(terms), question)
        case _:
            if not (operator == Operator() or allowed):
                return (
                    f"noise times {operator.noise:g} and prior times {operator.prior:g}, which these terms never ask."
                )
            every = tuple(replace(column, operator=operator) for column in (Column(), *probes))
            if here.ask is Ask.FIXED_POINT:
                # A block of directions has any width up to twice its columns; an affine question has them once each.
                linear = question.part == "linear"
                good = question.columns == (direction_columns(every, len(question.columns)) if linear else every)
            else:
                good = question.columns == every[:1]
    wide = here.ask in (Ask.LABELS, Ask.SPREAD) or question.columns
    return None if good and wide else f"{_told(here)} with columns that these terms never ask together."


def _in_order(every: tuple[Column, ...], question: Question) -> bool:
    """Members that are done are asked no more, the others in their order; s and q of a direction go apart."""
    twice = 1 if question.part == "affine" else 2
    asked = iter([column for column in every for _ in range(twice)])
    return all(column in asked for column in question.columns)


def _shape_fault(m: int, question: Question) -> str | None:
    k = len(question.columns)
    shapes = {
        Ask.LABELS: (0, 0),
        Ask.SPREAD: (0, 0),
        Ask.SCORE: (0, 0),
        Ask.SMOOTHER: (m, k),
        Ask.SMOOTHED: (m, 1),
        Ask.GRADIENT: (m, 2),
    }
    expected = shapes.get(question.ask, (2 * m + 1, k))
    if question.targets.shape != expected:
        return f"{question.ask.name} at points of shape {question.targets.shape}, expected {expected}."
    if question.ask is Ask.TRACES and (question.aside is None or question.aside.shape != (m, k - 1)):
        return f"TRACES without the probes' sum of shape {(m, k - 1)} below its points."
    return None


def _scalars_fault(here: Position, question: Question) -> str | None:
    least: dict[Ask, tuple[float, ...]] = {
        Ask.SPREAD: (-np.inf,),
        Ask.SCORE: (-np.inf, np.finfo(float).tiny),
        Ask.SMOOTHER: (0.0,),
        Ask.GRADIENT: (0.0, 0.0),
    }
    wanted = least.get(here.ask, ())
    if here.ask is Ask.SMOOTHER:
        wanted = wanted * len(question.columns)
    if here.ask is Ask.FIXED_POINT and question.part == "affine" and here.step:
        wanted = (np.finfo(float).tiny,)
    good = len(question.scalars) == len(wanted)
    if not (good and all(np.isfinite(x) and x >= low for x, low in zip(question.scalars, wanted, strict=True))):
        return f"{_told(here)} with the scalars {question.scalars}, which are not what it comes with."
    return None


def answer_bounds(terms: Additive, n_unlabelled: int, question: Question) -> tuple[float, ...]:
    """What no number in a column of a site's answer may exceed, column by column; () where the answer has no vector.

    B ‖x‖ for a direction x; what a site says of its own labels or features is held to B times at least `OWN`.
    """
    (_, columns), _ = answer_shape(terms, n_unlabelled, question)
    of_a_direction = question.part == "linear" and question.ask in (Ask.FIXED_POINT, Ask.SMOOTHED)
    at_points = question.ask in (Ask.FIXED_POINT, Ask.SMOOTHED)
    norms = column_norms(question.targets).tolist() if at_points else [0.0] * columns
    least = 0.0 if of_a_direction else OWN
    return tuple(min(_HUGE, terms.operator_norm_bound * max(norm, least)) for norm in norms)


def answer_shape(terms: Additive, n_unlabelled: int, question: Question) -> tuple[tuple[int, int], int]:
    """The shape of the vectors and the number of scalars that an answer to this question has; (0, 0) for none."""
    m, k = n_unlabelled, len(question.columns)
    match question.ask:
        case Ask.LABELS:
            return (0, 0), 2
        case Ask.SPREAD:
            return (0, 0), 1
        case Ask.SCORE:
            return (m, k), k
        case Ask.SMOOTHER:
            return ((0, 0) if question.columns[0].operator.refit else (m, terms.probes)), 0
        case Ask.FIXED_POINT:
            return question.targets.shape, 0
        case Ask.TRACES:
            return (0, 0), 2
        case Ask.SMOOTHED:
            return (m + 1, k), 2
        case Ask.GRADIENT:
            return (0, 0), 2
        case Ask.JOINT:
            return (0, 0), k
        case Ask.FORECAST:
            return (0, 0), 3
        case Ask.MODEL:
            return (0, 0), 0
        case Ask.TOGETHER:
            return (m, 1), 0
