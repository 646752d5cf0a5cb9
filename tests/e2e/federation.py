"""A real federation for tests: processes, sockets and certificates, made by the commands that an operator types."""

import csv
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
PATH = os.pathsep.join([str(ROOT), str(ROOT / "proto")])
ENVIRONMENT = {**{k: v for k, v in os.environ.items() if not k.startswith("COREG_")}, "PYTHONPATH": PATH}
SITES = ("north", "south", "west")
DEADLINE = 60.0

TOML = """
[federation]
name = "test"
sites = {sites}
{federation}
[model]
coupling = {coupling}
{model}
[schedule]
name = "{schedule}"
tolerance = {tolerance}
prediction_tolerance = {prediction_tolerance}
max_rounds = {max_rounds}
[privacy]
answers = "{answers}"
[service]
listen = "127.0.0.1:0"
[timeouts]
join = {join}
plan = 30
round = {round}
stall = {stall}
keepalive = 1
least_bandwidth = 1e8
"""


def command(program, *arguments):
    module = {
        "coreg-coordinator": "coordinator.cli.app",
        "coreg-agent": "site_agent.cli.app",
        "coreg-sim": "coreg_sim.cli.app",
    }[program]
    return [sys.executable, "-c", f"from {module} import main; main()", *map(str, arguments)]


def run(program, *arguments, cwd=None, env=None):
    """A command to its end: (exit code, standard output, standard error)."""
    done = subprocess.run(
        command(program, *arguments), cwd=cwd, env={**ENVIRONMENT, **(env or {})}, capture_output=True, text=True,
        timeout=DEADLINE, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def well(program, *arguments, cwd=None, env=None):
    code, out, err = run(program, *arguments, cwd=cwd, env=env)
    assert code == 0, f"{program} {arguments}: {code}\n{out}\n{err}"
    return out


@cache
def enrolled(base):
    """An authority and three sites, by the commands that operators type; made once, copied for every test."""
    folder = base / "enrolled"
    folder.mkdir()
    well("coreg-coordinator", "init", "co", cwd=folder)
    for site in SITES:
        enrol(folder, site)
    pinned = well("coreg-agent", "peers", "--pin", "--identity", SITES[0], *(f"co/{s}.pem" for s in SITES), cwd=folder)
    (folder / "peers.toml").write_text(pinned)
    (folder / "policy.toml").write_text(pinned)
    return folder


def enrol(folder, site, authority="co"):
    well("coreg-agent", "enroll", "--name", site, "--identity", site, cwd=folder)
    well("coreg-coordinator", "sign", "--identity", authority, f"{site}/site.csr", cwd=folder)
    well("coreg-agent", "enroll", "--identity", site, "--install", f"{authority}/{site}.pem", cwd=folder)


class Federation:
    """A folder with an authority, enrolled sites, their tables, and processes that never outlive the test."""

    def __init__(self, folder: Path, **terms):
        self.folder, self.processes = folder, []
        shutil.copytree(enrolled(folder.parent), folder, dirs_exist_ok=True)
        self.configure(**terms)
        rng = np.random.default_rng(7)
        hidden = rng.normal(size=(90, 2))
        for v, site in enumerate(SITES):
            X = hidden @ rng.normal(size=(2, 3)) + 0.2 * rng.normal(size=(90, 3))
            rows = list(range(60)) + list(range(60 + 10 * v, 70 + 10 * v))
            with (folder / f"{site}.csv").open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(["id", "a", "b", "c", "y"])
                for i in rows:
                    writer.writerow(
                        [f"p{i}", *map(repr, X[i].tolist()), "" if i < 60 else repr(float(hidden[i].sum()))]
                    )

    def configure(self, *, name="federation.toml", **terms):
        values = {
            "sites": json.dumps(list(SITES)), "federation": "", "model": "", "coupling": 0.1, "join": 30, "round": 20,
            "stall": 20, "schedule": "conjugate-gradients", "tolerance": 1e-12, "prediction_tolerance": 1e-8,
            "max_rounds": 1000, "answers": "sums",
        }  # fmt: skip
        (self.folder / "co" / name).write_text(TOML.format(**(values | terms)))

    def policy(self, name, text):
        """A policy with these keys before the sites' pinned peers."""
        (self.folder / name).write_text(f"{text}\n{(self.folder / 'peers.toml').read_text()}")
        return "--policy", name

    def start(self, name, program, *arguments, env=None):
        """A process with its output in NAME.out and NAME.err."""
        with (self.folder / f"{name}.out").open("ab") as out, (self.folder / f"{name}.err").open("ab") as err:
            process = subprocess.Popen(
                command(program, *arguments), cwd=self.folder, env={**ENVIRONMENT, **(env or {})}, stdout=out, stderr=err,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        self.processes.append(process)
        return process

    def coordinator(self, *arguments, listen="127.0.0.1:0", store="runs.sqlite", as_json=True):
        port = self.folder / "port"
        port.unlink(missing_ok=True)
        process = self.start(
            "coordinator", "coreg-coordinator", "run", "co/federation.toml", "--listen", listen, "--store", store,
            "--port-file", port, *(["--json"] if as_json else []), *arguments,
        )  # fmt: skip
        until(lambda: process.poll() is not None or (port.exists() and port.read_text().endswith("\n")))
        assert process.poll() is None, self.said("coordinator")
        self.address = f"127.0.0.1:{port.read_text().strip()}"
        return process

    def agent(self, site, *arguments, tag=""):
        if "--policy" not in arguments:
            arguments = (*arguments, "--policy", "policy.toml")
        return self.start(
            f"{site}{tag}", "coreg-agent", "--data", f"{site}.csv", "--target", "y", "--id", "id", "--identity", site,
            "--coordinator", self.address, "--output", f"{site}{tag}.model", "--patience", 40, *arguments,
        )  # fmt: skip

    def events(self, name="coordinator"):
        """What a process told machines so far, line by line; the last line may still be on its way."""
        lines = (self.folder / f"{name}.out").read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]

    def runs(self, store="runs.sqlite"):
        """What `coreg-coordinator runs` lists."""
        told = well("coreg-coordinator", "runs", "--store", store, "--json", cwd=self.folder)
        return [json.loads(line) for line in told.splitlines()]

    def said(self, name):
        return "".join((self.folder / f"{name}.{kind}").read_text() for kind in ("out", "err"))

    def rounds(self, store="runs.sqlite"):
        """Answered questions in the store, read as another process would."""
        path = self.folder / store
        if not path.exists():
            return 0
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5) as db:
            count = db.execute("select count(*) from rounds").fetchone()[0]
        db.close()
        return count

    def models(self, tag=""):
        return {site: (self.folder / f"{site}{tag}.model").read_bytes() for site in SITES}


@contextmanager
def federation(folder, **terms):
    made = Federation(folder, **terms)
    try:
        yield made
    finally:
        for process in made.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait(10)


def until(condition, seconds=DEADLINE):
    """Wait for a condition, with a deadline: nothing hangs."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "not within the deadline"
        time.sleep(0.01)


def ends(process, seconds=DEADLINE):
    return process.wait(seconds)
