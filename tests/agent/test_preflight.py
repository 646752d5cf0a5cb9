"""check: everything that can be found out before joining, each with its verdict; and a plan that is judged beforehand."""

import json
import platform
import re
from unittest import mock

import grpc
import numpy as np
import pytest
import scipy
from agent_files import agent, inputs, write
from ledger_home import answer, offer, told
from typer.testing import CliRunner

from coordinator.cli.app import app as coordinator_app
from coreg_core.errors import StorageError, UsageError
from coreg_core.protocol.plan import plan_from_dict
from coreg_wire.files.plan_file import read_plan
from coreg_wire.terminal import command_line
from coreg_wire.terminal.command_line import owner_hint
from site_agent.data.prepare import prepare, site_salt
from site_agent.ledger import Ledger
from site_agent.machine.operators import operator_of

TABLE = ("--data", "north.csv", "--target", "y", "--id", "id")
INSECURE = ("--insecure", "--name", "north", "--coordinator", "127.0.0.1:9")
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
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
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
    assert [text.split(":")[0] for text in wrong] == ["table", "policy", "identity"], "the coordinator is not to blame"
    assert ("line 5" in wrong[0], "enroll" in wrong[2]) == (True, True)
    assert "this site will refuse every run with secure aggregation" in wrong[1]
    [skipped] = [v for v in verdicts if v["ok"] is None]
    assert skipped["text"] == "not checked: connection (127.0.0.1:9: no identity)"
    done = agent("check", *TABLE, *INSECURE[:3], "--coordinator", "localhost")
    assert done.exit_code == 2
    assert [line for line in done.stdout.splitlines() if line.startswith("WRONG")] == [
        "WRONG  connection: coordinator localhost (--coordinator, or agent.toml): expected HOST:PORT, as in example.org:7600."
    ]


def test_versions_and_the_space_for_the_model_are_printed(folder):
    code, verdicts = check(*TABLE, *INSECURE)
    found = {title: text for title, _, text in (v["text"].partition(": ") for v in verdicts)}
    assert (code, found["not checked"]) == (0, "connection (127.0.0.1:9: --insecure)")
    for part in (
        f"Python {platform.python_version()}",
        "coreg ",
        f"numpy {np.__version__}",
        f"scipy {scipy.__version__}",
        grpc.__version__,
    ):
        assert part in found["versions"]
    assert found["output"].startswith("the model goes to model.coreg, where ")
    assert found["output"].endswith("B are free")


def test_without_a_coordinator_all_but_the_connection_is_checked(folder):
    done = agent("check", *TABLE, *INSECURE[:3])
    lines = done.stdout.splitlines()
    assert done.exit_code == 0
    few = [line for line in lines if "were not measured" in line]
    assert [line.partition(": ")[2].partition(".")[0] for line in few] == [
        "9 labelled instances",
        "11 shared instances",
    ]
    lines = [line for line in lines if line not in few]
    assert [line.split(":")[0] for line in lines] == [
        "ok     versions", "ok     ledger", "ok     table", "WARN   ids", "WARN   policy", "ok     modes", "ok     identity",
        "not checked", "ok     output",
    ]  # fmt: skip
    assert "texts with at most" in lines[3], "the ids of this table are small numbers"
    assert "no policy is configured" in lines[4]
    assert lines[7] == "not checked: connection (no --coordinator)"


def test_a_column_of_dates_that_becomes_most_features_is_a_warning(folder):
    rows = [f"{i},{i},2024-{i % 12 + 1:02d}-{i % 28 + 1:02d},{i if i < 40 else ''}" for i in range(80)]
    write(folder, "\n".join(["id,u,visit,y", *rows, ""]), "visits.csv")
    lines = agent("check", *TABLE, "--data", "visits.csv", *INSECURE).stdout.splitlines()
    [warning] = [line for line in lines if line.startswith("WARN   column")]
    assert warning.startswith("WARN   column 'visit' makes 80 of 81 features")
    assert 'dates = ["visit"] in agent.toml, or --dates visit' in warning
    [table] = [line for line in lines if line.startswith("ok     table")]
    assert "features from the columns u, visit (" in table
    _, verdicts = check(*TABLE, "--data", "visits.csv", *INSECURE)
    assert [v["text"] for v in verdicts if v.get("warning")][:1] == [warning.removeprefix("WARN   ")]


# --- a plan -------------------------------------------------------------------------------------------------------


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
    assert good[0].startswith("plan: 0 of at most 2004 answers to this plan on these instances are given")
    assert "the largest share of one label of this site" in good[1]
    assert good[-1] == "plan: this site would take part in it"
    code, figures, wrong = judged(folder, planned(folder, 1e-6, 1e-6))
    assert (code, len(wrong)) == (4, 2)
    assert ("bandwidth_min = 0.5" in wrong[0], "ridge_min = 0.01" in wrong[1]) == (True, True)
    assert figures[1].startswith("plan: its bandwidth is ")
    assert figures[2].startswith("plan: its ridge is 1e-06 times")


