"""One answered question as plain values, and as the cells of a table: what every observer shows of it alike.

Knows notices and numbers; prints nothing.
"""

from typing import Any

from coordinator.driver import Lap
from coordinator.notices import QuestionAnswered
from coreg_wire.output import human_bytes

HEADINGS = ("question", "round", "sites", "residual", "certified gap", "prediction bound", "seconds", "bytes")
PLAIN = "{:>8} {:>6} {:>6} {:>10} {:>14} {:>17} {:>9} {:>10}"


def row(answered: QuestionAnswered, lap: Lap) -> dict[str, Any]:
    """Plain values; the worst column speaks for all, and a column without coupling has nothing to agree on."""
    p = answered.progress
    return {
        "question": answered.question,
        "round": None if p is None else p.round,
        "answered": answered.answered,
        "verified": p is not None and p.verified,
        "residual": None if p is None else float(p.residual.max()),
        "gap": None if p is None else float(p.gap.max()),
        "prediction_bound": None if p is None else float(p.prediction_bound.max()),
        "seconds": round(lap.seconds, 6),
        "bytes": lap.bytes_sent + lap.bytes_received,
    }


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
