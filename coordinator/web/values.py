"""What the pages show, as plain values from the run store, opened for reading alone. Knows the store and geometry; no HTTP."""

import math
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.queue import Attendance, Queue
from coordinator.schema import is_held
from coordinator.store import RunStore, RunSummary

WIDTH, HEIGHT, MARGIN = 720, 260, 44
LATEST = 40  # rounds in a run's table, and runs in the overview
COMPARED = 8


@dataclass(frozen=True)
class Line:
    """One line of a chart: its name, and its points as SVG wants them; estimates and certified numbers are lines of their own."""

    name: str
    kind: str
    points: str
    last: str


@dataclass(frozen=True)
class Chart:
    """Convergence over the questions, in powers of ten."""

    lines: tuple[Line, ...]
    ticks: tuple[tuple[float, str], ...]
    questions: int
    width: int = WIDTH
    height: int = HEIGHT
    margin: int = MARGIN


def overview(path: Path) -> dict[str, Any]:
    """The federation, its sites, its queue and its latest runs."""
    with closing(Queue(path, read_only=True)) as queue, closing(RunStore(path, read_only=True)) as store:
        said, waiting = queue.said(), queue.waiting()
        known = {a.site: a for a in queue.attendance()}
        runs = store.runs()
    up = is_held(path)
    sites = [
        (site, known.get(site) or Attendance(site, None, None, "", "", None, None))
        for site in sorted({*said.get("sites", ()), *known})
    ]
    return {
        "said": said,
        "up": up,
        "sites": [{"name": name, "here": a.connected and up, "seen": a} for name, a in sites],
        "waiting": [{"run": plan.run, "study": plan.study, "submitted": at} for plan, at in waiting],
        "runs": runs[:LATEST],
        "more": max(0, len(runs) - LATEST),
        "awaited": said.get("awaited", {}) if up else {},
    }


def one_run(path: Path, name: str) -> dict[str, Any]:
    """A run: its plan, its convergence, its rounds, and who is awaited.

    Raises
    ------
    UsageError
        there is none of that name.
    """
    with closing(Queue(path, read_only=True)) as queue, closing(RunStore(path, read_only=True)) as store:
        summary, rounds = store.show(name)
        said = queue.said()
    awaited = said.get("awaited", {}).get(summary.run) if is_held(path) and summary.ended is None else None
    return {
        "summary": summary,
        "plan": plan_rows(summary),
        "chart": chart(rounds),
        "rounds": rounds[-LATEST:][::-1],
        "earlier": max(0, len(rounds) - LATEST),
        "seconds": sum(r["seconds"] for r in rounds),
        "bytes": sum(r["bytes_sent"] + r["bytes_received"] for r in rounds),
        "awaited": awaited,
    }


def compared(path: Path, names: list[str]) -> list[RunSummary]:
    """Runs side by side, in the order asked for."""
    with closing(RunStore(path, read_only=True)) as store:
        return [store.find(name) for name in names[:COMPARED]]


def plan_rows(summary: RunSummary) -> list[tuple[str, str]]:
    """Every term of a plan and its value."""
    rows: list[tuple[str, str]] = []
    for name, value in summary.plan.items():
        if isinstance(value, dict):
            rows += [(f"{name} {term}", _plain(chosen)) for term, chosen in value.items()]
        else:
            rows.append((name, _plain(value)))
    return rows


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def chart(rounds: list[dict[str, Any]]) -> Chart:
    """Residual, gap and prediction bound, a line a column; what is not certified is drawn apart."""
    series: dict[tuple[str, int, str], list[tuple[int, float]]] = {}
    for row in rounds:
        kind = "certified" if row["verified"] else "estimated"
        for what in ("residual", "gap", "prediction_bound"):
            for column, value in enumerate(row[what] or []):
                if value is not None and value > 0 and math.isfinite(value):
                    series.setdefault((what, column, kind), []).append((row["question"], math.log10(value)))
    values = [y for points in series.values() for _, y in points]
    if not values:
        return Chart((), (), len(rounds))
    low, high = math.floor(min(values)), max(math.ceil(max(values)), math.floor(min(values)) + 1)
    last = max(1, max(x for points in series.values() for x, _ in points))

    def x_at(question: int) -> float:
        return MARGIN + (WIDTH - 2 * MARGIN) * question / last

    def y_at(power: float) -> float:
        return MARGIN / 2 + (HEIGHT - MARGIN) * (high - power) / (high - low)

    several = len({column for _, column, _ in series}) > 1
    lines = tuple(
        Line(
            f"{what.replace('_', ' ')}{f' {column + 1}' if several else ''}, {kind}",
            f"{what} {kind}",
            " ".join(f"{x_at(x):.1f},{y_at(y):.1f}" for x, y in points),
            f"{10 ** points[-1][1]:.1e}",
        )
        for (what, column, kind), points in sorted(series.items())
    )
    step = max(1, (high - low) // 6)
    ticks = tuple((y_at(power), f"1e{power}") for power in range(low, high + 1, step))
    return Chart(lines, ticks, len(rounds))
