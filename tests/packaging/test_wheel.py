"""The built wheel by itself, and beside a stranger's package of the same module name; and what install.md says to type."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = {"coordinator": "coreg-coordinator", "agent": "coreg-agent", "simulation": "coreg-sim"}


def pip(*arguments):
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ".")
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("installed")
    pip("install", "--no-deps", "--target", folder, wheel)
    return folder


@pytest.fixture(scope="module")
def overwritten(installed, tmp_path_factory):
    """As pip leaves it after a stranger's `coordinator` was installed too."""
    folder = shutil.copytree(installed, tmp_path_factory.mktemp("overwritten"), dirs_exist_ok=True)
    (folder / "coordinator" / "__init__.py").write_text("class Coordinator: ...\n")
    (folder / "coordinator-0.1.dist-info").mkdir()
    (folder / "coordinator-0.1.dist-info" / "METADATA").write_text("Name: coordinator\nVersion: 0.1\n")
    (folder / "coordinator-0.1.dist-info" / "top_level.txt").write_text("coordinator\n")
    return folder


def run(folder, script, *arguments):
    """A console script of what is installed in that folder, and of nothing of this checkout."""
    program = f"import sys; sys.argv[0] = {script!r}; from coreg_federation import commands; commands.{script}()"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True, text=True, cwd=folder, env={**os.environ, "PYTHONPATH": str(folder)},
    )  # fmt: skip


@pytest.mark.parametrize("script", COMMANDS)
def test_every_command_starts_from_the_wheel_alone(installed, script):
    done = run(installed, script, "--help")
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout


def test_the_wheel_has_the_files_that_are_no_modules_and_the_types(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"coordinator/web/static/page.html", "coordinator/web/static/page.js"} <= names
    packages = ("coreg_federation", "coreg_core", "coordinator", "site_agent", "coreg_sim", "coreg_wire")
    assert {f"{package}/py.typed" for package in packages} <= names
    assert {name.split("/")[1] for name in names if name.startswith("coreg_sim/")} == {
        "__init__.py", "py.typed", "problems.py", "simulate.py", "tables.py", "over_ray.py", "benefit", "cli",
    }, "papers, the study, the fault simulator and the demonstration are not installed"  # fmt: skip


@pytest.mark.parametrize("script", COMMANDS)
def test_a_package_of_a_stranger_that_overwrote_ours_is_named(overwritten, script):
    done = run(overwritten, script, "--help")
    assert done.returncode == 2
    assert "'coordinator'" in done.stderr
    assert "installed by coordinator" in done.stderr
    assert "venv" in done.stderr
    assert "Traceback" not in done.stderr


# --- what install.md says to type, with pip and the package index, in a new copy --------------------------------------


@pytest.mark.e2e
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
