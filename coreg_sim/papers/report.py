"""A report on the terminal: findings, tables, where the JSON lies; and a progress bar while it is being made."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table as Shown

from coreg_sim.papers.experiment import Cell, Experiment, Report, Table
from coreg_sim.papers.runner import Outcome


@contextmanager
def waiting(name: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal, on stderr; a line for every tenth of the jobs where it is piped."""
    if sys.stderr.isatty():
        columns = (TextColumn(name), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task(name, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
    else:
        said = -1

        def line(done: int, total: int) -> None:
            nonlocal said
            if (tenth := 10 * done // max(total, 1)) > said:
                said = tenth
                print(f"{name}: {done} of {total} jobs", file=sys.stderr, flush=True)  # noqa: T201

        yield line


def show(experiment: Experiment, outcome: Outcome) -> None:
    console = _console()
    console.print(f"[bold]{experiment.title}[/bold]\n{experiment.source}\n", highlight=False)
    show_tables(outcome.report)
    resumed = f", {outcome.resumed} of them from an earlier run" if outcome.resumed else ""
    console.print(
        f"\n{outcome.jobs} jobs{resumed}, {outcome.seconds:.0f} s of one core in all; {outcome.path}",
        highlight=False,
        markup=False,
    )


def show_tables(report: Report) -> None:
    console = _console()
    for finding in report.findings:
        console.print(f"- {finding}", highlight=False, markup=False)
    for table in report.tables:
        console.print()
        console.print(_shown(table))
        if table.note:
            console.print(table.note, highlight=False, markup=False)


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else 160)


def _shown(table: Table) -> Shown:
    out = Shown(title=table.title, title_justify="left", box=None, header_style="bold")
    for j, heading in enumerate(table.header):
        out.add_column(heading, justify="left" if j == 0 else "right")
    for row in table.rows:
        out.add_row(*(text(cell) for cell in row))
    return out


def text(cell: Cell) -> str:
    """A number with as many digits as say something; what is absent is empty."""
    match cell:
        case None:
            return ""
        case float():
            return f"{cell:.3g}" if abs(cell) < 0.01 or abs(cell) >= 1000 else f"{cell:.3f}"
        case _:
            return str(cell)
