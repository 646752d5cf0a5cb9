"""docker compose, where an engine answers; where none does, the skip says so."""

import shutil
import subprocess
from pathlib import Path

import pytest
from expected import lacking

ROOT = Path(__file__).resolve().parents[2]
UP = ["docker", "compose", "up", "--no-color"]
DOWN = ["docker", "compose", "down", "--volumes", "--timeout", "5"]


def engine_answers() -> bool:
    if shutil.which("docker") is None:
        return False
    try:
        done = subprocess.run(["docker", "info"], capture_output=True, timeout=10, check=False)
        compose = subprocess.run(
            ["docker", "compose", "version"], capture_output=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and compose.returncode == 0


def up(*options):
    done = subprocess.run(
        [*UP, *options], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "converged: The models are as precise as the plan asked." in done.stdout
    assert done.stdout.count("exited with code 0") == 5
    assert done.stdout.count("root mean square error of progression on 80 rows") == 3, (
        "each site prints quality"
    )
    assert done.stdout.count("recommendation: ") >= 3
    return done.stdout


@pytest.mark.e2e
@pytest.mark.timeout(1300)
def test_compose_converges_and_ends_0_and_the_second_time_nobody_joins_or_aligns_again():
    if not engine_answers():
        lacking(
            "docker",
            told="no Docker engine with Compose answers here, so docker compose up was not run",
        )
    try:
        first = up("--build")
        assert first.count(" has enrolled") == 3
        assert "every site has its list of shared ids" in first
        second = up()
        assert "enrolled" not in second
        assert "list of shared ids" not in second
    finally:
        subprocess.run(DOWN, cwd=ROOT, capture_output=True, timeout=120, check=False)
