"""What an agent prints: sentences or JSON for the operator who started it, log lines for a service; and what it asks."""

import asyncio
import io
import json
import os
import time

import numpy as np
import pytest
from machine.tiny import make_plan
from rich.console import Console

from coreg_core.agreement.schedules import Progress
from coreg_core.errors import Refused, StorageError
from coreg_core.protocol.outcomes import Notice, Outcome
from coreg_wire.terminal.logs import last_line, make_log
from site_agent.machine import notices
from site_agent.service.console import OperatorConsole, ServiceLog, Terminal
from site_agent.service.state_dir import Decision

PROGRESS = Progress(3, True, np.array([0.5]), np.array([0.25]), np.array([0.125]), (None,))


@pytest.mark.parametrize("terminal", [True, False])
def test_a_plan_is_seen_to_be_worked_on(terminal):
    """A line in a pipe; on a terminal what is done, with a spinner."""
    out = io.StringIO()
    console = OperatorConsole(as_json=False, console=Console(file=out, force_terminal=terminal, width=200))
    console(notices.plan_received(make_plan()))
    while terminal and "factoring the data" not in out.getvalue():
        time.sleep(0.01)  # a thread draws the frames
    console(notices.progressed("run-1", PROGRESS))
    console.close()
    assert "plan of run run-1" in out.getvalue()
    assert "round 3: residual 5.0e-01, gap 2.5e-01, predictions within 1.2e-01 (certified)" in out.getvalue()
    assert ("factoring the data" in out.getvalue()) is terminal


@pytest.mark.parametrize("as_json", [True, False])
def test_the_error_that_ends_a_service_is_a_line_of_its_log(capsys, as_json):
    with (
        pytest.raises(SystemExit if as_json else StorageError) as end,
        last_line(make_log(as_json=as_json), as_json=as_json),
    ):
        raise StorageError("the disk is full.")
    if as_json:
        told = json.loads(capsys.readouterr().err)
        assert (end.value.code, told.pop("timestamp")[:2]) == (8, "20")
        assert told == {"level": "error", "event": "failed", "text": "the disk is full.", "exit_code": 8}


def test_a_service_logs_events_with_fields_and_nothing_private(capsys, monkeypatch):
    log = ServiceLog(make_log(as_json=True))
    log(notices.finding("a label is 7.25"))
    log(notices.progressed("r", PROGRESS))
    log(notices.refused("r", "monthly", "max_rounds"))
    log(notices.run_over(make_plan(), "r", Outcome.CONVERGED, "", 1))
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["level"], line["event"], line["run"]) for line in lines] == [
        ("warning", "refused", "r"),
        ("info", "run_over", "r"),
    ]
    assert (lines[1]["stop"], lines[1]["models"]) == ("CONVERGED", 1)


def test_a_coordinator_that_stays_away_is_logged_ever_less_often(capsys, monkeypatch):
    now, log = [0.0], ServiceLog(make_log(as_json=True))
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def lines_at(seconds, why):
        for at in seconds:
            now[0] = at
            log(Notice("not_connected", f"not connected to c:1 for {at} s: {why}; trying again (no timeout)"))
        return len(capsys.readouterr().err.splitlines())

    assert lines_at(range(40), "no answer") == 4, "at 0, 5, 15 and 35 seconds"
    assert lines_at(range(40, 43), "another certificate") == 1, "another reason is logged at once"


# --- questions ----------------------------------------------------------------------------------------------------

WORDS = "havak rizor lulof zagor zukug vijop kitaj duvug"
NOT_CONFIRMED = Decision(False, "its operator did not confirm the eight words.")


def decided(words, news="b is new", *, consents=True):
    return asyncio.run(Terminal(consents=consents).decide(make_plan(), {"leaves": "sums"}, words, news))


@pytest.mark.parametrize(
    ("typed", "consents", "words", "decision"),
    [
        ("y\n", True, "", Decision(True, "")),
        ("\n", True, "", Decision(False, "its operator refused it.")),
        ("no\n", True, "", Decision(False, "its operator refused it.")),
        ("y\nYES\n", True, WORDS, Decision(True, "", WORDS)),
        ("y\nn\n", True, WORDS, Decision(False, "its operator refused it.")),
        ("n\ny\n", True, WORDS, NOT_CONFIRMED),
        (" y \n", False, WORDS, Decision(True, "", WORDS)),
        ("\x04", False, WORDS, NOT_CONFIRMED),  # Ctrl-D
    ],
)
def test_the_operator_at_a_terminal_confirms_the_words_and_then_the_plan(
    monkeypatch, capsys, typed, consents, words, decision
):
    mine, theirs = os.openpty()
    with os.fdopen(theirs) as terminal, os.fdopen(mine, "wb", buffering=0) as keyboard:
        monkeypatch.setattr("sys.stdin", terminal)
        keyboard.write(typed.encode())
        assert decided(words, consents=consents) == decision
    told = capsys.readouterr().err
    assert ("The plan of run run-1" in told, "leaves:" in told) == (consents, consents)
    assert (WORDS in told, "members (b is new)" in told, "Call the operators of all sites" in told) == (
        bool(words),
    ) * 3


@pytest.mark.parametrize("stdin", [None, io.StringIO("y\ny\n")])
def test_where_nobody_can_be_asked_the_error_has_the_words(monkeypatch, stdin):
    monkeypatch.setattr("sys.stdin", stdin)
    error = decided(WORDS, consents=False)
    assert isinstance(error, Refused)
    assert "are not confirmed here (b is new)" in str(error)
    assert f'--words "{WORDS}", or words = "{WORDS}" in agent.toml' in str(error)
    assert decided("", consents=False) == Decision(True, "", "")
