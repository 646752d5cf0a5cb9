"""agent.toml, the environment and the command line; and `check`: everything that can be found out
before joining.
"""

import json
import os
import re
from dataclasses import replace

import numpy as np
import pytest
from agent_files import agent, inputs, write
from ledger_home import answer, offer, told
from typer.testing import CliRunner

from coordinator.cli.app import app as coordinator_app
from coreg_core.errors import StorageError, Unreachable, UsageError
from coreg_core.objectives.additive import Additive
from coreg_core.objectives.agreement import Agreement
from coreg_core.objectives.scoring import Scoring
from coreg_core.plan import Plan, plan_from_dict
from coreg_core.terms import Membership
from coreg_wire.terminal import command_line
from coreg_wire.terminal.command_line import owner_hint
from site_agent.cli.app import app
from site_agent.cli.service import print_scores
from site_agent.config.options import OWN, TABLE
from site_agent.config.settings import ONLY, AgentSettings, read_settings
from site_agent.data.aligned_ids import AlignedIds, SharedIds, read_ids
from site_agent.data.inputs import Inputs
from site_agent.data.prepare import prepare
from site_agent.data.salt import site_salt
from site_agent.data.sources import NA_VALUES, DatabaseQuery
from site_agent.data.tables import read_table
from site_agent.disclosure import Disclosure
from site_agent.ledger import Ledger
from site_agent.ledger.ledger import require_ledger
from site_agent.machine.additive import AdditiveComputation
from tests.issued import enrolled

FLAT = (
    'coordinator = "c:1"\ndata = "sqlite:clinic.db?SELECT 1"\ntarget = "y"\nid = "id"\nunlabelled ='
    ' "s.csv"\n'
)
SECTIONS = """
coordinator = "c:1"
identity = "north"
[data.patients]
table = "t.csv"
target = "y"
id = "id"
dates = {d = "%d/%m/%Y"}
na_values = ["-999"]
scale = false
[data.staff]
table = "/else/where.csv"
id = "id"
"""


def test_one_table_is_given_flat_and_several_in_sections(tmp_path):
    flat = read_settings(write(tmp_path, FLAT, "a.toml"), {}).data
    query = DatabaseQuery(tmp_path / "clinic.db", "SELECT 1")
    shared = tmp_path / "s.csv"
    assert flat == {ONLY: Inputs(table=query, target="y", id="id", unlabelled=shared)}
    settings = read_settings(
        write(tmp_path, SECTIONS, "b.toml"), {}, ("data", "target", "id", "coordinator")
    )
    patients = settings.data["patients"]
    staff = settings.data["staff"]
    assert patients.table == tmp_path / "t.csv"
    assert patients.dates == {"d": "%d/%m/%Y"}
    assert not patients.scale
    assert patients.na_values == ("-999",)
    assert staff.na_values == NA_VALUES
    assert str(staff.table) == "/else/where.csv"
    assert staff.target is None
    assert staff.scale
    with pytest.raises(
        UsageError, match=r"--data, --target: .*b\.toml has sections \[data\.NAME\]"
    ):
        read_settings(tmp_path / "b.toml", {"data": "x.csv", "target": "y"})


def test_a_file_of_an_editor_on_windows_is_read(tmp_path):
    flat = read_settings(write(tmp_path, "\ufeff" + FLAT, "a.toml"), {})
    assert flat.coordinator == "c:1"
    with pytest.raises(UsageError, match="in `words = eight`"):
        read_settings(write(tmp_path, "\ufeffwords = eight\n", "b.toml"), {})


def test_paths_of_the_file_are_relative_to_it_and_those_of_a_command_line_are_not(tmp_path):
    config = write(tmp_path, SECTIONS, "a.toml")
    settings = read_settings(config, {"ledger": "l.jsonl", "policy": None})
    assert str(settings.ledger_path) == "l.jsonl"
    assert settings.policy is None
    settings = read_settings(config, {})
    assert settings.ledger_path == tmp_path / "north" / "ledger.jsonl"
    assert settings.state_path == tmp_path / "north" / "service"
    assert settings.models == tmp_path / "models"
    flat = read_settings(write(tmp_path, FLAT, "flat.toml"), {"unlabelled": "here.csv"}).data[ONLY]
    assert flat.table.database == tmp_path / "clinic.db"
    assert str(flat.unlabelled) == "here.csv"
    assert read_settings(None, {"identity": "here"}).ledger_path.as_posix() == "here/ledger.jsonl"
    assert read_settings(config, {"coordinator": "other:2"}).coordinator == "other:2"


