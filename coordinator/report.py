"""What the operator sees of a run: a live table on a terminal, plain lines in a pipe, JSON lines for machines.

Knows rich; decides nothing. Notes and the table go to standard error where standard output is machine-read.
"""

import sys
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from coordinator.events import Finish, StepTaken
from coordinator.store import Measured
from coreg_core.messages import Plan
from coreg_wire.console import human_bytes, print_json

SHOWN = 15  # rows of the live table; all of them are in the store


def row(step: StepTaken, measured: Measured) -> dict[str, Any]:
    """One answered question as plain values; the worst column speaks for all."""
    p = step.progress
    return {
        "round": step.round,
        "sweep": None if p is None else p.round,
        "answered": step.answered,
        "verified": p is not None and p.verified,
        "residual": None if p is None else float(p.residual.max()),
        "gap": None if p is None else float(p.gap.max()),
        "prediction_bound": None if p is None else float(p.prediction_bound.max()),
        "seconds": round(measured.seconds, 6),
        "bytes": measured.bytes_sent + measured.bytes_received,
    }


def cells(values: dict[str, Any]) -> tuple[str, ...]:
    """The same for people: an estimate is marked with ~, a certified number is not."""
    mark = "" if values["verified"] else "~"

    def number(name: str, prefix: str = "") -> str:
        return "-" if values[name] is None else f"{prefix}{values[name]:.2e}"

    return (
        str(values["round"]),
        str(values["answered"]),
        number("residual"),
        number("gap", mark),
        number("prediction_bound", mark),
        f"{values['seconds']:.3f}",
        human_bytes(values["bytes"]),
    )


HEADINGS = ("round", "sites", "residual", "certified gap", "prediction bound", "seconds", "bytes")
PLAIN = "{:>6} {:>6} {:>10} {:>14} {:>17} {:>9} {:>10}"


class JsonReporter:
    """One JSON object a line on standard output."""

    def note(self, text: str) -> None:
        """{"event": "note"}."""
        print_json({"event": "note", "text": text})

    def step(self, step: StepTaken, measured: Measured) -> None:
        """{"event": "round"}."""
        print_json({"event": "round", **row(step, measured)})

    def listening(self, host: str, port: int) -> None:
        """{"event": "listening"}."""
        print_json({"event": "listening", "host": host, "port": port})

    def finished(self, plan: Plan, end: Finish, rounds: int, last: dict[str, Any] | None) -> None:
        """{"event": "finished"}."""
        print_json(
            {
                "event": "finished",
                "run": plan.run,
                "stop": end.stop.name,
                "reason": end.reason,
                "rounds": rounds,
                "last": last,
            }
        )


class PlainReporter:
    """Plain lines on standard output."""

    def __init__(self) -> None:
        self._headed = False

    def _print(self, text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def note(self, text: str) -> None:
        """A line."""
        self._print(text)

    def step(self, step: StepTaken, measured: Measured) -> None:
        """A row, headed once."""
        if not self._headed:
            self._headed = True
            self._print(PLAIN.format(*HEADINGS))
        self._print(PLAIN.format(*cells(row(step, measured))))

    def listening(self, host: str, port: int) -> None:
        """A line."""
        self._print(f"listening on {host}:{port}")

    def finished(self, plan: Plan, end: Finish, rounds: int, last: dict[str, Any] | None) -> None:
        """The stop, what it means, and the next step."""
        self._print(end.stop.told(end.reason))
        if last is not None:
            certified = "certified: " if last["verified"] else "estimated: "
            self._print(
                f"{certified}Q - Q* <= {last['gap']:.2e}, every site's predictions within {last['prediction_bound']:.2e} "
                f"(2-norm) of the optimum, after {rounds} rounds"
            )
        self._print(f"`coreg-coordinator show {plan.run}` tells this run again")


class LiveReporter(PlainReporter):
    """A table that grows in place, for a terminal."""

    def __init__(self) -> None:
        super().__init__()
        self._console = Console()
        self._rows: list[tuple[str, ...]] = []
        self._live: Live | None = None

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False)

    def step(self, step: StepTaken, measured: Measured) -> None:
        """The last rows, in place."""
        self._rows = [*self._rows[-(SHOWN - 1) :], cells(row(step, measured))]
        if self._live is None:
            self._live = Live(console=self._console, refresh_per_second=8)
            self._live.start()
        table = Table(box=None, header_style="bold")
        for heading in HEADINGS:
            table.add_column(heading, justify="right")
        for line in self._rows:
            table.add_row(*line)
        self._live.update(table)

    def finished(self, plan: Plan, end: Finish, rounds: int, last: dict[str, Any] | None) -> None:
        """The table stays; the rest is as in a pipe."""
        self.close()
        super().finished(plan, end, rounds, last)

    def close(self) -> None:
        """Give the terminal back."""
        if self._live is not None:
            self._live.stop()
            self._live = None


AnyReporter = JsonReporter | PlainReporter | LiveReporter


class Remembering:
    """Passes everything on, and keeps the last row and the count for the end."""

    def __init__(self, inner: AnyReporter):
        self.inner, self.rounds = inner, 0
        self.last: dict[str, Any] | None = None

    def note(self, text: str) -> None:
        """Passed on."""
        self.inner.note(text)

    def step(self, step: StepTaken, measured: Measured) -> None:
        """Passed on, and kept."""
        self.inner.step(step, measured)
        if step.progress is not None:
            self.rounds, self.last = step.progress.round, row(step, measured)


def choose_reporter(*, as_json: bool) -> AnyReporter:
    """JSON where it was asked for; live on a terminal; plain lines otherwise."""
    if as_json:
        return JsonReporter()
    return LiveReporter() if sys.stdout.isatty() else PlainReporter()
