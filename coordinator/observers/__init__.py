"""Observers of a coordinator: terminal, plain lines, JSON lines, log, metrics. Each receives typed notices."""

import sys
from typing import TypeAlias

from coordinator.observers.terminal import JsonLines, Plain, ProgressBar
from coreg_core.protocol.plan import Plan

AnyObserver: TypeAlias = JsonLines | Plain


def choose_observer(plan: Plan, *, as_json: bool) -> AnyObserver:
    """JSON lines with --json, a progress bar on a terminal, plain lines otherwise."""
    if as_json:
        return JsonLines()
    return ProgressBar(plan) if sys.stdout.isatty() else Plain()
