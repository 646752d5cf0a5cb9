"""The one loop that turns the machine's actions into deeds: messages, writes, timers, lines on a terminal.

Writing, and whatever computes with long vectors, happens off the event loop; writing before the next action, which is
what makes a killed coordinator's run resumable. A step alone is written while a long question begins to go out: its
last piece waits for it, and without that there is no question.
"""

import asyncio
import datetime as dt
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from typing import Protocol, assert_never

from coordinator.machine.events import (
    Action,
    DeadlinePassed,
    Event,
    Expect,
    Finish,
    Notify,
    Persist,
    Received,
    Reject,
    Send,
    SetDeadline,
    Submitted,
)
from coordinator.machine.federation import Federation, handle
from coordinator.machine.notices import Notice, QuestionAnswered
from coordinator.machine.records import Record, StepTaken
from coordinator.transports import Traffic, Transport
from coreg_core.agreement.schedules.schedule import Progress
from coreg_core.errors import CoregError
from coreg_core.protocol.messages import Ask, Inquiry, Prediction, Share, Vector

# An answer of so many numbers may complete a step that takes milliseconds, in which the loop would serve nobody. A question of
# so many begins to go out before the step is written.
LONG_VECTOR = 1 << 16


@dataclass(frozen=True)
class Lap:
    """What the clock and the transport's counters say of one question: from when it was put until it was answered."""

    seconds: float = 0.0
    bytes_sent: int = 0
    bytes_received: int = 0


class Observer(Protocol):
    """Whoever watches."""

    def notice(self, notice: Notice, measured: Lap) -> None:
        """Something happened; ``measured`` is of the last answered question."""
        ...


class Memory(Protocol):
    """Where records go; `RunStore`, or nothing at all in a simulation."""

    def write(self, run: str, record: Record, progress: Progress | None, measured: Lap, at: str) -> None: ...


class NoMemory:
    """Forgets everything: for simulations."""

    def write(self, run: str, record: Record, progress: Progress | None, measured: Lap, at: str) -> None:
        """Nothing is kept."""


def utc_now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")


async def drive(
    begun: tuple[Federation, list[Action]],
    transport: Transport,
    memory: Memory,
    observer: Observer,
    *,
    on_start: Callable[[Callable[[Event], None]], None] = lambda emit: None,  # noqa: ARG005
    on_finish: Callable[[Finish], None] | None = None,
    on_change: Callable[[Federation], None] = lambda federation: None,  # noqa: ARG005
    on_event: Callable[[Event], None] = lambda event: None,  # noqa: ARG005
) -> Mapping[str, Finish]:
    """Drive every run of the federation to its end; of one that stands, until it is told to end.

    Parameters
    ----------
    begun
        a federation and its first actions, of `federation.begin`.
    transport
        not started yet; closed when this returns.
    memory
        written before the next action.
    observer
        told of everything.
    on_start
        called once the transport listens, with the function that takes events: for signals.
    on_finish
        called when a run has finished, and nothing of it is kept here then: of a federation that stands for months.
    on_change
        called with the federation after each event, once what it asked for is done.
    on_event
        called with each event before it is handled.

    Returns
    -------
    How each run ended, by name; nothing of those that ``on_finish`` was told of.
    """
    driver = _Driver(begun[0], transport, memory, observer, on_finish, on_change, on_event)
    return await driver.drive(begun[1], on_start)