def test_a_plan_for_a_data_set_of_another_name_says_so(folder):
    write(folder, '[data.patient]\ntable = "north.csv"\ntarget = "y"\nid = "id"\n', "agent.toml")
    plan = planned(folder) | {"data": "patients"}
    write(folder, json.dumps(plan), "plan.json")
    _, verdicts = check("--config", "agent.toml", *INSECURE, "--policy", "policy.toml", "--plan", "plan.json")
    [wrong] = [v["text"] for v in verdicts if v["check"] == "plan"]
    assert "its data set is 'patients', and agent.toml has [data.patient]. Rename the section" in wrong


def test_all_reasons_against_a_plan_are_given_at_once(folder):
    write(folder, 'aggregation = "secure"\nforms = ["landmarks"]\nmax_rounds = 7\n', "policy.toml")
    plan = planned(folder)
    plan["membership"]["sites"] = ["east", "south"]
    _, _, wrong = judged(folder, {"asked": "today", "plan": plan})  # as `pending --json` has it
    words = ("does not list north", "max_rounds = 7", 'aggregation = "plaintext"', 'forms = ["landmarks"]')
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
    """A plan of sealed sums that this site has answered: its ledger has the sites and the operator."""
    peers = "".join(f'{site} = "{letter * 64}"\n' for site, letter in (("east", "a"), ("north", "b"), ("west", "c")))
    write(folder, f"max_rounds = 1000\n[peers]\n{peers}", "policy.toml")
    plan = planned(folder, '"paper"', '"paper"')
    plan["membership"] |= {"sites": ["east", "north", "west"], "min_sites": 3}
    plan["privacy"]["aggregation"] = "secure"
    (folder / "identity").mkdir()
    data = prepare(inputs(folder / "north.csv"), site_salt(folder / "identity" / "salt", folder / "no-ledger")).data
    ledger = Ledger(folder / "identity" / "ledger.jsonl")
    ledger.know_as(data.ids_digest, data.instances)
    assert ledger.operators.admit(operator_of(plan_from_dict(plan), data, ["east", "north", "west"]), "r") is None
    ledger.record(offer(plan=plan_from_dict(plan).digest, ids=data.ids_digest))
    ledger.record(answer(), told(("east", "north", "west")))
    ledger.close()
    return plan


def test_the_plan_that_was_answered_is_accepted_again(folder, answered):
    code, _, wrong = judged(folder, answered)
    assert (code, wrong) == (0, [])
    policy = (folder / "policy.toml").read_text()
    write(folder, f"max_questions = 1\n{policy}", "policy.toml")
    code, _, wrong = judged(folder, answered)
    assert (code, len(wrong)) == (4, 1)
    assert "1 of at most 1 answers to this plan on these instances are given (max_questions), over all runs" in wrong[0]


def test_a_plan_with_other_sites_on_the_same_instances_is_refused_by_the_ledger(folder, answered):
    answered["membership"]["sites"] = ["east", "north", "south"]
    code, _, wrong = judged(folder, answered)
    assert code == 4
    assert "this site was summed with east, north, west on these instances" in wrong[0]


def test_a_plan_with_other_terms_on_the_same_instances_is_refused_by_the_ledger(folder, answered):
    answered["objective"]["coupling"] = [0.02]
    code, _, wrong = judged(folder, answered)
    assert code == 4
    assert 'members_may_learn = "sums"' in wrong[0]


def test_the_plan_is_judged_while_the_agent_holds_the_ledger_and_check_makes_no_secret(folder, answered):
    ledger = Ledger(folder / "identity" / "ledger.jsonl")
    assert judged(folder, answered)[0] == 0
    ledger.close()
    (folder / "identity" / "salt").unlink()
    judged(folder, answered)
    assert not (folder / "identity" / "salt").exists()


# --- before an alignment --------------------------------------------------------------------------------------------


def test_a_table_without_unlabelled_rows_is_a_warning_since_an_alignment_can_find_the_shared_ids(folder):
    write(folder, "id,u,y\n" + "".join(f"patient-{i:05d},{i},{i / 7}\n" for i in range(40)), "whole.csv")
    done = agent("check", *TABLE, "--data", "whole.csv", *INSECURE)
    assert done.exit_code == 0, done.stdout
    [warning, *_] = [line for line in done.stdout.splitlines() if line.startswith("WARN")]
    assert "no row has an empty 'y'" in warning
    assert "Align the ids and give --shared" in warning
    assert "ok     ids: 40 ids, as an alignment compares them: 'patient-00000'" in done.stdout


def test_a_data_set_without_a_target_serves_scoring_and_is_no_fault(folder):
    write(folder, "id,u\np10001,1\np10002,2\np10003,3\n", "new.csv")
    write(folder, '[data.new]\ntable = "new.csv"\nid = "id"\n', "agent.toml")
    done = agent("check", "--config", "agent.toml", *INSECURE[:3])
    assert done.exit_code == 0, done.output
    assert agent("check", *INSECURE[:3]).output == done.output  # an option beside ./agent.toml
    assert (
        "ok     table new: 3 ids, no target: for scoring and alignment; features not checked, because there is no model yet"
        in done.stdout.splitlines()
    )


