"""What an operator reads and decides: lines of the console and the log, questions, and the files of
a serving agent.
"""

import asyncio
import io
import json
import os
import pwd
import stat
import time
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import typer
from agent_files import agent, write
from machine.tiny import make_plan
from rich.console import Console
from test_model_store import plan

from coreg_core.agreement.solver import Progress
from coreg_core.errors import Refused, StorageError, UsageError
from coreg_core.outcomes import Outcome
from coreg_wire.files.disk import exclusive
from coreg_wire.terminal.service import last_line, make_log
from site_agent.cli.app import main
from site_agent.consent.request import describe_request
from site_agent.machine import notices
from site_agent.machine.agreement import progressed
from site_agent.service import console
from site_agent.service.console import (
    COMPARE,
    EIGHT_WORDS,
    OperatorConsole,
    ServiceLog,
    Terminal,
    operator_name,
)
from site_agent.service.state_store import Decision, StateStore

PROGRESS = Progress(3, True, np.array([0.5]), np.array([0.25]), np.array([0.125]), (None,))


def test_a_plan_is_seen_to_be_worked_on_at_a_terminal():
    out = io.StringIO()
    console = OperatorConsole(
        as_json=False, console=Console(file=out, force_terminal=True, width=200)
    )
    console(notices.plan_received(make_plan()))
    while "factoring the data" not in out.getvalue():
        time.sleep(0.01)  # a thread draws the frames
    console(progressed("run-1", PROGRESS))
    console.close()
    assert (
        "round 3: residual 5.0e-01, gap 2.5e-01, predictions within 1.2e-01 (certified)"
        in out.getvalue()
    )


def test_a_plan_is_shown_once_a_run_in_lines_of_at_most_160_characters():
    out = io.StringIO()
    console = OperatorConsole(
        as_json=False, console=Console(file=out, force_terminal=True, width=300)
    )
    for again in (False, True, True):
        console(replace(notices.plan_received(make_plan(), again=again), work=""))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 160
    assert len(lines) > 1
    assert " ".join(line.strip() for line in lines) == notices.describe_plan(make_plan())


def test_the_error_that_ends_a_service_is_a_line_of_its_log(capsys):
    with pytest.raises(SystemExit) as end, last_line(make_log(as_json=True), as_json=True):
        raise StorageError("the disk is full.")
    told = json.loads(capsys.readouterr().err)
    told.pop("timestamp")
    assert end.value.code == 8
    assert told == {
        "level": "error",
        "event": "failed",
        "text": "the disk is full.",
        "exit_code": 8,
    }


def test_a_service_logs_events_with_fields_and_nothing_private(capsys, monkeypatch):
    log = ServiceLog(make_log(as_json=True))
    log(notices.finding("a label is 7.25"))
    log(progressed("r", PROGRESS))
    log(notices.refused("r", "monthly", "max_rounds"))
    log(notices.run_over(make_plan(), "r", Outcome.CONVERGED, "", 1))
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["level"], line["event"], line["run"]) for line in lines] == [
        ("warning", "refused", "r"),
        ("info", "run_over", "r"),
    ]
    assert lines[1]["stop"] == "CONVERGED"
    assert lines[1]["models"] == 1


# --- questions ------------------------------------------------------------------------------------

WORDS = "havak rizor lulof zagor zukug vijop kitaj duvug"
NOT_CONFIRMED = Decision(False, "its operator did not confirm the eight words.")


def decided(words, news="b is new", *, consents=True):
    return asyncio.run(
        Terminal(consents=consents).decide(make_plan(), {"leaves": "sums"}, words, news)
    )


def in_person(decision, words, *, consents):
    """The decision of the person who runs this test, with what was shown."""
    shown = {"leaves": "sums"} if consents else {}
    if words:
        shown["eight words"] = words
    return replace(decision, words=words, about=shown, by=operator_name())


@contextmanager
def a_terminal(monkeypatch, typed):
    """Standard input is a terminal, where the operator types this after the first question."""
    mine, theirs = os.openpty()
    with os.fdopen(theirs) as terminal, os.fdopen(mine, "wb", buffering=0) as keyboard:
        monkeypatch.setattr("sys.stdin", terminal)
        keyboard.write(b"y\ny\n")  # before the question
        waiting = [typed]
        echo = typer.echo

        def then_type(*told, **options):
            echo(*told, **options)
            if "[y/n]" in told[0] and waiting:
                keyboard.write(waiting.pop().encode())

        monkeypatch.setattr("site_agent.service.console.echo", then_type)
        yield


