"""What an experiment is: jobs that run apart from each other, and a report made of their results.

Results are JSON, so that a killed run goes on where it was, and a report can be made again without computing anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from coreg_sim.federation.jobs import JSON, Job
from coreg_sim.papers.pool import Pool

__all__ = ["JSON", "Cell", "Experiment", "Job", "Plot", "Report", "Series", "Table"]

Cell: TypeAlias = str | float | int | None


@dataclass(frozen=True)
class Table:
    """Rows under a header; the note says what a reader has to know of how they came about."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class Series:
    """One set of points, or one line, of a plot; ``spread`` is half an interval around each y."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    style: Literal["points", "line"] = "points"
    spread: tuple[float, ...] = ()


@dataclass(frozen=True)
class Plot:
    """A figure, drawn by tools/experiments.py; ``diagonal`` adds the line x = y."""

    name: str
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    diagonal: bool = False
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Report:
    """What came out, beside what the paper found.

    Parameters
    ----------
    findings
        plain sentences, made from the results.
    tables
        the paper's figure and ours side by side.
    plots
        the paper's figures, from our numbers.
    figures
        the few numbers that other texts may quote, by name.
    """

    findings: tuple[str, ...]
    tables: tuple[Table, ...]
    plots: tuple[Plot, ...] = ()
    figures: dict[str, float] = field(default_factory=dict)


class Experiment(Protocol):
    """One paper's experiment; a frozen value, the same for the same pool."""

    @property
    def name(self) -> str:
        """As typed: coreg-sim paper NAME."""

    @property
    def title(self) -> str:
        """One line."""

    @property
    def source(self) -> str:
        """Paper, and the table or figure."""

    @property
    def sets(self) -> tuple[str, ...]:
        """The data sets that it reads; those that a pool lacks are left out, and the report says so."""

    def jobs(self, pool: Pool, *, quick: bool) -> list[Job]:
        """All there is to do, in the order in which it is best done."""

    def run(self, job: Job, pool: Pool) -> dict[str, JSON]:
        """Do one; nothing but ``job.arguments`` and the pool decides what comes out."""

    def report(self, results: Mapping[str, dict[str, JSON]], *, quick: bool) -> Report:
        """From every job's result, by key."""
