"""A plot as SVG, without a library: lines with their intervals over a logarithmic or a linear axis.

A user's installation has no matplotlib, and a sweep's plot is lines and whiskers. The same numbers give the same file.
"""

import math
from collections.abc import Callable, Sequence
from xml.sax.saxutils import escape

from coreg_sim.papers.experiment import Plot

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 36, 48
COLOURS = ("#1f5fa8", "#b5541c", "#3b7d3b", "#7a3b8f", "#8a6d1b", "#4d4d4d")


def svg(plot: Plot) -> str:
    """The whole file.

    Points that a logarithmic axis cannot show (x or y not above 0) are left out.
    """
    shown = [
        (s, [(x, y, h) for x, y, h in zip(s.x, s.y, s.spread or (0.0,) * len(s.x), strict=True) if _fits(plot, x, y)])
        for s in plot.series
    ]
    xs = [x for _, points in shown for x, _, _ in points] or [1.0]
    ends = [v for _, points in shown for _, y, h in points for v in (y - h, y + h)]
    ys = [v for v in ends if v > 0 or not plot.log_y] or [1.0]
    if not plot.log_y:
        ys.append(0.0)
    x_at, x_ticks = _axis(min(xs), max(xs), LEFT, WIDTH - RIGHT, log=plot.log_x)
    y_at, y_ticks = _axis(min(ys), max(ys), HEIGHT - BOTTOM, TOP, log=plot.log_y)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(WIDTH / 2, 20, plot.title, size=13),
        _text(WIDTH / 2, HEIGHT - 10, plot.x_label),
        f'<text transform="translate(14 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">{escape(plot.y_label)}</text>',
    ]
    for tick in x_ticks:
        out += [
            _line(x_at(tick), TOP, x_at(tick), HEIGHT - BOTTOM, "#e4e4e4"),
            _text(x_at(tick), HEIGHT - 32, f"{tick:g}"),
        ]
    for tick in y_ticks:
        stroke = "#888888" if tick == 0 and not plot.log_y else "#e4e4e4"
        out += [_line(LEFT, y_at(tick), WIDTH - RIGHT, y_at(tick), stroke)]
        out += [_text(LEFT - 6, y_at(tick) + 4, f"{tick:g}", anchor="end")]
    for i, (series, points) in enumerate(shown):
        colour = COLOURS[i % len(COLOURS)]
        if series.style == "line":
            path = " ".join(f"{x_at(x):.1f},{y_at(y):.1f}" for x, y, _ in points)
            out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        for x, y, half in points:
            out.append(f'<circle cx="{x_at(x):.1f}" cy="{y_at(y):.1f}" r="3" fill="{colour}"/>')
            if half and (y - half > 0 or not plot.log_y):
                out.append(_line(x_at(x), y_at(y - half), x_at(x), y_at(y + half), colour))
        row = TOP + 14 + 15 * i
        out += [
            _line(LEFT + 10, row - 4, LEFT + 30, row - 4, colour),
            _text(LEFT + 36, row, series.label, anchor="start"),
        ]
    return "\n".join([*out, "</svg>"]) + "\n"


def _fits(plot: Plot, x: float, y: float) -> bool:
    return (x > 0 or not plot.log_x) and (y > 0 or not plot.log_y)


def _axis(
    low: float, high: float, start: float, end: float, *, log: bool
) -> tuple[Callable[[float], float], Sequence[float]]:
    """Where a value lies, and the ticks."""
    if log:
        first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
        last = max(last, first + 1)
        every = max(1, (last - first) // 8)
        ticks = [10.0**power for power in range(first, last + 1, every)]
        return lambda v: start + (math.log10(v) - first) / (last - first) * (end - start), ticks
    span = (high - low) or 1.0
    step = 10.0 ** math.floor(math.log10(span / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= 6)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    last = max(last, first + 1)
    ticks = [round(i * step, 12) for i in range(first, last + 1)]
    return lambda v: start + (v / step - first) / (last - first) * (end - start), ticks


def _line(x1: float, y1: float, x2: float, y2: float, stroke: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}"/>'


def _text(x: float, y: float, text: str, *, size: int = 11, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">{escape(text)}</text>'
