r"""The solvers that a plan can name, and their run in memory."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, get_args

from coreg_core.agreement.block_coordinate_descent import BlockCoordinateDescent
from coreg_core.agreement.conjugate_gradients import ConjugateGradient
from coreg_core.agreement.solver import SolverTerms
from coreg_core.agreement.views import View
from coreg_core.terms import SolverName

Solver: TypeAlias = ConjugateGradient | BlockCoordinateDescent


SOLVER_NAMES: tuple[SolverName, ...] = get_args(SolverName)


def make_solver(name: str, terms: SolverTerms) -> Solver:
    """The solver of that name, one of `SOLVER_NAMES`."""
    if name == "conjugate-gradients":
        return ConjugateGradient(terms)
    return BlockCoordinateDescent(terms)


def run_in_memory(
    solver: Solver, views: Sequence[View], on_step: Callable[[Any], None] = lambda _state: None
) -> Any:
    """Step a solver to its end with all views in memory; sums in site order, as in the
    service.
    """
    state: Any = solver.start(views[0].n_unlabelled)
    while not solver.finished(state):
        query = solver.query(state)
        asked = views if query.site is None else [views[query.site]]
        total = asked[0].respond(query.targets, query.weights, query.part)
        for view in asked[1:]:
            total = total + view.respond(query.targets, query.weights, query.part)
        state = solver.step(state, total)
        on_step(state)
    return state
