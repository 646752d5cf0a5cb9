"""A run is over and its models are not lost: a coordinator that is killed while they are fetched, and a month after."""

import json
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys

import pytest
from federation import ENVIRONMENT, SITES, ends, federation, run, until, well

from site_agent.models.file import load_model

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

# An agent that stops, as a machine under load may, between having the end and having it on its disk.
BLOCKED = """
import sys, time
from pathlib import Path
from site_agent.models.writer import Models

def write(self, result, note):
    Path("blocked").write_text("the end is here, and the model is not on the disk")
    time.sleep(600)

Models.write = write
from site_agent.cli.app import main
main()
"""


def blocked_agent(fed, site):
    with (fed.folder / f"{site}.out").open("ab") as out, (fed.folder / f"{site}.err").open("ab") as err:
        process = subprocess.Popen(
            [sys.executable, "-c", BLOCKED, "--data", f"{site}.csv", "--target", "y", "--id", "id", "--identity", site,
             "--coordinator", fed.address, "--output", f"{site}.model", "--policy", "policy.toml"],
            cwd=fed.folder, env=ENVIRONMENT, stdout=out, stderr=err, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    fed.processes.append(process)
    return process


def in_store(fed):
    """When the only run ended, and when it was closed, read as another process would."""
    with sqlite3.connect(f"file:{fed.folder / 'runs.sqlite'}?mode=ro", uri=True, timeout=5) as db:
        rows = db.execute("select ended, closed from runs").fetchall()
    db.close()
    [row] = rows
    return row


def values(path):
    model = load_model(path)
    return model.run, model.function.points.tobytes(), model.function.coef.tobytes(), model.shift, model.divisor


def test_a_coordinator_that_is_killed_while_models_are_fetched_delivers_them_under_the_same_command(tmp_path):
    with federation(tmp_path) as fed:
        coordinator = fed.coordinator()
        agents = [fed.agent(site) for site in ("north", "south")]
        west = blocked_agent(fed, "west")
        until((tmp_path / "blocked").exists)
        assert [ends(agent) for agent in agents] == [0, 0], fed.said("north")
        coordinator.send_signal(signal.SIGKILL)
        west.send_signal(signal.SIGKILL)
        ends(coordinator)
        ends(west)
        ended, closed = in_store(fed)
        assert ended is not None
        assert closed is None, "one of the sites has nothing yet"
        assert not (tmp_path / "west.model").exists()
        before = {site: values(tmp_path / f"{site}.model") for site in ("north", "south")}
        coordinator = fed.coordinator()
        assert ends(fed.agent("west")) == 0, fed.said("west")
        assert ends(coordinator) == 0, fed.said("coordinator")
        assert "which is over: waiting for west to fetch models" in fed.said("coordinator")
        [only] = fed.runs()
        assert only["stop"] == "CONVERGED"
        assert only["closed"] is not None
        assert {values(tmp_path / f"{site}.model")[0] for site in SITES} == {only["run"]}
        assert {site: values(tmp_path / f"{site}.model") for site in before} == before
        # And now that everybody has it, the same command begins another run.
        again = fed.coordinator()
        until(lambda: sum(event["event"] == "run_began" for event in fed.events()) == 2)
        again.send_signal(signal.SIGTERM)
        assert ends(again) == 130
        assert len(fed.runs()) == 2


def test_a_model_that_was_lost_is_fetched_again_and_its_run_is_shown_by_the_command_that_was_printed(tmp_path):
    store = "my runs/of '26.sqlite"
    with federation(tmp_path) as fed:
        coordinator = fed.coordinator(store=store, as_json=False)
        agents = [fed.agent(site) for site in SITES]
        assert ends(coordinator) == 0, fed.said("coordinator")
        assert [ends(agent) for agent in agents] == [0, 0, 0], fed.said("north")
        before = {site: values(tmp_path / f"{site}.model") for site in SITES}
        name = before["north"][0]

        # The last line is a command, to be pasted as it stands.
        [pasted] = re.findall(r"^`(coreg-coordinator show .*)` tells this run again$", fed.said("coordinator"), re.M)
        shown = well(*shlex.split(pasted), cwd=tmp_path)
        assert shown.startswith(f"run {name} of test: ")
        assert shown.splitlines()[-1].startswith("converged")
        told = json.loads(well(*shlex.split(pasted), "--json", cwd=tmp_path))
        assert (told["run"], told["stop"]) == (name, "CONVERGED")

        # A month after.
        (tmp_path / "north.model").unlink()
        coordinator = fed.coordinator("--deliver", name[:6], store=store)
        code, _out, err = run("coreg-coordinator", "run", "co/federation.toml", "--store", store, cwd=tmp_path)
        assert code == 8
        assert f"in use by the coordinator with process id {coordinator.pid} on {os.uname().nodename}" in err
        agents = [fed.agent(site) for site in SITES]
        assert [ends(agent) for agent in agents] == [0, 0, 0], fed.said("north")
        assert ends(coordinator) == 0, fed.said("coordinator")
        assert {site: values(tmp_path / f"{site}.model") for site in SITES} == before
        assert list(tmp_path.glob("*-run-*")) == [], "the same run's model replaces itself"
        assert [r["run"] for r in fed.runs(store)] == [name]
        assert fed.events()[-1]["stop"] == "CONVERGED"
        # What cannot be delivered is said.
        words = ("coreg-coordinator", "run", "co/federation.toml", "--store", store, "--deliver")
        code, _out, err = run(*words, "nothing", cwd=tmp_path)
        assert (code, "0 runs begin with 'nothing'" in err) == (2, True)
        fed.configure(coupling=0.2)
        code, _out, err = run(*words, name, cwd=tmp_path)
        assert (code, f"run {name} had another plan" in err) == (2, True)


def test_an_earlier_runs_model_is_kept_and_a_file_that_is_no_model_is_said_before_joining(tmp_path):
    with federation(tmp_path) as fed:
        for _ in range(2):
            coordinator = fed.coordinator()
            agents = [fed.agent(site) for site in SITES]
            assert ends(coordinator) == 0, fed.said("coordinator")
            assert [ends(agent) for agent in agents] == [0, 0, 0], fed.said("north")
        second, first = (r["run"] for r in fed.runs())
        assert load_model(tmp_path / "north.model").run == second
        kept = tmp_path / f"north-run-{first}.model"
        assert load_model(kept).run == first
        assert f"north.model was the model of an earlier run; it is kept as {kept.name}" in fed.said("north")
        # Said at once, with nobody there to join: nothing was dialled.
        words = ("--output", "north.csv", "--coordinator", "127.0.0.1:9", "--identity", "north")
        table = (tmp_path / "north.csv").read_bytes()
        code, _out, err = run("coreg-agent", "--data", "north.csv", "--target", "y", "--id", "id", *words, cwd=tmp_path)
        assert code == 2
        assert "north.csv: not a model file" in err
        assert (tmp_path / "north.csv").read_bytes() == table
