r"""The order of questions in a training of the additive objective, and the limits of their answers.

    LABELS → SPREAD → SCORE → SMOOTHER → (solve → TRACES) × tuning_steps → [grid → JOINT] → solve → SMOOTHED → GRADIENT → MODEL

A solve is one affine question, then linear ones.
"""

from dataclasses import dataclass, replace
from itertools import product
from typing import Literal, TypeAlias

from coreg_core.additive.model.terms import NOISE_GRID, OWN, PRIOR_GRID, Additive, tries_grid
from coreg_core.additive.question_types import Ask, Column, Operator, Question
from coreg_core.numerics.reproducible import column_norms

Solve: TypeAlias = Literal["none", "tuning", "grid", "final", "forecast"]
# Questions beside the solves: LABELS, SPREAD, SCORE, SMOOTHER; JOINT; SMOOTHED, GRADIENT, MODEL.
_BESIDE = 8
_HUGE = 1e300
# Of a forecast: SCORE, SMOOTHER, FORECAST.
_FORECAST = 3


@dataclass(frozen=True)
class Position:
    """The position of a training at a site: the last question that it answered, without its numbers."""

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
    """The most questions of one run that a site answers: twice the number of an undisturbed training (as for the agreement)."""
    solves = terms.tuning_steps + 1 + tries_grid(terms)
    forecast = terms.max_rounds + 1 + _FORECAST if terms.forecast else 0
    return 2 * (solves * (terms.max_rounds + 1) + terms.tuning_steps + _BESIDE + forecast)


def position_after(terms: Additive, question: Question) -> Position:
    """The position once this question is answered."""
    operator = question.columns[0].operator if question.columns else Operator()
    at = Position(question.ask, _solve_of(terms, question), question.step)
    last = question.ask in (Ask.SMOOTHED, Ask.GRADIENT, Ask.MODEL) or at.solve in ("final", "forecast")
    return replace(at, noise=operator.noise, prior=operator.prior) if last else at


def grid_columns(terms: Additive) -> tuple[Column, ...]:
    """The columns of the grid of common rows, in order."""
    grid = product(NOISE_GRID, PRIOR_GRID, range(terms.folds))
    return tuple(Column(operator=Operator(fold, False, noise, prior)) for noise, prior, fold in grid)


def _solve_of(terms: Additive, question: Question) -> Solve:
    if any(column.operator.refit for column in question.columns):
        return "forecast"
    if question.ask is not Ask.FIXED_POINT:
        return "none"
    if any(column.operator.fold is not None for column in question.columns):
        return "grid"
    return "tuning" if question.step < terms.tuning_steps else "final"


def answer_bounds(terms: Additive, n_unlabelled: int, question: Question) -> tuple[float, ...]:
    """The limit of the numbers in each column of a site's answer; () where the answer has no vector.

    B ‖x‖ for a direction x; for answers from own labels or features, B times at least `OWN`.
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
