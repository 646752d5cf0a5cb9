"""A standing federation: runs come from a queue, and processes that were killed go on."""

import json
import re
import signal
import socket
import stat
import urllib.request
from contextlib import closing

import numpy as np
import pytest
from federation import ENDLESS, SITES, as_json, enrol, federation, run, until, well
from proxy import Proxy

from site_agent.identity.identity import check_identity
from site_agent.service.console import operator_name
from site_agent.service.state_store import StateStore

pytestmark = pytest.mark.e2e


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def fetched(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=200) as answer:
        return answer.read().decode()


def shifted(path):
    """Another table in its place at one instant: the labels are all a little larger."""
    heading, *rows = path.read_text().splitlines()
    cut = [row.rpartition(",") for row in rows]
    changed = [f"{row},{y and repr(float(np.float64(y) * 1.25))}" for row, _, y in cut]
    path.with_suffix(".new").write_text("\n".join([heading, *changed]) + "\n")
    path.with_suffix(".new").replace(path)


def test_a_study_goes_from_the_queue_to_models_at_every_site(tmp_path):
    with federation(tmp_path) as fed:
        fed.study("first")
        early = fed.submit("first")  # before anybody serves
        coordinator = fed.serve()
        agents = fed.all_stay()
        until(lambda: fed.over(early))
        first = fed.run_of(early)
        assert first["stop"] == "CONVERGED"
        assert first["plan"]["study"] == "first"
        assert first["plan"]["data"] == "patients"
        # The next run of the same study, on the same sessions; then one site's table is replaced.
        same = fed.submit("first")
        until(lambda: fed.over(same))
        assert fed.kept(early) == fed.kept(same) == fed.undisturbed(early)
        shifted(tmp_path / "west.csv")
        other = fed.submit("first")
        until(lambda: fed.over(other))
        assert fed.kept(other) == fed.undisturbed(other), (
            "the table was read again, since its file changed"
        )
        # What the sites keep: every run.
        for site in SITES:
            folder = tmp_path / f"{site}-models" / "first"
            assert sorted(p.name for p in folder.iterdir()) == sorted([early, same, other])
            assert stat.S_IMODE((folder / other / "model.coreg").stat().st_mode) == 0o600
            manifest = json.loads((folder / other / "manifest.json").read_text())
            assert manifest["run"] == other
            assert manifest["stop"] == "CONVERGED"
            assert manifest["site"] == site
        config = ("--config", "north.toml")
        assert [m["run"] for m in as_json("coreg-agent", "models", *config, cwd=tmp_path)] == [
            early,
            same,
            other,
        ]
        listed = as_json("coreg-agent", "runs", *config, cwd=tmp_path)
        assert [line["run"] for line in listed] == [other, same, early]
        assert "connected since" in well("coreg-agent", "status", *config, cwd=tmp_path)
        sites = as_json("coreg-coordinator", "status", cwd=tmp_path)[0]["sites"]
        assert [(s["site"], s["connected"], s["until"] > "2026") for s in sites] == [
            (s, True, True) for s in SITES
        ]
        # A run is over in the store before its agents have all read the end.
        until(lambda: not as_json("coreg-coordinator", "status", cwd=tmp_path)[0]["runs"])
        [status] = as_json("coreg-coordinator", "status", cwd=tmp_path)
        assert status["ready"]
        assert status["connected"] == list(SITES)
        # SIGTERM ends both kinds with exit code 0, and the health checks tell.
        for process, program, where in (
            (coordinator, "coreg-coordinator", ()),
            *(
                (agent, "coreg-agent", ("--config", f"{site}.toml"))
                for site, agent in agents.items()
            ),
        ):
            process.send_signal(signal.SIGTERM)
            assert process.wait() == 0, fed.last()
            assert run(program, "status", *where, cwd=tmp_path)[0] == 7


def sites_of(fed):
    """What the coordinator shows of each site."""
    [status] = as_json("coreg-coordinator", "status", cwd=fed.folder)
    return {line["site"]: line for line in status["sites"]}


def pages_show(run, numbers, pages):
    metrics = fetched(numbers, "/metrics")
    assert 'coreg_runs_finished_total{stop="CONVERGED",study="asked"} 1.0' in metrics
    assert 'coreg_site_connected{site="west"} 1.0' in metrics
    [latest] = json.loads(fetched(pages, "/status.json"))["latest"]
    assert latest["run"] == run
    assert latest["state"] == "converged"
    assert len(latest["convergence"]) > 1


def a_second_agent_and_a_revoked_one_go_on(fed, agents):
    second = fed.stays("north", tag="-2")
    until(lambda: "another agent has joined under this name" in fed.said("north"))
    assert agents["north"].poll() is second.poll() is None, "no message ends a service"
    well("coreg-coordinator", "revoke", "co", "south", cwd=fed.folder)
    until(lambda: "its certificate was never signed here, or was revoked" in fed.said("south"))
    assert agents["south"].poll() is None, "its operator may sign it again"

    until(lambda: not sites_of(fed)["south"]["connected"])
    assert "was revoked" in sites_of(fed)["south"]["refusal"]
    assert sites_of(fed)["west"]["connected"]


