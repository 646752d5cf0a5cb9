r"""The schedules that a plan can name, and their run in memory."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, get_args

from coreg_core.agreement.block_coordinate_descent import BlockCoordinateDescent
from coreg_core.agreement.conjugate_gradients import ConjugateGradient
from coreg_core.agreement.schedule import ScheduleTerms
from coreg_core.agreement.views import View
from coreg_core.terms import ScheduleName

Schedule: TypeAlias = ConjugateGradient | BlockCoordinateDescent


SCHEDULE_NAMES: tuple[ScheduleName, ...] = get_args(ScheduleName)


def make_schedule(name: str, terms: ScheduleTerms) -> Schedule:
    """The schedule of that name, one of `SCHEDULE_NAMES`."""
    if name == "conjugate-gradients":
        return ConjugateGradient(terms)
    return BlockCoordinateDescent(terms)


def run_in_memory(
    schedule: Schedule, views: Sequence[View], on_step: Callable[[Any], None] = lambda _state: None
) -> Any:
    """Step a schedule to its end with all views in memory; sums in site order, as in the
    service.
    """
    state: Any = schedule.start(views[0].n_unlabelled)
    while not schedule.finished(state):
        query = schedule.query(state)
        asked = views if query.site is None else [views[query.site]]
        total = asked[0].respond(query.targets, query.weights, query.part)
        for view in asked[1:]:
            total = total + view.respond(query.targets, query.weights, query.part)
        state = schedule.step(state, total)
        on_step(state)
    return state
