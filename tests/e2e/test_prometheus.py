"""The shipped alert rules by promtool, and the dashboard by the program that makes it."""

import subprocess
import sys

import pytest
from federation import ROOT
from programs import needed

pytestmark = pytest.mark.e2e
DEPLOY = ROOT / "deploy"


@pytest.mark.parametrize(
    "words", [("rules", "alerts.yml"), ("config", "prometheus.yml")], ids=" ".join
)
def test_promtool_finds_nothing_wrong_with_the_shipped_files(words):
    (promtool,) = needed("promtool")
    done = subprocess.run(
        [promtool, "check", *words], cwd=DEPLOY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_is_the_one_that_its_list_of_panels_makes():
    command = [sys.executable, ROOT / "tools" / "dashboard.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
