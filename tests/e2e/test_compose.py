"""docker compose, where an engine answers; where none does, the skip says so."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from expected import lacking

ROOT = Path(__file__).resolve().parents[2]
BUILD = ["docker", "compose", "build", "--quiet"]
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


def up():
    """The output of an `up` that ends well."""
    done = subprocess.run(UP, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert (done.stdout + done.stderr).count("\n") <= 60
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert done.stdout.count("exited with code 0") == 5, done.stdout[-4000:]
    assert "scoring: converged: 80 instances scored together by 3 sites." in done.stdout
    assert done.stdout.count("root mean square error of progression on 80 rows") == 3, (
        "each site prints quality"
    )
    assert done.stdout.count("recommendation: ") == 3
    return done


def lines_of(service, output):
    """What a service printed."""
    prefix = re.compile(rf"(?:\x1b\[2K)?{service}-1 +\| ")
    return [prefix.sub("", line) for line in output.splitlines() if prefix.match(line)]


@pytest.mark.e2e
@pytest.mark.timeout(1300)
def test_compose_ends_with_scores_the_first_time_and_the_fourth():
    """A site opens sums of the same labels three times, so the fourth `up` failed."""
    if not engine_answers():
        lacking(
            "docker",
            told="no Docker engine with Compose answers here, so docker compose up was not run",
        )
    try:
        subprocess.run(BUILD, cwd=ROOT, capture_output=True, timeout=600, check=True)
        first = up()
        trained = [line for line in first.stdout.splitlines() if "converged: " in line]
        assert len(trained) == 3
        for site in ("clinic", "laboratory-1", "laboratory-2"):
            heading, *scores = lines_of(site, first.stdout)[-3:]
            assert heading.startswith("patient,score,low,high,sites")
            assert all(row.startswith("patient-") for row in scores), "a site ends with scores"
        for _ in range(3):
            again = up()
            assert "additive: converged" not in again.stdout, "what is trained goes on to scores"
    finally:
        subprocess.run(DOWN, cwd=ROOT, capture_output=True, timeout=120, check=False)
