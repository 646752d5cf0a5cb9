"""The one loop that turns the machine's actions into deeds: messages, writes, timers, lines on a terminal.

Knows asyncio, the clock and the transport's face; decides nothing. Writing happens off the event loop and before the
next action, which is what makes a killed coordinator's run resumable.
"""

import asyncio
import datetime as dt
import time
from collections.abc import Callable
from typing import Protocol, assert_never

from coordinator.events import (
    DeadlinePassed,
    Event,
    Finish,
    Persist,
    Record,
    Reject,
    Report,
    Send,
    SetDeadline,
    StepTaken,
)
from coordinator.machine import Coordinator
from coordinator.store import Measured
from coordinator.transports import Traffic, Transport


class Reporter(Protocol):
    """Whoever watches a run."""

    def note(self, text: str) -> None:
        """Something happened."""
        ...

    def step(self, step: StepTaken, measured: Measured) -> None:
        """A question was answered by all who were asked."""
        ...


class Memory(Protocol):
    """Where records go; `RunStore`, or nothing at all in a simulation."""

    def write(self, run: str, record: Record, measured: Measured, at: str) -> None:
        """Keep a record."""
        ...


class NoMemory:
    """Forgets everything: for simulations."""

    def write(self, run: str, record: Record, measured: Measured, at: str) -> None:
        """Nothing is kept."""


def utc_now() -> str:
    """ISO 8601, to the millisecond."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")


async def drive(
    machine: Coordinator,
    transport: Transport,
    memory: Memory,
    reporter: Reporter,
    *,
    on_start: Callable[[Callable[[Event], None]], None] = lambda emit: None,  # noqa: ARG005
) -> Finish:
    """Run the machine to its end.

    Args:
        machine: not started yet.
        transport: not started yet; closed when this returns.
        memory: written before the next action.
        reporter: told of everything.
        on_start: called once the transport listens, with the function that takes events: for signals.

    Returns:
        The last action: the stop and its reason.
    """
    events: asyncio.Queue[Event] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle | None = None
    clock = _StepClock(transport.traffic)
    await transport.start(events.put_nowait)
    try:
        on_start(events.put_nowait)
        actions = machine.start()
        while True:
            for action in actions:
                match action:
                    case Send(site, message):
                        await transport.send(site, message)
                    case Reject(site, reason):
                        await transport.reject(site, reason)
                    case Persist(record):
                        measured = clock.lap() if isinstance(record, StepTaken) else clock.last
                        await _off_loop(memory, machine.plan.run, record, measured)
                    case SetDeadline(token, seconds):
                        if timer is not None:
                            timer.cancel()
                        timer = loop.call_later(seconds, events.put_nowait, DeadlinePassed(token))
                    case Report(text, step):
                        if text:
                            reporter.note(text)
                        if step is not None:
                            reporter.step(step, clock.last)
                    case Finish():
                        return action
                    case _:
                        assert_never(action)
            actions = machine.handle(await events.get())
    finally:
        if timer is not None:
            timer.cancel()
        await transport.close()


async def _off_loop(memory: Memory, run: str, record: Record, measured: Measured) -> None:
    if isinstance(memory, NoMemory):
        return
    await asyncio.to_thread(memory.write, run, record, measured, utc_now())


class _StepClock:
    """Seconds and bytes since the last answered question."""

    def __init__(self, traffic: Traffic):
        self._traffic = traffic
        self._since = (time.perf_counter(), traffic.sent, traffic.received)
        self.last = Measured(0.0, 0, 0)

    def lap(self) -> Measured:
        now = (time.perf_counter(), self._traffic.sent, self._traffic.received)
        self.last = Measured(now[0] - self._since[0], now[1] - self._since[1], now[2] - self._since[2])
        self._since = now
        return self.last
