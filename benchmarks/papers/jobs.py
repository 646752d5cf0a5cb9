"""Independent jobs in joblib's processes.

A killed study resumes from its record: each finished job is a line of a file.
"""

import json
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

from joblib import Parallel, delayed

from coreg_core.threads import pin_threads

JSON: TypeAlias = Any  # for json.dumps: numbers, texts, lists, dictionaries with text keys, None


@dataclass(frozen=True)
class Job:
    """One unit of work, of a second to a minute.

    The key is unique in its study; the arguments determine the result.
    """

    key: str
    arguments: dict[str, JSON]


def run_jobs(
    todo: Sequence[Job], do: Callable[[Job], dict[str, JSON]], record: Path, jobs: int = 1
) -> tuple[dict[str, dict[str, JSON]], float]:
    """Do the jobs that the record does not have.

    Parameters
    ----------
    do
        the function that does a job; it is pickled.
    record
        the file of finished jobs. A torn last line is removed; a job with other arguments is
        another job.
    jobs
        the number of processes.

    Returns
    -------
    Each job's result by key, in the order of the jobs, and the seconds of all jobs, each on one
    core.
    """
    record.parent.mkdir(parents=True, exist_ok=True)
    done = _read(record)
    missing = [
        job
        for job in todo
        if job.key not in done or done[job.key]["arguments"] != _as_json(job.arguments)
    ]
    record.write_text("".join(json.dumps(line) + "\n" for line in done.values()), encoding="utf-8")
    with record.open("a", encoding="utf-8") as file:
        tasks = (delayed(_timed)(do, job) for job in missing)
        for count, line in enumerate(Parallel(jobs, return_as="generator_unordered")(tasks), 1):
            file.write(json.dumps(line, allow_nan=False) + "\n")
            file.flush()
            done[line["key"]] = line
            if 10 * count // len(missing) > 10 * (count - 1) // len(missing):
                print(f"{record.stem}: {count} of {len(missing)} jobs", file=sys.stderr, flush=True)
    return {job.key: done[job.key]["result"] for job in todo}, sum(
        done[job.key]["seconds"] for job in todo
    )


def _timed(do: Callable[[Job], dict[str, JSON]], job: Job) -> dict[str, JSON]:
    pin_threads(1)  # the same bits for every number of processes
    since = time.perf_counter()
    result = do(job)
    return {**asdict(job), "result": result, "seconds": round(time.perf_counter() - since, 3)}


def _read(record: Path) -> dict[str, dict[str, JSON]]:
    done = {}
    for line in (
        record.read_text(encoding="utf-8").splitlines(keepends=True) if record.exists() else ()
    ):
        if line.endswith("\n"):
            entry = json.loads(line)
            done[entry["key"]] = entry
    return done


def _as_json(value: JSON) -> JSON:
    """A tuple becomes a list, as in the record."""
    return json.loads(json.dumps(value))


def software() -> str:
    """The versions, for a report."""
    names = ("coreg-federation", "numpy", "scipy", "scikit-learn")
    return (
        f"Python {platform.python_version()},"
        f" {', '.join(f'{name} {version(name)}' for name in names)}"
    )
