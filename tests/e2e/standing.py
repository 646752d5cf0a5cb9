"""A federation that stands, for tests: a coordinator and agents under `serve`, studies, and their one-shot twins."""

import asyncio
import json
import shutil
import signal
import sqlite3
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from federation import SITES, Federation, until, well

from coordinator.driver import NoMemory, drive
from coordinator.machine.federation import begin
from coordinator.machine.phases import Clocks
from coordinator.machine.state import Recorded
from coordinator.transports.in_process import InProcess
from coreg_core.numerics.threads import pin_threads
from site_agent.data.prepare import Inputs, prepare
from site_agent.machine.site import Site, Terms
from site_agent.models.file import load_model

STUDY = """
[study]
name = "{name}"
data = "patients"
{study}
[model]
coupling = {coupling}
{model}
[schedule]
name = "{schedule}"
tolerance = {tolerance}
prediction_tolerance = {prediction_tolerance}
max_rounds = {max_rounds}
threads = {threads}
[privacy]
answers = "{answers}"
"""
AGENT = """
coordinator = "{address}"
identity = "{site}"
models = "{site}-models"
policy = "either.toml"
{more}
[data.patients]
table = "{site}.csv"
target = "y"
id = "id"
"""
CONVERGES = {
    "coupling": 0.1, "schedule": "conjugate-gradients", "tolerance": 1e-12, "prediction_tolerance": 1e-8, "max_rounds": 1000,
    "threads": 1, "model": "", "study": "", "answers": "sums",
}  # fmt: skip


class Standing(Federation):
    """See the module's docstring."""

    port = 0

    def __init__(self, folder, **terms):
        super().__init__(folder, **terms)
        self.policy("either.toml", 'answers = "clear"')  # of Algorithm 1; the other studies are masked

    def serve(self, *arguments, env=None):
        """The coordinator; on the port of the one before, so that agents find it again."""
        ready = self.folder / "port"
        ready.unlink(missing_ok=True)
        process = self.start(
            "coordinator", "coreg-coordinator", "serve", "co/federation.toml", "--listen", f"127.0.0.1:{self.port}",
            "--store", "runs.sqlite", "--port-file", ready, "--json", *arguments,
            env=env,
        )  # fmt: skip
        until(lambda: process.poll() is not None or (ready.exists() and ready.read_text().endswith("\n")))
        assert process.poll() is None, self.said("coordinator")
        self.port = int(ready.read_text())
        self.address = f"127.0.0.1:{self.port}"
        return process

    def stays(self, site, *arguments, more="", env=None, tag=""):
        """An agent that serves; with a tag, another one of the same site in folders of its own."""
        text = AGENT.format(address=self.address, site=site, more=more)
        if tag:
            shutil.copytree(self.folder / site, self.folder / f"{site}{tag}", ignore=shutil.ignore_patterns("service"))
            text = text.replace(f'"{site}"', f'"{site}{tag}"').replace(f'"{site}-models"', f'"{site}{tag}-models"')
        (self.folder / f"{site}{tag}.toml").write_text(text)
        return self.start(
            f"{site}{tag}", "coreg-agent", "serve", "--config", f"{site}{tag}.toml", "--json", *arguments, env=env
        )

    def study(self, name, **terms):
        (self.folder / f"{name}.toml").write_text(STUDY.format(name=name, **(CONVERGES | terms)))

    def submit(self, name):
        """The name of the run."""
        told = well(
            "coreg-coordinator", "submit", f"{name}.toml", "--federation", "co/federation.toml", "--store", "runs.sqlite",
            "--json", cwd=self.folder,
        )  # fmt: skip
        return json.loads(told)["run"]

    def run_of(self, run):
        """What `runs` tells of one."""
        return next(r for r in self.runs() if r["run"] == run)

    def over(self, *runs):
        """Whether each of these is closed: its models are fetched, or it has none."""
        with sqlite3.connect(f"file:{self.folder / 'runs.sqlite'}?mode=ro", uri=True, timeout=5) as db:
            closed = {run for (run,) in db.execute("select run from runs where closed is not null")}
        db.close()
        return closed >= set(runs)

    def answered(self, run):
        """How many questions of a run were answered."""
        with sqlite3.connect(f"file:{self.folder / 'runs.sqlite'}?mode=ro", uri=True, timeout=5) as db:
            (count,) = db.execute("select count(*) from rounds where run = ?", (run,)).fetchone()
        db.close()
        return count

    def kept(self, study, run):
        """Every site's model of a run, as values."""
        return {site: values(self.folder / f"{site}-models" / study / run / "model.coreg") for site in SITES}

    def log(self, name):
        """What a process logged, line by line; the last may still be on its way."""
        lines = (self.folder / f"{name}.err").read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]

    def logged(self, name, event):
        return [line for line in self.log(name) if line["event"] == event]


def values(path):
    """What a model computes with, to the bit."""
    model = load_model(path)
    return model.function.points.tobytes(), model.function.coef.tobytes(), model.shift, model.divisor


@contextmanager
def standing(folder, **terms):
    made = Standing(folder, **terms)
    try:
        yield made
    finally:
        for process in made.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait(10)


def twin(folder, **terms):
    """The same study as a federation of one run, with agents for one run: every site's model, as values."""
    fed = Federation(folder, **({"coupling": 0.1} | terms))
    try:
        coordinator = fed.coordinator()
        agents = [fed.agent(site) for site in SITES]
        assert coordinator.wait(60) == 0, fed.said("coordinator")
        assert [agent.wait(60) for agent in agents] == [0, 0, 0]
    finally:
        for process in fed.processes:
            if process.poll() is None:
                process.kill()
            process.wait(10)
    return {site: values(folder / f"{site}.model") for site in SITES}


def shifted(folder, site):
    """Another table for a site, put in its place at one instant: the labels are all a little larger."""
    path = folder / f"{site}.csv"
    lines = path.read_text().splitlines()
    changed = [lines[0]]
    for line in lines[1:]:
        *head, y = line.split(",")
        changed.append(",".join([*head, y and repr(float(np.float64(y) * 1.25))]))
    beside = path.with_suffix(".new")
    beside.write_text("\n".join(changed) + "\n")
    beside.replace(path)


def in_process_twin(folder, plan):
    """The run of this plan undisturbed, in this very process, in the clear: the bits are every transport's (tests/contract)."""
    plan, sites = replace(plan, privacy=replace(plan.privacy, answers="clear")), {}
    for name in plan.sites:
        prepared = prepare(Inputs(folder / f"{name}.csv", "y", "id"))
        sites[name] = Site(name, prepared.data, Terms(pin_threads=pin_threads))
    begun = begin(Recorded(plan), Clocks())
    asyncio.run(drive(begun, InProcess(sites), NoMemory(), _Silent()))
    found = {}
    for name, site in sites.items():
        [solution] = site.result.solutions
        function = solution.function
        found[name] = (function.points.tobytes(), function.coef.tobytes(), site.result.shift, site.result.divisor)
    return found


class _Silent:
    def notice(self, notice, measured):
        pass
