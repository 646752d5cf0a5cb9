"""`run`: the service with one study, and agents of one run, over mutual TLS, to the same bits
whatever happens to them.
"""

import re
import shlex
import signal

import numpy as np
import pytest
from federation import BRISK, LONG, SITES, as_json, federation, run, until, well

from benchmarks.one_table import one_table
from coreg_core.estimators import CoRLSR
from site_agent.data.inputs import Inputs
from site_agent.data.prepare import prepare
from site_agent.data.tables import read_table
from site_agent.models.file import load_model

pytestmark = pytest.mark.e2e


def test_three_sites_reach_the_closed_form_and_every_message_is_in_their_ledgers(tmp_path):
    with federation(tmp_path) as fed:
        fed.study("one")
        coordinator = fed.run("one")
        agents = fed.all_join()
        assert coordinator.wait() == 0, fed.last("coordinator")
        assert [agent.wait() for agent in agents.values()] == [0, 0, 0], fed.last("north")
        assert fed.models() == fed.undisturbed(), "masks and the wire change no bit"
        end = fed.events()[-1]
        assert end["event"] == "finished"
        assert end["stop"] == "CONVERGED"

        # The plan's tolerance bounds the distance to the closed form by 1e-7.
        tables = {
            s: prepare(Inputs(table=tmp_path / f"{s}.csv", target="y", id="id")) for s in SITES
        }
        data = [table.data for table in tables.values()]
        views, pooled = one_table(
            [d.X for d in data], [d.y - d.y.mean() for d in data], [d.Z for d in data]
        )
        central = CoRLSR(preset="paper", views=views, coupling=0.1).fit(**pooled)
        for v, site in enumerate(SITES):
            predicted = load_model(fed.model(site)).predict(tables[site].table.unlabelled)
            off = predicted - data[v].y.mean() - central.predictions_unlabelled_[v]
            assert np.linalg.norm(off) <= 1e-7
        well(
            "coreg-agent",
            "predict",
            "--model",
            fed.model("north"),
            "--data",
            "north.csv",
            "--id",
            "id",
            cwd=tmp_path,
        )
        predictions = read_table(tmp_path / "predictions.csv")
        assert predictions.columns == ["id", "prediction"]
        assert len(predictions) == 70

        [listed] = fed.runs()
        [shown] = as_json("coreg-coordinator", "show", listed["run"][:6], cwd=tmp_path)
        assert len(shown["rounds"]) == listed["steps"] == fed.answered()
        assert listed["rounds"] == end["rounds"] == shown["rounds"][-1]["round"]
        assert listed["ended"] is not None

        # Labels leave once: one affine answer, and linear ones from then on.
        ledger = as_json("coreg-agent", "ledger", "north/ledger.jsonl", cwd=tmp_path)
        kinds = [e["kind"] for e in ledger]
        assert [k for k in kinds if k != "Answer"] == [
            "Hello",
            "Offer",
            "Fetched",
            "Countersigned",
            "Leaving",
        ]
        asked = [e["question"] for e in ledger if "question" in e]
        assert asked == ["keys", "sizes", "respond affine"] + ["respond linear"] * (len(asked) - 3)
        # Both sides have signed where the ledger stood, and the coordinator's record fits.
        (tmp_path / "c.json").write_text(
            well("coreg-coordinator", "show", listed["run"], "--json", cwd=tmp_path)
        )
        verify = ("ledger", "north/ledger.jsonl", "--verify", "--checkpoints", "c.json")
        assert as_json("coreg-agent", *verify, cwd=tmp_path)[0]["both"]["head"][
            "lines"
        ] == kinds.index("Fetched")
        whole = (tmp_path / "north" / "ledger.jsonl").read_bytes().splitlines(keepends=True)
        (tmp_path / "north" / "ledger.jsonl").write_bytes(b"".join(whole[:4]))
        code, _, why = run("coreg-agent", *verify, cwd=tmp_path)
        assert code == 8
        assert "its last lines were removed" in why
        private = [
            *tmp_path.glob("*/site.key"),
            *tmp_path.glob("co/*.key"),
            *tmp_path.glob("*-models/*/*/*.coreg"),
        ]
        assert len(private) == 3 + 2 + 6
        assert {path.stat().st_mode & 0o777 for path in private} == {0o600}


@pytest.mark.drill
def test_a_killed_run_begins_again_and_ends_on_the_same_bits_and_a_stalled_one_ends(
    tmp_path,
):
    with federation(tmp_path, round=2, stall=2) as fed:
        fed.study("long", **LONG)
        coordinator = fed.run("long")
        agents = fed.all_join()
        until(lambda: fed.answered() >= 20)
        agents["west"].kill()
        assert coordinator.wait() == 5, fed.last("coordinator")
        assert [agents[site].wait() for site in ("north", "south")] == [5, 5]
        assert "stalled" in fed.said("north")
        assert [r["stop"] for r in fed.runs()] == ["STALLED"]

        fed.timeouts()
        stalled_at = fed.answered()
        coordinator = fed.run("long")
        agents = fed.all_join()
        until(lambda: fed.answered() >= stalled_at + 30)
        agents["south"].kill()
        killed_at = fed.answered()
        agents["south"] = fed.joins("south")
        until(lambda: fed.answered() >= killed_at + 20)
        coordinator.kill()

        coordinator = fed.run("long", json=False)  # the agents dial again by themselves
        assert coordinator.wait() == 3, fed.last("coordinator")
        assert [agent.wait() for agent in agents.values()] == [3, 3, 3], fed.last("south")
        assert "begins again after 2 attempts" in fed.said("coordinator")
        assert [r["rounds"] for r in fed.runs() if r["stop"] != "STALLED"] == [
            LONG["max_rounds"]
        ], "one run"
        assert fed.models() == fed.undisturbed()
        [pasted] = re.findall(
            r"show this run again: (coreg-coordinator show .*)", fed.said("coordinator")
        )
        shown = well(*shlex.split(pasted), cwd=tmp_path)
        assert shown.startswith("run ")
        assert shown.splitlines()[-1].split(":")[0] == "max_rounds"


def test_run_ends_with_the_documented_code_of_its_studys_end(tmp_path):
    """Of agents that serve: they stay from one coordinator to the next."""
    with federation(tmp_path) as fed:
        clear = {
            "solver": "block-coordinate-descent",
            "aggregation": "plaintext",
            "prediction_tolerance": 1e-6,
        }
        fed.study("coupled", coupling=0.3)
        fed.study("clear", **clear)
        fed.policy("strict.toml", 'max_rounds = 20\naggregation = "secure"')

        def ended(study):
            code = fed.run(study, first=BRISK).wait()
            end = fed.events()[-1]
            return code, end["stop"], end["reason"]

        coordinator = fed.run("coupled", first=BRISK)
        policies = dict.fromkeys(SITES, "policy.toml") | {"south": "strict.toml"}
        agents = {site: fed.stays(site, policy=policy) for site, policy in policies.items()}
        assert coordinator.wait() == 4
        assert "max_rounds = 20" in fed.events()[-1]["reason"]
        code, stop, reason = ended("clear")
        assert code == 4
        assert stop == "REFUSED"
        assert 'aggregation = "plaintext" would show the coordinator' in reason
        agents["south"].send_signal(signal.SIGTERM)
        assert agents["south"].wait() == 0
        fed.stays("south")  # with another policy
        assert ended("clear")[:2] == (0, "CONVERGED")
        assert fed.events(event="answers_in_clear")
        assert any("IN THE CLEAR" in e["text"] for e in fed.events("north", "plan"))
