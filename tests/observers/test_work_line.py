"""The line about the work that goes on: on a terminal only, and never mixed with other text."""

import io

from rich.console import Console

from coordinator.observers.terminal import work_after
from coreg_wire.terminal.progress import WorkLine


def test_the_line_names_the_work_on_a_terminal_alone():
    for terminal in (True, False):
        written = io.StringIO()
        line = WorkLine(Console(file=written, force_terminal=terminal, width=80))
        line.show("second moments: the sites compute\x1b[2J")
        line.show("verdicts: the sites compute")
        line.hide()
        line.hide()
        shown = written.getvalue()
        assert ("verdicts: the sites compute" in shown) == terminal
        assert "\x1b[2J" not in shown


def test_the_next_exchange_has_its_name():
    assert work_after("cross products") == "second moments: the sites compute"
    assert work_after("gains") == "the sites compute"
    assert work_after("") == "the sites compute"
