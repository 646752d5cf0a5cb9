"""One picture that the agent draws, by hand: errors with their intervals as SVG.

matplotlib is 60 MB and no part of an agent's environment; a few lines and circles are.
"""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from coreg_wire.files.files import write_whole

_LEFT, _WIDTH, _ROW = 190, 420, 34


def draw_errors(rows: Sequence[tuple[str, float, float, float]], path: Path, title: str) -> None:
    """(name, error, low, high) of each model, one below the other, from 0 on so that nothing is blown up.

    Raises
    ------
    StorageError
        it cannot be written there.
    """
    longest = max((high for *_, high in rows), default=1.0) or 1.0
    height = 60 + _ROW * len(rows)

    def at(value: float) -> float:
        return _LEFT + _WIDTH * max(value, 0.0) / longest

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 90} {height}" font-family="sans-serif" '
        'font-size="13">',
        f'<text x="10" y="22" font-weight="bold">{escape(title)}</text>',
        f'<line x1="{_LEFT}" y1="34" x2="{_LEFT}" y2="{height - 16}" stroke="#888"/>',
    ]
    for j, (name, error, low, high) in enumerate(rows):
        y = 56 + _ROW * j
        out += [
            f'<text x="{_LEFT - 10}" y="{y + 4}" text-anchor="end">{escape(name)}</text>',
            f'<line x1="{at(low):.1f}" y1="{y}" x2="{at(high):.1f}" y2="{y}" stroke="#1f5fa8" stroke-width="3"/>',
            f'<circle cx="{at(error):.1f}" cy="{y}" r="5" fill="#1f5fa8"/>',
            f'<text x="{at(high) + 10:.1f}" y="{y + 4}">{error:.4g}</text>',
        ]
    write_whole(path, "\n".join([*out, "</svg>", ""]).encode(), mode=0o600)
