"""Many sites over Ray: what needs no Ray is tested here, the rest by ray_checks.py in a process of its own, as a user has it."""

import json
import re
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from expected import lacking
from ray_checks import CHECKS
from typer.testing import CliRunner

from coordinator.transports.in_process import InProcess
from coreg_core.agreement.closed_form import closed_form_of, consensus_closed_form, pairwise_sum
from coreg_core.agreement.objective import consensus_weight
from coreg_core.errors import Unreachable, UsageError
from coreg_core.objectives.agreement import Agreement
from coreg_sim.cli.app import app
from coreg_sim.federation.problems import generated
from coreg_sim.federation.simulate import Hosted, factored, plan_for, simulate, simulated_site
from coreg_sim.over_ray import Factors, Host, aligned, partition, share


@contextmanager
def running(nodes):
    """A process with a running Ray, which runs the checks that it is given."""
    program = [sys.executable, Path(__file__).with_name("ray_checks.py"), nodes]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(program, text=True, **pipes) as process:
        if process.stdout.readline() != "ready\n":
            fault = process.stderr.read()
            assert process.wait() == Unreachable.exit_code, fault
            lacking("ray", told=f"Ray does not start on this machine: {fault[-300:]}")
        yield process
        process.stdin.close()
        process.wait(60)


def run(check, process):
    process.stdin.write(f"{check}\n")
    process.stdin.flush()
    if fault := process.stdout.readline().strip():
        pytest.fail(json.loads(fault))


@pytest.fixture(scope="module")
def one_node():
    with running("one-node") as process:
        yield process


@pytest.mark.e2e
@pytest.mark.parametrize("check", [check.__name__ for check in CHECKS["one-node"]])
def test_over_ray(one_node, check):
    run(check, one_node)


@pytest.fixture
def two_nodes():
    with running("two-nodes") as process:
        yield process


@pytest.mark.e2e
def test_a_cluster_of_two_nodes_is_joined_and_its_bits_are_the_same(two_nodes):
    run(CHECKS["two-nodes"][0].__name__, two_nodes)


# --- without Ray --------------------------------------------------------------------------------------------------


def test_sites_are_partitioned_in_order_and_every_core_has_some():
    sites = [f"s{i}" for i in range(10)]
    assert partition(sites, 4, None) == [tuple(sites[:3]), tuple(sites[3:6]), tuple(sites[6:9]), tuple(sites[9:])]
    assert partition(sites, 4, 8) == [tuple(sites[:8]), tuple(sites[8:])]
    assert partition([], 4, None) == []


@pytest.mark.parametrize("nodes", [(2,), (2, 2), (1, 3), (16, 1)])
@pytest.mark.parametrize("actors", [1, 2, 3, 5, 8, 33])
def test_every_actor_finds_a_place_whatever_the_size_of_the_nodes(nodes, actors):
    each = share(actors, sum(nodes))
    assert sum(int(cpus / each + 1e-9) for cpus in nodes) >= actors


@pytest.mark.parametrize("sites", range(1, 20))
@pytest.mark.parametrize("cpus", [1, 2, 3, 8])
def test_sums_of_aligned_groups_are_nodes_of_one_tree(sites, cpus):
    """Written out as brackets, so that not only the sum but the tree is the same."""
    names = [str(i) for i in range(sites)]

    def add(left, right):
        return f"({left}+{right})"

    groups = partition(names, cpus, aligned(sites, cpus))
    assert pairwise_sum((pairwise_sum(group, add) for group in groups), add) == pairwise_sum(names, add)
    assert len(groups) >= min(sites, cpus)


@pytest.mark.parametrize("form", ["exact", "semi-parametric"])
@pytest.mark.parametrize("coupling", [0.0, 0.1])
def test_one_processs_factors_are_the_closed_forms(form, coupling):
    problem = generated(3, 8, 20, 2, seed=0)
    plan = plan_for(problem, Agreement(form=form, coupling=(coupling,)))
    views, weight = factored(problem.sites, plan), consensus_weight(coupling, 3)
    z = consensus_closed_form(views, coupling)
    factors = Factors(plan, problem.sites, weight)
    factors.factor()
    for mine, view in zip(factors.solutions(z), views, strict=True):
        assert mine.prediction.tobytes() == view.solve(z, weight).prediction.tobytes()
    if form == "exact":
        np.testing.assert_array_equal(np.mean(factors.alone(), axis=0) if coupling == 0.0 else z, z)
    else:
        np.testing.assert_array_equal(factors.coordinates(), [view.label_coordinates for view in views])


class OneHost(InProcess):
    """All sites in one host, whose results are known with their last answers."""

    def __init__(self, data):
        self.host, self.results = Host(simulated_site, data), {}
        super().__init__({name: OneSite(name, self) for name in data})


@dataclass
class OneSite:
    name: str
    whole: OneHost

    def hello(self):
        return next(hello for hello in self.whole.host.hello() if hello.site == self.name)

    def handle(self, message):
        done = self.whole.host.handle([(self.name, 0)], message)
        self.whole.results.update(done.results)
        return done.answers[0][1]


def test_a_host_has_the_bits_of_one_process_and_the_results_with_the_last_answers():
    problem = generated(2, 8, 5, 2, seed=0)
    plan = plan_for(problem, Agreement(coupling=(0.1,)), aggregation="secure")

    @contextmanager
    def hosting(data):
        transport = OneHost(data)
        yield Hosted(transport, transport.results.get)

    over, here = simulate(problem, plan, hosting=hosting), simulate(problem, plan)
    assert over.predictions.tobytes() == here.predictions.tobytes()


def sim(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--address", "auto"], r"--on ray"),
        (["--sites-per-actor", "2"], r"--on ray"),
        (["--on", "moon"], r"'process', 'ray'"),
        (["--on", "ray", "--address", "ray://head:10001"], r"HOST:PORT.*on a node"),
    ],
)
@pytest.mark.parametrize("command", ["run", "compare"])
def test_wrong_options_of_ray_are_usage_errors(command, options, says):
    result = sim(command, *options)
    assert getattr(result.exception, "exit_code", result.exit_code) == UsageError.exit_code
    assert re.search(says, f"{result.exception} {result.output}")


RAY = pytest.mark.parametrize("command", [["run"], ["compare"]], ids=lambda words: words[0])


@RAY
def test_ray_that_is_not_installed_is_reported(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)
    result = sim(*command, "--on", "ray")
    assert isinstance(result.exception, UsageError)
    assert "'.[sim]'" in str(result.exception)


@RAY
def test_ray_that_does_not_start_is_reported(command, tmp_path, monkeypatch):
    def refuse(**_):
        raise RuntimeError("no raylet")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=refuse))
    result = sim(*command, "--on", "ray")
    assert isinstance(result.exception, Unreachable)
    assert "no raylet" in str(result.exception)
    assert "leave --on ray out" in str(result.exception).lower()


def test_kinds_of_views_have_one_closed_form_or_none():
    assert closed_form_of(["finite", "exact on a finite span"]) == "finite"
    assert closed_form_of(["exact", "exact on a finite span"]) == "exact"
    with pytest.raises(UsageError, match="all views exact or all on finite spans"):
        closed_form_of(["exact", "finite"])