def test_an_option_goes_before_the_environment_and_that_before_the_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, 'data = "from-file.csv"\ntarget = "y"\nid = "id"\n', "a.toml")

    def table(*options):
        found = agent("check", "--config", "a.toml", *options).stdout
        return next(
            word
            for word in ("from-file", "from-env", "option")
            if f"{word}.csv: no such file" in found
        )

    assert table() == "from-file"
    monkeypatch.setenv("COREG_DATA", "from-env.csv")
    assert table() == "from-env"
    assert table("--data", "option.csv") == "option"


def test_missing_settings_are_named_as_options_and_as_variables_after_a_misspelt_key(tmp_path):
    with pytest.raises(UsageError) as error:
        read_settings(
            None, {"target": "y", "id": "", "data": None}, ("data", "target", "coordinator")
        )
    assert "missing: --data, --coordinator." in str(error.value)
    assert "COREG_DATA, COREG_COORDINATOR" in str(error.value)
    with pytest.raises(
        UsageError, match=r"missing: --target, --id, --coordinator\. .* COREG_TARGET, COREG_ID"
    ):
        read_settings(None, {"data": "t.csv"}, ("data", "target", "id", "coordinator"))
    with pytest.raises(UsageError, match="dta: unknown key; did you mean data"):
        read_settings(write(tmp_path, 'dta = "x.csv"', "a.toml"), {}, ("data",))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('approval = "never"\nspeed = 1\n[data.p]\ntable = "t"', ["2 faults", "approval", "speed"]),
        ('[data."a/b"]\ntable = "t"\nid = "i"', ["data set"]),
        ('[data.p]\ntable = "t"\nid = "i"\nscale = "yes"', ["data.p.scale = 'yes'"]),
        ("connect_timeout = 0", ["connect_timeout"]),
        ("yes = true", ["yes: only for a command line, as --yes"]),
        # A key in another place is never without effect.
        (
            'drop = ["a"]\n[data.p]\ntable = "t"\nid = "i"',
            ["drop: keys of a table have no effect above its section"],
        ),
        ('[data]\ntable = "t.csv"\nid = "id"', ["data.table"]),
        ('[data.p]\ndata = "t.csv"\nid = "id"', ["data.p.data"]),
        (
            '[data.p]\ntable = "t"\nid = "i"\napproval = "ask"',
            ["data.p.approval: ", "top level of the file"],
        ),
    ],
)
def test_every_fault_of_the_file_is_named(tmp_path, text, named):
    with pytest.raises(UsageError) as error:
        read_settings(write(tmp_path, text, "a.toml"), {})
    assert [words for words in ("a.toml", *named) if words not in str(error.value)] == []


def test_the_secret_is_on_the_disk_before_the_ledger_needs_it(tmp_path, monkeypatch):
    """After a power cut a ledger without its secret would lock the site out."""
    synced = []
    monkeypatch.setattr("os.fsync", synced.append)
    secret = site_salt(tmp_path / "salt", tmp_path / "ledger.jsonl")
    assert len(synced) == 2, "the file, and its name in the folder"
    assert (tmp_path / "salt").read_bytes() == secret
    assert (tmp_path / "salt").stat().st_mode & 0o777 == 0o600


def test_every_setting_of_a_table_has_an_option():
    assert set(TABLE.values()) == set(Inputs.model_fields)
    assert set(OWN) <= set(AgentSettings.model_fields)


# --- check ----------------------------------------------------------------------------------------


