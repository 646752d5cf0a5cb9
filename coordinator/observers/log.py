"""Every notice as one structured line on standard error, for services."""

from dataclasses import fields
from typing import Any

from coordinator.driver import Timing
from coordinator.machine import notices as n
from coordinator.machine.wording import is_warning, message_for
from coordinator.observers.json_lines import plain
from coreg_wire.terminal.logs import Log
from coreg_wire.transport.fields import snake


class LogLines:
    """See the module's docstring. Steps have no line; the store has them."""

    def __init__(self, log: Log):
        self._log = log

    def notice(self, notice: n.Notice, _measured: Timing) -> None:
        """Log the notice's name, its fields and its sentence."""
        if isinstance(notice, n.StepAnswered):
            return
        told: dict[str, Any] = {f.name: _flat(plain(getattr(notice, f.name))) for f in fields(notice)}
        say = self._log.warning if is_warning(notice) else self._log.info
        text = message_for(notice)
        say(snake(type(notice).__name__), **told, **({"text": text} if text else {}))


def _flat(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, tuple) else value
