"""`serve --follow` on a terminal: one line for each active run, below the log."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table

from coordinator.driver import Timing
from coordinator.machine import notices as n
from coordinator.observers.rows import HEADINGS, cells, row
from coordinator.observers.waiting import Waiting


class Follow:
    """The latest step of every active run, and the sites that it waits for."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = Console(stderr=True) if console is None else console
        self._runs: dict[str, tuple[dict[str, Any] | None, Waiting]] = {}

    def notice(self, notice: n.Notice, measured: Timing) -> None:
        run = getattr(notice, "run", None)
        if run is None:
            return
        if isinstance(notice, n.RunEnded):
            self._runs.pop(run, None)
            return
        values, awaited = self._runs.get(run, (None, Waiting()))
        awaited.notice(notice)
        if isinstance(notice, n.StepAnswered):
            values = row(notice, measured)
        if values is not None or awaited.said:
            self._runs[run] = values, awaited

    def shown(self) -> RenderableType:
        """A line for each active run."""
        table = Table(box=None, header_style="bold")
        if self._runs:
            for heading in ("run", *HEADINGS, ""):
                table.add_column(heading, justify="right" if heading else "left")
        for run, (values, awaited) in self._runs.items():
            shown = ("",) * len(HEADINGS) if values is None else cells(values)
            table.add_row(run, *shown, awaited.said)
        return table

    @contextmanager
    def live(self) -> Iterator[None]:
        """Draw the table inside this context. Lines on standard error appear above it."""
        with Live(console=self._console, refresh_per_second=4, get_renderable=self.shown, redirect_stdout=False):
            yield
