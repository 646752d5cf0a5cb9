"""A member or a coordinator lies. The other parties continue, and the log names the liar."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.storm.liars import STORIES

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("half", [0, 1])
def test_no_lie_stops_another_party(half: int) -> None:
    names = list(STORIES)[half::2]
    command = [sys.executable, "-m", "tests.storm.liars", *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["story"] for each in told] == names, done.stderr[-3000:]
    assert [each for each in told if each["broken"]] == []
