"""Many storms, in batches of seeds, each in a process of its own: python -m tests.storm.batches
FIRST COUNT.
"""

import json
import subprocess
import sys
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.storm.loop import leave
from tests.storm.simulation import calm_models, live_through
from tests.storm.story import story_of

ROOT = Path(__file__).parents[2]
# seeds of a process, which keeps the tasks of the dead, and first trains each study without a fault
BATCH = 50
DEADLINE = 1000.0  # seconds of a batch; a storm takes about one


class StormFailed(Exception):
    """A batch crashed or did not end: a defect of the simulator, or a loop without a wait."""


def storms(first: int, seeds: int, jobs: int) -> Iterator[dict[str, Any]]:
    """The result of each seed, in the order in which batches end.

    StormFailed: a batch crashed, or took too long.
    """
    with ThreadPoolExecutor(jobs) as pool:
        batches = [
            (at, min(BATCH, first + seeds - at)) for at in range(first, first + seeds, BATCH)
        ]
        for done in as_completed([pool.submit(asked, *map(str, batch)) for batch in batches]):
            yield from done.result()


def asked(*arguments: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.storm.batches", *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=DEADLINE, check=False, cwd=ROOT
        )
    except subprocess.TimeoutExpired:
        raise StormFailed(
            f"seeds {' '.join(arguments)} did not end within {DEADLINE:g} s."
        ) from None
    if done.returncode:
        raise StormFailed(
            f"seeds {' '.join(arguments)}: exit code {done.returncode}\n{done.stderr[-3000:]}"
        )
    return [json.loads(line) for line in done.stdout.splitlines()]


if (
    __name__ == "__main__"
):  # a JSON object for each seed; no clean-up, since tasks of the dead must never run again
    code = 0
    (first, count) = map(int, sys.argv[1:])
    try:
        for story in map(story_of, range(first, first + count)):
            told = asdict(live_through(story, calm_models(story)))
            print(json.dumps({"seed": story.seed, "story": str(story), **told}), flush=True)
    except Exception:  # noqa: BLE001 - every defect of the simulator
        traceback.print_exc()
        code = 1
    leave(code)
