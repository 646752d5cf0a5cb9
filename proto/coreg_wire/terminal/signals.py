"""The signals of a process that serves: stop, and read the configuration again."""

import asyncio
import signal
import threading
from collections.abc import Callable


def on_signals(stop: Callable[[], None], reload: Callable[[], None] | None = None) -> None:
    """Call ``stop`` at SIGINT and SIGTERM, and ``reload`` at SIGHUP, in the running event loop.

    Windows has no SIGHUP and its loops take no signals: there Ctrl-C and Ctrl-Break stop, and a new start reloads.
    """
    if threading.current_thread() is not threading.main_thread():
        return  # a run within a program, which has signals of its own
    loop = asyncio.get_running_loop()
    wanted = {"SIGINT": stop, "SIGTERM": stop, "SIGBREAK": stop, "SIGHUP": reload}
    for name, action in wanted.items():
        number = getattr(signal, name, None)
        if number is not None and action is not None:
            _handle(loop, number, action)


def _handle(loop: asyncio.AbstractEventLoop, number: signal.Signals, action: Callable[[], None]) -> None:
    try:
        loop.add_signal_handler(number, action)
    except NotImplementedError:
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(action))