def test_ids_that_an_alignment_would_refuse_are_a_warning_with_their_lines(folder):
    rows = "".join(
        f"{'P' if i == 3 else 'p'}atient-{max(i, 3):05d},{i},{i / 7 if i < 9 else ''}\n" for i in range(2, 40)
    )
    write(folder, f"id,u,y\n{rows},5,1.0\n", "twice.csv")
    out = agent("check", *TABLE, "--data", "twice.csv", *INSECURE).stdout
    [warning] = [line for line in out.splitlines() if line.startswith("WARN   ids")]
    assert "an alignment would refuse this table" in warning
    assert "occurs 2 times" in warning
    assert "no id in 'id'" in out


def test_a_column_that_is_no_id_is_one_fault_and_the_id_is_suggested(folder):
    rows = "".join(f"{i % 6},p{i},{i},{i if i < 4 else ''}\n" for i in range(40))
    write(folder, "group,patient,u,y\n" + rows, "north.csv")
    code, found = check("--data", "north.csv", "--target", "y", "--id", "group", *INSECURE)
    wrong = [each["text"] for each in found if each["ok"] is False and each["check"].startswith("table")]
    assert code == 6
    assert any("'group' is no id of these rows: 36 shared instances have 6 different values" in text for text in wrong)
    assert any("'patient'" in text and "give that column as the id" in text for text in wrong)
    assert not any("occurs" in text for text in wrong)


def test_an_alignment_that_a_data_set_does_not_use_and_another_table_are_warnings(folder):
    write(folder, '[data.new]\ntable = "north.csv"\nid = "id"\ntarget = "y"\n', "agent.toml")
    manifest = {"run": "r1", "study": "people", "data": "new", "at": "2026-01-01", "stop": "CONVERGED", "models": []}
    for study, more in (("people", {}), ("waits", {"study": "waits", "columns": ["u", "w"]})):
        run = folder / "models" / study / "r1"
        run.mkdir(parents=True)
        (run / "manifest.json").write_text(json.dumps(manifest | more))
        (run.parent / "current").symlink_to("r1")
    (folder / "models" / "people" / "r1" / "aligned.json").write_text("{}")
    _, found = check("--config", "agent.toml", *INSECURE)
    warned = [each["text"] for each in found if each.get("warning")]
    assert any("models/people has aligned ids, and this data set does not use them. Add shared" in w for w in warned)
    assert any(
        "other columns than the last model had (without w; with v). Is this the right file?" in w for w in warned
    )


def test_labelled_instances_among_the_shared_ones_are_a_warning(folder):
    for first, expected in ((9, 0), (7, 2)):  # rows 0 to 8 are labelled
        write(folder, "\n".join(["id,u,v", *(f"{i},{i % 3},{i}" for i in range(first, 20)), ""]), "shared.csv")
        _, found = check(*TABLE, *INSECURE, "--unlabelled", "shared.csv")
        warned = [each["text"] for each in found if each.get("warning") and "estimate these labels" in each["text"]]
        assert len(warned) == bool(expected)
        assert all(f"{expected} labelled instances are shared too: " in text for text in warned)


def test_some_ids_that_repeat_among_many_are_named_one_by_one(folder):
    rows = "".join(f"p{max(i, 6)},{i / 7},{i if i < 4 else ''}\n" for i in range(40))
    write(folder, "patient,u,y\n" + rows, "north.csv")
    code, found = check("--data", "north.csv", "--target", "y", "--id", "patient", *INSECURE)
    wrong = [each["text"] for each in found if each["ok"] is False]
    assert code == 6
    assert any("the id 'p6' occurs 3 times among the shared instances" in text for text in wrong)


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


def test_a_policy_without_pins_and_files_that_others_can_change_are_wrong(folder):
    write(folder, "", "policy.toml")
    config = write(folder, 'data = "north.csv"\ntarget = "y"\nid = "id"\npolicy = "policy.toml"\n', "agent.toml")
    config.chmod(0o666)
    code, verdicts = check("--config", "agent.toml", *INSECURE[:3])
    wrong = [v["text"] for v in verdicts if v["ok"] is False]
    assert code == 4
    assert wrong[0].startswith("policy: policy.toml pins no peers, so this site will refuse every run")
    assert wrong[1].startswith("modes: all users can change agent.toml, and with them")
    assert "chmod o-w" in wrong[1]


def test_a_wrong_id_column_is_one_fault_with_the_right_column(folder):
    rows = [f"{i},{i // 2},{i}.5,{i if i < 9 else ''}" for i in range(60)]
    write(folder, "\n".join(["patient,age,u,y", *rows, ""]), "ages.csv")
    done = agent("check", "--data", "ages.csv", "--target", "y", "--id", "age", *INSECURE)
    lines = [line for line in done.stdout.splitlines() if "age" in line]
    [wrong] = [line for line in lines if line.startswith("WRONG")]
    assert "51 shared instances have 26 different values. All values of 'patient' are different" in wrong
    assert not any(line.startswith("WARN   ids") for line in lines)
