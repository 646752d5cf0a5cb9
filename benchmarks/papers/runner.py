"""Run an experiment's jobs, and write its report as NAME.txt.

An experiment is a frozen value, `EXPERIMENT` of its module: ``name``, ``title``, ``source`` (paper
and table), the data ``sets`` (absent ones are left out), ``jobs`` in their best order, ``run`` for
one job, and ``report`` from every job's result by key.
"""

from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.papers.jobs import JSON, Job, run_jobs, software
from benchmarks.papers.pool import Pool
from benchmarks.papers.report import Report
from coreg_core.errors import UsageError

NAMES = (
    "corlsr-uci",
    "corlsr-unlabelled",
    "rademacher",
    "oca",
    "xnv",
    "xnv-bounds",
    "snf",
    "snf-labelled",
    "snf-steps",
)


def find(name: str) -> Any:
    """The experiment of that name; UsageError if there is none."""
    if name not in NAMES:
        raise UsageError(
            f"{name!r} is not an experiment. Choose one of {', '.join(NAMES)}, or all."
        )
    return import_module(f"benchmarks.papers.{name.replace('-', '_')}").EXPERIMENT


_pool = lru_cache(maxsize=1)(Pool)


def _do(experiment: Any, folder: Path, job: Job) -> dict[str, JSON]:
    return experiment.run(job, _pool(folder))


def run_experiment(
    experiment: Any, folder: Path, out: Path, *, quick: bool = False, jobs: int = 1
) -> Report:
    """Do the missing jobs, and write the report: NAME.jsonl and NAME.txt, for a quick run
    NAME-quick.

    The quick form only checks that the experiment runs. Raises UsageError if the folder has none of
    its data sets.
    """
    pool = _pool(folder.resolve())
    name = experiment.name + ("-quick" if quick else "")
    todo = experiment.jobs(pool, quick=quick)
    if not todo:
        raise UsageError(
            f"{folder}: it has no data set of {experiment.name} ({', '.join(experiment.sets)})."
            " Fetch them with --fetch."
        )
    results, seconds = run_jobs(
        todo, partial(_do, experiment, pool.folder), out / f"{name}.jsonl", jobs
    )
    report = experiment.report(results, quick=quick)
    absent = [each for each in experiment.sets if not pool.has(each)]
    missing = f" Missing sets: {', '.join(absent)}." if absent else ""
    closing = f"{len(results)} jobs, {seconds:.0f} s of one core in total; {software()}.{missing}"
    (out / f"{name}.txt").write_text(
        report.text(experiment.title, experiment.source, closing), encoding="utf-8"
    )
    return report
