"""A federation that stands: runs from a queue, nobody typing anything, and whoever is killed is found again."""

import json
import re
import signal
import socket
import stat
import urllib.request

import pytest
from federation import SITES, ends, run, until, well
from proxy import proxied
from standing import in_process_twin, shifted, standing, twin

from coordinator.store.history import Chronicle
from coreg_core.protocol.plan import plan_from_dict

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

SLOW = {"schedule": "consensus", "coupling": 3.0, "tolerance": 0.0, "prediction_tolerance": 0.0, "max_rounds": 250}


def test_a_study_goes_from_the_queue_to_models_at_every_site(tmp_path):
    alone = tmp_path / "alone"
    alone.mkdir()
    with standing(tmp_path) as fed:
        fed.study("first")
        early = fed.submit("first")  # before anybody serves
        coordinator = fed.serve()
        agents = {site: fed.stays(site) for site in SITES}
        until(lambda: fed.over(early))
        first = fed.run_of(early)
        assert (first["stop"], first["plan"]["study"], first["plan"]["data"]) == ("CONVERGED", "first", "patients")
        # The next run of the same study, on the same sessions; one site's table was replaced meanwhile.
        same = fed.submit("first")
        until(lambda: fed.over(same))
        shifted(tmp_path, "west")
        other = fed.submit("first")
        until(lambda: fed.over(other))
        kept = {name: fed.kept("first", name) for name in (early, same, other)}
        assert kept[early] == kept[same], "the same study on the same data"
        assert kept[other]["west"] != kept[early]["west"], "read again, since its file changed"
        assert kept[other]["north"] != kept[early]["north"], "they are coupled"
        # What the sites keep: every run, and a link to the last.
        for site in SITES:
            folder = tmp_path / f"{site}-models" / "first"
            assert sorted(p.name for p in folder.iterdir()) == sorted([early, same, other, "current"])
            assert str((folder / "current").readlink()) == other
            assert stat.S_IMODE((folder / other / "model.coreg").stat().st_mode) == 0o600
            manifest = json.loads((folder / other / "manifest.json").read_text())
            assert (manifest["run"], manifest["stop"], manifest["site"]) == (other, "CONVERGED", site)
        config = ("--config", "north.toml")
        told = [
            json.loads(line) for line in well("coreg-agent", "models", *config, "--json", cwd=tmp_path).splitlines()
        ]
        assert [(m["run"], m["current"]) for m in told] == [(early, False), (same, False), (other, True)]
        told = well("coreg-agent", "runs", *config, cwd=tmp_path).splitlines()
        assert [line.split()[0] for line in told] == [other, same, early]
        assert "connected since" in well("coreg-agent", "status", *config, cwd=tmp_path)
        # Who is there, and that it is well.
        told = [json.loads(line) for line in well("coreg-coordinator", "sites", "--json", cwd=tmp_path).splitlines()]
        assert [(s["site"], s["connected"], s["until"] > "2026") for s in told] == [
            (site, True, True) for site in SITES
        ]
        status = json.loads(well("coreg-coordinator", "status", "--json", cwd=tmp_path))
        assert (status["ready"], status["connected"], status["runs"]) == (True, list(SITES), [])
        # SIGTERM ends both kinds with exit code 0, and the health checks say so.
        coordinator.send_signal(signal.SIGTERM)
        assert ends(coordinator) == 0, fed.said("coordinator")
        assert run("coreg-coordinator", "status", cwd=tmp_path)[0] == 7
        for agent in agents.values():
            agent.send_signal(signal.SIGTERM)
        assert [ends(agent) for agent in agents.values()] == [0, 0, 0], fed.said("north")
        assert run("coreg-agent", "status", *config, cwd=tmp_path)[0] == 7
        assert "first: 2 runs forgotten" in well("coreg-agent", "forget", "first", "--keep", 1, *config, cwd=tmp_path)
        assert sorted(p.name for p in (tmp_path / "north-models" / "first").iterdir()) == sorted([other, "current"])
        first = kept[early]
        assert heard(fed) == disclosed(fed), "what the coordinator heard is what stands in the sites' ledgers"
    assert twin(alone) == first, "a federation of one run ends on the same bits"


def heard(fed):
    """Messages and numbers by site, run and kind, as the coordinator counted them."""
    chronicle = Chronicle(fed.folder / "runs.sqlite", read_only=True)
    try:
        runs = ["", *(run["run"] for run in fed.runs())]
        return {(d.site, run, d.kind): (d.messages, d.numbers) for run in runs for d in chronicle.disclosed(run)}
    finally:
        chronicle.close()


