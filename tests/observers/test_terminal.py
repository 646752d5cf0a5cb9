"""coordinator/observers/terminal.py: plain lines in a pipe, one progress bar on a terminal."""

import io
from dataclasses import replace

import pytest
from machine.tiny import make_plan
from rich.console import Console

from coordinator.machine import notices as n
from coordinator.machine.events import Finish
from coordinator.observers.terminal import Plain, ProgressBar, cells
from coreg_core.protocol.messages import Report
from coreg_core.protocol.outcomes import Outcome


def answered(report, number=3):
    notice = n.step_answered("r1", number, 0, 2, report)
    return replace(notice, fields={**notice.fields, "seconds": 0.5, "bytes_sent": 100, "bytes_received": 200})


def test_a_heading_stands_over_its_own_rounds_alone(capsys):
    """Those of an agreement have no phase after the preliminary ones."""
    plain = Plain()
    for number, phase in enumerate(("preliminary", "preliminary", "", "")):
        plain.notice(answered(Report(phase=phase), number))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.endswith(":")]
    assert lines == ["preliminary:", "training:"]
    plain = Plain()
    plain.notice(answered(Report()))
    assert "training:" not in capsys.readouterr().out, "nothing went before"


def test_a_terminal_has_one_bar_with_round_residual_and_the_other_lines_above():
    console = Console(file=io.StringIO(), force_terminal=True, width=200, color_system=None)
    bar = ProgressBar(make_plan(tolerance=1e-12), console)
    bar.notice(n.joined("r1", "a", 1, 2))
    for number, gap in ((3, 1e-2), (4, 1e-5)):
        report = Report(number, "", verified=True, residual=(gap,), gap=(gap,))
        bar.notice(answered(report, number))
    [task] = bar._bar.tasks
    assert (round(task.completed, 6), round(task.total, 6)) == (3.0, 12.0), "powers of ten to the tolerance"
    assert task.fields["seen"] == "round 4, residual 1e-05"
    bar.finished(Finish("r1", Outcome.CONVERGED, ""), "coreg-coordinator show r1")
    shown = console.file.getvalue()
    assert "a joined (1 of 2)" in shown
    assert "certified: residual 1e-05, gap 1e-05 (to a power of ten), after 4 rounds" in shown


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (Report(4, "", True, (0.1, 1.0), (1e-3, 1e-2)), ["4", "2", "1e+00", "1e-02"]),
        (Report(4, "", False, (0.1,), (1e-3,)), ["4", "2", "1e-01", "~1e-03"]),
        (Report(4, "", True, (-1.0,), (-1.0,)), ["4", "2", "-", "-"]),
        (Report(), ["0", "2", "-", "-"]),
    ],
    ids=["verified", "an estimate", "none", "nothing yet"],
)
def test_a_row_says_what_the_sites_told_and_no_more(report, words):
    assert list(cells(answered(report).fields))[1:5] == words
