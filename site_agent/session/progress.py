"""Work that takes long is not silent: a line after ten seconds, then after twice as long."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from coreg_core.protocol.messages import Ask, Inquiry, ToSite
from coreg_core.protocol.plan import Plan, Scoring

T = TypeVar("T")
FIRST_WORD = 10.0


def work_on(message: ToSite) -> str:
    """What a site does with a message, in words."""
    match message:
        case Plan(objective=Scoring()):
            return "checking the plan"
        case Plan():
            return "checking the plan and factoring the data"
        case Inquiry():
            return (
                f"answering question {message.question} ({message.part}, {message.kind.name.lower().replace('_', ' ')})"
            )
        case Ask():
            return f"answering question {message.question} ({message.part})"
        case _:
            return "writing what came of it"


async def told_while(work: Coroutine[Any, Any, T], what: str, note: Callable[[str], None]) -> T:
    """The work's result; while it lasts, what is done and for how long.

    Parameters
    ----------
    work
        a thread's, usually: it does not hold the event loop.
    what
        in words, as `work_on` says it.
    note
        a sentence for the operator.
    """
    task, since, pause = asyncio.ensure_future(work), time.monotonic(), FIRST_WORD
    try:
        while not (await asyncio.wait({task}, timeout=pause))[0]:
            note(f"{what}: {time.monotonic() - since:.0f} s so far")
            pause *= 2
        return task.result()
    finally:
        task.cancel()
