"""Drills of `make faults` with many processes and connections, and with containers. See test_faults.py."""

import contextlib
import json
import os
import random
import shutil
import socket
import ssl
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from federation import ADDITIVE, LONG, SERVING, federation, until, values, well
from test_compose import engine_answers

from tests.storm.world import alike

ROOT = Path(__file__).resolve().parents[2]
TIMES = int(os.environ.get("COREG_FAULTS", "0"))
pytestmark = [
    pytest.mark.e2e, pytest.mark.drill, pytest.mark.timeout(1800),
    pytest.mark.skipif(not TIMES, reason="only in `make faults`"),
]  # fmt: skip
HUNDRED = tuple(f"site-{i:03}" for i in range(100))


def test_a_hundred_agents_of_which_ten_are_killed_and_the_coordinator_too(tmp_path):
    """100 agents; ten are killed during the rounds and start again, then the coordinator, so that all dial at once."""
    chance = random.Random(0)
    with federation(tmp_path, sites=HUNDRED, join=300, plan=300, round=120) as fed:
        with (tmp_path / "co" / "federation.toml").open("a") as file:
            file.write('[privacy]\naggregation = "plaintext"\n')  # sealed sums have at most 64 sites
        gradients = {"schedule": "conjugate-gradients", "max_rounds": 30, "aggregation": "plaintext"}
        fed.study("long", **LONG | gradients)
        coordinator = fed.serve()
        agents = {site: fed.stays(site) for site in HUNDRED}
        run = fed.submit("long")
        until(lambda: fed.answered(run) >= 3, 300)
        killed = chance.sample(HUNDRED, 10)
        for site in killed:
            agents[site].kill()
        for site in killed:
            agents[site] = fed.stays(site)
        until(lambda: fed.answered(run) >= 10, 300)
        coordinator.kill()
        fed.serve()
        until(lambda: fed.over(run), 600)
        assert fed.run_of(run)["stop"] in ("MAX_ROUNDS", "STAGNATED")
        assert fed.kept(run) == fed.undisturbed(run)
        assert {site for site, agent in agents.items() if agent.poll() is not None} == set()


def test_two_hundred_strangers_at_once(tmp_path):
    """200 connections at once during a run: silent ones, noise, TLS without a certificate, a site's TLS with noise in it."""
    with federation(tmp_path) as fed:
        fed.study("long", **LONG | {"max_rounds": 400})
        fed.study("sum", ADDITIVE, model="")
        fed.serve()
        fed.all_stay()
        runs = [fed.submit("long"), fed.submit("sum")]
        until(lambda: fed.answered(runs[0]) >= 5)
        gate = threading.Barrier(200, timeout=600)

        def knocks(kind):
            gate.wait()
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", fed.port), 30) as plain:
                plain.settimeout(5)
                if kind in (0, 1):
                    plain.sendall(b"" if kind == 0 else random.Random(kind).randbytes(5000))
                    plain.recv(100)
                    return
                context = ssl.create_default_context(cafile=fed.folder / "co" / "ca.pem")
                context.set_alpn_protocols(["h2"])
                if kind == 3:
                    context.load_cert_chain(fed.folder / "north" / "site.pem", fed.folder / "north" / "site.key")
                with context.wrap_socket(plain, server_hostname="localhost") as stream:
                    stream.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(1000))
                    stream.recv(100)

        with ThreadPoolExecutor(200) as pool:
            list(pool.map(knocks, [i % 4 for i in range(200)]))
        until(lambda: fed.over(*runs))
        for run in runs:
            assert alike(fed.kept(run), fed.undisturbed(run))
        assert "Traceback" not in fed.said("coordinator")


