"""An event loop whose time jumps to the next timer, and in which a killed process no longer runs.

The daemons are unchanged: what they ask of asyncio is answered here. A thread's work runs inline, after a random delay.
"""

import asyncio
import contextvars
import random
import selectors
import weakref
from collections.abc import Callable
from typing import Any


class Process:
    """A simulated process. Everything that it starts carries it; once it is dead nothing of it runs, no ``finally`` either."""

    def __init__(self, name: str):
        self.name, self.dead = name, False
        self.files: list[Callable[[], None]] = []  # closed by the system when it dies
        self.tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()  # all that it started

    def start(self, loop: "VirtualLoop", work: Any) -> "asyncio.Task[Any]":
        context = contextvars.copy_context()
        context.run(_PROCESS.set, self)
        return loop.create_task(work, context=context)

    def kill(self) -> None:
        self.dead = True
        for close in self.files:
            close()


_PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


def process_name() -> str:
    """The simulated process that runs at this moment; "" outside of all."""
    process = _PROCESS.get()
    return "" if process is None else process.name


class _NoWait(selectors.SelectSelector):
    """Never sleeps: where nothing is ready, the clock moves on."""

    def __init__(self, passes: Callable[[float], None]):
        super().__init__()
        self._passes = passes

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if not found:
            if timeout is None:
                raise RuntimeError("every process waits, and no timer runs: a wait without a deadline")
            self._passes(timeout)
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module's docstring. ``chance`` draws the delays."""

    def __init__(self, chance: random.Random):
        super().__init__(_NoWait(self._passed))
        self._virtual, self._chance = 0.0, chance
        self.slow: dict[str, float] = {}  # processes with a slow disk: seconds of each piece of work
        self.errors: list[str] = []  # what reached the loop's exception handler
        self.set_exception_handler(self._reported)

    def time(self) -> float:
        return self._virtual

    def _passed(self, seconds: float) -> None:
        self._virtual += seconds

    def _reported(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.errors.append(f"{context.get('message')}: {context.get('exception')!r}")

    # --- handles of dead processes --------------------------------------------------------------------------------

    def call_soon(self, callback: Any, *args: Any, context: contextvars.Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        return super().call_soon(_unless_dead(callback, context), *args, context=context)

    def create_task(  # type: ignore[override]
        self, coro: Any, *, name: str | None = None, context: contextvars.Context | None = None
    ) -> "asyncio.Task[Any]":
        task: asyncio.Task[Any] = super().create_task(coro, name=name, context=context)
        process = _PROCESS.get() if context is None else context.get(_PROCESS)
        if process is not None:
            process.tasks.add(task)
        return task

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return super().call_at(when, _unless_dead(callback, context), *args, context=context)

    # --- what a process asks of its system ------------------------------------------------------------------------

    def run_in_executor(self, _executor: Any, func: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":  # type: ignore[override]
        done: asyncio.Future[Any] = self.create_future()
        delay = self._chance.expovariate(500.0) + self.slow.get(process_name(), 0.0)
        self.call_later(delay, self._work, done, func, args)
        return done

    @staticmethod
    def _work(done: "asyncio.Future[Any]", func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if done.cancelled():  # a thread that has begun goes on; here it has not
            return
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - handed to the task that waits for the work
            done.set_exception(error)

    def add_signal_handler(self, *_: Any) -> None:  # type: ignore[override]
        """No signals: processes are killed by the story."""

    async def create_server(self, *_: Any, **__: Any) -> Any:  # type: ignore[override]
        """No sockets: no site enrols during a story."""
        raise OSError("no sockets here")

    async def create_datagram_endpoint(self, factory: Any, *_: Any, **__: Any) -> Any:  # type: ignore[override]
        """The bell that an operator's command rings. It never rings here, so the daemons find everything by polling."""
        return _NoSocket(), factory()


class _NoSocket:
    def get_extra_info(self, _name: str) -> tuple[str, int]:
        return "127.0.0.1", 1

    def close(self) -> None: ...


def _unless_dead(callback: Any, context: contextvars.Context | None) -> Any:
    process = _PROCESS.get() if context is None else context.get(_PROCESS)
    if process is None:
        return callback

    def alive(*args: Any) -> None:
        if not process.dead:
            callback(*args)

    return alive
