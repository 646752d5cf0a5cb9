"""A real federation for tests: processes, sockets and certificates, made by the commands that an
operator types.

Commands that end at once run in this process, by the code of their console scripts: a process takes
a second to start.
"""

import asyncio
import csv
import io
import json
import os
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from functools import cache
from pathlib import Path
from unittest import mock

import numpy as np
from processes import Job, Process

from coordinator.authority.authorised import Authorised
from coordinator.authority.pki import create_authority
from coordinator.driver import Driver
from coordinator.machine.federation import begin
from coordinator.machine.records import Timeouts
from coordinator.transports import InProcess
from coreg_core.objectives.additive import Additive
from coreg_core.plan import plan_from_dict
from coreg_sim.simulate import SharedFold, SimulatedSite
from coreg_wire.terminal import command_line
from site_agent.data.inputs import Inputs
from site_agent.data.prepare import prepare
from site_agent.identity.enrolment import enrol as make_request
from site_agent.identity.enrolment import install
from site_agent.machine.results import AdditiveResult
from site_agent.models.file import load_model
from tests.issued import issued
from tests.storm.world import bits

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = {"coreg-coordinator": "coordinator.cli.app", "coreg-agent": "site_agent.cli.app"}
SITES = ("north", "south", "west")
DEADLINE = 600.0

FEDERATION = """
[federation]
name = "test"
sites = {sites}
[service]
listen = "127.0.0.1:0"
store = "../runs.sqlite"
[alignment]
align = false
[timeouts]
join = {join}
plan = {plan}
approval = {approval}
round = {round}
stall = {stall}
idle = 3
"""
STUDY = """
[study]
name = "{name}"
data = "patients"
{study}
[model]
coupling = {coupling}
{model}
[solver]
name = "{solver}"
tolerance = {tolerance}
prediction_tolerance = {prediction_tolerance}
max_rounds = {max_rounds}
threads = {threads}
[privacy]
aggregation = "{aggregation}"
[alignment]
align = false
"""
CONVERGES = {
    "coupling": 0.1, "solver": "conjugate-gradients", "tolerance": 1e-12,
    "prediction_tolerance": 1e-8, "max_rounds": 1000,
    "threads": 1, "model": "", "study": "", "aggregation": "secure",
}  # fmt: skip
# Many rounds of a few milliseconds: long enough to be killed in the middle.
EXACT = {"tolerance": 0.0, "prediction_tolerance": 0.0}
LONG = EXACT | {"solver": "block-coordinate-descent", "coupling": 3.0, "max_rounds": 150}
ENDLESS = LONG | {"max_rounds": 9_000}
# Thirty labels in all are few for an additive training.
POLICY = {
    "rows_per_feature": 5, "noise": 0.0, "label_noise": 0.0, "least_labels": 5, "least_rows": 10,
    "openings": 1000,
}  # fmt: skip
ADDITIVE = """
[study]
name = "{name}"
data = "patients"
[model]
objective = "additive"
rows_per_feature = 5
noise = 0.0
label_noise = 0.0
least_labels = 5
least_rows = 10
{model}
[alignment]
align = false
"""
# Of a coordinator whose agents serve: its end need not wait for theirs.
BRISK = "import coordinator.transports.sessions as s; s.CLOSE_GRACE = 0.5"
SERVING = """
coordinator = "{address}"
identity = "{site}"
models = "{site}-models"
policy = "{policy}"
{more}
[data.patients]
table = "{site}.csv"
target = "y"
id = "id"
"""


# --- commands -------------------------------------------------------------------------------------


def run(program, *arguments, cwd=".", env=None):
    """A command to its end: (exit code, standard output, standard error)."""
    module = __import__(PROGRAMS[program], fromlist=["app"])
    before = signal.getsignal(signal.SIGINT)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("COREG_")}
    clean |= {"COREG_FEDERATION": "co"} | (env or {})
    with (
        mock.patch.object(sys, "argv", [program, *map(str, arguments)]),
        mock.patch.dict(os.environ, clean, clear=True),
        chdir(cwd),
        redirect_stdout(io.StringIO()) as out,
        redirect_stderr(io.StringIO()) as err,
    ):
        try:
            code = command_line.run(module.app, program)
        finally:
            signal.signal(signal.SIGINT, before)
    return code, out.getvalue(), err.getvalue()


def well(program, *arguments, cwd=".", env=None):
    code, out, err = run(program, *arguments, cwd=cwd, env=env)
    assert code == 0, f"{program} {arguments}: {code}\n{out}\n{err}"
    return out


def as_json(program, *arguments, cwd="."):
    """The JSON lines that a command prints."""
    return [json.loads(line) for line in well(program, *arguments, "--json", cwd=cwd).splitlines()]