def disclosed(fed):
    """The same by the sites' ledgers."""
    counted = {}
    for site in SITES:
        for line in (fed.folder / site / "ledger.jsonl").read_text().splitlines():
            entry = json.loads(line)
            if entry["kind"] != "Countersigned":  # it came back
                key = (site, entry.get("run", ""), entry["kind"])
                messages, numbers = counted.get(key, (0, 0))
                counted[key] = (messages + 1, numbers + entry.get("numbers", 0))
    return counted


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def fetched(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
        return answer.read().decode()


def plan_of(fed, run):
    return plan_from_dict(fed.run_of(run)["plan"])


def test_seven_studies_through_a_sigkill_of_every_process_end_on_the_bits_of_their_twins(tmp_path):
    """Five in a row and two at once; whoever is killed is started again by its supervisor, and nobody types anything."""
    studies = {
        "cg": {}, "strong": {"coupling": 2.0}, "slow": SLOW,
        "sweeps": {"schedule": "block-coordinate-descent", "answers": "clear"},
        "last": {"coupling": 0.02}, "left": SLOW | {"coupling": 2.0}, "right": SLOW | {"coupling": 4.0},
    }  # fmt: skip
    with standing(tmp_path) as fed:
        serving = {"coordinator": fed.serve()}
        small = {"west": "ledger_max_bytes = 30000"}  # its ledger is put aside in the middle of runs
        serving |= {site: fed.stays(site, more=small.get(site, "")) for site in SITES}

        def killed(name):
            serving[name].send_signal(signal.SIGKILL)
            ends(serving[name])
            serving[name] = fed.serve() if name == "coordinator" else fed.stays(name, more=small.get(name, ""))

        for name, terms in studies.items():
            fed.study(name, **terms)
        runs = {}
        for name in ("cg", "strong", "slow"):
            runs[name] = fed.submit(name)
            if name != "slow":
                until(lambda run=runs[name]: fed.over(run))
        # In the middle of a run, each of them in turn.
        for number, name in enumerate(("north", "coordinator", "west", "south", "coordinator"), 1):
            until(lambda least=number * 40: fed.answered(runs["slow"]) >= least)
            killed(name)
        until(lambda: fed.over(runs["slow"]))
        # Between two runs, when nobody has anything to do; then while models are on their way.
        killed("coordinator")
        killed("north")
        for name in ("sweeps", "last"):
            runs[name] = fed.submit(name)
            until(lambda run=runs[name]: fed.answered(run) > 0)
            killed("west" if name == "sweeps" else "coordinator")
            until(lambda run=runs[name]: fed.over(run))
        # Two at once.
        runs |= {name: fed.submit(name) for name in ("left", "right")}
        until(lambda: min(fed.answered(runs["left"]), fed.answered(runs["right"])) > 20)
        killed("coordinator")
        until(lambda: min(fed.answered(runs["left"]), fed.answered(runs["right"])) > 60)
        killed("south")
        until(lambda: fed.over(*runs.values()))
        stops = {name: fed.run_of(run)["stop"] for name, run in runs.items()}
        assert stops == {
            name: "MAX_ROUNDS" if terms.get("max_rounds") else "CONVERGED" for name, terms in studies.items()
        }
        for name, run in runs.items():
            assert fed.kept(name, run) == in_process_twin(tmp_path, plan_of(fed, run)), name
        told = well("coreg-coordinator", "verify", "--store", "runs.sqlite", cwd=tmp_path)
        assert "whole; 7 runs" in told
        assert len(list((tmp_path / "west").glob("ledger-*.jsonl"))) > 5
        for site in SITES:
            heads = well("coreg-coordinator", "heads", "--site", site, "--store", "runs.sqlite", "--json", cwd=tmp_path)
            (tmp_path / "heads.json").write_text(heads)
            told = well(
                "coreg-agent",
                "ledger",
                f"{site}/ledger.jsonl",
                "--verify",
                "--heads",
                "heads.json",
                "--json",
                cwd=tmp_path,
            )
            assert json.loads(told)["both"]["run"] in (runs["left"], runs["right"])


def test_what_operators_say_to_a_federation_that_stands(tmp_path):
    """Consent by hand, cancelling, revoking, two agents under one name, a proxy; and nothing of the tables in any log."""
    with proxied() as proxy, standing(tmp_path) as fed:
        pages, numbers = free_port(), free_port()
        coordinator = fed.serve("--web", f"127.0.0.1:{pages}", "--metrics", f"127.0.0.1:{numbers}")
        agents = {
            "north": fed.stays("north", more='approval = "ask"'),
            "south": fed.stays("south"),
            "west": fed.stays("west", env={"https_proxy": proxy.url, "http_proxy": proxy.url, "no_proxy": ""}),
        }
        config = ("--config", "north.toml")
        fed.study("asked")
        fed.study("slow", **(SLOW | {"max_rounds": 9_000}))

        def waiting():
            folder = tmp_path / "north" / "service" / "pending"
            return [path.stem for path in folder.glob("*.json")]

        def asked(study):
            run = fed.submit(study)
            until(lambda: waiting() == [run])
            return run

        agreed = asked("asked")
        assert agreed in well("coreg-agent", "pending", *config, cwd=tmp_path)
        well("coreg-agent", "approve", agreed[:6], *config, cwd=tmp_path)
        until(lambda: fed.over(agreed))
        assert fed.run_of(agreed)["stop"] == "CONVERGED"
        assert proxy.connects == [fed.address], "the agent in the west came through it"

        assert 'coreg_runs_finished_total{stop="CONVERGED",study="asked"} 1.0' in fetched(numbers, "/metrics")
        assert 'coreg_site_connected{site="west"} 1.0' in fetched(numbers, "/metrics")
        assert f"/run/{agreed}" in fetched(pages, "/")
        assert "polyline" in fetched(pages, f"/run/{agreed}")

        fed.study("narrow", model="bandwidth = 1e-6")  # nobody is asked for what the policy refuses on these rows
        narrow = fed.submit("narrow")
        until(lambda: fed.over(narrow))
        assert (fed.run_of(narrow)["stop"], "bandwidth_min=0.5" in fed.run_of(narrow)["reason"]) == ("REFUSED", True)
        assert waiting() == []

        refused = asked("asked")
        well("coreg-agent", "refuse", refused, "--reason", "no consent for this one", *config, cwd=tmp_path)
        until(lambda: fed.over(refused))
        told = fed.run_of(refused)
        assert (told["stop"], "no consent for this one" in told["reason"]) == ("REFUSED", True)

        endless = asked("slow")
        well("coreg-agent", "approve", endless, *config, cwd=tmp_path)
        until(lambda: fed.answered(endless) > 5)
        well("coreg-coordinator", "cancel", endless, "--reason", "enough of it", "--store", "runs.sqlite", cwd=tmp_path)
        until(lambda: fed.over(endless))
        assert (fed.run_of(endless)["stop"], fed.run_of(endless)["reason"]) == ("CANCELLED", "enough of it")
        queued = asked("slow")  # and one that nobody approves is cancelled while it waits
        well("coreg-coordinator", "cancel", queued, "--store", "runs.sqlite", cwd=tmp_path)
        until(lambda: fed.over(queued) and waiting() == [])

        second = fed.stays("north", tag="-2")
        assert ends(agents["north"]) == 4
        assert "another agent has joined under this name" in fed.said("north")
        assert second.poll() is None

        well("coreg-coordinator", "revoke", "south", "--identity", "co", cwd=tmp_path)
        until(lambda: "it was never signed here, or was revoked" in fed.said("south"))
        assert agents["south"].poll() is None, "its operator may sign it again"

        def sites():
            told = well("coreg-coordinator", "sites", "--store", "runs.sqlite", "--json", cwd=tmp_path)
            return {line["site"]: line for line in map(json.loads, told.splitlines())}

        until(lambda: not sites()["south"]["connected"])
        assert "was revoked" in sites()["south"]["refusal"]
        assert sites()["west"]["connected"]

        rows = [line.split(",") for site in SITES for line in (tmp_path / f"{site}.csv").read_text().splitlines()[1:]]
        logged = "".join((tmp_path / f"{name}.err").read_text() for name in ("coordinator", *SITES, "north-2"))
        assert not {cell for _, *cells in rows for cell in cells if cell} & set(re.findall(r"[-+.\w]+", logged))
        assert not {row[0] for row in rows} & set(re.findall(r"\w+", logged)), "no id of an instance"
        assert "PRIVATE KEY" not in logged
        coordinator.send_signal(signal.SIGTERM)
        assert ends(coordinator) == 0
