"""One line on a terminal about the work that goes on now: its name, and the time that it has taken.

Nothing is shown where standard error is no terminal.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from coreg_wire.terminal.text import visible


class WorkLine:
    """The line. It disappears when other text is to be printed, and comes again after that."""

    def __init__(self, console: Console | None = None):
        self.console = Console(stderr=True) if console is None else console
        self._progress: Progress | None = None

    def show(self, work: str) -> None:
        """Name the work that begins now."""
        if not self.console.is_terminal:
            return
        if self._progress is None:
            label = TextColumn("{task.description}", markup=False)
            self._progress = Progress(
                SpinnerColumn(), label, TimeElapsedColumn(), console=self.console, transient=True
            )
            self._progress.add_task(visible(work), total=None)
            self._progress.start()
        else:
            [task] = self._progress.task_ids
            self._progress.reset(task, total=None, description=visible(work))

    @contextmanager
    def during(self, work: str) -> Iterator[None]:
        """Name the work of a block; nothing is to be printed inside."""
        self.show(work)
        try:
            yield
        finally:
            self.hide()

    def hide(self) -> None:
        """Remove the line before other text."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
