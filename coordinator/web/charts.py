"""Charts as coordinates for SVG: one line per column of the run, a logarithmic axis, and the line of the tolerance."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from coreg_wire.terminal import svg

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 360, 210, 58, 8, 10, 34
HUES = 8  # of style.css
MOST_STOPS = 200  # positions of the pointer; longer runs are thinned

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Line:
    """A line: its name, its hue, its points as SVG needs them, and its verified points for markers."""

    name: str
    hue: int
    points: str
    marks: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Stop:
    """A position of the pointer: its place, its label, and the value of each line there."""

    x: float
    left: float
    width: float
    label: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Chart:
    """Lines over steps or rounds; ``tolerance`` is the height of the dashed line, ``help`` explains the vertical axis."""

    title: str
    help: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    stops: tuple[Stop, ...]
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    tolerance: float | None


@dataclass(frozen=True)
class Bar:
    """A run of a study: its column, and how it ended."""

    run: str
    label: str
    kind: str
    value: float
    x: float
    y: float
    width: float
    height: float


def columns_of(plan: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of a run's columns: its couplings λ, or one column without a name."""
    couplings = plan.get("objective", {}).get("coupling")
    return tuple(f"λ = {c:.3g}" for c in couplings) if couplings else ("",)


def convergence(plan: Mapping[str, Any], rounds: list[dict[str, Any]]) -> list[Chart]:
    """The charts of a run: residual and gap, to powers of ten."""
    names = columns_of(plan)
    drawn = [
        _drawn(title, text, what, _series(names, rounds, what), limit=limit)
        for title, text, what, limit in (
            (
                "Residual",
                "Relative residual of the linear system.",
                "residual",
                plan["objective"].get("final_tolerance"),
            ),
            ("Gap", "Distance of the objective from its minimum.", "gap", None),
        )
    ]
    return [chart for chart in drawn if len(chart.stops) > 1]


def side_by_side(runs: Iterable[tuple[str, list[dict[str, Any]]]]) -> Chart:
    """The gaps of several runs over their rounds, for the worst column of each."""
    found = {
        run: [(r["round"], max(r["gap"]), True) for r in rounds if r["verified"] and max(r["gap"], default=0.0) > 0.0]
        for run, rounds in runs
    }
    return _drawn("Gap", "Distance of the objective from its minimum.", "gap", found, x_label="round")


def history(rows: Sequence[tuple[str, str, str, float]], y_label: str) -> tuple[tuple[Bar, ...], Chart]:
    """A bar for each run (name, label, kind, value), the oldest first, and the axes."""
    highest = max((value for *_, value in rows), default=0.0) or 1.0
    y_at, ticks = svg.axis(0.0, highest, HEIGHT - BOTTOM, TOP, log=False)
    slot = (WIDTH - LEFT - RIGHT) / max(len(rows), 6)
    bars = tuple(
        Bar(
            run,
            label,
            kind,
            v,
            LEFT + i * slot + slot * 0.15,
            min(y_at(v), y_at(0) - 2),
            slot * 0.7,
            max(y_at(0) - y_at(v), 2),
        )
        for i, (run, label, kind, v) in enumerate(rows)
    )
    y_ticks = tuple((y_at(tick), f"{tick:g}") for tick in ticks)
    ends = {bar.x + bar.width / 2: bar.label[:10] for bar in (bars[:1] + bars[-1:])}
    return bars, Chart("", "", "runs, the oldest first", y_label, (), (), tuple(ends.items()), y_ticks, None)


def _series(names: Sequence[str], rounds: list[dict[str, Any]], what: str) -> dict[str, list[Any]]:
    """Of each column, (step, value, verified)."""
    return {
        name: [(r["number"], float(r[what][i]), r["verified"]) for r in rounds if len(r[what]) > i and r[what][i] > 0.0]
        for i, name in enumerate(names)
    }


def _drawn(
    title: str,
    text: str,
    y_label: str,
    found: Mapping[str, list[Any]],
    *,
    limit: float | None = None,
    x_label: str = "step",
) -> Chart:
    found = {name: points for name, points in found.items() if points}
    xs = sorted({x for points in found.values() for x, *_ in points})
    if not xs:
        return Chart(title, text, x_label, y_label, (), (), (), (), None)
    limit = limit or None
    values = [y for points in found.values() for _, y, _ in points] + ([] if limit is None else [limit])
    x_at, x_ticks = svg.axis(min(0, xs[0]), max(xs[-1], 1), LEFT, WIDTH - RIGHT, log=False, most=6)
    y_at, y_ticks = svg.axis(min(values), max(values), HEIGHT - BOTTOM, TOP, log=True, most=6)
    every = -(-len(xs) // MOST_STOPS)
    kept = set(xs[::every]) | {xs[-1]}
    lines = []
    for i, (name, points) in enumerate(found.items()):
        shown = [(x_at(x), y_at(y), v) for x, y, v in points if x in kept]
        path = [(x, y) for x, y, _ in shown]
        hue = i if len(found) <= HUES else i * HUES // len(found)
        marks = tuple((x, y) for x, y, v in shown if v)
        lines.append(Line(name, hue, svg.points(path), marks if len(marks) <= MOST_STOPS // 4 else marks[-1:]))
    places = [x_at(x) for x in sorted(kept)]
    edges = [LEFT, *((a + b) / 2 for a, b in pairwise(places)), WIDTH - RIGHT]
    at = [{x: y for x, y, _ in points} for points in found.values()]

    stops, now = [], ["–"] * len(at)
    for i, x in enumerate(sorted(kept)):
        now = [f"{column[x]:.0e}" if x in column else held for column, held in zip(at, now, strict=True)]
        stops.append(Stop(places[i], edges[i], edges[i + 1] - edges[i], f"{x_label} {x}", tuple(now)))
    return Chart(
        title,
        text,
        x_label,
        y_label,
        tuple(lines),
        tuple(stops),
        tuple((x_at(x), f"{x:g}") for x in x_ticks if x == int(x)),
        tuple((y_at(y), f"1e{round(math.log10(y))}") for y in y_ticks),
        None if limit is None else y_at(limit),
    )