def docker(*words, **options):
    done = subprocess.run(["docker", *words], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{words}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout.strip()


NETWORK = "coreg-drill"
OVERRIDE = """
services:
  SERVICE: {ports: !reset [], networks: {default: {aliases: [SERVICE]}}}
networks:
  default: {name: coreg-drill, external: true}
"""
CONTAINER_USER = 10001


def mounted(fed):
    """The folders that deploy/compose.yml mounts: the coordinator's, and one for each site."""
    well("coreg-coordinator", "init", "co", "--renew-server", "--host", "coordinator", cwd=fed.folder)
    terms = (fed.folder / "co" / "federation.toml").read_text()
    (fed.folder / "co" / "federation.toml").write_text(terms.replace("../runs.sqlite", "runs.sqlite"))
    shutil.copy(fed.folder / "long.toml", fed.folder / "co")
    for site in fed.sites:
        folder = fed.folder / f"at-{site}"
        shutil.copytree(fed.folder / site, folder / "identity")
        shutil.copy(fed.folder / f"{site}.csv", folder / "local.csv")
        shutil.copy(fed.folder / "policy.toml", folder)
        text = SERVING.format(address="coordinator:7600", site="local", policy="policy.toml", more="")
        text = text.replace('identity = "local"', 'identity = "identity"').replace("local-models", "models")
        (folder / "agent.toml").write_text(text)
    folders = {"co": fed.folder / "co"} | {site: fed.folder / f"at-{site}" for site in fed.sites}
    for folder in folders.values():
        for path in (folder, *folder.rglob("*")):
            os.chown(path, CONTAINER_USER, CONTAINER_USER)
    return folders


def test_containers_are_killed_and_disconnected(tmp_path):
    """deploy/compose.yml: a site loses its network for 20 s; its container, another site's and the coordinator's are killed."""
    if not engine_answers():
        pytest.skip("no Docker engine with Compose answers")
    with federation(tmp_path) as fed, contextlib.ExitStack() as closing:
        fed.study("long", **LONG | {"max_rounds": 3000})
        folders = mounted(fed)

        def compose(name, *words):
            service = "coordinator" if name == "co" else "site"
            override = tmp_path / f"{service}.yml"
            override.write_text(OVERRIDE.replace("SERVICE", service))
            files = ("-f", str(ROOT / "deploy" / "compose.yml"), "-f", str(override))
            folder = {"COREG_STATE": str(folders[name]), "COREG_SITE": str(folders[name])}
            docker("compose", "-p", f"drill-{name}", *files, "--profile", service, *words, env=os.environ | folder)
            return f"drill-{name}-{service}-1"

        docker("compose", "-f", str(ROOT / "deploy" / "compose.yml"), "--profile", "build", "build")
        docker("network", "create", "--internal", NETWORK)
        closing.callback(docker, "network", "rm", NETWORK)
        container = {}
        for name in folders:
            closing.callback(compose, name, "down", "--timeout", "5")
            container[name] = compose(name, "up", "-d")

        def coordinator(*words):
            return docker("exec", container["co"], "coreg-coordinator", *words)

        run = json.loads(coordinator("submit", "long.toml", "--federation", "federation.toml", "--json"))["run"]

        def record():
            found = [json.loads(line) for line in coordinator("runs", "--json").splitlines()]
            return next((each for each in found if each["run"] == run), {"rounds": 0, "ended": None})

        def goes_on():
            before = record()["rounds"]
            until(lambda: record()["rounds"] > before + 5, 120)

        goes_on()
        for name in ("north", "co"):
            docker("kill", container[name])
            docker("start", container[name])
            goes_on()
        docker("network", "disconnect", NETWORK, container["south"])
        time.sleep(20)
        docker("kill", container["south"])
        docker("network", "connect", NETWORK, container["south"])
        docker("start", container["south"])
        until(lambda: record()["ended"] is not None, 300)
        assert record()["stop"] in ("MAX_ROUNDS", "STAGNATED"), "after so many rounds nothing changes any more"
        shutil.copy(folders["co"] / "runs.sqlite", tmp_path / "runs.sqlite")
        for site in fed.sites:
            shutil.copy(folders[site] / "identity" / "salt", tmp_path / site / "salt")
        found = {site: values(folders[site] / "models" / "long" / run / "model.coreg") for site in fed.sites}
        assert found == fed.undisturbed(run)
