"""The interface of an experiment: jobs that run independently, and a report made from their results."""

from collections.abc import Mapping
from typing import Protocol

from coreg_sim.papers.pool import Pool
from coreg_sim.study.jobs import JSON, Job
from coreg_sim.study.report import Report


class Experiment(Protocol):
    """One paper's experiment, as a frozen value.

    ``name`` is the argument of `coreg-sim paper`; ``source`` is the paper and its table or figure. Data ``sets`` that a pool
    lacks are omitted, and the page lists them. ``jobs`` are in their best order. A job's arguments and the pool determine its
    result. ``report`` takes every job's result, by key.
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
