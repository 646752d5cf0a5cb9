"""The end of a command: a user's mistake ends with one sentence and a documented exit code, never with a traceback.

docs/reference/exit-codes.md lists the codes.
"""

import os
import signal
import sys
from types import FrameType

import typer

from coreg_core.errors import CoregError
from coreg_wire.transport.release import release

EXIT_CODES = {
    0: "done",
    1: "internal error",
    2: "usage or configuration",
    3: "not converged within the limits, or stagnated",
    4: "refused or not authorised",
    5: "stalled, or too few sites",
    6: "bad data",
    7: "unreachable",
    8: "storage",
    130: "interrupted",
}


class OperatorInterrupt(CoregError):
    """Ctrl-C, or SIGINT from another source."""

    exit_code = 130


def run(app: typer.Typer, program: str) -> int:
    """Run a command line and return its exit code."""
    # Typer turns KeyboardInterrupt into exit code 1; ours is 130, so SIGINT raises an exception of our own.
    signal.signal(signal.SIGINT, _interrupt)
    if sys.argv[1:] and sys.argv[-1] == "--version" and len(sys.argv) <= 3:  # after a command's name too
        sys.stdout.write(f"{program} {release() or '(not installed)'}\n")
        return 0
    try:
        app(prog_name=program)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except CoregError as error:
        return _fail(program, str(error), error.exit_code)
    except BrokenPipeError:  # the reader of our output ended, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        return _fail(program, f"{error.filename or ''}: {error.strerror or error}", 8)
    return 0


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise OperatorInterrupt("interrupted.")


def _fail(program: str, text: str, code: int) -> int:
    sys.stderr.write(f"{program}: {text}\n")
    return code
