"""Run an experiment's jobs, and write its report as NAME.json."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from coreg_core.errors import UsageError
from coreg_sim.papers.experiment import Experiment
from coreg_sim.papers.pool import Pool
from coreg_sim.study.jobs import JSON, FinishedStudy, Job, Where, run_study, software

NAMES = ("corlsr-uci", "corlsr-unlabelled", "rademacher", "oca", "xnv", "snf", "snf-labelled")


def find(name: str) -> Experiment:
    """The experiment of that name.

    Raises
    ------
    UsageError
        There is none.
    """
    if name not in NAMES:
        raise UsageError(f"{name!r} is not an experiment. Choose one of {', '.join(NAMES)}, or all.")
    experiment: Experiment = import_module(f"coreg_sim.papers.{name.replace('-', '_')}").EXPERIMENT
    return experiment


@dataclass(frozen=True)
class _Work:
    """An experiment with its pool. It is pickled as their names."""

    experiment: Experiment
    pool: Pool
    quick: bool

    def jobs(self) -> list[Job]:
        return self.experiment.jobs(self.pool, quick=self.quick)

    def do(self, job: Job) -> dict[str, JSON]:
        return self.experiment.run(job, self.pool)

    def __reduce__(self) -> tuple[Any, ...]:
        return _work, (self.experiment.name, str(self.pool.folder.resolve()), self.quick)


def _work(name: str, folder: str, quick: bool) -> _Work:
    return _Work(find(name), Pool(Path(folder)), quick)


def run_experiment(
    experiment: Experiment,
    pool: Pool,
    out: Path,
    *,
    quick: bool = False,
    jobs: int = 1,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> FinishedStudy:
    """Do the missing jobs, and write the report: NAME.jsonl and NAME.json, for a quick run NAME-quick.

    The quick form only checks that the experiment runs.

    Raises
    ------
    UsageError
        The pool has none of the experiment's data sets, or Ray is needed and not installed.
    StorageError
        ``out`` cannot be written.
    Unreachable
        Ray does not start.
    """
    work = _Work(experiment, pool, quick)
    if not work.jobs():
        raise UsageError(
            f"{pool.folder}: it has no data set of {experiment.name} ({', '.join(experiment.sets)}). "
            "Fetch them with --fetch."
        )

    def page(results: dict[str, dict[str, JSON]], seconds: float) -> dict[str, JSON]:
        return {
            "experiment": experiment.name,
            "title": experiment.title,
            "source": experiment.source,
            "quick": quick,
            "jobs": len(results),
            "seconds": round(seconds, 1),
            "absent": [name for name in experiment.sets if not pool.has(name)],
            **software(),
            "report": asdict(experiment.report(results, quick=quick)),
        }

    name = experiment.name + ("-quick" if quick else "")
    return run_study(work, out, name, Where(jobs), page, progress)
