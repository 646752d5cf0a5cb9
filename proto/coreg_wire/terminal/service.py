"""Logs and signals of a process that serves.

A log has one line per event on standard error: the event, its time, run, site and counts. Callers
must never pass a label, a feature, an id of an instance or a key as a field.
"""

import asyncio
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import structlog
from structlog.typing import EventDict

from coreg_core.errors import CoregError
from coreg_core.outcomes import Notice
from coreg_wire.terminal.command_line import owner_hint
from coreg_wire.terminal.text import visible

Log: TypeAlias = structlog.typing.FilteringBoundLogger


def log_notice(log: Log, notice: Notice) -> None:
    """Log the notice as one line. The words of a list are separated by spaces."""
    fields = {
        name: " ".join(map(str, x)) if isinstance(x, tuple) else x
        for name, x in notice.to_dict().items()
    }
    write = log.warning if fields.pop("level") == "warning" else log.info
    write(fields.pop("event"), **fields)


@contextmanager
def last_line(log: Log, *, as_json: bool) -> Iterator[None]:
    """With ``as_json`` the error that ends a service is a log line too, with its exit code."""
    try:
        yield
    except CoregError as error:
        if not as_json:
            raise
        log.error("failed", text=f"{error}{owner_hint(error)}", exit_code=error.exit_code)
        raise SystemExit(error.exit_code) from None


def _visible(_log: object, _level: str, fields: EventDict) -> EventDict:
    """Show control characters: a text of another party cannot change what a reader sees."""
    return {name: visible(x) if isinstance(x, str) else x for name, x in fields.items()}


def make_log(*, as_json: bool) -> Log:
    """A log with one line per event, in logfmt (`key=value`) or JSON; times are UTC, in ISO
    8601.
    """
    renderers = structlog.processors
    log: Log = structlog.wrap_logger(
        structlog.PrintLogger(sys.stderr),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _visible,
            (
                renderers.JSONRenderer(default=str)
                if as_json
                else renderers.LogfmtRenderer(
                    key_order=["timestamp", "level", "event"], drop_missing=True
                )
            ),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(0),
        cache_logger_on_first_use=False,
    )
    return log


# --- signals --------------------------------------------------------------------------------------


def on_signals(stop: Callable[[], None], reload: Callable[[], None] | None = None) -> None:
    """Call ``stop`` at SIGINT and SIGTERM, ``reload`` at SIGHUP."""
    if threading.current_thread() is not threading.main_thread():
        return  # a run within a program, which has signals of its own
    loop = asyncio.get_running_loop()
    for number, action in ((signal.SIGINT, stop), (signal.SIGTERM, stop), (signal.SIGHUP, reload)):
        if action is not None:
            loop.add_signal_handler(number, action)
