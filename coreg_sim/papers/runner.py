"""Run an experiment's jobs (`coreg_sim.federation.jobs`: one after another or over Ray, resumed), and write its report."""

import json
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from coreg_core.errors import StorageError, UsageError
from coreg_sim.federation.jobs import JSON, Job, Where, run_jobs
from coreg_sim.papers.experiment import Experiment, Report
from coreg_sim.papers.pool import Pool

NAMES = ("corlsr-uci", "corlsr-unlabelled", "rademacher", "oca", "xnv", "snf")


def find(name: str) -> Experiment:
    """The experiment of that name.

    Raises
    ------
    UsageError
        there is none.
    """
    if name not in NAMES:
        raise UsageError(f"{name!r} is no experiment; choose one of {', '.join(NAMES)}, or all.")
    experiment: Experiment = import_module(f"coreg_sim.papers.{name.replace('-', '_')}").EXPERIMENT
    return experiment


@dataclass(frozen=True)
class Outcome:
    """What a run gave.

    Parameters
    ----------
    report
        made from every result.
    jobs
        how many; ``resumed`` of them had been done before.
    seconds
        summed over the jobs, each on one core.
    path
        where the report lies, as JSON.
    """

    report: Report
    jobs: int
    resumed: int
    seconds: float
    path: Path


def run_experiment(
    experiment: Experiment,
    pool: Pool,
    out: Path,
    *,
    quick: bool = False,
    jobs: int = 1,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> Outcome:
    """Do what is not done yet, and make the report.

    Parameters
    ----------
    experiment
        what to run.
    pool
        the data sets.
    out
        a folder for NAME.jsonl and NAME.json (NAME-quick of a quick run); made when absent.
    quick
        the small form, which shows that it runs and not what comes out.
    jobs
        processes; more than one needs Ray (the extra ``sim``).
    progress
        told how many jobs are done, and of how many.

    Raises
    ------
    UsageError
        none of the experiment's data sets is there, or Ray is wanted and not installed.
    StorageError
        ``out`` cannot be written.
    Unreachable
        Ray does not start.
    """
    todo = experiment.jobs(pool, quick=quick)
    if not todo:
        raise UsageError(
            f"{pool.folder}: none of the sets of {experiment.name} is there ({', '.join(experiment.sets)}). "
            "Fetch them with --fetch."
        )
    stem = experiment.name + ("-quick" if quick else "")
    try:
        out.mkdir(parents=True, exist_ok=True)
        record = out / f"{stem}.jsonl"
        done, resumed = run_jobs(_Bound(experiment, pool), todo, record, Where(jobs), progress)
        results = {key: each.result for key, each in done.items()}
        report = experiment.report(results, quick=quick)
        seconds = sum(d.seconds for d in done.values())
        path = out / f"{stem}.json"
        text = {
            "experiment": experiment.name,
            "title": experiment.title,
            "source": experiment.source,
            "quick": quick,
            "jobs": len(todo),
            "seconds": round(seconds, 1),
            "absent": [name for name in experiment.sets if not pool.has(name)],
            "versions": {name: version(name) for name in ("coreg-federation", "numpy", "scipy", "scikit-learn")},
            "python": platform.python_version(),
            "report": asdict(report),
        }
        path.write_text(json.dumps(text, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{out}: cannot be written ({error.strerror}). Name another folder with --out.") from None
    return Outcome(report, len(todo), resumed, seconds, path)


@dataclass(frozen=True)
class _Bound:
    """An experiment with its pool; another process finds both by their names."""

    experiment: Experiment
    pool: Pool

    def do(self, job: Job) -> dict[str, JSON]:
        return self.experiment.run(job, self.pool)

    def __reduce__(self) -> tuple[Any, ...]:
        return _bound, (self.experiment.name, str(self.pool.folder.resolve()))


def _bound(name: str, folder: str) -> _Bound:
    return _Bound(find(name), Pool(Path(folder)))
