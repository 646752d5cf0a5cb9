"""Seeds in a process of their own: python -m tests.storm.seeds FIRST COUNT, or FIRST alone for the shrunk story of a seed.

Prints a JSON object for each seed. It leaves without clean-up, since tasks of killed processes must never run again.
"""

import json
import os
import sys
import traceback
from dataclasses import asdict

from tests.storm.simulation import calm_models, live_through, shrunk
from tests.storm.story import story_of


def main(first: int, count: int | None) -> None:
    if count is None:
        story = story_of(first)
        if live_through(story, calm_models(story)).broken:
            story = shrunk(story)
        told = live_through(story, calm_models(story))
        print(json.dumps({"seed": first, "story": str(story), **asdict(told)}))
    for seed in range(first, first + (count or 0)):
        story = story_of(seed)
        print(json.dumps({"seed": seed, **asdict(live_through(story, calm_models(story)))}), flush=True)


if __name__ == "__main__":
    code = 0
    try:
        main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)
    except Exception:  # noqa: BLE001 - every defect of the simulator
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