class _Driver:
    def __init__(
        self,
        federation: Federation,
        transport: Transport,
        memory: Memory,
        observer: Observer,
        on_finish: Callable[[Finish], None] | None,
        on_change: Callable[[Federation], None],
        on_event: Callable[[Event], None],
    ):
        self._on_finish, self._on_change, self._on_event = on_finish, on_change, on_event
        self._federation, self._transport, self._memory, self._observer = federation, transport, memory, observer
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()  # None: what is being written cannot be
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._laps: dict[str, _Stopwatch] = {}
        self._ends: dict[str, Finish] = {}
        self._writing: asyncio.Future[None] | None = None  # a step

    async def drive(
        self, actions: list[Action], on_start: Callable[[Callable[[Event], None]], None]
    ) -> Mapping[str, Finish]:
        emit = self._events.put_nowait
        await self._transport.start(emit)
        try:
            on_start(emit)
            while True:
                for action in actions:
                    await self._do(action)
                self._on_change(self._federation)
                if self._federation.done:
                    await self._written()
                    return self._ends
                event = await self._events.get()
                if event is None:
                    await self._written()  # which failed
                    actions = []
                    continue
                self._on_event(event)
                actions = await self._handled(event)
        finally:
            for timer in self._timers.values():
                timer.cancel()
            try:
                with suppress(CoregError):  # which is on its way already, if there is one
                    await self._written()
            finally:
                await self._transport.close()

    async def _handled(self, event: Event) -> list[Action]:
        match event:
            case Received(message=Prediction(values=Vector(values=values)) | Share(values=Vector(values=values))) if (
                values.size >= LONG_VECTOR
            ):
                self._federation, actions = await asyncio.to_thread(handle, self._federation, event)
            case Submitted():  # its records are folded again
                self._federation, actions = await asyncio.to_thread(handle, self._federation, event)
            case _:
                self._federation, actions = handle(self._federation, event)
        return actions

    async def _do(self, action: Action) -> None:
        match action:
            case Send(site, message):
                if isinstance(message, Ask | Inquiry):
                    self._stopwatch(message.run).start((message.question, message.attempt))
                    if message.targets is not None and message.targets.values.size >= LONG_VECTOR:
                        await self._transport.send(site, message, self._writing)
                        return
                await self._written()
                await self._transport.send(site, message)
            case Reject(site, reason):
                await self._transport.reject(site, reason)
            case Expect(run, rows, columns):
                self._transport.expect(run, rows, columns)
            case Persist(run, record, progress):
                lap = self._stopwatch(run).stop() if isinstance(record, StepTaken) else self._stopwatch(run).last
                if not isinstance(self._memory, NoMemory):
                    await self._write(run, record, progress, lap)
            case SetDeadline(run, token, seconds):
                self._stop_timer(run)
                if isfinite(seconds):
                    loop = asyncio.get_running_loop()
                    self._timers[run] = loop.call_later(seconds, self._passed, run, token)
            case Notify(notice):
                lap = self._stopwatch(notice.run).last if isinstance(notice, QuestionAnswered) else Lap()
                self._observer.notice(notice, lap)
            case Finish(run):
                if self._on_finish is None:
                    self._ends[run] = action
                else:
                    self._forget(run)
                    self._on_finish(action)
            case _:
                assert_never(action)

    async def _write(self, run: str, record: Record, progress: Progress | None, lap: Lap) -> None:
        """In order; of a step it is not waited for here."""
        await self._written()
        write = asyncio.to_thread(self._memory.write, run, record, progress, lap, utc_now())
        self._writing = asyncio.ensure_future(write)
        self._writing.add_done_callback(self._has_written)
        if not isinstance(record, StepTaken):
            await self._written()

    async def _written(self) -> None:
        if self._writing is not None:
            writing, self._writing = self._writing, None
            await writing

    def _has_written(self, writing: "asyncio.Future[None]") -> None:
        if not writing.cancelled() and writing.exception() is not None:
            self._events.put_nowait(None)

    def _passed(self, run: str, token: int) -> None:
        self._events.put_nowait(DeadlinePassed(run, token, self._transport.flows(run)))

    def _forget(self, run: str) -> None:
        """It is over: sessions stay, and take no vector of it any more."""
        self._stop_timer(run)
        self._laps.pop(run, None)
        self._transport.forget(run)

    def _stop_timer(self, run: str) -> None:
        if (timer := self._timers.pop(run, None)) is not None:
            timer.cancel()

    def _stopwatch(self, run: str) -> "_Stopwatch":
        return self._laps.setdefault(run, _Stopwatch(self._transport.traffic))


class _Stopwatch:
    """From the first time that a question is sent until it is answered: what came before was waiting for sites."""

    def __init__(self, traffic: Traffic):
        self._traffic = traffic
        self._question: tuple[int, int] | None = None
        self._since = (time.perf_counter(), traffic.sent, traffic.received)
        self.last = Lap()

    def start(self, question: tuple[int, int]) -> None:
        if question != self._question:
            self._question = question
            self._since = (time.perf_counter(), self._traffic.sent, self._traffic.received)

    def stop(self) -> Lap:
        seconds = time.perf_counter() - self._since[0]
        self.last = Lap(seconds, self._traffic.sent - self._since[1], self._traffic.received - self._since[2])
        return self.last
