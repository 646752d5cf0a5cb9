"""What install.md says to type in an environment of one's own: as typed, with pip and the package index, in a new copy."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.e2e


def test_pip_installs_from_a_clone_as_the_page_says(tmp_path):
    page = (ROOT / "docs" / "how-to" / "install.md").read_text()
    [line] = re.findall(r"in an environment of your own, `(pip install .+?)`", page)
    tree = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x"], cwd=tmp_path, input=tree, check=True)
    typed = f"{sys.executable} -m venv own && . own/bin/activate && {line} --quiet && coreg-agent --version && cd /"
    typed += (
        ' && python -c "import coreg_federation; coreg_federation.AdditiveRegressor; print(coreg_federation.__file__)"'
    )
    plain = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    plain["PIP_NO_COMPILE"] = "1"  # of a minute of work that this test does not need
    done = subprocess.run(["sh", "-c", typed], cwd=tmp_path, capture_output=True, text=True, env=plain)
    assert done.returncode == 0, done.stderr
    version, where = done.stdout.splitlines()
    assert version.startswith("coreg-agent ")
    assert Path(where).is_relative_to(tmp_path / "own")
