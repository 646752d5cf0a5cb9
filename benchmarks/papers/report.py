"""A report: sentences and tables, and their text."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

Cell: TypeAlias = str | float | int | None
WIDTH = 110


@dataclass(frozen=True)
class ReportTable:
    """Rows under a header. The note explains the origin of the figures."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class Report:
    """The results of a study."""

    findings: tuple[str, ...]
    tables: tuple[ReportTable, ...]

    def text(self, title: str, source: str, closing: str) -> str:
        """The whole report, in lines."""
        lines = [title, source, ""]
        for finding in self.findings:
            lines += textwrap.wrap(finding, WIDTH, initial_indent="- ", subsequent_indent="  ")
        for table in self.tables:
            lines += ["", table.title, *_aligned([table.header, *table.rows])]
            lines += textwrap.wrap(table.note, WIDTH)
        return "\n".join([*lines, "", *textwrap.wrap(closing, WIDTH), ""])


def _aligned(rows: Sequence[Sequence[Cell]]) -> list[str]:
    """Columns with two spaces between them: the first to the left, the others to the right."""
    cells = [[text(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = (
        "  ".join(
            cell.rjust(width) if j else cell.ljust(width)
            for j, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    )
    return [line.rstrip() for line in lines]


def text(cell: Cell) -> str:
    """A number with three significant digits, or three decimals between 0.01 and 1000; an absent
    value is empty.
    """
    match cell:
        case None:
            return ""
        case float():
            return f"{cell:.3g}" if abs(cell) < 0.01 or abs(cell) >= 1000 else f"{cell:.3f}"
        case _:
            return str(cell)
