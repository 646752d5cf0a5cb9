"""A live table on a terminal, plain lines in a pipe."""

import sys
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from coordinator.driver import Timing
from coordinator.machine.events import Finish
from coordinator.machine.notices import (
    Notice,
    RunEnded,
    RunStarted,
    SessionEnded,
    SessionOpened,
    StepAnswered,
    Stopped,
)
from coordinator.machine.wording import message_for
from coordinator.observers.rows import HEADINGS, PLAIN, Phases, cells, row
from coordinator.observers.waiting import Waiting
from coreg_core.protocol.outcomes import told

SHOWN = 15  # rows of the live table; all of them are in the store
# `finished` shows the end with its certificate. The others repeat a notice of the run.
_UNSHOWN = (RunEnded, RunStarted, SessionOpened, SessionEnded, Stopped)


class Plain:
    """Plain lines on standard output."""

    def __init__(self) -> None:
        self._headed = False
        self._rounds = 0
        self._last: dict[str, Any] | None = None
        self._headings: list[str] = []
        self._phases = Phases()

    def _print(self, text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def notice(self, notice: Notice, measured: Timing) -> None:
        """Print a table row for a finished step, and a line for any other notice."""
        if isinstance(notice, StepAnswered):
            values = row(notice, measured)
            if notice.report.verified or self._last is None:
                self._rounds, self._last = notice.report.round, values
            # Rounds without a phase follow the preliminary ones of an agreement.
            phase = values.get("phase") or ("training" if self._headings == ["preliminary"] else "")
            if phase and phase not in self._headings:
                self._headings.append(phase)
                self._heading(phase)
            self._phases.add(values)
            self._row(values)
        elif not isinstance(notice, _UNSHOWN):
            self._print(message_for(notice))

    def _row(self, values: dict[str, Any]) -> None:
        if not self._headed:
            self._headed = True
            self._print(PLAIN.format(*HEADINGS))
        self._print(PLAIN.format(*cells(values)))

    def _heading(self, phase: str) -> None:
        self._print(f"{phase}:")

    def finished(self, end: Finish, show: str) -> None:
        """Print the outcome, its meaning and the next command."""
        self._print(told(end.outcome, end.reason))
        if self._last is not None and (certified := self._certified(self._last)):
            self._print(certified)
        for line in self._phases.lines():
            self._print(line)
        self._print(f"show this run again: {show}")

    def _certified(self, last: dict[str, Any]) -> str:
        certified = "certified: " if last["verified"] else "estimated: "
        if last["gap"] is None or last["bound"] is None:
            if last["level"] is None:
                return f"no bounds were certified; {self._rounds} rounds" if self._rounds else ""
            level = max(0, last["level"])
            within = "the tolerance" if level == 0 else f"{2**level} times the tolerance"
            return f"the sites certified that the gap is within {within}, after {self._rounds} rounds"
        gap, bound = last["gap"], last["bound"]
        if not last.get("phase"):
            return (
                f"{certified}Q - Q* <= {gap:.2e}, every site's predictions within {bound:.2e} (2-norm) of the optimum, "
                f"after {self._rounds} rounds"
            )
        if not last["verified"]:
            return f"nothing is certified before the final solve; {self._rounds} rounds"
        return (
            f"{certified}J - J* <= {gap:.2e}, the sum of the sites' parts within {bound:.2e} (2-norm, in deviations of labels) "
            f"of the optimum, after {self._rounds} rounds"
        )

    def close(self) -> None:
        """Nothing to release."""


class LiveTable(Plain):
    """A table that is redrawn in place, for a terminal."""

    def __init__(self) -> None:
        super().__init__()
        self._console = Console()
        self._rows: list[tuple[str, ...]] = []
        self._live: Live | None = None
        self._awaited = Waiting()

    def notice(self, notice: Notice, measured: Timing) -> None:
        """As `Plain`, and below it the sites that the run waits for."""
        self._awaited.notice(notice)
        super().notice(notice, measured)
        if self._awaited.said:
            self._draw()

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _row(self, values: dict[str, Any]) -> None:
        self._rows = [*self._rows[-(SHOWN - 1) :], cells(values)]
        self._draw()

    def _draw(self) -> None:
        if self._live is None:
            self._live = Live(console=self._console, refresh_per_second=4, get_renderable=self._shown)
            self._live.start()
        else:
            self._live.refresh()

    def _shown(self) -> RenderableType:
        """The table so far and the current wait; redrawn four times a second."""
        waiting = Text(self._awaited.said)
        if not self._rows:
            return waiting
        table = Table(box=None, header_style="bold")
        for heading in HEADINGS:
            table.add_column(heading, justify="right")
        for line in self._rows:
            table.add_row(*line)
        return Group(table, waiting) if waiting else table

    def _heading(self, phase: str) -> None:
        """The live table has no headings; `finished` lists the phases."""

    def finished(self, end: Finish, show: str) -> None:
        """Leave the table on the screen; then as `Plain`."""
        self.close()
        super().finished(end, show)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
