"""A report on the terminal, and a progress bar for its study."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from coreg_sim.study.report import Report, text


@contextmanager
def waiting(name: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr if that is a terminal; otherwise a line for every tenth of the jobs."""
    if sys.stderr.isatty():
        columns = (TextColumn(name), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task(name, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
    else:
        printed = -1

        def line(done: int, total: int) -> None:
            nonlocal printed
            if (tenth := 10 * done // max(total, 1)) > printed:
                printed = tenth
                print(f"{name}: {done} of {total} jobs", file=sys.stderr, flush=True)  # noqa: T201

        yield line


SENTENCES = 110  # columns of a finding in a file or a wide terminal


def show(report: Report, closing: str, heading: str = "", *, details: bool = True) -> None:
    """Findings, tables (``details``) and a closing line on standard output."""
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    if heading:
        console.print(heading)
    for finding in report.findings:
        console.print(f"- {finding}", markup=False, width=min(console.width, SENTENCES))
    for table in report.tables if details else ():
        shown = Table(title=table.title, title_justify="left", box=None, header_style="bold")
        for j, column in enumerate(table.header):
            shown.add_column(column, justify="left" if j == 0 else "right")
        for row in table.rows:
            shown.add_row(*map(text, row))
        console.print()
        console.print(shown)
        if table.note:
            console.print(table.note, markup=False)
    console.print(f"\n{closing}", markup=False, soft_wrap=True)
