"""The interface of an experiment: jobs that run independently, and a report made from their results."""

from collections.abc import Mapping
from typing import Protocol

from coreg_sim.papers.pool import Pool
from coreg_sim.study.jobs import JSON, Job
from coreg_sim.study.report import Report


class Experiment(Protocol):
    """One paper's experiment: a frozen value, the same for the same pool.

    ``name`` is typed after `coreg-sim paper`; ``source`` is the paper and its table or figure. Of the data ``sets`` those that a
    pool lacks are omitted, and the page lists them. ``jobs`` come in the order in which they are best done. The result of a
    job depends on its arguments and the pool alone. ``report`` takes every job's result, by key.
    """

    @property
    def name(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def source(self) -> str: ...

    @property
    def sets(self) -> tuple[str, ...]: ...

    def jobs(self, pool: Pool, *, quick: bool) -> list[Job]: ...

    def run(self, job: Job, pool: Pool) -> dict[str, JSON]: ...

    def report(self, results: Mapping[str, dict[str, JSON]], *, quick: bool) -> Report: ...
