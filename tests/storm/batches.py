"""Many storms, in batches of seeds, each in a process of its own."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BATCH = (
    50  # seeds of a process: it keeps the tasks of the dead until it ends, and first trains each study without a fault
)
DEADLINE = 1000.0  # seconds of a batch; a storm takes about one


class StormFailed(Exception):
    """A batch crashed or did not end: a defect of the simulator, or a loop without a wait."""


def storms(first: int, seeds: int, jobs: int, minutes: float | None = None) -> Iterator[dict[str, Any]]:
    """The result of each seed, in the order in which batches end.

    Parameters
    ----------
    minutes
        no batch begins after this time; None: all seeds.

    Raises
    ------
    StormFailed
        a batch crashed, or took longer than `DEADLINE`.
    """
    until = None if minutes is None else time.monotonic() + 60.0 * minutes

    def batch(at: int) -> list[dict[str, Any]]:
        if until is not None and time.monotonic() > until:
            return []
        return asked(str(at), str(min(BATCH, first + seeds - at)))

    with ThreadPoolExecutor(jobs) as pool:
        for done in as_completed([pool.submit(batch, at) for at in range(first, first + seeds, BATCH)]):
            yield from done.result()


def shrunk_story(seed: int) -> dict[str, Any]:
    """A seed's story with as few faults as break an invariant, and what breaks."""
    return asked(str(seed))[0]


def asked(*arguments: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.storm.seeds", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False, cwd=ROOT)
    except subprocess.TimeoutExpired:
        raise StormFailed(f"seeds {' '.join(arguments)} did not end within {DEADLINE:g} s.") from None
    if done.returncode:
        raise StormFailed(f"seeds {' '.join(arguments)}: exit code {done.returncode}\n{done.stderr[-3000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]