def until(condition, seconds=DEADLINE):
    """Wait for a condition, with a deadline: nothing hangs."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "not within the deadline"
        time.sleep(0.01)


# --- a federation ---------------------------------------------------------------------------------


@cache
def enrolled():
    """An authority and sites that know each other's keys, with tables; made once a process, and
    copied for every test.
    """
    folder = Path(tempfile.mkdtemp(prefix="enrolled-"))
    create_authority(folder / "co", [])
    for site in SITES:
        enrol(folder, site)
    for site in SITES:
        (folder / site / "members.json").write_text(
            json.dumps({"keys": Authorised(folder / "co").sites()})
        )
    write_tables(folder)
    return folder


def enrol(folder, site, days=365):
    """As an invitation does, without a network."""
    request = make_request(folder / site, site)
    install(folder / site, issued(folder / "co", request, days=days))


def write_tables(folder, shared=60, labelled=10):
    """Views of the same hidden rows: ``shared`` instances of everybody, and labelled ones of each
    site's own.
    """
    rng = np.random.default_rng(7)
    count = shared + labelled * len(SITES)
    hidden = rng.normal(size=(count, 2))
    for v, site in enumerate(SITES):
        X = hidden @ rng.normal(size=(2, 3)) + 0.2 * rng.normal(size=(count, 3))
        own = range(shared + labelled * v, shared + labelled * (v + 1))
        with (folder / f"{site}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["id", "a", "b", "c", "y"])
            writer.writerows([f"p{i}", *map(repr, X[i].tolist()), ""] for i in range(shared))
            writer.writerows(
                [f"p{i}", *map(repr, X[i].tolist()), repr(float(hidden[i].sum()))] for i in own
            )


class Federation:
    """A folder with an authority, enrolled sites, their tables, and processes that never outlive
    the test.
    """

    port = 0

    def __init__(self, folder, policy="", **timeouts):
        self.folder = folder
        self.processes = []
        shutil.copytree(enrolled(), folder, dirs_exist_ok=True)
        self.timeouts(**timeouts)
        self.policy(
            "policy.toml",
            policy or 'aggregation = "plaintext"\nobjectives = ["agreement", "additive"]',
        )

    def timeouts(self, **seconds):
        """Of the coordinators that are started from now on."""
        seconds = {"join": 300, "plan": 300, "approval": 300, "round": 200, "stall": 300, **seconds}
        (self.folder / "co" / "federation.toml").write_text(
            FEDERATION.format(sites=json.dumps(SITES), **seconds)
        )

    def policy(self, name, text):
        """A policy with these keys; it allows the studies here where it does not say."""
        for key, value in POLICY.items():
            if key not in text:
                text = f"{key} = {value}\n{text}"
        (self.folder / name).write_text(f"{text}\n")

    def study(self, name, text=STUDY, **terms):
        (self.folder / f"{name}.toml").write_text(text.format(name=name, **(CONVERGES | terms)))

    # --- processes

    def start(self, name, program, *arguments, env=None, first=""):
        """A process with its output in NAME.out and NAME.err; ``first`` is executed before its
        command.
        """
        out, err = (self.folder / f"{name}.{kind}" for kind in ("out", "err"))
        for file in (out, err):
            file.touch()  # it can be read before the process writes to it
        argv = [program, *map(str, arguments)]
        process = Process(Job(argv, self.folder, out, err, env or {}, first))
        self.processes.append(process)
        return process

    def _coordinator(self, command, *arguments, **options):
        ready = self.folder / "port"
        ready.unlink(missing_ok=True)
        where = (
            "--listen",
            f"127.0.0.1:{self.port}",
            "--port-file",
            ready,
        )  # the port of the one before, once known
        words = (command, "co/federation.toml", *where, *arguments)
        process = self.start("coordinator", "coreg-coordinator", *words, **options)
        until(
            lambda: (
                process.poll() is not None or (ready.exists() and ready.read_text().endswith("\n"))
            )
        )
        assert process.poll() is None, self.said("coordinator")
        self.port = int(ready.read_text())
        self.address = f"127.0.0.1:{self.port}"
        return process

    def run(self, study=None, *arguments, json=True, **options):
        """A coordinator of one study."""
        of = ()
        if study is not None:
            of = ("--study", f"{study}.toml")
        if json:
            of = (*of, "--json")
        return self._coordinator("run", *of, *arguments, **options)

    def serve(self, *arguments, first="", **options):
        return self._coordinator(
            "serve", "--json", *arguments, first=f"{BRISK}\n{first}", **options
        )

    def joins(self, site, *arguments, **options):
        """An agent of one run."""
        return self.start(
            site, "coreg-agent", "--data", f"{site}.csv", "--target", "y", "--id", "id",
            "--identity", site,
            "--coordinator", self.address, "--models", f"{site}-models", "--connect-timeout", 300,
            "--yes",
            *(() if "--policy" in arguments else ("--policy", "policy.toml")), *arguments,
            **options,
        )  # fmt: skip

    def all_join(self, *arguments):
        return {site: self.joins(site, *arguments) for site in SITES}

    def stays(self, site, more="", tag="", policy="policy.toml", **options):
        """An agent that serves; with a tag, another one of the same site in folders of its own."""
        text = SERVING.format(address=self.address, site=f"{site}{tag}", more=more, policy=policy)
        text = text.replace(f'"{site}{tag}.csv"', f'"{site}.csv"')
        if tag:
            shutil.copytree(
                self.folder / site,
                self.folder / f"{site}{tag}",
                ignore=shutil.ignore_patterns("service"),
            )
        (self.folder / f"{site}{tag}.toml").write_text(text)
        return self.start(
            f"{site}{tag}",
            "coreg-agent",
            "serve",
            "--config",
            f"{site}{tag}.toml",
            "--json",
            **options,
        )

    def all_stay(self):
        return {site: self.stays(site) for site in SITES}

    # --- what they said

    def last(self, name="coordinator"):
        """The end of it, for the message of an assertion."""
        return self.said(name)[-2000:]

    def said(self, name):
        return "".join((self.folder / f"{name}.{kind}").read_text() for kind in ("out", "err"))

    def events(self, name="coordinator", event=None):
        """What a process wrote for machines so far; the last line may still be on its way."""
        lines = self.said(name).splitlines(keepends=True)
        found = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]
        if event is None:
            return found
        return [line for line in found if line["event"] == event]

    # --- the store, read as another process would

    def submit(self, name):
        """The name of the run."""
        where = ("--federation", "co/federation.toml")
        return as_json("coreg-coordinator", "submit", f"{name}.toml", *where, cwd=self.folder)[0][
            "run"
        ]

    def runs(self):
        return as_json("coreg-coordinator", "runs", cwd=self.folder)

    def run_of(self, run):
        return next(r for r in self.runs() if r["run"] == run)

    def query(self, text, *values):
        if not (path := self.folder / "runs.sqlite").exists():
            return []
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=100) as db:
            rows = db.execute(text, values).fetchall()
        db.close()
        return rows

    def over(self, *runs):
        """Whether each of these has ended."""
        return {
            run for (run,) in self.query("select run from runs where ended is not null")
        } >= set(runs)

    def answered(self, *runs):
        """The number of answered questions: of one run, or of all."""
        of = ""
        if runs:
            of = f"where run in ({','.join('?' * len(runs))})"
        return sum(count for (count,) in self.query(f"select count(*) from rounds {of}", *runs))

    # --- models

    def models(self):
        """Every site's model of the last run, as values."""
        return {site: values(self.model(site)) for site in SITES}

    def model(self, site):
        """The file of a site's newest model."""
        return max(
            self.folder.glob(f"{site}-models/*/*/model.coreg"),
            key=lambda path: path.stat().st_mtime,
        )

    def kept(self, run):
        """Every site's model of a run, as serving agents keep it."""
        study = self.run_of(run)["plan"]["study"]
        return {
            site: values(self.folder / f"{site}-models" / study / run / "model.coreg")
            for site in SITES
        }

    def undisturbed(self, run=None):
        """Every site's model of the same plan and tables, computed in this process: no transport,
        no kills; sums in the clear.
        """
        record = self.runs()[0]
        if run is not None:
            record = self.run_of(run)
        plan = plan_from_dict(record["plan"])
        sites = {}
        if not isinstance(plan.objective, Additive):
            plan = replace(plan, privacy=replace(plan.privacy, aggregation="plaintext"))
        for name in plan.sites:
            table = Inputs(table=self.folder / f"{name}.csv", target="y", id="id")
            salt = (self.folder / name / "salt").read_bytes()  # of which the features follow
            sites[name] = SimulatedSite(name, prepare(table, salt).data, SharedFold())
        asyncio.run(Driver(InProcess(sites), None, lambda _: None).drive(*begin(plan, Timeouts())))
        models = {}
        for name, site in sites.items():
            if isinstance(site.result, AdditiveResult):
                models[name] = bits(site.result.model)
            else:
                models[name] = bits(site.result.solutions[0].function)
        return models


def values(path):
    return bits(load_model(path).function)


@contextmanager
def federation(folder, policy="", **timeouts):
    made = Federation(folder, policy, **timeouts)
    try:
        yield made
    finally:
        for process in made.processes:
            process.kill()
