"""Output and end of a command: a user's mistake ends with one sentence and a documented exit code,
never with a traceback.

docs/reference/exit-codes.md lists the codes.
"""

import errno
import io
import json
import os
import pwd
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

import typer

from coreg_core.errors import CoregError, StorageError, UsageError
from coreg_wire.terminal.text import echo, visible
from coreg_wire.transport.service import release

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


def need_extra(extra: str, *packages: str) -> None:
    """UsageError that names the extra to install, if one of its packages is missing."""
    if missing := [name for name in packages if find_spec(name) is None]:
        raise UsageError(
            f"this needs {', '.join(missing)}: pip install '.[{extra}]' in the clone of coreg."
        )


def run(app: typer.Typer, program: str) -> int:
    """Run a command line and return its exit code."""
    # Typer turns KeyboardInterrupt into exit code 1; ours is 130, so SIGINT raises an exception of
    # our own.
    signal.signal(signal.SIGINT, _interrupt)
    for stream in (sys.stdout, sys.stderr):  # a terminal of cp1252 has no λ
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    arguments = sys.argv[1:]
    if arguments[-1:] == ["--version"] and len(arguments) <= 2:  # after a command's name too
        sys.stdout.write(f"{program} {release() or '(not installed)'}\n")
        return 0
    try:
        app(prog_name=program)
    except SystemExit as end:
        # The reader of our output ended, as `head` does: typer then replaces the stream, and ends
        # with 1.
        if type(sys.stdout).__name__.endswith("PacifyFlushWrapper"):
            return 0
        if isinstance(end.code, int):
            return end.code
        return 0
    except CoregError as error:
        return _fail(program, str(error) + owner_hint(error), error.exit_code)
    except BrokenPipeError:  # the reader of our output ended, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        return _fail(program, _file_fault(error) + owner_hint(error), 8)
    return 0


def _file_fault(error: OSError) -> str:
    where = error.filename or "a file cannot be written or read"
    fault = f"{where}: {error.strerror or error}."
    if error.errno == errno.ENOSPC:
        fault += (
            " Free some space in the folders that this command writes, then run it again. No"
            " written data is lost."
        )
    return fault


def owner_hint(error: BaseException) -> str:
    """Where a permission is missing: whose the file is, and who runs this command. Else nothing."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, PermissionError):
        cause = cause.__cause__ or cause.__context__
    if cause is None or not cause.filename:
        return ""
    path = Path(os.fsdecode(cause.filename))
    seen = next((p for p in (path, *path.absolute().parents) if os.access(p, os.F_OK)), Path("/"))
    if (users := other_owner(seen)) is None:
        return ""
    owner, me = users
    sudo = "sudo" if owner == "root" else f"sudo -u {owner}"
    mend = (
        f"run it as {owner} ({sudo} …), or, if {seen.name} should be {me}'s, change the owner (sudo"
        f" chown {me} …)"
    )
    return f" {seen} belongs to {owner}, and this command runs as {me}: {mend}."


def other_owner(path: Path) -> tuple[str, str] | None:
    """The owner of a file and the user of this process, if they differ."""
    if (uid := path.stat().st_uid) == os.geteuid():
        return None
    return user_name(uid), user_name(os.geteuid())


def as_owner(path: Path) -> None:
    """Check before a file is written for a service: it could not read another user's file."""
    if path.exists() and (users := other_owner(path)):
        owner, me = users
        raise StorageError(
            f"{path} belongs to {owner}, and this command runs as {me}: {owner} could not read what"
            f" it writes. Nothing was changed. Run it as that user: sudo -u {owner} …"
        )


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"#{uid}"  # as sudo takes it


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise OperatorInterrupt("interrupted.")


def _fail(program: str, text: str, code: int) -> int:
    sys.stderr.write(f"{program}: {visible(text)}\n")
    return code


# --- output ---------------------------------------------------------------------------------------


def print_json(value: Any) -> None:
    """Print one JSON value on one line of standard output, and flush it."""
    echo(json.dumps(value, default=str))


def human_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            if unit == "B":
                return f"{count:.0f} B"
            return f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
