"""What a user gets wrong: one clear message, the documented exit code, never a traceback."""

import csv
import json
import re
import subprocess
import sys
from contextlib import closing

import pytest
from machine.tiny import against, make_plan

from coordinator.config.federation_toml import read_configuration
from coordinator.config.study_toml import read_study
from coordinator.store.runs import RunStore
from coordinator.store.status import Status, overview, store_of
from coreg_core.agreement.solver import Stop
from coreg_core.outcomes import Outcome, advice, end_sentence, exit_code
from coreg_wire.clock import timestamp
from coreg_wire.terminal import command_line
from coreg_wire.terminal.command_line import EXIT_CODES, owner_hint
from examples.demo.tables import write_tables
from site_agent.consent.policy import Policy
from tests.issued import enrolled

AGENT = ("--coordinator", "127.0.0.1:9")


@pytest.fixture
def folder(tmp_path):
    enrolled(tmp_path / "identity")
    rows = [["id", "a", "b", "y"]]
    for i in range(20):
        label = ""
        if i < 8:
            label = i
        rows.append([f"p{i}", i, 2 * i % 7, label])
    typo = [[*row] for row in rows]
    typo[4][1] = "1,5"
    for name, table in (("good", rows), ("typo", typo)):
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows(table)
    entry = {"at": "2026-01-01T00:00:00.000+00:00", "kind": "Leaving", "previous": "0" * 64}
    line = json.dumps(entry)
    for name, text in {
        "fed.toml": '[federation]\nname = "x"\nsites = ["a", "b", "c"]\n',
        "score.toml": '[study]\nname = "s"\n[model]\nobjective = "scoring"\n',
        "broken.jsonl": f"{line}\n{line}\n",
    }.items():
        (tmp_path / name).write_text(text)


def agent(*arguments, data="good.csv", target="y"):
    return ("coreg-agent", "--yes", "--data", data, "--target", target, "--id", "id", *arguments)