@pytest.mark.parametrize(
    ("typed", "consents", "words", "decision"),
    [
        ("y\n", True, "", Decision(True, "")),
        ("\nx\nno\n", True, "", Decision(False, "its operator refused it.")),  # asked again
        ("y\nYES\n", True, WORDS, Decision(True, "")),
        ("y\nn\n", True, WORDS, Decision(False, "its operator refused it.")),
        ("n\ny\n", True, WORDS, NOT_CONFIRMED),
        (" y \n", False, WORDS, Decision(True, "")),
    ],
)
def test_the_operator_confirms_the_words_and_then_the_plan(
    monkeypatch, capsys, typed, consents, words, decision
):
    with a_terminal(monkeypatch, typed):
        expected = in_person(decision, words, consents=consents)
        assert decided(words, consents=consents) == expected
    told = capsys.readouterr().err
    assert ("The plan of run run-1" in told) == consents
    assert ("leaves:" in told) == consents
    assert (
        WORDS in told,
        "members (b is new)" in told,
        "Compare them with the operators of all sites" in told,
    ) == (bool(words),) * 3


def test_the_end_of_the_input_decides_nothing(monkeypatch):
    with a_terminal(monkeypatch, "\x04"):  # Ctrl-D
        error = decided(WORDS, consents=False)
    assert isinstance(error, UsageError)
    assert str(error) == "the input ended at a question, and nothing is decided."


@pytest.mark.parametrize("stdin", [None, io.StringIO("y\ny\n")])
def test_where_nobody_can_be_asked_the_error_has_the_words(monkeypatch, stdin):
    monkeypatch.setattr("sys.stdin", stdin)
    error = decided(WORDS, consents=False)
    assert isinstance(error, Refused)
    assert "are not confirmed here (b is new)" in str(error)
    assert f'--words "{WORDS}", or words = "{WORDS}" in agent.toml' in str(error)
    assert decided("", consents=False) == Decision(True, "", "")
    with pytest.raises(
        UsageError, match=r"is not a terminal.* Give --yes to take part, and --words"
    ):
        Terminal(consents=True)


# --- files of a serving agent ---------------------------------------------------------------------


@pytest.fixture
def state(tmp_path):
    """Opened, with an agent.toml that leads the commands to it."""
    made = StateStore(tmp_path / "service")
    made.open()
    write(
        tmp_path,
        f'coordinator = "c:1"\nidentity = "{tmp_path}"\n[data.p]\ntable = "t"\nid = "i"\n',
        "agent.toml",
    )
    return made


def command(state, *words):
    return agent(*words, "--config", state.folder.parent / "agent.toml")


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ({}, "the sums; by algebra, nothing of a single site, unless another run"),
        (
            {"min_sites": 2},
            "this site's predictions for the shared instances (sums over two sites)",
        ),
        ({"membership_changes": True}, "(sums over several sets of sites)"),
        (
            {"coupling": (0.1, 0.2), "solver": "block-coordinate-descent"},
            "(a path of couplings, Algorithm 1)",
        ),
        ({"form": "linear"}, "whether a guessed column is a combination of all sites' columns"),
    ],
)
def test_a_request_states_what_members_of_an_agreement_can_compute(terms, words):
    asked = make_plan(**{"min_sites": 3, "coupling": (0.1,), "aggregation": "secure"} | terms)
    assert words in describe_request(asked, "", 20)["members can compute"]


