"""The event loop that carries out a coordinator's actions: messages, records, timers, notices.

Writing and sums of many words run off the event loop. A record is written before the next action, so that the
numbers of attempts never repeat. A finished step is an exception: it is written while the next one is sent.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from math import isfinite
from typing import Protocol, assert_never

from coordinator.machine.events import (
    Action,
    BeginRun,
    CloseRun,
    Countersign,
    DeadlinePassed,
    Event,
    Expect,
    Finish,
    HeadCountersigned,
    Notify,
    Persist,
    QueueRead,
    ReadQueue,
    Received,
    Reject,
    Send,
    SetDeadline,
    Submitted,
)
from coordinator.machine.federation import Federation, handle
from coordinator.machine.records import Begun, HeadSigned, Record, StepDone
from coordinator.transports import Traffic, Transport, words_of
from coreg_core.errors import CoregError
from coreg_core.messages import Fetched, Proposal, Step
from coreg_core.outcomes import Notice, Outcome
from coreg_core.plan import Plan
from coreg_wire.clock import timestamp

# An answer of this many words can complete a sum that takes milliseconds, which would block the event loop.
MANY_WORDS = 1 << 16


@dataclass(frozen=True)
class Timing:
    """Duration of one step, from sending to the last answer, and the bytes transferred in that time."""

    seconds: float = 0.0
    bytes_sent: int = 0
    bytes_received: int = 0


class RecordSink(Protocol):
    """Stores records, as `RunStore` does."""

    def write(self, run: str, record: Record, measured: Timing, at: str) -> None: ...


class RunQueue(Protocol):
    """Runs in the store that are not active. Methods block; they may raise `StorageError`."""

    def read(self) -> QueueRead: ...

    def begin(self, plan: Plan, at: str) -> tuple[Plan, Begun]: ...

    def close_run(self, plan: Plan, outcome: Outcome, reason: str, at: str) -> None: ...


Countersigner = Callable[[str, bytes, Fetched], HeadSigned]
Observer = Callable[[Notice], None]


@dataclass
class Driver:
    """Drives a federation until all of its runs have ended and none will start."""

    transport: Transport  # not started; it is closed at the end
    sink: RecordSink | None  # receives a record before the next action
    observer: Observer
    queue: RunQueue | None = None
    countersign: Countersigner | None = None
    keys: Callable[[Plan], tuple[str, ...]] = lambda _plan: ()  # fingerprints of a plan's sites
    report: str | None = None  # the run whose end is returned; None: of all
    on_start: Callable[[Callable[[Event], None]], None] = lambda _emit: (
        None
    )  # given the function that queues an event
    on_change: Callable[[Federation], None] = lambda _federation: (
        None
    )  # after each event and its actions
    _events: asyncio.Queue[tuple[Event | None, Callable[[], None] | None]] = field(
        default_factory=asyncio.Queue
    )
    _timers: dict[str, asyncio.TimerHandle] = field(default_factory=dict)
    _stopwatches: dict[str, "_Stopwatch"] = field(default_factory=dict)
    _ends: dict[str, Finish] = field(default_factory=dict)
    _writing: asyncio.Future[None] | None = None  # a step

    def _emit(self, event: Event | None, handled: Callable[[], None] | None = None) -> None:
        """Queue an event; None: a write failed."""
        self._events.put_nowait((event, handled))

    async def drive(self, federation: Federation, actions: list[Action]) -> Mapping[str, Finish]:
        """Carry out the first actions and all that follow; the ends of the runs by name."""
        await self.transport.start(self._emit)
        try:
            self.on_start(self._emit)
            while True:
                for action in actions:
                    await self._do(action)
                self.on_change(federation)
                if federation.done:
                    await self._written()
                    return self._ends
                event, handled = await self._events.get()
                if event is None:
                    await self._written()  # raises
                    actions = []
                    continue
                if isinstance(event, Received) and words_of(event.message) >= MANY_WORDS:
                    federation, actions = await asyncio.to_thread(handle, federation, event)
                else:
                    federation, actions = handle(federation, event)
                if handled is not None:
                    handled()
        finally:
            for timer in self._timers.values():
                timer.cancel()
            try:
                with suppress(CoregError):  # it was already raised
                    await self._written()
            finally:
                await self.transport.close()

    async def _do(self, action: Action) -> None:
        match action:
            case Send(site, message):
                if isinstance(message, Step):
                    self._stopwatch(message.run).start((message.attempt, message.step))
                else:
                    await self._written()
                if isinstance(message, Proposal):
                    message = replace(message, keys=self.keys(message.plan))
                await self.transport.send(site, message)
            case Reject(site, reason):
                await self.transport.reject(site, reason)
            case Expect(run, room):
                self.transport.expect(run, room)
            case Persist(run, record):
                stopwatch = self._stopwatch(run)
                timing = stopwatch.stop() if isinstance(record, StepDone) else stopwatch.last
                if self.sink is not None:
                    await self._write(self.sink, run, record, timing)
            case SetDeadline(run, token, seconds):
                self._stop_timer(run)
                if isfinite(seconds):
                    loop = asyncio.get_running_loop()
                    self._timers[run] = loop.call_later(
                        seconds, self._emit, DeadlinePassed(run, token)
                    )
            case Notify(notice):
                if notice.name == "round":
                    notice = replace(
                        notice, fields={**notice.fields, **asdict(self._stopwatch(notice.run).last)}
                    )
                self.observer(notice)
            case Finish(run):
                await self._written()
                if (
                    self.queue is None or run == self.report
                ):  # a service would collect ends for months
                    self._ends[run] = action
                self._stop_timer(run)
                self._stopwatches.pop(run, None)
                self.transport.forget(run)
            case ReadQueue() | BeginRun() | CloseRun():
                await self._written()
                if (event := await asyncio.to_thread(self._stored, action)) is not None:
                    self._emit(event)
            case Countersign(site, fetched):
                assert self.countersign is not None, "a signed head comes with a certificate"
                certificate = self.transport.certificate(site)
                signed = await asyncio.to_thread(self.countersign, site, certificate, fetched)
                self._emit(HeadCountersigned(fetched.run, signed))
            case _:
                assert_never(action)

    def _stored(self, action: ReadQueue | BeginRun | CloseRun) -> Event | None:
        assert self.queue is not None, "a simulation has no queue"
        match action:
            case ReadQueue():
                return self.queue.read()
            case BeginRun(plan):
                return Submitted(*self.queue.begin(plan, timestamp()))
            case CloseRun(plan, outcome, reason):
                self.queue.close_run(plan, outcome, reason, timestamp())
                return None

    # --- records, timers ------------------------------------------------------------------------------------------

    async def _write(self, sink: RecordSink, run: str, record: Record, timing: Timing) -> None:
        """Write in order; a step is not awaited here."""
        await self._written()
        write = asyncio.to_thread(sink.write, run, record, timing, timestamp())
        self._writing = asyncio.ensure_future(write)
        self._writing.add_done_callback(self._has_written)
        if not isinstance(record, StepDone):
            await self._written()

    async def _written(self) -> None:
        if self._writing is not None:
            writing, self._writing = self._writing, None
            await writing

    def _has_written(self, writing: "asyncio.Future[None]") -> None:
        if not writing.cancelled() and writing.exception() is not None:
            self._emit(None)

    def _stop_timer(self, run: str) -> None:
        if (timer := self._timers.pop(run, None)) is not None:
            timer.cancel()

    def _stopwatch(self, run: str) -> "_Stopwatch":
        return self._stopwatches.setdefault(run, _Stopwatch(self.transport.traffic))


class _Stopwatch:
    """Measures from the first sending of a step to its last answer, without the time spent waiting for sites."""

    def __init__(self, traffic: Traffic):
        self._traffic = traffic
        self._step: tuple[int, int] | None = None
        self._since = (asyncio.get_running_loop().time(), traffic.sent, traffic.received)
        self.last = Timing()

    def start(self, step: tuple[int, int]) -> None:
        if step != self._step:
            self._step = step
            self._since = (
                asyncio.get_running_loop().time(),
                self._traffic.sent,
                self._traffic.received,
            )

    def stop(self) -> Timing:
        seconds = round(asyncio.get_running_loop().time() - self._since[0], 6)
        self.last = Timing(
            seconds, self._traffic.sent - self._since[1], self._traffic.received - self._since[2]
        )
        return self.last
