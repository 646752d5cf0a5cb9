"""Plot the errors of models with intervals, as SVG."""

from collections.abc import Sequence
from pathlib import Path

from coreg_wire.files.files import write_whole
from coreg_wire.terminal import svg

_LEFT, _WIDTH, _ROW = 190, 420, 34


def draw_errors(rows: Sequence[tuple[str, float, float, float]], path: Path, title: str) -> None:
    """Plot (name, error, low, high) of each model on one row each. The axis begins at 0.

    Raises
    ------
    StorageError
        the file cannot be written.
    """
    longest = max((high for *_, high in rows), default=1.0) or 1.0
    height = 60 + _ROW * len(rows)
    at = svg.scale(0.0, longest, _LEFT, _LEFT + _WIDTH)
    colour = svg.COLOURS[0]
    body = [
        svg.text(10, 22, title, anchor="start", more=' font-weight="bold"'),
        svg.line(_LEFT, 34, _LEFT, height - 16, "#888"),
    ]
    for j, (name, error, low, high) in enumerate(rows):
        y = 56 + _ROW * j
        body += [
            svg.text(_LEFT - 10, y + 4, name, anchor="end"),
            svg.line(at(max(low, 0.0)), y, at(high), y, colour, ' stroke-width="3"'),
            svg.circle(at(error), y, 5, colour),
            svg.text(at(high) + 10, y + 4, f"{error:.4g}", anchor="start"),
        ]
    write_whole(path, svg.document(_LEFT + _WIDTH + 90, height, body, font_size=13).encode(), mode=0o600)