def test_a_decision_is_found_by_an_agent_that_is_started_again(state):
    for run in ("abc1", "abd2"):
        state.request_approval(plan(run), describe_request(plan(run), "", 20), 86_400.0)
    assert [entry["plan"]["run"] for entry in state.pending()] == ["abc1", "abd2"]
    shown = command(state, "pending").stdout
    expires = f"approve before: {(datetime.now(UTC) + timedelta(days=1)):%Y-%m-%dT%H}"
    for words in (
        "run abc1 of waits, received 20",
        "readable by the coordinator",
        expires,
        "coreg-agent approve abc1",
    ):
        assert words in shown
    for prefix in ("ab", "x"):
        with pytest.raises(UsageError, match="pending runs begin with"):
            command(state, "approve", prefix)
    assert command(state, "refuse", "abc", "--reason", "no consent").stdout == "run abc1: refused\n"
    again = StateStore(state.folder)
    assert again.decision("abc1").reason == "no consent"
    assert again.decision("abd2") is None
    again.close_request("abc1")
    [before] = again.pending()
    again.request_approval(plan("abd2"), {"leaves": "sums"}, seconds=99.0)
    assert again.pending()[0]["expires"] == before["expires"], (
        "an agent that starts again moves no deadline"
    )
    assert [entry["plan"]["run"] for entry in again.pending()] == ["abd2"]
    assert again.decision("abc1") is not None
    again.clear("abc1")
    assert again.decision("abc1") is None
    shown = command(state, "approve", "abd").stdout
    assert shown.startswith("The plan of run abd2:\n  leaves:                sums\n")
    assert "\nrun abd2: approved. If what it showed has changed" in shown
    assert again.decision("abd2").approved
    again.close_request("abd2")
    with pytest.raises(UsageError, match="no pending runs begin with 'abd'"):
        command(state, "approve", "abd")


@pytest.mark.parametrize(
    ("typed", "code", "printed"),
    [
        ("y\ny\n", 0, "run r1: approved, with the eight words"),
        ("n\n", 4, "run r1: refused: its operator did not confirm the eight words."),
        ("y\nn\n", 4, "run r1: refused: its operator refused it."),
    ],
)
def test_approve_asks_at_a_terminal_for_words_that_are_not_confirmed_and_for_consent(
    state, monkeypatch, capsys, typed, code, printed
):
    about = {EIGHT_WORDS: f"{WORDS} (b is new). {COMPARE}"}
    state.request_approval(plan("r1"), about, words=WORDS)
    config = state.folder.parent / "agent.toml"
    monkeypatch.setenv("SUDO_USER", "the ethics board")  # anybody can set it
    monkeypatch.setattr(console, "LOGIN", state.folder / "loginuid")
    console.LOGIN.write_text("12345\n")
    monkeypatch.setattr("sys.argv", ["coreg-agent", "approve", "r1", "--config", str(config)])
    with a_terminal(monkeypatch, typed), pytest.raises(SystemExit) as end:
        main()
    output = capsys.readouterr()
    assert f"its members (b is new):\n\n    {WORDS}" in output.err
    assert end.value.code == code
    assert printed in output.out
    decision = state.decision("r1")
    me = pwd.getpwuid(os.getuid()).pw_name
    assert (decision.approved, decision.by) == (code == 0, f"#12345 (as {me})")


def test_without_a_terminal_approve_needs_the_words_that_were_compared(state):
    state.request_approval(plan("r1"), {EIGHT_WORDS: f"{WORDS} (b is new)."}, words=WORDS)
    with pytest.raises(UsageError, match="nobody has compared the eight words of run r1 yet"):
        command(state, "approve", "r1")
    with pytest.raises(UsageError, match="has other words, and nothing is decided"):
        command(state, "approve", "r1", "--words", "a b c d e f g h")
    assert state.decision("r1") is None
    with_commas = WORDS.replace(" ", ", ")
    assert "approved" in command(state, "approve", "r1", "--words", with_commas).stdout
    assert state.decision("r1").approved


def test_the_name_of_a_run_is_shown_with_one_plan_and_one_set_of_words(state):
    assert state.request_approval(plan("r1"), {"leaves": "sums"}, words=WORDS)
    state.clear("r1")
    assert not state.request_approval(plan("r1"), {}, words="other words")
    assert not state.request_approval(replace(plan("r1"), study="other"), {}, words=WORDS)
    assert state.pending() == []
    assert state.request_approval(plan("r1"), {"leaves": "parts"}, words=WORDS)
    assert [entry["about"] for entry in state.pending()] == [{"leaves": "parts"}]


