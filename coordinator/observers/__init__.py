"""Whoever watches a coordinator: a terminal, a pipe, a machine that reads JSON. Each takes typed notices."""

import sys
from typing import TypeAlias

from coordinator.observers.json_lines import JsonLines
from coordinator.observers.terminal import LiveTable, Plain

AnyObserver: TypeAlias = JsonLines | Plain | LiveTable


def choose_observer(*, as_json: bool) -> AnyObserver:
    """JSON where it was asked for; live on a terminal; plain lines otherwise."""
    if as_json:
        return JsonLines()
    return LiveTable() if sys.stdout.isatty() else Plain()
