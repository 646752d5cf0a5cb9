"""An event loop whose time jumps to the next timer, and in which a killed process no longer runs.

The daemons are unchanged: what they ask of asyncio is answered here. A thread's work runs inline,
after a random delay.
"""

import asyncio
import contextvars
import errno
import os
import random
import selectors
import sqlite3
import struct
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from coordinator.store.schema import StoreTables
from coreg_core.errors import StorageError
from site_agent.service.state_store import StateStore


class Process:
    """A simulated process.

    Everything that it starts carries it; once it is dead nothing of it runs, no ``finally`` either.
    """

    def __init__(self, name: str):
        self.name = name
        self.dead = False
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
    if process is None:
        return ""
    return process.name


class _NoWait(selectors.SelectSelector):
    """Never sleeps: where nothing is ready, the clock moves on."""

    def __init__(self, passes: Callable[[float], None]):
        super().__init__()
        self._passes = passes

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if not found:
            if timeout is None:
                raise RuntimeError(
                    "every process waits, and no timer runs: a wait without a deadline"
                )
            self._passes(timeout)
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module's docstring. ``chance`` draws the delays."""

    def __init__(self, chance: random.Random):
        super().__init__(_NoWait(self._passed))
        self._virtual = 0.0
        self._chance = chance
        self.slow: dict[
            str, float
        ] = {}  # processes with a slow disk: seconds of each piece of work
        self.errors: list[str] = []  # what reached the loop's exception handler
        self.set_exception_handler(self._reported)

    def time(self) -> float:
        return self._virtual

    def _passed(self, seconds: float) -> None:
        self._virtual += seconds

    def _reported(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.errors.append(f"{context.get('message')}: {context.get('exception')!r}")

    # --- handles of dead processes ----------------------------------------------------------------

    def call_soon(
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:  # type: ignore[override]
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

    # --- what a process asks of its system --------------------------------------------------------

    def run_in_executor(
        self, _executor: Any, func: Callable[..., Any], *args: Any
    ) -> "asyncio.Future[Any]":  # type: ignore[override]
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


def _unless_dead(callback: Any, context: contextvars.Context | None) -> Any:
    process = _PROCESS.get() if context is None else context.get(_PROCESS)
    if process is None:
        return callback

    def alive(*args: Any) -> None:
        if not process.dead:
            callback(*args)

    return alive


# --- disks: full ones, and what a power cut leaves (what was synced, and a random part of the rest)

# SQLite syncs by itself, so its durable commits are followed instead: what was committed later is
# in the last frames of its write-ahead log (https://sqlite.org/walformat.html), and a power cut
# loses a random number of them.

# bytes
_WAL_HEADER = 32
_FRAME_HEADER = 24
_INDEX_HEADER = 40


class Durable:
    """The sizes that `os.fsync` has made durable, by inode; and a store's frames at its last
    durable commit.
    """

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        self.full: set[str] = set()  # processes whose disk accepts nothing more
        self._committed: dict[Path, tuple[int, bytes]] = {}

    def fsync(self, descriptor: int) -> None:
        """Instead of `os.fsync`: the files live in memory."""
        if process_name() in self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        found = os.fstat(descriptor)
        self._sizes[found.st_ino] = found.st_size

    def all_synced(self, folder: Path) -> None:
        self._sizes |= {
            path.stat().st_ino: path.stat().st_size for path in folder.rglob("*") if path.is_file()
        }

    def power_cut(self, folder: Path, chance: random.Random) -> None:
        """Cut each file of a folder between what is durable and what was written."""
        for path in sorted(folder.rglob("*")):
            # An agent's store syncs each of its transactions.
            if path.is_file() and not path.is_symlink() and path.suffix != ".sqlite":
                found = path.stat()
                durable = min(self._sizes.get(found.st_ino, 0), found.st_size)
                if durable < found.st_size:
                    os.truncate(path, chance.randint(durable, found.st_size))

    def committed(self, store: Path) -> None:
        """A durable transaction has ended."""
        frames, salt, _ = _log_of(store)
        self._committed[store] = frames, salt

    def left_of(self, store: Path, chance: random.Random) -> tuple[bytes, bytes]:
        """The store and its log after a power cut at this moment."""
        frames, salt, page = _log_of(store)
        durable, then = self._committed.get(store, (0, b""))
        least = 0
        if then == salt:  # another salt: the log began anew
            least = durable
        kept = chance.randint(least, frames)
        log = _beside(store, "-wal").read_bytes()[: _WAL_HEADER + kept * (_FRAME_HEADER + page)]
        return store.read_bytes(), log


def _beside(store: Path, end: str) -> Path:
    return store.with_name(store.name + end)


def _log_of(store: Path) -> tuple[int, bytes, int]:
    """Frames, salt and page size, of the index of an open store's write-ahead log."""
    with _beside(store, "-shm").open("rb") as file:
        index = file.read(_INDEX_HEADER)
    return (
        struct.unpack_from("=I", index, 16)[0],
        index[32:40],
        struct.unpack_from("=H", index, 14)[0],
    )


@contextmanager
def followed() -> Iterator[Durable]:
    """What is synced while the block runs."""
    disk = Durable()
    real = os.fsync
    transaction = StoreTables.transaction
    database = StateStore.database

    @contextmanager
    def watched(self: StoreTables, *, durable: bool = True) -> Iterator[None]:
        with transaction(self, durable=durable):
            yield
        if durable:
            disk.committed(self.path)

    @contextmanager
    def limited(self: StateStore) -> Iterator[sqlite3.Connection]:
        if process_name() in disk.full:
            raise StorageError(f"{self.path}: {os.strerror(errno.ENOSPC)}")
        with database(self) as db:
            yield db

    os.fsync = disk.fsync  # type: ignore[assignment]
    StoreTables.transaction = watched  # type: ignore[method-assign]
    StateStore.database = limited  # type: ignore[method-assign]
    try:
        yield disk
    finally:
        os.fsync = real
        StoreTables.transaction = transaction  # type: ignore[method-assign]
        StateStore.database = database  # type: ignore[method-assign]


# --- the end of a simulating process --------------------------------------------------------------


def leave(code: int) -> NoReturn:
    """End this process without clean-up: tasks of killed processes must never run again."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
