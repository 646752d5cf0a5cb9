"""Jobs that run apart from each other, one after another or over Ray; what was killed goes on where it was.

Every finished job is a line of a file, flushed before the next one is counted: starting again reads the lines and does
what is missing.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from coreg_core.errors import Unreachable
from coreg_core.numerics.threads import pin_threads

JSON: TypeAlias = Any  # what json.dumps takes: numbers, texts, lists, dictionaries with text keys, None
MOST_RESTARTS = 3  # of a worker that died: its job is done again


@dataclass(frozen=True)
class Job:
    """One unit of work, of a second to a minute; everything that it depends on, its seed included, is in ``arguments``.

    Parameters
    ----------
    key
        Unique in its work; what a run that goes on looks for.
    arguments
        JSON.
    """

    key: str
    arguments: dict[str, JSON]


@dataclass(frozen=True)
class Done:
    """A finished job."""

    job: Job
    result: dict[str, JSON]
    seconds: float


class Work(Protocol):
    """What can do a job; it is sent to other processes, so it is a small value."""

    def do(self, job: Job) -> dict[str, JSON]:
        """Do one; nothing but its arguments decides what comes out."""
        ...


@dataclass(frozen=True)
class Where:
    """On how many processes: more than one, or an address, needs Ray (the extra ``sim``).

    Parameters
    ----------
    jobs
        At once; None takes every core that Ray has.
    address
        A Ray cluster; one is started here when None.
    instead
        What somebody without Ray can do.
    """

    jobs: int | None = 1
    address: str | None = None
    instead: str = "use --jobs 1"


def run_jobs(
    work: Work,
    todo: Sequence[Job],
    record: Path,
    where: Where,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> tuple[dict[str, Done], int]:
    """Do what is not done yet.

    Parameters
    ----------
    work
        Does a job.
    todo
        All there is to do, in the order in which it is best done.
    record
        A file of one line a job.
    where
        On how many processes.
    progress
        Told how many jobs are done, and of how many.

    Returns
    -------
    Every job's result in the order of ``todo``, by key, and how many had been done before.

    Raises
    ------
    UsageError
        Ray is wanted and not installed.
    Unreachable
        Ray does not start, or its workers die.
    OSError
        The record cannot be written.
    """
    with _Record(record) as written:
        done = {job.key: earlier for job in todo if (earlier := written.find(job)) is not None}
        resumed = len(done)
        progress(resumed, len(todo))
        for finished in _each(work, [job for job in todo if job.key not in done], where):
            written.add(finished)
            done[finished.job.key] = finished
            progress(len(done), len(todo))
    return {job.key: done[job.key] for job in todo}, resumed  # in the work's order, whoever was first


class _Record:
    """A line a job. A line torn by a kill is cut off; a job with other arguments is another job."""

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


def _do(work: Work, job: Job) -> Done:
    since = time.perf_counter()
    result = work.do(job)
    return Done(job, result, time.perf_counter() - since)


def _each(work: Work, todo: list[Job], where: Where) -> Iterator[Done]:
    # One BLAS thread a process: the same bits whatever --jobs is, and no two processes fight for a core.
    if not todo or (where.jobs == 1 and where.address is None):
        pin_threads(1)
        for job in todo:
            yield _do(work, job)
    else:
        yield from _over_ray(work, todo, where)


def _over_ray(work: Work, todo: list[Job], where: Where) -> Iterator[Done]:
    from coreg_sim.over_ray.cluster import connected  # a run in one process needs none of it

    with connected(where.address, where.jobs, instead=where.instead) as cluster:
        ray = cluster.ray
        options = {"num_cpus": 1, "max_restarts": MOST_RESTARTS, "max_task_retries": MOST_RESTARTS}
        count = min(where.jobs or cluster.cpus, cluster.cpus, len(todo))
        workers = [ray.remote(_Worker).options(**options).remote(work) for _ in range(count)]
        waiting = iter(todo)
        running: dict[Any, tuple[Any, Job]] = {}

        def give(worker: Any) -> None:
            if (job := next(waiting, None)) is not None:
                running[worker.do.remote(job)] = (worker, job)

        for worker in workers:
            give(worker)
        while running:
            [ready], _ = ray.wait(list(running))
            worker, job = running.pop(ready)
            give(worker)
            try:
                yield ray.get(ready)
            except ray.exceptions.RayTaskError as error:
                raise (error.cause if isinstance(error.cause, Exception) else error) from None
            except ray.exceptions.RayActorError:
                raise Unreachable(
                    f"the process that did {job.key} died {MOST_RESTARTS + 1} times: is there memory for it? "
                    f"What is done is kept; {where.instead}, or do fewer at once."
                ) from None


class _Worker:
    """One process of Ray: it does job after job."""

    def __init__(self, work: Work):
        pin_threads(1)
        self._work = work

    def do(self, job: Job) -> Done:
        return _do(self._work, job)
