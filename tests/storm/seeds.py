"""Seeds in a process of their own: python -m tests.storm.seeds FIRST COUNT.

Prints a JSON object for each seed. It leaves without clean-up, since tasks of killed processes must never run again.
"""

import json
import os
import sys
import traceback
from dataclasses import asdict

from tests.storm.simulation import calm_models, live_through
from tests.storm.story import story_of

if __name__ == "__main__":
    code, (first, count) = 0, map(int, sys.argv[1:])
    try:
        for story in map(story_of, range(first, first + count)):
            told = asdict(live_through(story, calm_models(story)))
            print(json.dumps({"seed": story.seed, "story": str(story), **told}), flush=True)
    except Exception:  # noqa: BLE001 - every defect of the simulator
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
