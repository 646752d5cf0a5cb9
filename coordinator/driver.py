"""The event loop that carries out a coordinator's actions: messages, records, timers, notices.

Writing and sums of many words run off the event loop. A record is written before the next action,
so that the numbers of attempts never repeat. A finished step is an exception: it is written while
the next one is sent.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, Protocol, TypeAlias, get_args

from coordinator.machine import notices
from coordinator.machine.events import (
    Action,
    BeginRun,
    CallStanding,
    CloseRun,
    CountersignHead,
    DeadlinePassed,
    Event,
    Expect,
    Finish,
    HeadCountersigned,
    NotifyObservers,
    Persist,
    QueueRead,
    ReadQueue,
    Received,
    Reject,
    Rested,
    RunForgotten,
    SendToSite,
    SetDeadline,
    Submitted,
)
from coordinator.machine.federation import FederationState, handle
from coordinator.machine.records import Begun, HeadSigned, Record, StepDone, Timing
from coordinator.machine.standing import DAY
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

    def standing(self, study: str, sites: Sequence[str]) -> Plan | None: ...

    def close_run(self, plan: Plan, outcome: Outcome, reason: str, at: str) -> None: ...


_OfQueue: TypeAlias = ReadQueue | BeginRun | CallStanding | CloseRun
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
    # Receives the function that queues an event.
    on_start: Callable[[Callable[[Event], None]], None] = lambda _emit: None
    of_steps: Observer | None = None  # hears a notice of each step, too
    federation: FederationState = field(default_factory=FederationState)  # after the last event
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

    async def drive(
        self, federation: FederationState, actions: list[Action]
    ) -> Mapping[str, Finish]:
        """Carry out the first actions and all that follow; the ends of the runs by name."""
        self.federation = federation
        await self.transport.start(self._emit)
        try:
            self.on_start(self._emit)
            while True:
                for action in actions:
                    await _METHODS[type(action)](self, action)
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

    # --- actions, each with its method in `_METHODS` ----------------------------------------------

    async def _send(self, action: SendToSite) -> None:
        message = action.message
        if isinstance(message, Step):
            place = (message.attempt, message.step)
            began = self._began.get(message.run)
            if began is None or began.step != place:
                at = asyncio.get_running_loop().time()
                traffic = self.transport.traffic
                self._began[message.run] = _Began(place, at, traffic.sent, traffic.received)
        else:
            await self._written()
        if isinstance(message, Proposal):
            message = replace(message, keys=self.keys(message.plan))
        await self.transport.send(action.site, message)

    async def _reject(self, action: Reject) -> None:
        await self.transport.reject(action.site, action.reason)

    async def _expect(self, action: Expect) -> None:
        self.transport.expect(action.run, action.room)

    async def _persist(self, action: Persist) -> None:
        record = action.record
        timing = self._measured(action.run) if isinstance(record, StepDone) else Timing()
        if self.sink is not None:
            await self._write(self.sink, action.run, record, timing)
        if isinstance(record, StepDone) and self.of_steps is not None:
            self.of_steps(notices.step_answered(action.run, record, timing))

    async def _set_deadline(self, action: SetDeadline) -> None:
        self._stop_timer(action.run)
        if isfinite(action.seconds):
            passed = DeadlinePassed(action.run, action.token)
            loop = asyncio.get_running_loop()
            self._timers[action.run] = loop.call_later(action.seconds, self._emit, passed)

    async def _notify(self, action: NotifyObservers) -> None:
        self.observer(action.notice)

    async def _finish(self, action: Finish) -> None:
        await self._written()
        if self.queue is None or action.run == self.report:
            self._ends[action.run] = action  # a service would collect ends for months
        self._stop_timer(action.run)
        self._began.pop(action.run, None)
        self.transport.forget(action.run)

    async def _call(self, action: CallStanding) -> None:
        later = asyncio.get_running_loop().call_later
        later(action.pause, self._emit, Rested(action.study))
        later(DAY, self._emit, RunForgotten(action.sites))
        await self._use_queue(action)

    async def _use_queue(self, action: "_OfQueue") -> None:
        await self._written()
        event = await asyncio.to_thread(self._stored, action)
        if event is not None:
            self._emit(event)

    async def _countersign(self, action: CountersignHead) -> None:
        assert self.countersign is not None, "a signed head comes with a certificate"
        certificate = self.transport.certificate(action.site)
        signed = await asyncio.to_thread(self.countersign, action.site, certificate, action.fetched)
        self._emit(HeadCountersigned(action.fetched.run, signed))

    def _stored(self, action: "_OfQueue") -> Event | None:
        assert self.queue is not None, "a simulation has no queue"
        match action:
            case ReadQueue():
                return self.queue.read()
            case BeginRun(plan):
                return Submitted(*self.queue.begin(plan, timestamp()))
            case CallStanding(study, sites, _):
                if (standing := self.queue.standing(study, sites)) is None:
                    return None
                return Submitted(*self.queue.begin(standing, timestamp()), sites)
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
            writing = self._writing
            self._writing = None
            await writing

    def _has_written(self, writing: "asyncio.Future[None]") -> None:
        if not writing.cancelled() and writing.exception() is not None:
            self._emit(None)

    def _stop_timer(self, run: str) -> None:
        timer = self._timers.pop(run, None)
        if timer is not None:
            timer.cancel()

    def _measured(self, run: str) -> Timing:
        """The time and the bytes since the run's open step was first sent."""
        began = self._began[run]
        traffic = self.transport.traffic
        seconds = round(asyncio.get_running_loop().time() - began.at, 6)
        return Timing(seconds, traffic.sent - began.sent, traffic.received - began.received)


# The method that carries out each class of action.
_METHODS: Mapping[type, Callable[[Driver, Any], Awaitable[None]]] = {
    SendToSite: Driver._send,
    Reject: Driver._reject,
    Expect: Driver._expect,
    Persist: Driver._persist,
    SetDeadline: Driver._set_deadline,
    NotifyObservers: Driver._notify,
    Finish: Driver._finish,
    ReadQueue: Driver._use_queue,
    BeginRun: Driver._use_queue,
    CallStanding: Driver._call,
    CloseRun: Driver._use_queue,
    CountersignHead: Driver._countersign,
}
assert _METHODS.keys() == {*get_args(Action)}, "every action has its method"
