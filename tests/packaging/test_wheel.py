"""The built wheel by itself; and what install.md says to type."""

import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def pip(*arguments):
    command = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "-q",
        *map(str, arguments),
    ]
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


@pytest.mark.parametrize("script", ["coreg-coordinator", "coreg-agent", "coreg-sim"])
def test_every_command_starts_from_the_wheel_alone(installed, script):
    env = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, installed / "bin" / script, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=installed, env=env)
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout


def test_the_wheel_has_the_files_that_are_no_modules_and_the_types(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"coordinator/web/page.html", "coordinator/web/static/page.css"} <= names
    packages = (
        "coreg_federation",
        "coreg_core",
        "coordinator",
        "site_agent",
        "coreg_sim",
        "coreg_wire",
    )
    assert {f"{package}/py.typed" for package in packages} <= names
    assert {name.split("/")[1] for name in names if name.startswith("coreg_sim/")} == {
        "__init__.py", "py.typed", "closed_form.py", "problems.py", "simulate.py",
        "over_ray.py", "benefit", "cli",
    }, "papers, the study, the fault simulator and the demonstration are not installed"  # fmt: skip


# --- what install.md says to type, in a new copy --------------------------------------------------


@pytest.mark.e2e
def test_pip_installs_from_a_clone_as_the_page_says(tmp_path):
    """In a new environment that finds the dependencies in the suite's: their installation is a
    minute of downloads. `.ci/other-python` makes it from the locks.
    """
    page = (ROOT / "docs" / "how-to" / "install.md").read_text()
    [line] = re.findall(r"in an environment of your own, `(pip install .+?)`", page)
    tree = subprocess.run(
        ["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    subprocess.run(["tar", "-x"], cwd=tmp_path, input=tree, check=True)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "own"], check=True)
    [packages] = tmp_path.glob("own/lib/*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    typed = f". own/bin/activate && {line} --quiet && coreg-agent --version && cd /"
    typed += (
        ' && python -c "import coreg_federation as it; it.AdditiveRegressor; print(it.__file__)"'
    )
    plain = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "VIRTUAL_ENV")
    }
    done = subprocess.run(
        ["sh", "-c", typed], cwd=tmp_path, capture_output=True, text=True, env=plain
    )
    assert done.returncode == 0, done.stderr
    version, where = done.stdout.splitlines()
    assert version.startswith("coreg-agent ")
    assert Path(where).is_relative_to(tmp_path / "own")
