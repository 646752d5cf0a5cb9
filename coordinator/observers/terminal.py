"""What `run` prints: lines, or JSON lines."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coordinator.machine.events import Finish
from coreg_core.outcomes import Notice, end_sentence
from coreg_core.plan import aligns_for
from coreg_wire.terminal.command_line import human_bytes, print_json

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
        if notice.name == "round" and not aligns_for(notice.run):
            self._phases.add(notice.fields)
        print_json(notice.to_dict())

    def finished(self, end: Finish, show: str) -> None:
        last, phases = self._phases.last, self._phases.spent
        told = {"event": "finished", "run": end.run, "stop": end.outcome.name, "reason": end.reason}
        figures = {"rounds": last["round"] if last else 0, "last": last, **({"phases": phases} if phases else {})}
        print_json({**told, **figures, "show": show})


# `finished` shows the end with its figures. The others repeat a notice of the run.
_UNSHOWN = ("run_ended", "session_opened", "session_ended")


class Plain:
    """Plain lines on standard output."""

    def __init__(self) -> None:
        self._headed, self._figures = False, list[Any]()
        self._headings: list[str] = []
        self._phases = Phases()

    def _print(self, text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def notice(self, notice: Notice) -> None:
        """Print a table row for a finished step, and the sentence of any other notice. Of an alignment only its end."""
        if aligns_for(notice.run):
            if notice.name == "run_ended":
                self._print(notice.text)
        elif notice.name == "round":
            step = notice.fields
            # Rounds without a phase follow the preliminary ones of an agreement.
            phase = step["phase"] or ("training" if self._headings == ["preliminary"] else "")
            if phase and phase not in self._headings:
                self._headings.append(phase)
                self._print(f"{phase}:")
            self._phases.add(step)
            self._row(step)
        elif notice.text and notice.name not in _UNSHOWN:
            self._print(notice.text)

    def _row(self, values: Mapping[str, Any]) -> None:
        figures = [values[name] for name in ("round", "residual", "gap")]
        repeated, self._figures = figures == self._figures and values["gap"] is not None, figures
        if repeated:  # sites answer one after another: one row for each sweep
            return
        if not self._headed:
            self._headed = True
            self._print(PLAIN.format(*HEADINGS))
        self._print(PLAIN.format(*cells(values)))

    def finished(self, end: Finish, show: str) -> None:
        """Print the outcome, its meaning and the next command."""
        self._print(end_sentence(end.outcome, end.reason))
        if self._phases.last is not None and (certified := self._certified(self._phases.last)):
            self._print(certified)
        for line in self._phases.lines():
            self._print(line)
        self._print(f"show this run again: {show}")

    def _certified(self, last: Mapping[str, Any]) -> str:
        if last["gap"] is None and last["residual"] is None:
            return f"{last['round']} rounds" if last["round"] else ""
        figures = [f"{name} {last[name]:.0e}" for name in ("residual", "gap") if last[name] is not None]
        certified = "certified" if last["verified"] else "estimated"
        return f"{certified}: {', '.join(figures)} (to a power of ten), after {last['round']} rounds"
