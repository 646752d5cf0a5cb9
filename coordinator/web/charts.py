"""Lines over steps or rounds, in powers of ten, as SVG wants them."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from coreg_wire.terminal import svg

WIDTH, HEIGHT, MARGIN = 720, 260, 44


@dataclass(frozen=True)
class Line:
    """One line of a chart: its name, its style, and its points as SVG wants them."""

    name: str
    kind: str
    points: str
    last: str


@dataclass(frozen=True)
class Chart:
    """Lines in powers of ten."""

    lines: tuple[Line, ...]
    ticks: tuple[tuple[float, str], ...]
    width: int = WIDTH
    height: int = HEIGHT
    margin: int = MARGIN


def convergence(rounds: list[dict[str, Any]]) -> Chart:
    """Over the steps, a line a column: gap over tolerance as sites report it, and with exact reports the figures themselves.

    What is not certified is drawn apart.
    """
    series: dict[tuple[str, int, str], list[tuple[int, float]]] = {}
    for row in rounds:
        kind = "certified" if row["verified"] else "estimated"
        ratios = [2.0 ** min(level, 1000) for level in row["level"]]
        for what, values in (
            ("gap over tolerance", ratios),
            *((name, row[name]) for name in ("residual", "gap", "bound")),
        ):
            for column, value in enumerate(values):
                if _shows(value):
                    series.setdefault((what, column, kind), []).append((row["number"], value))
    several = len({column for _, column, _ in series}) > 1
    named = {
        (f"{what}{f' {column + 1}' if several else ''}, {kind}", f"{what.partition(' ')[0]} {kind}"): points
        for (what, column, kind), points in sorted(series.items())
    }
    return _drawn(named)


def side_by_side(runs: Iterable[tuple[str, list[dict[str, Any]]]]) -> Chart:
    """The certified gap over the tolerance, of several runs over their rounds, the worst column of each."""
    named: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for number, (run, rounds) in enumerate(runs):
        levels = [(row["round"], max(row["level"])) for row in rounds if row["verified"] and row["level"]]
        points = [(number_of, 2.0 ** min(level, 1000)) for number_of, level in levels]
        if points:
            named[run, f"run-{number}"] = points
    return _drawn(named)


def _shows(value: float | None) -> bool:
    return value is not None and value > 0 and math.isfinite(value)


def _drawn(named: Mapping[tuple[str, str], list[tuple[int, float]]]) -> Chart:
    values = [y for points in named.values() for _, y in points]
    if not values:
        return Chart((), ())
    last = max(1, max(x for points in named.values() for x, _ in points))
    x_at = svg.scale(0, last, MARGIN, WIDTH - MARGIN)
    y_at, ticks = svg.axis(min(values), max(values), HEIGHT - MARGIN / 2, MARGIN / 2, log=True, most=6)
    lines = tuple(
        Line(name, kind, svg.points((x_at(x), y_at(y)) for x, y in points), f"{points[-1][1]:.1e}")
        for (name, kind), points in named.items()
    )
    return Chart(lines, tuple((y_at(tick), f"1e{round(math.log10(tick))}") for tick in ticks))
