"""Run the schedules of this package to their end with all sites in memory, over sums alone, as in the service."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from coreg_core.additive.question_types import Answer, Question
from coreg_core.additive.site import AdditiveSite

S = TypeVar("S")


@runtime_checkable
class Stepped(Protocol[S]):
    """A schedule that is stepped from outside."""

    def query(self, state: S) -> Question:
        """The next question."""
        ...

    def step_with(self, state: S, answer: Answer) -> S:
        """The state after the sum of the answers."""
        ...

    def finished(self, state: S) -> bool:
        """Nothing is left to ask."""
        ...


def run_in_memory(
    schedule: Stepped[S], state: S, sites: Sequence[AdditiveSite], on_step: Callable[[Any], None] = lambda _state: None
) -> S:
    """Step to the end; sums in site order. ``on_step`` sees every state after the first."""
    while not schedule.finished(state):
        question = schedule.query(state)
        total = sites[0].answer(question)
        for site in sites[1:]:
            total = total + site.answer(question)
        state = schedule.step_with(state, total)
        on_step(state)
    return state
