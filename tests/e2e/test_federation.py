"""The whole service: agents and a coordinator as processes, over mutual TLS, to the same bits whatever happens to them."""

import json
import signal

import numpy as np
import pytest
from federation import SITES, ends, federation, run, until, well

from coreg_core.estimators import CoRLSR
from site_agent.data.prepare import Inputs, prepare
from site_agent.data.tables import read_table
from site_agent.models.file import load_model

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

# Some hundreds of rounds of a few milliseconds: long enough to be killed in the middle.
LONG = {"schedule": "consensus", "coupling": 3.0, "tolerance": 0.0, "prediction_tolerance": 0.0, "max_rounds": 400}


def values(model):
    """The parts of a model that must not differ by a bit, whichever run it came of."""
    return model.function.points.tobytes(), model.function.coef.tobytes(), model.shift, model.divisor


def undisturbed(fed, tag="-undisturbed"):
    """The same plan and tables, run by nobody but itself."""
    coordinator = fed.coordinator(store=f"runs{tag}.sqlite")
    agents = [fed.agent(site, tag=tag) for site in SITES]
    assert ends(coordinator) == 3
    assert [ends(agent) for agent in agents] == [3, 3, 3]
    return {site: values(load_model(fed.folder / f"{site}{tag}.model")) for site in SITES}


def test_three_sites_reach_the_closed_form(tmp_path):
    with federation(tmp_path) as fed:
        coordinator = fed.coordinator()
        agents = [fed.agent(site, "--alone", f"{site}-alone.model") for site in reversed(SITES)]
        assert ends(coordinator) == 0, fed.said("coordinator")
        assert [ends(agent) for agent in agents] == [0, 0, 0], fed.said("north")
        said = [json.loads(line) for line in fed.said("coordinator").splitlines()]
        assert said[-1]["event"] == "finished"
        assert said[-1]["stop"] == "CONVERGED"
        prepared = {s: prepare(Inputs(tmp_path / f"{s}.csv", "y", "id")) for s in SITES}
        central = CoRLSR(coupling=0.1).fit(
            [p.data.X for p in prepared.values()],
            [p.data.y - p.data.y.mean() for p in prepared.values()],
            [p.data.Z for p in prepared.values()],
        )
        bound = said[-1]["last"]["prediction_bound"]
        assert bound <= 1e-8
        for v, site in enumerate(SITES):
            model, p = load_model(tmp_path / f"{site}.model"), prepared[site]
            off = model.predict(p.table.unlabelled) - p.data.y.mean() - central.predictions_unlabelled_[v]
            # The certificate bounds the run; both solutions' own rounding is far below 1e-10.
            assert np.linalg.norm(off) <= bound + 1e-10
        well("coreg-agent", "predict", "--model", "north.model", "--data", "north.csv", "--id", "id", cwd=tmp_path)
        predictions = read_table(tmp_path / "predictions.csv")
        assert predictions.columns == ["id", "prediction"]
        assert len(predictions) == 70
        runs = [json.loads(x) for x in well("coreg-coordinator", "runs", "--json", cwd=tmp_path).splitlines()]
        shown = json.loads(well("coreg-coordinator", "show", runs[0]["run"][:6], "--json", cwd=tmp_path))
        assert shown["stop"] == "CONVERGED"
        assert len(shown["rounds"]) == runs[0]["questions"] == fed.rounds()
        assert runs[0]["rounds"] == said[-1]["rounds"] == shown["rounds"][-1]["round"]
        assert runs[0]["closed"] is not None
        ledger = [
            json.loads(x)
            for x in well("coreg-agent", "ledger", "north/ledger.jsonl", "--json", cwd=tmp_path).splitlines()
        ]
        kinds = [e["kind"] for e in ledger]
        others = [kind for kind in kinds if kind != "Masked"]
        assert others == ["Hello", "PlanAccepted", "Fetched", "Countersigned", "Leaving"]
        # Labels leave once: one affine answer, and linear ones from then on.
        parts = [e["part"] for e in ledger if e["kind"] == "Masked"]
        assert parts == ["affine"] + ["linear"] * (len(parts) - 1)
        # Both sides have signed where the ledger stood, and the coordinator's record fits.
        heads = well("coreg-coordinator", "heads", "--site", "north", "--json", cwd=tmp_path)
        (tmp_path / "heads.json").write_text(heads)
        held = ("--verify", "--heads", "heads.json")
        told = well("coreg-agent", "ledger", "north/ledger.jsonl", *held, "--json", cwd=tmp_path)
        assert json.loads(told)["both"]["head"]["lines"] == kinds.index("Fetched")
        whole = (tmp_path / "north" / "ledger.jsonl").read_bytes().splitlines(keepends=True)
        (tmp_path / "north" / "ledger.jsonl").write_bytes(b"".join(whole[:4]))
        code, _, why = run("coreg-agent", "ledger", "north/ledger.jsonl", *held, cwd=tmp_path)
        assert (code, "the end was cut off" in why) == (8, True)
        keys = [*tmp_path.glob("*/site.key"), *tmp_path.glob("co/*.key"), *tmp_path.glob("*.model")]
        assert len(keys) == 3 + 2 + 6
        assert {path.stat().st_mode & 0o777 for path in keys} == {0o600}