OPTIONS = ("--data", "north.csv", "--target", "y", "--id", "id")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An enrolled site's, with a table of 9 labelled rows and 11 others, and a policy."""
    enrolled(tmp_path / "identity")
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = []
    for i, (a, b) in enumerate(rng.normal(size=(20, 2))):
        label = ""
        if i < 9:
            label = a + b
        rows.append(f"{i},{a:.6f},{b:.6f},{label}")
    write(tmp_path, "\n".join(["id,u,v,y", *rows, ""]), "north.csv")
    write(tmp_path, 'aggregation = "plaintext"\n', "policy.toml")
    return tmp_path


def check(*words):
    """The exit code, and the verdicts: true, false, or None for what was skipped."""
    done = agent("check", *words, "--json")
    return done.exit_code, [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("name", ["salt", "site.key", "policy.toml"])
def test_a_private_file_that_others_can_read_is_a_warning(folder, name):
    place = name
    if name != "policy.toml":
        place = f"north/{name}"
    path = folder / place
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        path.touch()
    path.chmod(0o644)
    _, verdicts = check(*OPTIONS, "--identity", "north", "--policy", "policy.toml")
    [modes] = [verdict for verdict in verdicts if verdict["check"] == "modes"]
    assert modes["warning"]
    assert f"Run `chmod 600 {place}`" in modes["text"]
    path.chmod(0o602)
    _, verdicts = check(*OPTIONS, "--identity", "north", "--policy", "policy.toml")
    [modes] = [verdict for verdict in verdicts if verdict["check"] == "modes"]
    assert "all users can change" in modes["text"]


def test_each_check_has_its_own_verdict(folder):
    write(folder, (folder / "north.csv").read_text().replace("\n3,", "\n3,1;", 1), "typo.csv")
    code, verdicts = check(*OPTIONS)
    assert code == 0
    assert " ".join(verdict["check"] for verdict in verdicts) == (
        "versions ledger table ids policy modes identity connection models"
    )
    assert "texts with at most" in verdicts[3]["text"], "the ids of this table are small numbers"
    code, verdicts = check(
        *OPTIONS, "--data", "typo.csv", "--coordinator", "127.0.0.1:9", "--identity", "none"
    )
    assert code == 6
    wrong = [v["text"] for v in verdicts if v["ok"] is False]
    assert [text.split(":")[0] for text in wrong] == [
        "table",
        "identity",
    ], "the coordinator is not to blame"
    assert "line 5" in wrong[0]
    assert "coreg-agent join" in wrong[1]
    [skipped] = [v for v in verdicts if v["ok"] is None]
    assert skipped["text"] == "not checked: connection (127.0.0.1:9: no identity)"
    text = (folder / "north.csv").read_text().replace("id,u,v,y", "key,u,v,outcome")
    write(folder, text, "open.csv")
    write(folder, "id,u,y\n1,2,3\n1,2\n2,x,3\n3,1,\n1,3,4\nP,1,\np,1,\n,4,1\n", "faulty.csv")
    listed = "\n".join(
        v["text"] for v in check(*OPTIONS, "--data", "faulty.csv")[1] if v["ok"] is False
    )
    for words in (
        "line 3: 2 cells",
        "2 and 6: the id '1'",
        "'x' is not",
        "7 and 8: the id 'p'",
        "line 9: no id",
    ):
        assert listed.count(words) == 1, "all at once, also what an alignment refuses"
    assert (
        "WARN   table: 20 ids, for scoring. Columns"
        in agent("check", "--data", "open.csv", "--id", "key").stdout
    )
    write(folder, text + "0,1,1,5\n", "open.csv")
    assert check("--data", "open.csv", "--id", "key")[0] == 6, (
        "an id twice, while the target is open"
    )
    done = agent("check", *OPTIONS, "--coordinator", "localhost")
    assert done.exit_code == 2
    assert [line for line in done.stdout.splitlines() if line.startswith("WRONG")] == [
        "WRONG  connection: --coordinator (or agent.toml) localhost: expected HOST:PORT, as in"
        " 127.0.0.1:7600 or [::1]:7600."
    ]


def test_a_table_with_unknown_columns_is_a_fault_unless_the_plan_names_them(folder):
    text = (folder / "north.csv").read_text().replace("id,u,v,y", "key,u,v,outcome")
    write(folder, text, "open.csv")
    code, verdicts = check("--data", "open.csv")
    wrong = [v["text"] for v in verdicts if v["ok"] is False]
    assert code == 6
    assert [text.partition("? ")[0] for text in wrong] == [
        "table: open.csv: which is the id column",
        "table: open.csv: which is the column to predict",
    ]
    assert wrong[0].endswith(
        "Name it with --id. If the study names it, check its plan: --plan FILE."
    )
    write(folder, text + "9,9\n", "open.csv")
    code, verdicts = check("--data", "open.csv")
    assert code == 6, "no study can mend it"
    assert "line 22: 2 cells" in str(verdicts), "no study can mend it"
    write(folder, text, "open.csv")
    plan = {**planned(folder, '"paper"', '"paper"'), "target": "outcome", "id": "key"}
    write(folder, json.dumps(plan), "plan.json")
    code, verdicts = check("--data", "open.csv", "--policy", "policy.toml", "--plan", "plan.json")
    assert code == 0, verdicts
    assert any(v["text"].startswith("table: 9 labelled and 11 shared") for v in verdicts)


@pytest.mark.parametrize(
    ("command", "asked"), [((), "which is the column to predict?"), (("score",), "the id column?")]
)
def test_an_agent_of_one_run_asks_for_its_columns_before_it_connects(folder, command, asked):
    write(folder, "key,u,v,outcome\n1,2,3,4\n2,3,4,\n", "open.csv")
    where = ("--data", "open.csv", "--coordinator", "127.0.0.1:9", "--connect-timeout", "1")
    done = CliRunner().invoke(app, [*command, *where, "--yes", "--accept-words"])
    assert isinstance(done.exception, Unreachable), "the plan can name them, so the agent connects"
    lines = done.stderr.splitlines()
    question = next(i for i, line in enumerate(lines) if asked in line)
    assert question < next(i for i, line in enumerate(lines) if "not connected" in line)


def test_a_table_without_unlabelled_rows_is_a_warning_since_an_alignment_can_find_the_shared_ids(
    folder,
):
    write(
        folder,
        "id,u,y\n" + "".join(f"patient-{i:05d},{i},{i / 7}\n" for i in range(40)),
        "whole.csv",
    )
    done = agent("check", *OPTIONS, "--data", "whole.csv")
    assert done.exit_code == 0, done.stdout
    [warning, *_] = [line for line in done.stdout.splitlines() if line.startswith("WARN")]
    assert "no row has an empty 'y'" in warning
    assert "A run aligns the ids first" in warning
    assert "ok     ids: 40 ids, as an alignment compares them: 'patient-00000'" in done.stdout


@pytest.mark.parametrize(
    ("owner", "mend"), [("alice", r"\(sudo -u alice .*\)"), ("root", r"\(sudo chown nobody .*\)")]
)
def test_a_file_of_another_user_names_both(folder, monkeypatch, owner, mend):
    """The commonest mistake beside systemd: a command without sudo -u."""
    monkeypatch.setattr("os.geteuid", lambda: 65534)

    def user_name(uid):
        if uid == 65534:
            return "nobody"
        return owner

    monkeypatch.setattr(command_line, "user_name", user_name)
    told = owner_hint(PermissionError(13, "Permission denied", str(folder / "none" / "nothing")))
    assert re.fullmatch(
        rf" {folder} belongs to {owner}, and this command runs as nobody: .*{mend}.*\.", told
    )
    assert owner_hint(StorageError("full")) == ""


def test_a_file_that_others_can_change_is_wrong(folder):
    config = write(
        folder,
        'data = "north.csv"\ntarget = "y"\nid = "id"\npolicy = "policy.toml"\n',
        "agent.toml",
    )
    config.chmod(0o666)
    code, verdicts = check("--config", "agent.toml")
    [wrong] = [v["text"] for v in verdicts if v["ok"] is False]
    assert code == 8
    assert wrong.startswith("modes: all users can change agent.toml, and with it")
    assert "chmod o-w" in wrong


# --- a plan that is judged beforehand -------------------------------------------------------------

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
    return json.loads(
        CliRunner()
        .invoke(coordinator_app, ["plan", "federation.toml"], catch_exceptions=False)
        .stdout
    )


def judged(folder, plan):
    write(folder, json.dumps(plan), "plan.json")
    code, verdicts = check(*OPTIONS, "--policy", "policy.toml", "--plan", "plan.json")
    found = [v for v in verdicts if v["check"] == "plan"]
    return code, [v["text"] for v in found if v["ok"]], [v["text"] for v in found if not v["ok"]]


def test_a_plan_that_suits_this_site_and_one_that_is_chosen_against_it(folder):
    code, good, wrong = judged(folder, planned(folder, '"paper"', '"paper"'))
    assert code == 0
    assert wrong == []
    disclosed, allowed = good
    assert allowed == "plan: this site would take part in it; 0 of at most 10020 answers are given"
    assert disclosed.startswith("plan: leaves this machine: this site's predictions for the ")
    assert (
        "members can compute: this site's predictions for the shared instances (sums over two"
        " sites)" in disclosed
    )
    code, _, wrong = judged(folder, planned(folder, 1e-6, 1e-6))
    assert code == 4
    assert len(wrong) == 2
    assert "is below 0.5 times" in wrong[0]
    assert "is below 0.01 times" in wrong[1]
    assert re.search(r"\(here it is \S+e-07 times that distance\)", wrong[0])
    assert "(here it is 1e-06 times that mean)" in wrong[1]


def test_of_a_plan_that_aligns_ids_the_most_that_can_leave_is_stated_then_what_leaves(folder):
    """As `pending` has it: a table alone does not show which of its ids are shared."""
    plan = planned(folder, '"paper"', '"paper"')
    plan["align"] = {"max_ids": 1000, "ids": "exact"}
    plan["privacy"]["aggregation"] = "secure"
    rows = inputs(folder / "north.csv")
    ids = read_ids(rows, "exact")
    table = read_table(folder / "north.csv")
    labelled = int((~table.missing("y")).sum())
    _, (before, *_), _ = judged(folder, plan)
    assert (
        f"at most: leaves this machine: this site's predictions for the {len(ids)} shared" in before
    )
    assert f"the labels of {labelled} labelled individuals" in before
    shared = tuple(sorted(ids)[:2])
    AlignedIds(folder / "identity" / "aligned").put(
        plan_from_dict(plan), ids, SharedIds("exact", shared, "r1")
    )
    _, (after, *_), _ = judged(folder, plan)
    assert "this site's predictions for the 2 shared" in after
    assert "at most" not in after
    rows = (folder / "north.csv").read_text().splitlines()
    write(
        folder, "\n".join(row for row in rows if not row.endswith(",")), "north.csv"
    )  # no row is shared yet
    _, (before, *_), wrong = judged(folder, plan)
    assert f"the labels of {labelled} labelled individuals" in before
    assert wrong == []
    write(folder, "\n".join(["key,u,v,outcome", *rows[1:]]), "north.csv")
    write(folder, json.dumps(plan | {"target": "outcome", "id": "key"}), "plan.json")
    code, verdicts = check("--data", "north.csv", "--policy", "policy.toml", "--plan", "plan.json")
    assert code == 0, "the plan names the columns"
    assert [v for v in verdicts if v["ok"] is False] == [], "the plan names the columns"


def test_a_plan_whose_labelled_rows_were_opened_often_enough_promises_no_training(folder):
    write(folder, "\n".join(["id,u,v", *(f"{i},{i},{i * i % 7}" for i in range(4, 20))]), "all.csv")
    plan = Plan("r", "tests", Membership(("east", "north"), 2), Additive())
    write(folder, json.dumps(plan.to_dict()), "plan.json")
    data = prepare(
        inputs("north.csv", unlabelled="all.csv"), site_salt(folder / "identity/salt", folder / "x")
    ).data
    computation = AdditiveComputation(plan, plan.objective, "north", data, int, os.urandom)
    rows = computation.rows_to_open(np.array([[i in data.positions, i > 9] for i in range(16)]))
    ledger = Ledger(folder / "identity" / "ledger.jsonl")
    sums = Disclosure("sums", plan.sites, rows=replace(rows, features=5), opens=True)
    for run in ("r1", "r2"):
        ledger.memory.note_disclosure(run, sums)
    ledger.close()
    for limit, said in (
        (3, "ok     plan: this site would take part"),
        (2, "WARN   plan: the policy allows it"),
    ):
        write(folder, f"openings = {limit}\n", "policy.toml")
        done = agent(
            "check",
            *OPTIONS,
            "--unlabelled",
            "all.csv",
            "--policy",
            "policy.toml",
            "--plan",
            "plan.json",
        )
        countdown = f"training 3 of {limit} with these labels"
        if limit < 3:
            countdown = f"all {limit} trainings with these labels are used, so the run ends"
        assert re.search(f"{said}.*; {countdown}", done.stdout)
    write(folder, json.dumps(replace(plan, objective=Scoring("r")).to_dict()), "plan.json")
    done = agent("check", "--data", "all.csv", "--id", "id", "--plan", "plan.json")
    assert (
        "plan: leaves this machine: which of 16 instances this site has a record of" in done.stdout
    )


@pytest.fixture
def answered(folder):
    """A plan of sealed sums that this site has answered: its ledger has the sites."""
    write(folder, "max_rounds = 1000\n", "policy.toml")
    plan = planned(folder, '"paper"', '"paper"')
    plan["membership"] |= {"sites": ["east", "north", "west"], "min_sites": 3}
    plan["privacy"]["aggregation"] = "secure"
    data = prepare(
        inputs(folder / "north.csv"), site_salt(folder / "identity" / "salt", folder / "no-ledger")
    ).data
    ledger = Ledger(folder / "identity" / "ledger.jsonl")
    ledger.memory.know_as(data.ids_digest, data.instances)
    ledger.record(offer(plan=plan_from_dict(plan).digest, ids=data.ids_digest))
    ledger.record(answer(), told(("east", "north", "west")))
    ledger.close()
    return plan


def test_the_plan_that_was_answered_is_accepted_again(folder, answered, monkeypatch):
    code, _, wrong = judged(folder, answered)
    assert code == 0
    assert wrong == []
    monkeypatch.setattr(Agreement, "most_answers", lambda self, plan: 1)
    code, _, wrong = judged(folder, answered)
    assert code == 4
    assert len(wrong) == 1
    assert (
        "1 answers to this plan on these instances are given, over all runs, of at most 1"
        in wrong[0]
    )
    answered["membership"]["sites"] = ["east", "north", "south"]
    assert (
        "this site was summed with east, north, west on these instances"
        in judged(folder, answered)[2][0]
    )


def test_a_lost_secret_a_broken_ledger_and_a_lost_ledger_are_found_before_joining(folder, answered):
    path = folder / "identity" / "ledger.jsonl"
    salt = folder / "identity" / "salt"

    def of_ledger():
        code, verdicts = check(*OPTIONS)
        return code, next(v["text"] for v in verdicts if v["check"] == "ledger")

    assert of_ledger()[0] == 0
    kept = salt.read_bytes()
    lines = path.read_bytes().splitlines(keepends=True)
    salt.unlink()
    code, text = of_ledger()
    assert code == 8
    assert "identity/salt is missing, and identity/ledger.jsonl has answers" in text
    with pytest.raises(StorageError, match="Restore both from the same backup"):
        site_salt(salt, path)
    assert not salt.exists()
    salt.write_bytes(kept)
    path.write_bytes(b"".join([lines[0].replace(b"at", b"ta"), *lines[1:]]))
    code, text = of_ledger()
    assert code == 8
    assert "the chain is broken" in text
    path.unlink()
    code, text = of_ledger()
    assert code == 8
    assert "identity/salt exists: this site has had a ledger" in text
    with pytest.raises(StorageError, match="would not know what it has answered"):
        require_ledger(path, salt)
    path.touch()
    assert (
        "identity/ledger.jsonl has no line, which is normal before the first run." in of_ledger()[1]
    )


def test_scores_of_single_individuals_need_an_address_in_the_settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"agent\.toml has no `listen`"):
        print_scores(None, "p1", None, as_json=False)
