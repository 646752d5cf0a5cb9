"""A report: findings, tables and plots. It is made from JSON, so a record gives the same report again."""

from dataclasses import dataclass, field
from typing import TypeAlias

from coreg_wire.terminal.svg import Plot

Cell: TypeAlias = str | float | int | None


@dataclass(frozen=True)
class ReportTable:
    """Rows under a header. The note explains the origin of the figures."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class Report:
    """The results of a study: sentences, tables, plots, and figures by name that other texts can quote."""

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