def test_a_killed_coordinator_and_a_killed_agent_end_on_the_same_bits(tmp_path):
    with federation(tmp_path, **LONG) as fed:
        expected = undisturbed(fed)
        coordinator = fed.coordinator()
        agents = {site: fed.agent(site) for site in SITES}
        until(lambda: fed.rounds() >= 30)
        coordinator.send_signal(signal.SIGKILL)
        ends(coordinator)
        killed_at = fed.rounds()
        assert killed_at < 400, "it was over before it was killed"
        coordinator = fed.coordinator(listen=fed.address)  # the agents dial the old address, by themselves
        until(lambda: fed.rounds() >= killed_at + 30)
        agents["south"].send_signal(signal.SIGKILL)
        ends(agents["south"])
        agents["south"] = fed.agent("south")
        assert ends(coordinator) == 3, fed.said("coordinator")
        assert [ends(agent) for agent in agents.values()] == [3, 3, 3], fed.said("south")
        assert "taking up run" in fed.said("coordinator")
        assert {s: values(load_model(tmp_path / f"{s}.model")) for s in SITES} == expected
        runs = [json.loads(x) for x in well("coreg-coordinator", "runs", "--json", cwd=tmp_path).splitlines()]
        assert len(runs) == 1
        assert runs[0]["questions"] == 400


def test_a_run_that_stalled_for_good_goes_on_under_the_same_command_to_the_same_bits(tmp_path):
    with federation(tmp_path, **LONG, round=2, stall=1) as fed:
        expected = undisturbed(fed)
        coordinator = fed.coordinator()
        agents = {site: fed.agent(site) for site in SITES}
        until(lambda: fed.rounds() >= 30)
        agents["west"].send_signal(signal.SIGKILL)
        assert ends(coordinator) == 5, fed.said("coordinator")
        assert [ends(agents[site]) for site in ("north", "south")] == [5, 5]
        assert "it takes the run up where it was" in fed.said("north")
        stalled_at = fed.rounds()
        assert stalled_at < 400
        runs = [json.loads(x) for x in well("coreg-coordinator", "runs", "--json", cwd=tmp_path).splitlines()]
        assert [r["ended"] for r in runs] == [None]
        coordinator = fed.coordinator()
        again = [fed.agent(site) for site in SITES]
        assert ends(coordinator) == 3, fed.said("coordinator")
        assert [ends(agent) for agent in again] == [3, 3, 3]
        assert f"at question {stalled_at}" in fed.said("coordinator")
        assert {s: values(load_model(tmp_path / f"{s}.model")) for s in SITES} == expected


def test_an_agent_that_comes_back_with_other_data_is_refused(tmp_path):
    with federation(tmp_path, **(LONG | {"max_rounds": 4000}), stall=3) as fed:
        coordinator = fed.coordinator()
        agents = {site: fed.agent(site) for site in SITES}
        until(lambda: fed.rounds() >= 10)
        agents["west"].send_signal(signal.SIGKILL)
        ends(agents["west"])
        table = tmp_path / "west.csv"
        lines = table.read_text().splitlines()
        table.write_text("\n".join([*lines[:-1], lines[-1] + "5"]) + "\n")
        assert ends(fed.agent("west", tag="-again")) == 4
        assert "came back with another data" in fed.said("west-again")
        coordinator.send_signal(signal.SIGINT)
        assert ends(coordinator) == 130, fed.said("coordinator")
        agents["north"].send_signal(signal.SIGINT)
        assert ends(agents["north"]) == 130


