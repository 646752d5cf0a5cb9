"""A report: findings, tables and plots. Its results are JSON, so that the same report can be made again from a record."""

from dataclasses import dataclass, field
from typing import TypeAlias

from coreg_wire.terminal.svg import Plot

Cell: TypeAlias = str | float | int | None


@dataclass(frozen=True)
class ReportTable:
    """Rows under a header. The note says what a reader has to know of their origin."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class Report:
    """The results of a study: sentences, tables, plots, and the few figures that other texts can quote, by name."""

    findings: tuple[str, ...]
    tables: tuple[ReportTable, ...]
    plots: tuple[Plot, ...] = ()
    figures: dict[str, float] = field(default_factory=dict)


def text(cell: Cell) -> str:
    """A number with three significant digits, or three decimals between 0.01 and 1000; an absent value is empty."""
    match cell:
        case None:
            return ""
        case float():
            return f"{cell:.3g}" if abs(cell) < 0.01 or abs(cell) >= 1000 else f"{cell:.3f}"
        case _:
            return str(cell)