def a_changed_file_is_reloaded(fed, coordinator):
    """A faulty one is not; a site that is signed and not listed is rejected, and is shown so."""

    def status():
        return well("coreg-coordinator", "status", cwd=fed.folder)

    file = fed.folder / "co" / "federation.toml"
    whole = file.read_text()
    file.write_text(f"{whole}\nroun = 1\n")
    coordinator.send_signal(signal.SIGHUP)
    until(lambda: "not reloaded" in status())
    file.write_text(whole.replace("west", "elsewhere"))
    coordinator.send_signal(signal.SIGHUP)
    until(lambda: "not reloaded" not in status())
    until(lambda: "list of sites" in (sites_of(fed)["west"]["refusal"] or ""))
    until(lambda: not sites_of(fed)["west"]["listed"])


def nothing_of_the_tables_is_logged(fed):
    logged = "".join(map(fed.said, ("coordinator", *SITES, "north-2")))
    words = set(re.findall(r"\w+", logged))
    numbers = set(re.findall(r"[-+.\w]+", logged))
    for site in SITES:
        _, *rows = (fed.folder / f"{site}.csv").read_text().splitlines()
        for row in rows:
            name, *cells = row.split(",")
            assert name not in words
            assert not {cell for cell in cells if cell} & numbers
    assert "PRIVATE KEY" not in logged


def test_what_operators_say_to_a_federation_that_stands(tmp_path):
    """Consent by hand, cancelling, revoking, two agents under one name, a proxy; and nothing of the
    tables in any log.
    """
    with closing(Proxy()) as proxy, federation(tmp_path) as fed:
        pages = free_port()
        numbers = free_port()
        coordinator = fed.serve("--web", f"127.0.0.1:{pages}", "--metrics", f"127.0.0.1:{numbers}")
        agents = {
            "north": fed.stays("north", more='approval = "ask"'),
            "south": fed.stays("south"),
            "west": fed.stays(
                "west", env={"https_proxy": proxy.url, "http_proxy": proxy.url, "no_proxy": ""}
            ),
        }
        fed.study("asked")
        fed.study("slow", **ENDLESS)
        fed.study("narrow", model="bandwidth = 1e-6")

        def waiting():
            state = StateStore(tmp_path / "north" / "service")
            if state.path.exists():
                return [entry["plan"]["run"] for entry in state.pending()]
            return []

        def asked(study):
            run = fed.submit(study)
            until(lambda: waiting() == [run])
            return run

        def north(*words):
            return well("coreg-agent", *words, "--config", "north.toml", cwd=tmp_path)

        def ended(run):
            until(lambda: fed.over(run))
            return fed.run_of(run)["stop"], fed.run_of(run)["reason"]

        agreed = asked("asked")
        assert agreed in north("pending")
        north("approve", agreed[:6])
        assert ended(agreed)[0] == "CONVERGED"
        assert f"noted: {operator_name()} approved the plan" in well(
            "coreg-agent", "ledger", "north/ledger.jsonl", cwd=tmp_path
        )
        assert proxy.connects == [fed.address], "the agent in the west came through it"
        through = {"https_proxy": proxy.url, "no_proxy": ""}
        well("coreg-agent", "check", "--config", "west.toml", cwd=tmp_path, env=through)
        assert proxy.connects == [fed.address] * 2, "and so does its check"
        pages_show(agreed, numbers, pages)

        stop, reason = ended(
            fed.submit("narrow")
        )  # nobody is asked for what the policy refuses on these rows
        assert stop == "REFUSED"
        assert "bandwidth = 1e-06 is below 0.5 times" in reason
        assert waiting() == []
        refused = asked("asked")
        north("refuse", refused, "--reason", "no consent for this one")
        stop, reason = ended(refused)
        assert stop == "REFUSED"
        assert "no consent for this one" in reason
        endless = asked("slow")
        north("approve", endless)
        until(lambda: fed.answered(endless) > 5)
        well("coreg-coordinator", "cancel", endless, "--reason", "enough of it", cwd=tmp_path)
        assert ended(endless) == ("CANCELLED", "enough of it")
        queued = asked("slow")  # and one that nobody approves is cancelled while it waits
        well("coreg-coordinator", "cancel", queued, cwd=tmp_path)
        until(lambda: fed.over(queued) and waiting() == [])

        a_second_agent_and_a_revoked_one_go_on(fed, agents)
        a_changed_file_is_reloaded(fed, coordinator)

        nothing_of_the_tables_is_logged(fed)
        coordinator.send_signal(signal.SIGTERM)
        assert coordinator.wait() == 0


def test_certificates_renew_by_themselves_and_no_secret_is_in_any_file(tmp_path):
    with federation(tmp_path) as fed:
        for name in SITES:  # certificates in their last month
            enrol(tmp_path, name, days=20)
        fed.serve()
        agents = fed.all_stay()
        until(lambda: all(fed.events(site, "certificate_read") for site in SITES))
        assert check_identity(tmp_path / "north").days_left() > 300
        agents["north"].send_signal(signal.SIGKILL)
        agents["north"].wait()
        fed.stays("north")  # it connects with the next one
        fed.study("month")
        month = fed.submit("month")
        until(lambda: fed.over(month))
        assert fed.run_of(month)["stop"] == "CONVERGED"
        # What is secret stands in no log, no ledger and no store.
        told = [
            path
            for path in tmp_path.rglob("*")
            if path.suffix in (".out", ".err", ".jsonl", ".sqlite", ".sums")
        ]
        salts = [(tmp_path / site / "salt").read_bytes() for site in SITES]
        hidden = [b"PRIVATE KEY", *salts, *(salt.hex().encode() for salt in salts)]
        assert len(told) > 8
        assert [path for path in told for secret in hidden if secret in path.read_bytes()] == []
