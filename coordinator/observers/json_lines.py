"""One JSON object a line on standard output: the fields of the notice and its sentence ("text")."""

from dataclasses import fields
from enum import Enum
from math import isinf
from typing import Any

from coordinator.driver import Timing
from coordinator.machine.events import Finish
from coordinator.machine.notices import Notice, StepAnswered
from coordinator.machine.wording import message_for
from coordinator.observers.rows import Phases, row
from coreg_wire.terminal.output import print_json
from coreg_wire.transport.fields import snake


class JsonLines:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._rounds = 0
        self._last: dict[str, Any] | None = None
        self._phases = Phases()

    def notice(self, notice: Notice, measured: Timing) -> None:
        """{"event": "round"} for a finished step; for any other notice its name, its fields and "text"."""
        if isinstance(notice, StepAnswered):
            values = row(notice, measured)
            if notice.report.verified or self._last is None:
                self._rounds, self._last = notice.report.round, values
            self._phases.add(values)
            print_json({"event": "round", "run": notice.run, **values})
            return
        told = {f.name: plain(getattr(notice, f.name)) for f in fields(notice)}
        print_json({"event": snake(type(notice).__name__), **told, "text": message_for(notice)})

    def finished(self, end: Finish, show: str) -> None:
        print_json(
            {
                "event": "finished",
                "run": end.run,
                "stop": end.outcome.name,
                "reason": end.reason,
                "rounds": self._rounds,
                "last": self._last,
                **({"phases": self._phases.spent} if self._phases.spent else {}),
                "show": show,
            }
        )

    def close(self) -> None:
        """Nothing to release."""


def plain(value: Any) -> Any:
    """A field of a notice for JSON. Infinity, a wait without a timeout, becomes null."""
    if isinstance(value, float) and isinf(value):
        return None
    return value.name if isinstance(value, Enum) else value