COORDINATOR = ("coreg-coordinator",)
SIM = ("coreg-sim",)
PREDICT = ("coreg-agent", "predict", "--data", "good.csv")
MISTAKES = {
    "no option": (("coreg-agent", "--data", "good.csv"), 2, "missing: --coordinator"),
    "nobody to ask": (("coreg-agent", "--data", "good.csv", *AGENT), 2, "Give --yes to take part"),
    "no such command": ((*COORDINATOR, "served"), 2, "served"),
    "no such table": (agent(*AGENT, data="bad.csv"), 6, "bad.csv: no such file. Correct the path"),
    "a column misspelt": (agent(*AGENT, target="Y"), 6, "Did you mean 'y'"),
    "a typo in a number": (
        agent(*AGENT, data="typo.csv"),
        6,
        "typo.csv, line 5, column 'a': '1,5'",
    ),
    "not enrolled": (agent(*AGENT, "--identity", "none"), 2, "`coreg-agent join`"),
    "nobody listens": (agent(*AGENT, "--connect-timeout", "1"), 7, "127.0.0.1:9"),
    "a file for models": (
        agent(*AGENT, "--models", "good.csv"),
        8,
        "good.csv: models cannot be written there",
    ),
    "no such model": ((*PREDICT, "--model", "m"), 8, "m: no such model file"),
    "a chain that is broken": (
        ("coreg-agent", "ledger", "broken.jsonl"),
        8,
        "broken.jsonl, line 2: the chain is broken",
    ),
    "an invitation that is none": (
        ("coreg-agent", "join", "coreg://h:1/a"),
        2,
        "The end of the invitation is missing",
    ),
    "no such federation": (
        (*COORDINATOR, "revoke", "none", "a"),
        2,
        "none/federation.toml: no such file",
    ),
    "no folder of a federation": (
        (*COORDINATOR, "run", "none"),
        2,
        "`coreg-coordinator init none`",
    ),
    "a federation without sites": (
        (*COORDINATOR, "init", "co"),
        2,
        "Name the sites of the new federation: --site NAME",
    ),
    "options before a command": (
        ("coreg-agent", "--ledger", "x", "ledger"),
        2,
        "--ledger before ledger has no effect",
    ),
    "a broken chain, verified": (
        ("coreg-agent", "ledger", "broken.jsonl", "--verify"),
        8,
        "line 2: the chain is broken",
    ),
    "a token without a page": (
        (*COORDINATOR, "serve", "fed.toml", "--web-token-file", "t"),
        2,
        "Give --web too",
    ),
    "no store": ((*COORDINATOR, "runs", "none.sqlite"), 2, "none.sqlite"),
    "scoring before a training": (
        (*COORDINATOR, "run", "fed.toml", "--study", "score.toml"),
        2,
        "train first",
    ),
    "no target for a table": ((*SIM, "benefit", "--data", "good.csv"), 2, "--target"),
    "not converged": (
        (
            *SIM,
            "run",
            "--objective",
            "agreement",
            "--sites",
            3,
            "--labelled",
            10,
            "--unlabelled",
            40,
            "--max-rounds",
            3,
        ),
        3,
        "were reached before the tolerances. Raise max_rounds, or loosen the tolerances.",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.usefixtures("folder")
def test_a_mistake_ends_in_one_message_and_the_documented_code(command, mistake):
    words, code, message = MISTAKES[mistake]
    got, out, err = command(*words)
    shown = err
    if code == 3:
        shown = out
    assert message in shown
    assert got == code
    assert "Traceback" not in err


@pytest.mark.parametrize("program", ["coreg-coordinator", "coreg-agent", "coreg-sim"])
@pytest.mark.parametrize("words", [["--version"], ["run", "--version"]])
def test_every_program_prints_its_release(command, program, words):
    code, out, _ = command(program, *words)
    assert code == 0
    assert re.fullmatch(rf"{program} \d+\.\d+\.\d+\S*\n", out)


def test_every_outcome_has_a_documented_exit_code_and_advice():
    assert {exit_code(outcome) for outcome in Outcome} <= set(EXIT_CODES)
    assert {stop.name for stop in Stop} <= {outcome.name for outcome in Outcome}, (
        "a solver's end is a run's"
    )
    for outcome in Outcome:
        assert bool(advice(outcome)) is not outcome.good
        ended_well = outcome.good or outcome is Outcome.REHEARSED
        assert (exit_code(outcome) == 0) is ended_well
        assert (
            end_sentence(outcome, "b is gone")
            == f"{outcome.name.lower()}: b is gone. {advice(outcome)}".rstrip()
        )
        assert end_sentence(outcome, "").startswith(
            f"{outcome.name.lower()}: {outcome.value.rstrip('.')}."
        )


def test_the_default_policy_allows_the_studies_of_the_demonstration(command, tmp_path):
    """Algorithm 1 among them."""
    write_tables(tmp_path)
    assert (
        command("coreg-coordinator", "init", "fed", "--site", "a", "--site", "b", "--site", "c")[0]
        == 0
    )
    federation = read_configuration(tmp_path / "fed" / "federation.toml").federation
    for name in ("algorithm-1", "conjugate-gradients", "additive"):
        plan = read_study(tmp_path / f"{name}.toml").plan(federation)
        assert plan.target == "progression"
        assert plan.id == "patient"
        assert plan.align is not None
        assert against(Policy(), plan) is None


def test_a_submission_names_sites_without_certificate_and_another_user_changes_nothing(
    command, tmp_path, monkeypatch
):
    """As root beside systemd: the service could not read what was written, and no site could
    enrol.
    """
    command("coreg-coordinator", "init", "co", "--site=a", "--site=b", "--site=c")
    (tmp_path / "study.toml").write_text('[study]\nname = "s"\n[model]\nobjective = "additive"\n')
    code, out, err = command("coreg-coordinator", "submit", "study.toml", "--federation", "co")
    assert code == 0
    assert "is in the queue" in out
    assert (
        "warning: waiting for `coreg-agent join` of a, b, c, not enrolled in co/authorised-sites"
        in err
    )
    trial = command("coreg-coordinator", "submit", "study.toml", "--federation", "co", "--rehearse")
    assert trial[1].startswith("rehearsal ")
    with closing(RunStore(tmp_path / "co" / "runs.sqlite")) as queue:
        assert [plan.rehearsal for plan, _ in queue.waiting()] == [False, True]
    assert "rehearsal of additive" in command("coreg-coordinator", "runs", "co")[1]
    code, out, _ = command("coreg-coordinator", "revoke", "co", "b")
    assert code == 0
    assert "remove b from [federation] sites" in out
    before = {path: path.read_bytes() for path in (tmp_path / "co").rglob("*") if path.is_file()}
    monkeypatch.setattr("os.geteuid", lambda: 65534)
    queue = ("submit study.toml --federation co", "cancel x --federation co")
    for words in ("invite co a", "revoke co a", "init co --renew-server", *queue):
        code, _, err = command("coreg-coordinator", *words.split())
        assert code == 8, words
        assert "could not read what it writes. Nothing was changed" in err, words
    assert before == {
        path: path.read_bytes() for path in (tmp_path / "co").rglob("*") if path.is_file()
    }

    def user_name(uid):
        if uid == 65534:
            return "nobody"
        return "root"

    monkeypatch.setattr(command_line, "user_name", user_name)
    mend = "run it as root (sudo …), or, if co should be nobody's, change the owner"
    assert mend in owner_hint(PermissionError(13, "Permission denied", str(tmp_path / "co")))


def test_a_run_that_waits_for_an_operator_shows_that_in_every_list(command, tmp_path, monkeypatch):
    store = tmp_path / "runs.sqlite"
    monkeypatch.setenv("COREG_FEDERATION", str(store))
    text = "waiting for approval by north"
    with closing(RunStore(store)) as summaries, closing(Status(store)) as status:
        assert command("coreg-coordinator", "runs")[1] == "no runs yet\n"
        summaries.begin(make_plan(run="r1"), timestamp())
        status.set_service({"state": "ready", "runs": ["r1"], "waiting": {"r1": text}}, timestamp())
    assert text not in command("coreg-coordinator", "runs")[1], (
        "no coordinator serves: nobody waits"
    )
    with store_of(store):
        for words in (("status",), ("runs",), ("show", "r1")):
            assert text in command("coreg-coordinator", *words)[1], words
        assert json.loads(command("coreg-coordinator", "status", "--json")[1])["waiting"] == {
            "r1": text
        }
        for words in (("runs",), ("show", "r1")):
            assert json.loads(command("coreg-coordinator", *words, "--json")[1])["waiting"] == text
        [run] = overview(store)["latest"]
        assert run["state"] == "approval pending"
        assert run["text"] == text


HEAVY = {"grpc", "numpy", "polars", "pydantic", "scipy", "sklearn", "starlette"}
ASK = """
import sys
from {module}.cli.app import app
try:
    app(["--help"])
finally:
    print(*sys.modules, file=sys.stderr)
"""


@pytest.mark.parametrize("module", ["site_agent", "coordinator"])
def test_help_loads_no_heavy_library(module):
    command = [sys.executable, "-c", ASK.format(module=module)]
    asked = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Usage" in asked.stdout
    assert HEAVY & set(asked.stderr.split()) == set()
