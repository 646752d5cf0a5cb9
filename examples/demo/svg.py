"""Pictures as SVG text, without a drawing library. The same numbers give the same file."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, TypeAlias
from xml.sax.saxutils import escape

COLOURS = ("#1f5fa8", "#b5541c", "#3b7d3b", "#7a3b8f", "#8a6d1b", "#4d4d4d", "#1a8a8a", "#c2407e")
GRID = "#e4e4e4"
# of a plot
WIDTH = 640
HEIGHT = 400
LEFT = 64
TOP = 36
BOTTOM = 48
# the right margin of one series, and of several
ALONE = 16
LEGEND = 170

Scale: TypeAlias = Callable[[float], float]
Mark: TypeAlias = tuple[float, float, float]  # x, y, and half an interval around y


@dataclass(frozen=True)
class Series:
    """One line, one set of points, or a line with a marker at each point.

    ``spread`` is half an interval around each y.
    """

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    style: Literal["points", "line", "bare line"] = "points"
    spread: tuple[float, ...] = ()


@dataclass(frozen=True)
class Plot:
    """A figure; ``diagonal`` adds the line x = y."""

    name: str
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    diagonal: bool = False
    log_x: bool = False
    log_y: bool = False


def scale(low: float, high: float, start: float, end: float) -> Scale:
    """Map [low, high] to [start, end]."""
    return lambda value: start + (value - low) / (high - low) * (end - start)


def axis(
    low: float, high: float, start: float, end: float, *, log: bool, most: int = 8
) -> tuple[Scale, Sequence[float]]:
    """A scale that begins and ends at round numbers, and its ticks: about ``most`` powers of ten,
    or up to 7 linear ones.
    """
    if log:
        first = math.floor(math.log10(low) + 1e-9)
        last = math.ceil(math.log10(high) - 1e-9)
        last = max(last, first + 1)
        powers = scale(first, last, start, end)
        step = max(1, (last - first) // most)
        return lambda value: powers(math.log10(value)), [
            10.0**power for power in range(first, last + 1, step)
        ]
    span = high - low
    if span <= 1e-9 * max(abs(low), abs(high), 1e-300):  # one value, up to rounding
        span = 1.0
    unit = 10.0 ** math.floor(math.log10(span / 4))
    unit *= next(factor for factor in (1, 2, 5, 10) if span / (unit * factor) <= 6)
    first = math.floor(low / unit + 1e-9)
    last = math.ceil(high / unit - 1e-9)
    last = max(last, first + 1)
    return scale(first * unit, last * unit, start, end), [
        round(i * unit, 12) for i in range(first, last + 1)
    ]


def points(pairs: Iterable[tuple[float, float]]) -> str:
    """The value of a polyline's ``points``."""
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in pairs)


def line(x1: float, y1: float, x2: float, y2: float, stroke: str, more: str = "") -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}"{more}/>'
    )


def circle(x: float, y: float, radius: float, fill: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{fill}"/>'


def text(x: float, y: float, words: str, *, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(words)}</text>'


def document(width: float, height: float, body: Iterable[str], *, font_size: int) -> str:
    """The whole file: the body on a white ground."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}"'
        f' font-family="sans-serif" font-size="{font_size}">'
    )
    return "\n".join(
        [head, f'<rect width="{width:g}" height="{height:g}" fill="white"/>', *body, "</svg>", ""]
    )


def draw(plot: Plot) -> str:
    """The plot as a file.

    It omits y that is not finite, and values not above 0 on a logarithmic axis.
    """
    shown = [_marks(plot, series) for series in plot.series]
    right = WIDTH - (LEGEND if len(plot.series) > 1 else ALONE)
    xs, ys = _extent(plot, shown)
    x_at, x_ticks = axis(min(xs), max(xs), LEFT, right, log=plot.log_x)
    y_at, y_ticks = axis(min(ys), max(ys), HEIGHT - BOTTOM, TOP, log=plot.log_y)
    out = [
        text(WIDTH / 2, 20, plot.title, more=' font-size="13"'),
        text((LEFT + right) / 2, HEIGHT - 10, plot.x_label),
        (
            f'<text transform="translate(14 {HEIGHT / 2:g}) rotate(-90)"'
            f' text-anchor="middle">{escape(plot.y_label)}</text>'
        ),
    ]
    for tick in x_ticks:
        out.append(line(x_at(tick), TOP, x_at(tick), HEIGHT - BOTTOM, GRID))
        out.append(text(x_at(tick), HEIGHT - 32, f"{tick:g}"))
    for tick in y_ticks:
        out.append(line(LEFT, y_at(tick), right, y_at(tick), "#888888" if tick == 0 else GRID))
        out.append(text(LEFT - 6, y_at(tick) + 4, f"{tick:g}", anchor="end"))
    if plot.diagonal:
        low = max(x_ticks[0], y_ticks[0])
        high = min(x_ticks[-1], y_ticks[-1])
        out.append(
            line(x_at(low), y_at(low), x_at(high), y_at(high), "#888888", ' stroke-dasharray="4 3"')
        )
    for i, (series, marks) in enumerate(zip(plot.series, shown, strict=True)):
        colour = COLOURS[i % len(COLOURS)]
        out += _drawn(plot, series, marks, colour, x_at, y_at)
        if len(plot.series) > 1:
            row = TOP + 14 + 15 * i
            out.append(line(right + 8, row - 4, right + 28, row - 4, colour, ' stroke-width="3"'))
            out.append(text(right + 34, row, series.label, anchor="start"))
    return document(WIDTH, HEIGHT, out, font_size=11)


def _marks(plot: Plot, series: Series) -> list[Mark]:
    """The points of a series that its axes can show."""
    spread = series.spread or (0.0,) * len(series.x)
    marks = []
    for x, y, half in zip(series.x, series.y, spread, strict=True):
        if math.isfinite(y) and (x > 0 or not plot.log_x) and (y > 0 or not plot.log_y):
            marks.append((x, y, half))
    return marks


def _extent(plot: Plot, shown: Iterable[list[Mark]]) -> tuple[list[float], list[float]]:
    """The x and the y that the axes contain; a linear y axis contains 0."""
    every = list(chain.from_iterable(shown))
    xs = [x for x, _, _ in every] or [1.0]
    ends = [end for _, y, half in every for end in (y - half, y + half)]
    ys = [end for end in ends if end > 0 or not plot.log_y] or [1.0]
    if not plot.log_y:
        ys.append(0.0)
    if plot.diagonal:
        xs = ys = [*xs, *ys]
    return xs, ys


def _drawn(
    plot: Plot, series: Series, marks: list[Mark], colour: str, x_at: Scale, y_at: Scale
) -> Iterator[str]:
    """The line of a series, its points, and their intervals."""
    if series.style != "points":
        path = points((x_at(x), y_at(y)) for x, y, _ in marks)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
    if series.style == "bare line":
        return
    for x, y, half in marks:
        yield circle(x_at(x), y_at(y), 3, colour)
        if half and (y - half > 0 or not plot.log_y):
            yield line(x_at(x), y_at(y - half), x_at(x), y_at(y + half), colour)
