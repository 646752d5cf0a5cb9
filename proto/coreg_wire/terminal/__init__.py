"""Command lines and services of all programs.

A command imports this first, so it imports little itself.
"""

import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType


def end_quietly() -> None:
    """Until `command_line.run` begins, end a command of ours at SIGINT with one line and exit code
    130, without a traceback.
    """
    ours = sys.argv and Path(sys.argv[0]).name.startswith("coreg-")
    if ours and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _end)


def _end(_number: int, _frame: FrameType | None) -> None:
    sys.stderr.write(f"{Path(sys.argv[0]).name}: interrupted.\n")
    os._exit(130)
