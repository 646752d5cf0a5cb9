"""`coreg-coordinator plan` and `coreg-agent check --plan`: a plan is judged before anybody is dialled, and every reason told."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from coordinator.cli.app import app as coordinator_app
from coreg_core.errors import UsageError
from coreg_core.protocol.plan import plan_from_dict
from coreg_wire.files.plan_file import read_plan
from site_agent.cli.app import app as agent_app

FEDERATION = """
[federation]
name = "tried"
sites = ["east", "north"]
[model]
form = "exact"
bandwidth = {bandwidth}
ridge = {ridge}
[privacy]
answers = "clear"
"""
WORDS = (
    "--data north.csv --target y --id id --insecure --name north --coordinator 127.0.0.1:9 --policy policy.toml --json"
)


def asked(app, *words):
    """Exit code and lines, in this process: nothing here needs one of its own."""
    done = CliRunner().invoke(app, [*map(str, words)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = [f"{i},{a:.6f},{b:.6f},{a + b if i < 9 else ''}" for i, (a, b) in enumerate(rng.normal(size=(20, 2)))]
    (tmp_path / "north.csv").write_text("\n".join(["id,u,v,y", *rows]) + "\n")
    (tmp_path / "policy.toml").write_text('answers = "clear"\n')
    return tmp_path


def judged(folder, bandwidth, ridge):
    (folder / "federation.toml").write_text(FEDERATION.format(bandwidth=bandwidth, ridge=ridge))
    code, [plan] = asked(coordinator_app, "plan", "federation.toml")
    assert code == 0
    (folder / "plan.json").write_text(json.dumps(plan))
    code, told = asked(agent_app, "check", *WORDS.split(), "--plan", "plan.json")
    return code, [t for t in told if t["check"] == "plan"]


def test_a_plan_that_suits_this_site_and_one_that_is_chosen_against_it(folder):
    code, told = judged(folder, '"paper"', '"paper"')
    assert code == 0
    assert [t["ok"] for t in told] == [True, True]
    assert "one label of this site would be" in told[0]["text"]
    assert told[-1]["text"] == "plan: this site would take part in it"

    code, told = judged(folder, 1e-6, 1e-6)
    assert code == 4
    wrong = [t["text"] for t in told if not t["ok"]]
    assert ["bandwidth_min=0.5" in wrong[0], "ridge_min=0.01" in wrong[1], len(wrong)] == [True, True, 2]
    figures = [t["text"] for t in told if t["ok"]]
    assert figures[0].startswith("plan: its bandwidth is ")
    assert figures[1].startswith("plan: its ridge is 1e-06 times")


def test_all_that_would_refuse_it_at_once(folder):
    (folder / "policy.toml").write_text('answers = "sums"\nforms = ["landmarks"]\nmax_rounds = 7\n')
    _, [plan] = asked(coordinator_app, "plan", _written(folder))
    plan["membership"]["sites"] = ["east", "south"]
    (folder / "plan.json").write_text(json.dumps({"asked": "today", "plan": plan}))  # as `pending --json` has it
    _, told = asked(agent_app, "check", *WORDS.split(), "--plan", "plan.json")
    wrong = [each["text"] for each in told if each["check"] == "plan" and not each["ok"]]
    for word, text in zip(
        ("does not list north", "max_rounds=7", "answers='clear'", "forms=['landmarks']"), wrong, strict=True
    ):
        assert word in text


def _written(folder):
    (folder / "federation.toml").write_text(FEDERATION.format(bandwidth=3.0, ridge=1.0))
    return folder / "federation.toml"


def test_a_file_that_is_no_plan_or_one_beyond_its_limits_is_a_sentence(folder):
    _, [good] = asked(coordinator_app, "plan", _written(folder))
    path = folder / "plan.json"
    path.write_text(json.dumps(good))
    assert read_plan(path) == plan_from_dict(good)
    twice = {**good, "membership": {**good["membership"], "sites": ["east", "east"]}}
    beyond = {**good, "objective": {**good["objective"], "ridge": -1.0}}
    for text, said in (
        ("[1, 2]", "no plan"),
        ("{}", "no plan"),
        ("not JSON", "no plan"),
        ("[" * 100_000, "no plan"),
        (json.dumps(beyond), "ridge"),
        (json.dumps(twice), "twice"),
        (json.dumps({**good, "objective": {**good["objective"], "form": "best"}}), "form"),
    ):
        path.write_text(text)
        with pytest.raises(UsageError, match=said):
            read_plan(path)
    with pytest.raises(UsageError, match="cannot be read"):
        read_plan(folder / "none.json")