def test_who_may_not_join(tmp_path):
    with federation(tmp_path, join=12) as fed:  # on a loaded machine an agent takes seconds to start
        coordinator = fed.coordinator()
        allowed = tmp_path / "co" / "authorised-sites"
        allowed.write_text("\n".join(x for x in allowed.read_text().splitlines() if not x.startswith("west")) + "\n")
        assert ends(fed.agent("west")) == 4  # revoked: no restart was needed
        assert "is not in" in fed.said("west")
        [told] = [event for event in fed.events() if event["event"] == "session_turned_away"]
        assert told["name"] == "west"
        assert "never signed here, or was revoked" in told["text"]
        code, _out, err = run(
            "coreg-agent", "--data", "north.csv", "--target", "y", "--id", "id", "--identity", "stranger", "--coordinator",
            fed.address, cwd=tmp_path,
        )  # fmt: skip
        assert code == 2, err
        assert "coreg-agent enroll" in err
        assert "Traceback" not in err
        assert ends(coordinator) == 5
        assert "TOO_FEW_SITES" in fed.said("coordinator")


def test_a_policy_that_refuses(tmp_path):
    with federation(tmp_path) as fed:
        fed.policy("strict.toml", "coupling_max = 0.05")
        coordinator = fed.coordinator()
        agents = [fed.agent(site, *(["--policy", "strict.toml"] if site == "south" else [])) for site in SITES]
        assert ends(coordinator) == 4
        assert [ends(agent) for agent in agents] == [4, 4, 4], fed.said("south")
        assert "coupling_max=0.05" in fed.said("coordinator")


def test_agents_wait_for_a_coordinator_that_starts_late(tmp_path):
    with federation(tmp_path) as fed:
        first = fed.coordinator()
        first.send_signal(signal.SIGTERM)
        assert ends(first) == 130
        agents = [fed.agent(site) for site in SITES]
        until(lambda: all("no session" in fed.said(site) for site in SITES))
        coordinator = fed.coordinator(listen=fed.address)
        assert ends(coordinator) == 0
        assert [ends(agent) for agent in agents] == [0, 0, 0]


def test_algorithm_1_needs_each_answer_so_it_runs_in_the_clear_where_every_policy_says_so(tmp_path):
    """The project exists to run it. Sums cannot serve it, and the sentence says why; every site has to say "clear"."""
    with federation(tmp_path, schedule="block-coordinate-descent", answers="clear", prediction_tolerance=1e-6) as fed:
        coordinator = fed.coordinator()
        agents = [fed.agent(site, *fed.policy("sums.toml", 'answers = "sums"')) for site in SITES]
        assert ends(coordinator) == 4, fed.said("coordinator")
        assert [ends(agent) for agent in agents] == [4, 4, 4]
        assert "answers='clear' would show the coordinator each of this site's answers" in fed.said("coordinator")

        coordinator = fed.coordinator("--new")
        agents = [fed.agent(site, *fed.policy("clear.toml", 'answers = "clear"')) for site in SITES]
        assert ends(coordinator) == 0, fed.said("coordinator")
        assert [ends(agent) for agent in agents] == [0, 0, 0], fed.said("north")
        assert "IN THE CLEAR" in fed.said("north")
        assert any(event["event"] == "answers_in_clear" for event in fed.events())

        fed.configure(schedule="block-coordinate-descent", answers="sums")
        code, _out, err = run("coreg-coordinator", "run", "co/federation.toml", cwd=tmp_path)
        assert code == 2
        assert "no sum hides it" in err


def test_masks_change_no_bit_of_a_model(tmp_path):
    with federation(tmp_path) as fed:
        for answers in ("sums", "clear"):
            fed.configure(answers=answers)
            coordinator = fed.coordinator(store=f"{answers}.sqlite")
            policy = fed.policy("either.toml", 'answers = "clear"')
            agents = [fed.agent(site, *policy, tag=f"-{answers}") for site in SITES]
            assert ends(coordinator) == 0, fed.said("coordinator")
            assert [ends(agent) for agent in agents] == [0, 0, 0], fed.said(f"north-{answers}")
        models = [{s: values(load_model(tmp_path / f"{s}-{a}.model")) for s in SITES} for a in ("sums", "clear")]
        assert models[0] == models[1]
