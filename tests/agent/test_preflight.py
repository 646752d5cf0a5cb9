"""check: everything that can be found out before joining, each with its verdict; and a plan that is judged beforehand."""

import json
import re
from unittest import mock

import numpy as np
import pytest
from agent_files import agent, inputs, write
from ledger_home import answer, offer, told
from typer.testing import CliRunner

from coordinator.cli.app import app as coordinator_app
from coreg_core.errors import StorageError, UsageError
from coreg_core.objectives.agreement import Agreement
from coreg_core.protocol.plan import plan_from_dict
from coreg_wire.files.toml_file import read_plan
from coreg_wire.terminal import command_line
from coreg_wire.terminal.command_line import owner_hint
from site_agent.data.prepare import prepare, site_salt
from site_agent.ledger import Ledger

TABLE = ("--data", "north.csv", "--target", "y", "--id", "id")
INSECURE = ("--insecure", "--name", "north", "--coordinator", "127.0.0.1:9")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """With a table of 9 labelled rows and 11 others, and a policy."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = [f"{i},{a:.6f},{b:.6f},{a + b if i < 9 else ''}" for i, (a, b) in enumerate(rng.normal(size=(20, 2)))]
    write(tmp_path, "\n".join(["id,u,v,y", *rows, ""]), "north.csv")
    write(tmp_path, 'aggregation = "plaintext"\n', "policy.toml")
    return tmp_path


def check(*words):
    """The exit code, and the verdicts: true, false, or None for what was skipped."""
    done = agent("check", *words, "--json")
    return done.exit_code, [json.loads(line) for line in done.stdout.splitlines()]


def test_each_check_has_its_own_verdict(folder):
    write(folder, (folder / "north.csv").read_text().replace("\n3,", "\n3,1;", 1), "typo.csv")
    code, verdicts = check(*TABLE, "--data", "typo.csv", "--coordinator", "127.0.0.1:9")
    assert code == 6
    wrong = [v["text"] for v in verdicts if v["ok"] is False]
    assert [text.split(":")[0] for text in wrong] == ["table", "identity"], "the coordinator is not to blame"
    assert ("line 5" in wrong[0], "coreg-agent join" in wrong[1]) == (True, True)
    [skipped] = [v for v in verdicts if v["ok"] is None]
    assert skipped["text"] == "not checked: connection (127.0.0.1:9: no identity)"
    done = agent("check", *TABLE, *INSECURE[:3], "--coordinator", "localhost")
    assert done.exit_code == 2
    assert [line for line in done.stdout.splitlines() if line.startswith("WRONG")] == [
        "WRONG  connection: coordinator localhost (--coordinator, or agent.toml): expected HOST:PORT, as in example.org:7600."
    ]


def test_without_a_coordinator_all_but_the_connection_is_checked(folder):
    done = agent("check", *TABLE, *INSECURE[:3])
    lines = done.stdout.splitlines()
    assert done.exit_code == 0
    assert [line.split(":")[0] for line in lines] == [
        "ok     versions", "ok     ledger", "ok     table", "WARN   ids", "ok     policy", "ok     modes", "ok     identity",
        "not checked", "ok     output",
    ]  # fmt: skip
    assert "texts with at most" in lines[3], "the ids of this table are small numbers"
    assert lines[7] == "not checked: connection (no --coordinator)"


# --- before an alignment --------------------------------------------------------------------------------------------


def test_a_table_without_unlabelled_rows_is_a_warning_since_an_alignment_can_find_the_shared_ids(folder):
    write(folder, "id,u,y\n" + "".join(f"patient-{i:05d},{i},{i / 7}\n" for i in range(40)), "whole.csv")
    done = agent("check", *TABLE, "--data", "whole.csv", *INSECURE)
    assert done.exit_code == 0, done.stdout
    [warning, *_] = [line for line in done.stdout.splitlines() if line.startswith("WARN")]
    assert "no row has an empty 'y'" in warning
    assert "A run aligns the ids first" in warning
    assert "ok     ids: 40 ids, as an alignment compares them: 'patient-00000'" in done.stdout


def test_a_column_that_is_no_id_is_one_fault_and_the_id_is_suggested(folder):
    rows = "".join(f"{i % 6},p{i},{i},{i if i < 4 else ''}\n" for i in range(40))
    write(folder, "group,patient,u,y\n" + rows, "north.csv")
    code, found = check("--data", "north.csv", "--target", "y", "--id", "group", *INSECURE)
    wrong = [each["text"] for each in found if each["ok"] is False and each["check"].startswith("table")]
    assert code == 6
    assert any("'group' is no id of these rows: 36 shared instances have 6 different values" in text for text in wrong)
    assert any("'patient'" in text and "give that column as the id" in text for text in wrong)
    assert not any("occurs" in text for text in wrong)


def test_labelled_instances_among_the_shared_ones_are_told(folder):
    for first, expected in ((9, 0), (7, 2)):  # rows 0 to 8 are labelled
        write(folder, "\n".join(["id,u,v", *(f"{i},{i % 3},{i}" for i in range(first, 20)), ""]), "shared.csv")
        _, found = check(*TABLE, *INSECURE, "--unlabelled", "shared.csv")
        told = [each["text"] for each in found if "learns most from such labels" in each["text"]]
        assert len(told) == bool(expected)
        assert all(f"{expected} labelled instances are shared too: " in text for text in told)


@pytest.mark.parametrize(("owner", "mend"), [("alice", r"\(sudo -u alice .*\)"), ("root", r"\(sudo chown nobody .*\)")])
def test_a_file_of_another_user_names_both(folder, monkeypatch, owner, mend):
    """The commonest mistake beside systemd: a command without sudo -u."""
    monkeypatch.setattr("os.geteuid", lambda: 65534)
    monkeypatch.setattr(command_line, "_name", lambda uid: "nobody" if uid == 65534 else owner)
    try:
        try:
            raise PermissionError(13, "Permission denied", str(folder / "identity" / "nothing"))
        except OSError as error:
            raise StorageError(f"{error.filename}: cannot be read.") from None
    except StorageError as error:
        told = owner_hint(error)
    assert re.fullmatch(rf" {folder} belongs to {owner}, and this command runs as nobody: .*{mend}.*\.", told)
    assert owner_hint(StorageError("full")) == ""
    with mock.patch("pathlib.Path.open", side_effect=PermissionError(13, "Permission denied", "north.csv")):
        _, verdicts = check(*TABLE, *INSECURE)
    [text] = [v["text"] for v in verdicts if v["check"] == "table" and not v["ok"]]
    assert "belongs to" in text
    assert "and this command runs as nobody" in text


def test_a_file_that_others_can_change_is_wrong(folder):
    config = write(folder, 'data = "north.csv"\ntarget = "y"\nid = "id"\npolicy = "policy.toml"\n', "agent.toml")
    config.chmod(0o666)
    code, verdicts = check("--config", "agent.toml", *INSECURE[:3])
    [wrong] = [v["text"] for v in verdicts if v["ok"] is False]
    assert code == 8
    assert wrong.startswith("modes: all users can change agent.toml, and with them")
    assert "chmod o-w" in wrong


# --- a plan that is judged beforehand ---------------------------------------------------------------------------------

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
