"""Many sites over Ray: what needs no Ray is tested here, the rest by ray_checks.py in a process of
its own, as a user has it.
"""

import json
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from expected import lacking
from ray_checks import CHECKS
from typer.testing import CliRunner

from coreg_core.errors import Unreachable, UsageError
from coreg_sim.cli.app import app
from coreg_sim.over_ray import partition


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


@pytest.mark.e2e
def test_a_cluster_of_two_nodes_is_joined_and_its_bits_are_the_same():
    with running("two-nodes") as process:
        run(CHECKS["two-nodes"][0].__name__, process)


# --- without Ray ----------------------------------------------------------------------------------


def test_sites_are_partitioned_in_order_and_every_core_has_some():
    sites = [f"s{i}" for i in range(10)]
    assert partition(sites, 4) == [
        tuple(sites[:3]),
        tuple(sites[3:6]),
        tuple(sites[6:9]),
        tuple(sites[9:]),
    ]


def sim(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--address", "auto"], r"--on ray"),
        (["--on", "moon"], r"'process', 'ray'"),
        (["--on", "ray", "--address", "ray://head:10001"], r"HOST:PORT.*on a node"),
    ],
)
def test_wrong_options_of_ray_are_usage_errors(options, says):
    result = sim("run", *options)
    assert getattr(result.exception, "exit_code", result.exit_code) == UsageError.exit_code
    assert re.search(says, f"{result.exception} {result.output}")


def refuse(**_):
    raise RuntimeError("no raylet")


@pytest.mark.parametrize(
    ("ray", "kind", "told"),
    [
        (None, UsageError, r"'\.\[sim\]'"),
        (SimpleNamespace(init=refuse), Unreachable, r"no raylet.*\. Leave --on ray out"),
    ],
    ids=["not installed", "does not start"],
)
def test_without_ray_a_command_says_what_to_do(ray, kind, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", ray)
    error = sim("run", "--on", "ray").exception
    assert isinstance(error, kind)
    assert re.search(told, str(error))
