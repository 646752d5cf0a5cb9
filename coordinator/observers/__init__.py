"""Observers of a coordinator: terminal, plain lines, JSON lines, log, metrics. Each receives typed notices."""

import sys
from typing import TypeAlias

from coordinator.observers.json_lines import JsonLines
from coordinator.observers.terminal import LiveTable, Plain

AnyObserver: TypeAlias = JsonLines | Plain | LiveTable


def choose_observer(*, as_json: bool) -> AnyObserver:
    """JSON lines with --json, a live table on a terminal, plain lines otherwise."""
    if as_json:
        return JsonLines()
    return LiveTable() if sys.stdout.isatty() else Plain()
