"""check --plan: a plan that is judged beforehand, by the policy, the rows and the ledger."""

import json
import re

import pytest
from agent_files import agent, inputs, write
from checked_folder import INSECURE, TABLE, check, made
from ledger_home import answer, offer, told
from typer.testing import CliRunner

from coordinator.cli.app import app as coordinator_app
from coreg_core.errors import StorageError, UsageError
from coreg_core.objectives.agreement import Agreement
from coreg_core.protocol.plan import plan_from_dict
from coreg_wire.files.toml_file import read_plan
from site_agent.data.prepare import prepare, site_salt
from site_agent.ledger import Ledger

FEDERATION = """
[federation]
name = "tried"
sites = ["east", "north"]
[model]
coupling = 0.01
form = "exact"
bandwidth = {bandwidth}
ridge = {ridge}
[privacy]
aggregation = "plaintext"
[alignment]
align = false
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return made(tmp_path)


def planned(folder, bandwidth=3.0, ridge=1.0):
    """What `coreg-coordinator plan` prints."""
    write(folder, FEDERATION.format(bandwidth=bandwidth, ridge=ridge), "federation.toml")
    return json.loads(CliRunner().invoke(coordinator_app, ["plan", "federation.toml"], catch_exceptions=False).stdout)


def judged(folder, plan):
    write(folder, json.dumps(plan), "plan.json")
    code, verdicts = check(*TABLE, *INSECURE, "--policy", "policy.toml", "--plan", "plan.json")
    found = [v for v in verdicts if v["check"] == "plan"]
    return code, [v["text"] for v in found if v["ok"]], [v["text"] for v in found if not v["ok"]]


def test_a_plan_that_suits_this_site_and_one_that_is_chosen_against_it(folder):
    code, good, wrong = judged(folder, planned(folder, '"paper"', '"paper"'))
    assert (code, wrong) == (0, [])
    assert good == ["plan: this site would take part in it; 0 of at most 10020 answers are given"]
    code, _, wrong = judged(folder, planned(folder, 1e-6, 1e-6))
    assert (code, len(wrong)) == (4, 2)
    assert ("is below 0.5 times" in wrong[0], "is below 0.01 times" in wrong[1]) == (True, True)
    assert re.search(r"\(here it is \S+e-07 times that distance\)", wrong[0])
    assert "(here it is 1e-06 times that mean)" in wrong[1]


def test_a_plan_for_a_data_set_of_another_name_says_so(folder):
    write(folder, '[data.patient]\ntable = "north.csv"\ntarget = "y"\nid = "id"\n', "agent.toml")
    plan = planned(folder) | {"data": "patients"}
    write(folder, json.dumps(plan), "plan.json")
    _, verdicts = check("--config", "agent.toml", *INSECURE, "--policy", "policy.toml", "--plan", "plan.json")
    [wrong] = [v["text"] for v in verdicts if v["check"] == "plan"]
    assert "its data set is 'patients', and agent.toml has [data.patient]. Rename the section" in wrong


def test_all_reasons_against_a_plan_are_given_at_once(folder):
    write(folder, 'aggregation = "secure"\nsolvers = ["block-coordinate-descent"]\nmax_rounds = 7\n', "policy.toml")
    plan = planned(folder)
    plan["membership"]["sites"] = ["east", "south"]
    _, _, wrong = judged(folder, {"asked": "today", "plan": plan})  # as `pending --json` has it
    words = (
        '(aggregation = "secure"). To allow it: aggregation = "plaintext"',
        'To allow it: solvers = ["block-coordinate-descent", "conjugate-gradients"]',
        "max_rounds = 7. To allow it: max_rounds = 1000",
        "does not list north",
    )
    assert [word in text for word, text in zip(words, wrong, strict=True)] == [True] * 4


def test_a_file_that_is_no_plan_or_one_beyond_its_limits_is_refused(folder):
    good, path = planned(folder), folder / "plan.json"
    path.write_text(json.dumps(good))
    assert read_plan(path) == plan_from_dict(good)
    for text, words in (
        ("[1, 2]", "not a plan"),
        ("{}", "not a plan"),
        ("not JSON", "not a plan"),
        ("[" * 100_000, "not a plan"),
        (json.dumps({**good, "objective": {**good["objective"], "ridge": -1.0}}), "ridge"),
        (json.dumps({**good, "membership": {**good["membership"], "sites": ["east", "east"]}}), "twice"),
        (json.dumps({**good, "objective": {**good["objective"], "form": "best"}}), "form"),
    ):
        path.write_text(text)
        with pytest.raises(UsageError, match=words):
            read_plan(path)
    with pytest.raises(UsageError, match="cannot be read"):
        read_plan(folder / "none.json")


# --- a plan that the ledger forbids -------------------------------------------------------------------------------


@pytest.fixture
def answered(folder):
    """A plan of sealed sums that this site has answered: its ledger has the sites."""
    write(folder, "max_rounds = 1000\n", "policy.toml")
    plan = planned(folder, '"paper"', '"paper"')
    plan["membership"] |= {"sites": ["east", "north", "west"], "min_sites": 3}
    plan["privacy"]["aggregation"] = "secure"
    (folder / "identity").mkdir()
    data = prepare(inputs(folder / "north.csv"), site_salt(folder / "identity" / "salt", folder / "no-ledger")).data
    ledger = Ledger(folder / "identity" / "ledger.jsonl")
    ledger.memory.know_as(data.ids_digest, data.instances)
    ledger.record(offer(plan=plan_from_dict(plan).digest, ids=data.ids_digest))
    ledger.record(answer(), told(("east", "north", "west")))
    ledger.close()
    return plan


def test_the_plan_that_was_answered_is_accepted_again(folder, answered, monkeypatch):
    code, _, wrong = judged(folder, answered)
    assert (code, wrong) == (0, [])
    monkeypatch.setattr(Agreement, "most_answers", lambda self, plan: 1)
    code, _, wrong = judged(folder, answered)
    assert (code, len(wrong)) == (4, 1)
    assert "1 answers to this plan on these instances are given, over all runs, of at most 1" in wrong[0]


def test_a_plan_with_other_sites_on_the_same_instances_is_refused_by_the_ledger(folder, answered):
    answered["membership"]["sites"] = ["east", "north", "south"]
    code, _, wrong = judged(folder, answered)
    assert code == 4
    assert "this site was summed with east, north, west on these instances" in wrong[0]


def test_the_plan_is_judged_while_the_agent_holds_the_ledger_and_check_makes_no_secret(folder, answered):
    ledger = Ledger(folder / "identity" / "ledger.jsonl")
    assert judged(folder, answered)[0] == 0
    ledger.close()
    (folder / "identity" / "salt").unlink()
    judged(folder, answered)
    assert not (folder / "identity" / "salt").exists()


def test_a_lost_secret_a_broken_ledger_and_a_lost_ledger_are_found_before_joining(folder, answered):
    path, salt = folder / "identity" / "ledger.jsonl", folder / "identity" / "salt"
    arguments = ("check", *TABLE, *INSECURE[:3])
    done = agent(*arguments)
    assert (done.exit_code, "ok     ledger: identity/ledger.jsonl, " in done.stdout) == (0, True)
    kept, lines = salt.read_bytes(), path.read_bytes().splitlines(keepends=True)
    salt.unlink()
    done = agent(*arguments)
    assert (
        done.exit_code,
        "WRONG  ledger: identity/salt is missing, and identity/ledger.jsonl has answers" in done.stdout,
    ) == (8, True)
    with pytest.raises(StorageError, match="Restore both from the same backup"):
        site_salt(salt, path)
    assert not salt.exists()
    salt.write_bytes(kept)
    path.write_bytes(b"".join([lines[0].replace(b"at", b"ta"), *lines[1:]]))
    done = agent(*arguments)
    assert (done.exit_code, "the chain is broken" in done.stdout) == (8, True)
    path.unlink()
    assert (
        "WARN   ledger: identity/ledger.jsonl has no line, which is normal before the first run."
        in agent(*arguments).stdout
    )
