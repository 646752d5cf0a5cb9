"""Cells of a finished step; figures of a run's phases; JSON lines on standard output; log lines on standard error."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coordinator.machine.events import Finish
from coreg_core.protocol.outcomes import Notice
from coreg_wire.terminal.logs import Log, log_notice
from coreg_wire.terminal.output import human_bytes, print_json

HEADINGS = ("step", "round", "sites", "residual", "gap", "seconds", "bytes")
PLAIN = "{:>8} {:>6} {:>6} {:>8} {:>7} {:>9} {:>10}"


def cells(step: Mapping[str, Any]) -> tuple[str, ...]:
    """The cells of a step. An estimate has the prefix ~, a certified number has none."""

    def number(name: str, prefix: str = "") -> str:
        return "-" if step[name] is None else f"{prefix}{step[name]:.0e}"

    return (
        str(step["step"]),
        str(step["round"]),
        str(step["answered"]),
        number("residual"),
        number("gap", "" if step["verified"] else "~"),
        f"{step['seconds']:.3f}",
        human_bytes(step["bytes_sent"] + step["bytes_received"]),
    )


@dataclass
class Phases:
    """Steps, complete rounds, seconds and bytes of each phase so far; the last verified step."""

    spent: dict[str, dict[str, float]] = field(default_factory=dict)
    last: Mapping[str, Any] | None = None
    _rounds: int = 0

    def add(self, step: Mapping[str, Any]) -> None:
        if step["verified"] or self.last is None:
            self.last = step
        if not step["phase"]:
            return
        spent = self.spent.setdefault(step["phase"], {"steps": 0, "rounds": 0, "seconds": 0.0, "bytes": 0})
        spent["steps"] += 1
        spent["rounds"] += max(0, step["round"] - self._rounds)
        spent["seconds"] = round(spent["seconds"] + step["seconds"], 6)
        spent["bytes"] += step["bytes_sent"] + step["bytes_received"]
        self._rounds = step["round"]

    def lines(self) -> list[str]:
        """One line for each phase."""
        return [
            f"{phase}: {s['rounds']} rounds, {human_bytes(int(s['bytes']))}, {s['seconds']:.2f} s"
            for phase, s in self.spent.items()
        ]


class JsonLines:
    """One JSON object a line on standard output."""

    def __init__(self) -> None:
        self._phases = Phases()

    def notice(self, notice: Notice) -> None:
        if notice.name == "round":
            self._phases.add(notice.fields)
        print_json(notice.to_dict())

    def finished(self, end: Finish, show: str) -> None:
        last, phases = self._phases.last, self._phases.spent
        told = {"event": "finished", "run": end.run, "stop": end.outcome.name, "reason": end.reason}
        figures = {"rounds": last["round"] if last else 0, "last": last, **({"phases": phases} if phases else {})}
        print_json({**told, **figures, "show": show})

    def close(self) -> None:
        """Nothing to release."""


class LogLines:
    """Every notice as one structured line. Steps have no line; the store has them."""

    def __init__(self, log: Log):
        self._log = log

    def notice(self, notice: Notice) -> None:
        if notice.name != "round":
            log_notice(self._log, notice)
