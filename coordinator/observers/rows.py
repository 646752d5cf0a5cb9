"""One answered question as plain values, and as the cells of a table: what every observer shows of it alike."""

from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from coordinator.driver import Timing
from coordinator.machine.notices import QuestionAnswered
from coreg_wire.terminal.output import human_bytes

HEADINGS = ("question", "round", "sites", "residual", "certified gap", "prediction bound", "seconds", "bytes")
PLAIN = "{:>8} {:>6} {:>6} {:>10} {:>14} {:>17} {:>9} {:>10}"


def row(answered: QuestionAnswered, lap: Timing) -> dict[str, Any]:
    """Plain values; the worst column speaks for all, and a column without coupling has nothing to agree on."""
    p = answered.progress
    return {
        "question": answered.question,
        "round": None if p is None else p.round,
        "answered": answered.answered,
        "verified": p is not None and p.verified,
        "residual": None if p is None else _known(p.residual.max()),
        "gap": None if p is None else _known(p.gap.max()),
        "prediction_bound": None if p is None else _known(p.prediction_bound.max()),
        **({"phase": answered.phase} if answered.phase else {}),
        "seconds": round(lap.seconds, 6),
        "bytes": lap.bytes_sent + lap.bytes_received,
    }


def _known(value: float) -> float | None:
    """A number, where there is one yet: bounds are infinite before they are certified."""
    return float(value) if isfinite(value) else None


@dataclass
class Phases:
    """What each phase of a run took so far: questions (and of these rounds, in which vectors were summed), seconds and bytes."""

    spent: dict[str, dict[str, float]] = field(default_factory=dict)
    _rounds: int = 0

    def add(self, values: dict[str, Any]) -> None:
        if not values.get("phase"):
            return
        spent = self.spent.setdefault(values["phase"], {"questions": 0, "rounds": 0, "seconds": 0.0, "bytes": 0})
        spent["questions"] += 1
        spent["rounds"] += (values["round"] or 0) - self._rounds
        spent["seconds"] = round(spent["seconds"] + values["seconds"], 6)
        spent["bytes"] += values["bytes"]
        self._rounds = values["round"] or 0

    def lines(self) -> list[str]:
        """A line a phase, for people."""
        return [
            f"{phase}: {s['rounds']} rounds, {human_bytes(int(s['bytes']))}, {s['seconds']:.2f} s"
            for phase, s in self.spent.items()
        ]


def cells(values: dict[str, Any]) -> tuple[str, ...]:
    """The same for people: an estimate is marked with ~, a certified number is not."""
    mark = "" if values["verified"] else "~"

    def number(name: str, prefix: str = "") -> str:
        return "-" if values[name] is None else f"{prefix}{values[name]:.2e}"

    return (
        str(values["question"]),
        "-" if values["round"] is None else str(values["round"]),
        str(values["answered"]),
        number("residual"),
        number("gap", mark),
        number("prediction_bound", mark),
        f"{values['seconds']:.3f}",
        human_bytes(values["bytes"]),
    )
