"""What `run` prints: lines, or JSON lines."""

from collections.abc import Mapping
from typing import Any, TypeAlias

from coordinator.machine.events import Finish
from coordinator.machine.notices import NoticeName
from coreg_core.outcomes import Notice, end_sentence
from coreg_core.plan import OBJECTIVES, aligns_for
from coreg_wire.terminal.command_line import human_bytes, print_json
from coreg_wire.terminal.progress import WorkLine
from coreg_wire.terminal.text import echo

Row: TypeAlias = Mapping[str, Any]  # the fields of a step
FIGURES = ("residual", "gap")  # columns that not every step has
WIDTHS = {
    "step": 8,
    "round": 6,
    "sites": 6,
    "residual": 8,
    "gap": 7,
    "seconds": 9,
    "bytes": 10,
}


def cells(step: Row) -> dict[str, str]:
    """The cells of a step by their headings.

    An estimate has the prefix ~, a certified number has none.
    """

    def number(name: str, prefix: str = "") -> str:
        if step[name] is None:
            return "-"
        return f"{prefix}{step[name]:.0e}"

    return {
        "step": str(step["step"]),
        "round": str(step["round"]),
        "sites": str(step["answered"]),
        "residual": number("residual"),
        "gap": number("gap", "" if step["verified"] else "~"),
        "seconds": f"{step['seconds']:.3f}",
        "bytes": human_bytes(step["bytes_sent"] + step["bytes_received"]),
    }


class StepTable:
    """A table of steps as its rows arrive.

    A column of figures begins, with new headings, at the first step that has a value for it. So no
    column holds only "-".
    """

    def __init__(self) -> None:
        self._columns: list[str] = []

    def lines(self, step: Row) -> list[str]:
        """The row of a step, below headings if these change."""
        absent = {name for name in FIGURES if step[name] is None} - {*self._columns}
        columns = [name for name in WIDTHS if name not in absent]
        texts = cells(step)
        out = [" ".join(f"{texts[name]:>{WIDTHS[name]}}" for name in columns)]
        if columns != self._columns:
            self._columns = columns
            out.insert(0, " ".join(f"{name:>{WIDTHS[name]}}" for name in columns))
        return out


def certifying(last: Row | None, step: Row) -> Row:
    """The last verified step so far, or the first one."""
    if step["verified"] or last is None:
        return step
    return last


def work_after(phase: str) -> str:
    """What is waited for after a step of this phase: the exchange that comes next, by its name."""
    for objective in OBJECTIVES.values():
        phases = list(dict.fromkeys(kind.phase for kind in objective.questions.values()))
        if phase in phases[:-1]:
            return f"{phases[phases.index(phase) + 1]}: the sites compute"
    return "the sites compute"


class JsonLines:
    """One JSON object a line on standard output."""

    def __init__(self) -> None:
        self._last: Row | None = None

    def notice(self, notice: Notice) -> None:
        if notice.name == NoticeName.ROUND and not aligns_for(notice.run):
            self._last = certifying(self._last, notice.fields)
        print_json(notice.to_dict())

    def finished(self, end: Finish, show: str) -> None:
        print_json(
            {
                "event": "finished",
                "run": end.run,
                "stop": end.outcome.name,
                "reason": end.reason,
                "rounds": self._last["round"] if self._last else 0,
                "last": self._last,
                "show": show,
            }
        )


# `finished` shows the end with its figures. The others repeat a notice of the run.
_UNSHOWN = (NoticeName.RUN_ENDED, NoticeName.SESSION_OPENED, NoticeName.SESSION_ENDED)


class Plain:
    """Plain lines on standard output."""

    def __init__(self) -> None:
        self._table = StepTable()
        self._work = WorkLine()
        self._figures = list[Any]()
        self._headings: list[str] = []
        self._last: Row | None = None

    def notice(self, notice: Notice) -> None:
        """Print a table row for a finished step, and the sentence of any other notice.

        Of an alignment only its end.
        """
        self._work.hide()
        if aligns_for(notice.run):
            if notice.name == NoticeName.RUN_ENDED:
                echo(notice.text)
        elif notice.name == NoticeName.ROUND:
            step = notice.fields
            # Rounds without a phase follow the preliminary ones of an agreement.
            phase = step["phase"] or ("training" if self._headings == ["preliminary"] else "")
            if phase and phase not in self._headings:
                self._headings.append(phase)
                echo(f"{phase}:")
            self._last = certifying(self._last, step)
            self._row(step)
        elif notice.text and notice.name not in _UNSHOWN:
            echo(notice.text)
        if notice.name == NoticeName.ROUND:
            self._work.show(work_after(notice.fields["phase"]))
        elif notice.name != NoticeName.RUN_ENDED:
            self._work.show("waiting for the sites")

    def _row(self, values: Row) -> None:
        figures = [values[name] for name in ("round", "residual", "gap")]
        repeated = figures == self._figures and values["gap"] is not None
        self._figures = figures
        if repeated:  # sites answer one after another: one row for each sweep
            return
        for line in self._table.lines(values):
            echo(line)

    def finished(self, end: Finish, show: str) -> None:
        """Print the outcome, its meaning and the next command."""
        self._work.hide()
        echo(end_sentence(end.outcome, end.reason))
        if self._last is not None and (certified := self._certified(self._last)):
            echo(certified)
        echo(f"show this run again: {show}")

    def _certified(self, last: Row) -> str:
        if last["gap"] is None and last["residual"] is None:
            if last["round"]:
                return f"{last['round']} rounds"
            return ""
        figures = [
            f"{name} {last[name]:.0e}" for name in ("residual", "gap") if last[name] is not None
        ]
        certified = "certified" if last["verified"] else "estimated"
        return (
            f"{certified}: {', '.join(figures)} (to a power of ten), after {last['round']} rounds"
        )