def test_ended_runs_are_listed_with_their_reasons_in_a_file_of_their_owner(state):
    ended = {"study": "waits", "at": "t"}
    state.append_history(
        {"run": "a1", "stop": "REFUSED", "models": [], "reason": "east refused", **ended}
    )
    state.append_history({"run": "b2", "stop": "CONVERGED", "models": ["m"], "reason": "", **ended})
    assert [entry["run"] for entry in state.history()] == ["a1", "b2"]
    assert [line.split()[0] for line in command(state, "runs").stdout.splitlines()] == [
        "b2",
        "a1",
        "east",
    ]
    told = {
        "reason": "its operator has the reason",
        "fault": "local.csv, line 3: 'half'",
    }  # of this site's own table
    state.append_history({"run": "c3", "stop": "REFUSED", "models": [], **told, **ended})
    assert (
        command(state, "runs")
        .stdout.splitlines()[1]
        .startswith("    local.csv, line 3: 'half'. The run is over.")
    )
    assert {stat.S_IMODE(p.stat().st_mode) for p in state.folder.iterdir()} == {0o600}


IDLE = {
    "site": "north", "pid": 7, "connected_since": "2026-01-01", "waiting": "for runs",
    "certificate_until": None,
    "ended": None, "runs": {}, "troubles": {}, "unresolved": [],
}  # fmt: skip
ENDED = {"at": "t", "exit_code": 4, "reason": "no"}
RUN = {"study": "waits", "data": "p", "doing": "answering"}
REFUSED = {
    "run": "a1",
    "stop": "REFUSED",
    "models": [],
    "reason": "wrong pin",
    "study": "",
    "at": "t",
}


@pytest.mark.parametrize(
    ("up", "changes", "ended", "words"),
    [
        (False, {}, [], "north: not running\n"),
        (
            False,
            {"runs": {"r1": RUN}},
            [],
            "run r1 of waits: answering, when the agent stopped. Start it again",
        ),
        (False, {"ended": ENDED}, [], "not running; ended t with exit code 4: no\n"),
        (True, {}, [], "connected since 2026-01-01; waiting for runs (process 7)\n"),
        (
            True,
            {"runs": {"r1": RUN}, "troubles": {"p": "a fault"}},
            [],
            "data set p cannot be used: a fault",
        ),
        (
            True,
            {"runs": {"r1": {**RUN, "doing": "waiting for approval"}}},
            [],
            "see `coreg-agent pending`",
        ),
        (True, {"unresolved": ["the disk is full"]}, [], "  the disk is full\n"),
        (
            True,
            {"certificate_until": "2020-01-01T00:00:00+00:00"},
            [],
            "the certificate EXPIRED on 2020-01-01",
        ),
        (
            True,
            {},
            [REFUSED],
            "last run a1, t: refused: wrong pin. The run is over. After a correction ask",
        ),
        (
            True,
            {},
            [{**REFUSED, "fault": "write pin = 1"}],
            "last run a1, t: refused: write pin = 1. The run is over.",
        ),
        (
            True,
            {},
            [REFUSED, {**REFUSED, "stop": "CONVERGED", "reason": ""}],
            "last run a1, t: converged\n",
        ),
    ],
)
def test_the_status_is_of_a_running_agent_and_exits_with_7_otherwise(
    state, up, changes, ended, words
):
    assert "no agent has served" in command(state, "status").stdout
    state.write_status(IDLE | changes)
    for entry in ended:
        state.append_history(entry)
    with exclusive(state.folder.parent / "ledger.jsonl", "this agent") if up else nullcontext():
        shown = command(state, "status")
        assert json.loads(command(state, "status", "--json").stdout)["up"] is up
    expected = 7
    if up:
        expected = 0
    assert shown.exit_code == expected, shown.stdout
    assert words in shown.stdout, shown.stdout
    state.path.write_text("no database")
    with pytest.raises(StorageError, match="move the file away"):
        state.status()


@pytest.mark.parametrize("words", [("approve", "r1"), ("refuse", "r1", "--reason", "no")])
def test_a_decision_of_another_user_is_refused_because_the_agent_could_not_read_it(
    state, monkeypatch, words
):
    """The commonest slip beside systemd, a command without sudo -u, ended the agent."""
    monkeypatch.setattr("os.geteuid", lambda: 65534)
    with pytest.raises(
        StorageError, match=r"could not read what it writes\. .* as that user: sudo -u"
    ):
        command(state, *words)
