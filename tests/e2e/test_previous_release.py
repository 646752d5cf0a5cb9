"""Agents of the newest earlier release with this coordinator: they train, or both ends say that the protocols differ.

COREG_PREVIOUS names another revision instead of the tag.
"""

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from federation import SITES, federation

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


def git(*arguments):
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, timeout=60, check=True).stdout


@pytest.fixture(scope="module")
def earlier(tmp_path_factory):
    """The installed wheel of the earlier release."""
    tags = git("tag", "--list", "v*", "--no-contains", "HEAD", "--sort=-v:refname").decode().split()
    revision = os.environ.get("COREG_PREVIOUS") or next(iter(tags), None)
    if revision is None:
        pytest.skip("no earlier release is tagged")
    folder = tmp_path_factory.mktemp("earlier")
    with tarfile.open(fileobj=io.BytesIO(git("archive", revision))) as source:
        source.extractall(folder / "source", filter="data")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "-q",
        "install",
        "--no-deps",
        "--no-build-isolation",
    ]
    subprocess.run([*pip, "--target", folder / "installed", folder / "source"], cwd=folder, timeout=120, check=True)
    return folder / "installed"


def test_agents_of_the_earlier_release_train_or_are_told_why_not(earlier, tmp_path):
    program = "from coreg_federation import commands; commands.agent()"
    with federation(tmp_path, join=15) as fed:
        fed.study("one")
        coordinator = fed.run("one")
        agents = {
            site: subprocess.Popen(
                [sys.executable, "-c", program, "--data", f"{site}.csv", "--target", "y", "--id", "id", "--identity", site,
                 "--coordinator", fed.address, "--output", f"{site}.model", "--policy", "policy.toml",
                 "--connect-timeout", "10"],
                cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(earlier)}, text=True, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            for site in SITES
        }  # fmt: skip
        said = {site: agent.communicate(timeout=90)[0] for site, agent in agents.items()}
        codes = {agent.returncode for agent in agents.values()}
        if codes == {0}:
            assert coordinator.wait() == 0
            return
        assert coordinator.wait() == 5, fed.last()
        assert "uses protocol" in fed.said("coordinator"), said
        for site in SITES:
            assert "protocol" in said[site], said[site]
