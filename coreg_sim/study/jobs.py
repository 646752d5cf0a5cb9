"""Independent jobs, one after another or in Ray's processes. A killed study resumes from its record.

Each finished job is a line of a file, flushed before the next job is counted. A restarted study reads the lines and runs
the missing jobs.
"""

import json
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from coreg_core.errors import StorageError, Unreachable
from coreg_core.numerics.threads import pin_threads
from coreg_sim.ray_cluster import connected

JSON: TypeAlias = Any  # for json.dumps: numbers, texts, lists, dictionaries with text keys, None
MAX_RESTARTS = 3  # of a worker that died; its job is repeated


@dataclass(frozen=True)
class Job:
    """One unit of work, of a second to a minute. The key is unique in its study; the arguments determine the result."""

    key: str
    arguments: dict[str, JSON]


@dataclass(frozen=True)
class Done:
    """A finished job."""

    job: Job
    result: dict[str, JSON]
    seconds: float


class Work(Protocol):
    """All jobs of a study in their best order, and the function that does one. It is pickled, so it is a small value."""

    def jobs(self) -> Sequence[Job]: ...

    def do(self, job: Job) -> dict[str, JSON]: ...


@dataclass(frozen=True)
class Where:
    """The number of parallel jobs (None: one for each core of Ray), and the Ray cluster (None: one that is started here).

    More than one job, or an address, needs Ray (the extra ``sim``). ``instead`` is advice for a user without Ray.
    """

    jobs: int | None = 1
    address: str | None = None
    instead: str = "use --jobs 1"


@dataclass(frozen=True)
class FinishedStudy:
    """A finished study: each job's result by key, and the page that was written to ``path`` as JSON.

    ``resumed`` counts the jobs from an earlier run; ``seconds`` is the total of all jobs, each on one core.
    """

    results: dict[str, dict[str, JSON]]
    resumed: int
    seconds: float
    page: dict[str, JSON]
    path: Path

    def summary(self, count: int, what: str) -> str:
        """The closing line of a command: number of results, time and path."""
        earlier = f", {self.resumed} of {len(self.results)} jobs from an earlier run" if self.resumed else ""
        return f"{count} {what}{earlier}, {self.seconds:.0f} s of one core in all; {self.path}"


def run_study(
    work: Work,
    out: Path,
    name: str,
    where: Where,
    page: Callable[[dict[str, dict[str, JSON]], float], dict[str, JSON]],
    progress: Callable[[int, int], None] = lambda *_: None,
) -> FinishedStudy:
    """Do the missing jobs, and write the page.

    ``out`` is the folder for NAME.jsonl (a line for each job) and NAME.json (the page). ``page`` makes the page from every
    job's result, in the order of the jobs, and the seconds. ``progress`` receives the numbers of finished jobs and of all jobs.

    Raises
    ------
    UsageError
        Ray is needed and not installed.
    Unreachable
        Ray does not start, or its workers die.
    StorageError
        ``out`` cannot be written.
    """
    todo, path = work.jobs(), out / f"{name}.json"
    try:
        out.mkdir(parents=True, exist_ok=True)
        with _Record(out / f"{name}.jsonl") as record:
            done = {job.key: earlier for job in todo if (earlier := record.find(job)) is not None}
            resumed = len(done)
            progress(resumed, len(todo))
            for finished in _each(work, [job for job in todo if job.key not in done], where):
                record.add(finished)
                done[finished.job.key] = finished
                progress(len(done), len(todo))
        results = {job.key: done[job.key].result for job in todo}  # in the study's order, not the order of arrival
        seconds = sum(each.seconds for each in done.values())
        found = page(results, seconds)
        path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{out}: cannot be written ({error.strerror}). Give another folder with --out.") from None
    return FinishedStudy(results, resumed, seconds, found, path)


def software() -> dict[str, JSON]:
    """The versions for a page."""
    names = ("coreg-federation", "numpy", "scipy", "scikit-learn")
    return {"versions": {name: version(name) for name in names}, "python": platform.python_version()}


class _Record:
    """The file of finished jobs. An incomplete last line is removed; a job with other arguments counts as another job."""

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
        # JSON turns a tuple in a job's arguments into a list.
        same = earlier is not None and earlier.job.arguments == json.loads(json.dumps(job.arguments))
        return earlier if same else None

    def add(self, done: Done) -> None:
        entry = {**asdict(done.job), "result": done.result, "seconds": round(done.seconds, 3)}
        self._file.write(json.dumps(entry, allow_nan=False).encode() + b"\n")
        self._file.flush()


class _Worker:
    """Does jobs in one process."""

    def __init__(self, work: Work):
        pin_threads(1)  # the same bits for every --jobs, and no competition for cores
        self._work = work

    def do(self, job: Job) -> Done:
        since = time.perf_counter()
        result = self._work.do(job)
        return Done(job, result, time.perf_counter() - since)


def _each(work: Work, todo: list[Job], where: Where) -> Iterator[Done]:
    if not todo or (where.jobs == 1 and where.address is None):
        here = _Worker(work)
        yield from map(here.do, todo)
        return
    with connected(where.address, where.jobs, instead=where.instead) as cluster:
        ray = cluster.ray
        options = {"num_cpus": 1, "max_restarts": MAX_RESTARTS, "max_task_retries": MAX_RESTARTS}
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
                    f"the process of job {job.key} died {MAX_RESTARTS + 1} times, probably of too little memory. Finished jobs "
                    f"are kept: {where.instead}, or run fewer jobs in parallel."
                ) from None
