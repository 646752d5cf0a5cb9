"""A finished step as plain values and cells; JSON lines on standard output; log lines of a service on standard error."""

from dataclasses import dataclass, field, fields
from enum import Enum
from math import isinf
from typing import Any

from coordinator.driver import Timing
from coordinator.machine import notices as n
from coordinator.machine.events import Finish
from coordinator.machine.notices import Notice, StepAnswered
from coordinator.machine.wording import is_warning, message_for
from coreg_wire.terminal.logs import Log
from coreg_wire.terminal.output import human_bytes, print_json
from coreg_wire.transport.fields import snake

HEADINGS = ("step", "round", "sites", "residual", "gap", "seconds", "bytes")
PLAIN = "{:>8} {:>6} {:>6} {:>8} {:>7} {:>9} {:>10}"


def row(answered: StepAnswered, lap: Timing) -> dict[str, Any]:
    """Plain values of the worst column; residual and gap to a power of ten."""
    p = answered.report
    return {
        "step": answered.number,
        "round": p.round,
        "answered": answered.answered,
        "verified": p.verified,
        "residual": _known(p.residual),
        "gap": _known(p.gap),
        **({"phase": p.phase} if p.phase else {}),
        "seconds": round(lap.seconds, 6),
        "bytes": lap.bytes_sent + lap.bytes_received,
    }


def _known(values: tuple[float, ...]) -> float | None:
    """The largest known number, or None."""
    worst = max(values, default=-1.0)
    return worst if worst >= 0.0 else None


@dataclass
class Phases:
    """Steps, complete rounds, seconds and bytes of each phase so far."""

    spent: dict[str, dict[str, float]] = field(default_factory=dict)
    _rounds: int = 0

    def add(self, values: dict[str, Any]) -> None:
        if not values.get("phase"):
            return
        spent = self.spent.setdefault(values["phase"], {"steps": 0, "rounds": 0, "seconds": 0.0, "bytes": 0})
        spent["steps"] += 1
        spent["rounds"] += max(0, values["round"] - self._rounds)
        spent["seconds"] = round(spent["seconds"] + values["seconds"], 6)
        spent["bytes"] += values["bytes"]
        self._rounds = values["round"]

    def lines(self) -> list[str]:
        """One line for each phase."""
        return [
            f"{phase}: {s['rounds']} rounds, {human_bytes(int(s['bytes']))}, {s['seconds']:.2f} s"
            for phase, s in self.spent.items()
        ]


def cells(values: dict[str, Any]) -> tuple[str, ...]:
    """The cells of `row`. An estimate has the prefix ~, a certified number has none."""
    mark = "" if values["verified"] else "~"

    def number(name: str, prefix: str = "") -> str:
        return "-" if values[name] is None else f"{prefix}{values[name]:.0e}"

    return (
        str(values["step"]),
        str(values["round"]),
        str(values["answered"]),
        number("residual"),
        number("gap", mark),
        f"{values['seconds']:.3f}",
        human_bytes(values["bytes"]),
    )


class JsonLines:
    """One JSON object a line on standard output: the fields of the notice and its sentence ("text")."""

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


class LogLines:
    """Every notice as one structured line. Steps have no line; the store has them."""

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
