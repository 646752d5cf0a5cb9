"""The event loop that carries out a coordinator's actions: messages, records, timers, notices.

Writing and sums of many words run off the event loop. A record is written before the next action,
so that the numbers of attempts never repeat. A finished step is an exception: it is written while
the next one is sent.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Protocol, assert_never

from coordinator.machine import notices
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
from coordinator.machine.records import Begun, HeadSigned, Record, StepDone, Timing
from coordinator.transports import Transport
from coreg_core.errors import CoregError
from coreg_core.messages import Answer, Fetched, Proposal, Step, Words
from coreg_core.outcomes import Notice, Outcome
from coreg_core.plan import Plan
from coreg_wire.clock import timestamp

# An answer of this many words can complete a sum that takes milliseconds, which would block the
# event loop.
MANY_WORDS = 1 << 16


@dataclass(frozen=True)
class _Began:
    """The open step of a run: its attempt and number, and when it was first sent."""

    step: tuple[int, int]
    at: float
    sent: int  # bytes before it
    received: int


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
    of_steps: Observer | None = None  # hears a notice of each step, too
    federation: Federation = field(default_factory=Federation)  # after the last event
    _events: asyncio.Queue[tuple[Event | None, Callable[[], None] | None]] = field(
        default_factory=asyncio.Queue
    )
    _timers: dict[str, asyncio.TimerHandle] = field(default_factory=dict)
    _began: dict[str, "_Began"] = field(default_factory=dict)  # the open step of each run
    _ends: dict[str, Finish] = field(default_factory=dict)
    _writing: asyncio.Future[None] | None = None  # a step

    def _emit(self, event: Event | None, handled: Callable[[], None] | None = None) -> None:
        """Queue an event; None: a write failed."""
        self._events.put_nowait((event, handled))

    async def drive(self, federation: Federation, actions: list[Action]) -> Mapping[str, Finish]:
        """Carry out the first actions and all that follow; the ends of the runs by name."""
        self.federation = federation
        await self.transport.start(self._emit)
        try:
            self.on_start(self._emit)
            while True:
                for action in actions:
                    await self._do(action)
                if self.federation.done:
                    await self._written()
                    return self._ends
                event, handled = await self._events.get()
                if event is None:
                    await self._written()  # raises
                    actions = []
                    continue
                match event:
                    case Received(_, Answer(summed=Words(values))) if len(values) >= MANY_WORDS:
                        changed = await asyncio.to_thread(handle, self.federation, event)
                    case _:
                        changed = handle(self.federation, event)
                self.federation, actions = changed
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
                    place = message.attempt, message.step
                    began = self._began.get(message.run)
                    if began is None or began.step != place:
                        at, traffic = asyncio.get_running_loop().time(), self.transport.traffic
                        self._began[message.run] = _Began(place, at, traffic.sent, traffic.received)
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
                timing = self._measured(run) if isinstance(record, StepDone) else Timing()
                if self.sink is not None:
                    await self._write(self.sink, run, record, timing)
                if isinstance(record, StepDone) and self.of_steps is not None:
                    self.of_steps(notices.step_answered(run, record, timing))
            case SetDeadline(run, token, seconds):
                if (timer := self._timers.pop(run, None)) is not None:
                    timer.cancel()
                if isfinite(seconds):
                    loop = asyncio.get_running_loop()
                    self._timers[run] = loop.call_later(
                        seconds, self._emit, DeadlinePassed(run, token)
                    )
            case Notify(notice):
                self.observer(notice)
            case Finish(run):
                await self._written()
                if (
                    self.queue is None or run == self.report
                ):  # a service would collect ends for months
                    self._ends[run] = action
                if (timer := self._timers.pop(run, None)) is not None:
                    timer.cancel()
                self._began.pop(run, None)
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

    # --- records, timers --------------------------------------------------------------------------

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

    def _measured(self, run: str) -> Timing:
        """The time and the bytes since the run's open step was first sent."""
        began = self._began[run]
        traffic = self.transport.traffic
        seconds = round(asyncio.get_running_loop().time() - began.at, 6)
        return Timing(seconds, traffic.sent - began.sent, traffic.received - began.received)
