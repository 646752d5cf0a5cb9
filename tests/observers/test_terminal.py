"""On a terminal it is seen for whom a run waits and for how long, and every run of a service has a line."""

import io

import numpy as np
import pytest
from rich.console import Console

from coordinator.driver import Timing
from coordinator.machine import notices as n
from coordinator.observers.follow import Follow
from coordinator.observers.rows import cells, row
from coordinator.observers.terminal import LiveTable, Plain
from coordinator.observers.waiting import Waiting
from coreg_core.protocol.messages import Report
from coreg_core.protocol.outcomes import Outcome

LAP = Timing(0.5, 100, 200)
ANSWERED = n.StepAnswered("r1", 3, 0, 2, Report())


def test_who_is_awaited():
    now = [0.0]
    awaited = Waiting(lambda: now[0])
    assert awaited.said == ""
    awaited.notice(n.RunBegan("r1", ("a", "b")))
    now[0] = 4.0
    assert awaited.said == "waiting for a, b to connect: 4 s"
    awaited.notice(n.Joined("r1", "a", 1, 2))
    assert awaited.said == "waiting for b to connect: 4 s"
    awaited.notice(n.Joined("r1", "b", 2, 2))
    assert awaited.said == ""
    awaited.notice(n.PlanSent("r1", ("a", "b")))
    now[0] = 65.0
    awaited.notice(n.Joined("r1", "a", 2, 2))  # whoever comes back has its plan still to accept
    awaited.notice(n.PlanAcceptedBy("r1", "b"))
    assert awaited.said == "waiting for a to check the plan and factor their data: 61 s"
    awaited.notice(ANSWERED)
    assert awaited.said == ""


def test_a_wait_for_an_operator_is_not_a_wait_for_the_network():
    now = [0.0]
    awaited = Waiting(lambda: now[0])
    awaited.notice(n.ApprovalAwaited("r1", ("north",), 2, 3, 86_400.0))
    now[0] = 65.0
    awaited.notice(n.Joined("r1", "north", 3, 3))
    assert awaited.said == "waiting for approval by north: 65 of 86400 s"
    awaited.notice(n.Approved("r1", "north"))
    assert awaited.said.startswith("waiting for north to check the plan and factor their data")


def test_a_heading_stands_over_its_own_rounds_alone(capsys):
    """Those of an agreement have no phase after the preliminary ones."""
    plain = Plain()
    for number, phase in enumerate(("preliminary", "preliminary", "", "")):
        plain.notice(n.StepAnswered("r1", number, 0, 2, Report(phase=phase)), LAP)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.endswith(":")]
    assert lines == ["preliminary:", "training:"]
    plain = Plain()
    plain.notice(ANSWERED, LAP)
    assert "training:" not in capsys.readouterr().out, "nothing went before"


@pytest.fixture
def console():
    return Console(file=io.StringIO(), force_terminal=True, width=200, color_system=None)


def drawn(console, renderable):
    with console.capture() as captured:
        console.print(renderable)
    return captured.get()


def test_a_run_shows_who_is_awaited_and_its_rows(console):
    table = LiveTable()
    table._console = console
    table.notice(n.PlanSent("r1", ("north", "south")), LAP)
    assert "waiting for north, south to check the plan" in drawn(console, table._shown())
    table.notice(ANSWERED, LAP)
    shown = drawn(console, table._shown())
    assert "waiting" not in shown
    assert "300 B" in shown
    table.close()


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (Report(4, "", True, (7, 3)), ["4", "2", "2^7", "-", "-", "-"]),
        (Report(4, "", True, (-2,)), ["4", "2", "2^0", "-", "-", "-"]),
        (
            Report(4, "", True, (7,), (0.5, 1.0), (1e-3, 2e-3), (-1.0,)),
            ["4", "2", "2^7", "1.00e+00", "2.00e-03", "-"],
        ),
        (Report(4, "", False, (), (0.5,), (1e-3,), (2.0,)), ["4", "2", "-", "5.00e-01", "~1.00e-03", "~2.00e+00"]),
        (Report(), ["0", "2", "-", "-", "-", "-"]),
    ],
    ids=["coarse", "done", "exact", "an estimate", "nothing yet"],
)
def test_a_row_says_what_the_sites_told_and_no_more(report, words):
    assert list(cells(row(n.StepAnswered("r1", 3, 0, 2, report), LAP)))[1:7] == words


def test_a_service_has_a_line_for_each_run(console):
    follow = Follow(console)
    follow.notice(n.PlanSent("r1", ("north",)), LAP)
    follow.notice(n.StepAnswered("r2", 7, 0, 2, Report()), LAP)
    follow.notice(n.SessionOpened("north", "0.2.0", ""), LAP)
    shown = drawn(console, follow.shown())
    assert "waiting for north" in shown
    assert next(line for line in shown.splitlines() if "r2" in line).split()[:2] == ["r2", "7"]
    follow.notice(n.RunEnded("r2", Outcome.CONVERGED, ""), LAP)
    assert "r2" not in drawn(console, follow.shown())


def test_what_is_logged_meanwhile_stands_whole_above(console, capsys):
    from coreg_wire.terminal.logs import make_log

    follow = Follow(console)
    follow.notice(ANSWERED, LAP)
    with follow.live():
        make_log(as_json=False).info("run_began", run="r1")
    lines = console.file.getvalue().splitlines()
    assert any("event=run_began run=r1" in line for line in lines)
    assert np.count_nonzero(["run_began" in line for line in lines]) == 1
