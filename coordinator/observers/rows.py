"""A finished step as plain values and as cells of a table, for all observers."""

from dataclasses import dataclass, field
from typing import Any

from coordinator.driver import Timing
from coordinator.machine.notices import StepAnswered
from coreg_wire.terminal.output import human_bytes

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
