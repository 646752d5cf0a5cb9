"""Observers of an agent: a console for an operator, a log for a service."""

import math
import time

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from coreg_core.protocol.outcomes import Notice
from coreg_wire.terminal.logs import Log, log_notice
from coreg_wire.terminal.output import print_json

QUIET, LONGEST_QUIET = 5.0, 600.0  # seconds between two lines about a coordinator that cannot be reached


class OperatorConsole:
    """Prints sentences on standard error, or JSON on standard output; on a terminal also a progress line."""

    def __init__(self, *, as_json: bool, console: Console | None = None):
        self._as_json = as_json
        self._console = Console(stderr=True) if console is None else console
        self._progress: Progress | None = None

    def __call__(self, notice: Notice) -> None:
        if notice.text:
            self.note(notice.text)
        if notice.work:
            self._show(notice.work)

    def note(self, text: str) -> None:
        """Print a sentence."""
        if self._as_json:
            print_json({"event": "note", "text": text})
        elif self._console.is_terminal:
            self.close()
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)
        else:  # a round is shorter than rich's work on its line
            print(text, file=self._console.file, flush=True)

    def _show(self, text: str) -> None:
        if self._as_json or not self._console.is_terminal:
            return
        if self._progress is None:
            spinner, label = SpinnerColumn(), TextColumn("{task.description}", markup=False)
            self._progress = Progress(spinner, label, TimeElapsedColumn(), console=self._console, transient=True)
            self._progress.add_task(text, total=None)
            self._progress.start()
        else:
            self._progress.reset(self._progress.task_ids[0], total=None, description=text)

    def close(self) -> None:
        """Remove the progress line."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


class ServiceLog:
    """One structured line per notice, without private ones. Repeated connection failures are logged at growing intervals."""

    def __init__(self, log: Log):
        self._log = log
        self._why, self._next, self._pause = "", -math.inf, QUIET

    def __call__(self, notice: Notice) -> None:
        if not notice.private and not (notice.name == "not_connected" and self._repeats(notice.text)):
            log_notice(self._log, notice)

    def _repeats(self, text: str) -> bool:
        why, now = text.partition(": ")[2].partition("; ")[0], time.monotonic()
        if why != self._why:
            self._why, self._next, self._pause = why, -math.inf, QUIET
        if now < self._next:
            return True
        self._next, self._pause = now + self._pause, min(2 * self._pause, LONGEST_QUIET)
        return False
