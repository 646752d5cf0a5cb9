"""The schedules, one a file, with a factory by name and a driver over views in memory."""

from collections.abc import Callable, Sequence
from typing import Any, get_args

from coreg_core.agreement.schedules.block_coordinate_descent import BlockCoordinateDescent
from coreg_core.agreement.schedules.conjugate_gradient import ConjugateGradient
from coreg_core.agreement.schedules.schedule import Schedule, Terms
from coreg_core.agreement.views import View
from coreg_core.errors import UsageError
from coreg_core.names import ScheduleName

SCHEDULE_NAMES: tuple[ScheduleName, ...] = get_args(ScheduleName)


def make_schedule(name: str, terms: Terms) -> Schedule[Any]:
    """The schedule of that name.

    Raises
    ------
    UsageError
        no schedule has that name.
    """
    match name:
        case "conjugate-gradients":
            return ConjugateGradient(terms)
        case "block-coordinate-descent":
            return BlockCoordinateDescent(terms)
        case _:
            raise UsageError(f"schedule {name!r}: choose one of {', '.join(SCHEDULE_NAMES)}.")


def run_in_memory(
    schedule: Schedule[Any],
    views: Sequence[View],
    on_step: Callable[[Any], None] = lambda _state: None,
) -> Any:
    """Step a schedule to its end with all views in memory; sums in site order, as in the service.

    Returns
    -------
    The last state. ``on_step`` sees every one before it.
    """
    state = schedule.start(views[0].n_unlabelled)
    while not schedule.finished(state):
        query = schedule.query(state)
        asked = views if query.site is None else [views[query.site]]
        total = asked[0].respond(query.targets, query.weights, query.part)
        for view in asked[1:]:
            total = total + view.respond(query.targets, query.weights, query.part)
        state = schedule.step(state, total)
        on_step(state)
    return state
