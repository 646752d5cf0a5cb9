"""Run an experiment's jobs, one after another or over Ray; a killed run goes on where it was.

Knows files and processes; what a job computes is the experiment's business. Every finished job is a line of
NAME.jsonl, flushed before the next one is counted: starting again reads the lines and does what is missing.
"""

import json
import logging
import os
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from coreg_core.errors import StorageError, Unreachable, UsageError
from coreg_core.threads import pin_threads
from coreg_sim.papers.experiment import JSON, Experiment, Job, Report
from coreg_sim.papers.pool import Pool

NAMES = ("corlsr-uci", "corlsr-unlabelled", "rademacher", "oca", "xnv", "snf")


def find(name: str) -> Experiment:
    """The experiment of that name.

    Raises:
        UsageError: there is none.
    """
    if name not in NAMES:
        raise UsageError(f"{name!r} is no experiment; choose one of {', '.join(NAMES)}, or all.")
    experiment: Experiment = import_module(f"coreg_sim.papers.{name.replace('-', '_')}").EXPERIMENT
    return experiment


@dataclass(frozen=True)
class Done:
    """A finished job."""

    job: Job
    result: dict[str, JSON]
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """What a run gave.

    Args:
        report: made from every result.
        jobs: how many; ``resumed`` of them had been done before.
        seconds: summed over the jobs, each on one core.
        path: where the report lies, as JSON.
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

    Args:
        experiment: what to run.
        pool: the data sets.
        out: a folder for NAME.jsonl and NAME.json (NAME-quick of a quick run); made when absent.
        quick: the small form, which shows that it runs and not what comes out.
        jobs: processes; more than one needs Ray (the extra ``sim``).
        progress: told how many jobs are done, and of how many.

    Raises:
        UsageError: none of the experiment's data sets is there, or Ray is wanted and not installed.
        StorageError: ``out`` cannot be written.
        Unreachable: Ray does not start.
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
        with _Record(out / f"{stem}.jsonl") as record:
            done = {job.key: earlier for job in todo if (earlier := record.find(job)) is not None}
            resumed = len(done)
            progress(resumed, len(todo))
            rest = [job for job in todo if job.key not in done]
            for finished in _each(experiment, pool, rest, jobs):
                record.add(finished)
                done[finished.job.key] = finished
                progress(len(done), len(todo))
        results = {job.key: done[job.key].result for job in todo}  # in the experiment's order, whoever was first
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


class _Record:
    """NAME.jsonl: a line a job. A line torn by a kill is cut off; a job with other arguments is another job."""

    def __init__(self, path: Path):
        self._done: dict[str, Done] = {}
        whole = 0
        if path.exists():
            for line in path.read_bytes().splitlines(keepends=True):
                try:
                    entry = json.loads(line if line.endswith(b"\n") else b"")
                    job = Job(entry["key"], entry["arguments"])
                    self._done[job.key] = Done(job, entry["result"], float(entry["seconds"]))
                except (ValueError, KeyError, TypeError):
                    break
                whole += len(line)
        self._file = path.open("ab")
        self._file.truncate(whole)

    def __enter__(self) -> "_Record":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def find(self, job: Job) -> Done | None:
        earlier = self._done.get(job.key)
        # As JSON has it: a tuple in a job's arguments comes back as a list.
        same = earlier is not None and earlier.job.arguments == json.loads(json.dumps(job.arguments))
        return earlier if same else None

    def add(self, done: Done) -> None:
        entry = {**asdict(done.job), "result": done.result, "seconds": round(done.seconds, 3)}
        self._file.write(json.dumps(entry, allow_nan=False).encode() + b"\n")
        self._file.flush()


def _do(experiment: Experiment, job: Job, pool: Pool) -> Done:
    since = time.perf_counter()
    result = experiment.run(job, pool)
    return Done(job, result, time.perf_counter() - since)


def _each(experiment: Experiment, pool: Pool, todo: list[Job], jobs: int) -> Iterator[Done]:
    # One BLAS thread a process: the same bits whatever --jobs is, and no two processes fight for a core.
    if jobs == 1 or not todo:
        pin_threads(1)
        for job in todo:
            yield _do(experiment, job, pool)
    else:
        yield from _over_ray(experiment.name, pool.folder.resolve(), todo, jobs)


def _over_ray(name: str, folder: Path, todo: list[Job], jobs: int) -> Iterator[Done]:
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or Ray warns of what it will do one day
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing goes home
    try:
        import ray
    except ImportError:
        raise UsageError("--jobs above 1 needs Ray: pip install 'coreg-federation[sim]', or use --jobs 1.") from None
    try:
        ray.init(num_cpus=jobs, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # noqa: BLE001 - it has many ways of not starting, and what to do is always the same
        raise Unreachable(f"Ray does not start here ({error}). Use --jobs 1.") from None
    try:
        workers = [ray.remote(_Worker).options(num_cpus=1).remote(name, str(folder)) for _ in range(jobs)]
        waiting = iter(todo)
        running: dict[Any, Any] = {}

        def give(worker: Any) -> None:
            if (job := next(waiting, None)) is not None:
                running[worker.do.remote(job)] = worker

        for worker in workers:
            give(worker)
        while running:
            [ready], _ = ray.wait(list(running))
            worker = running.pop(ready)
            give(worker)
            yield ray.get(ready)
    finally:
        ray.shutdown()


class _Worker:
    """One process of Ray: it reads a data set once, and does job after job."""

    def __init__(self, name: str, folder: str):
        pin_threads(1)
        self._experiment, self._pool = find(name), Pool(Path(folder))

    def do(self, job: Job) -> Done:
        return _do(self._experiment, job, self._pool)
