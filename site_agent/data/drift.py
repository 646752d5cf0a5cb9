"""Compare a table for prediction with the training data: its columns, and the range of its values.

Columns are found by name, so their order and additional columns change nothing; both are reported. A model extrapolates at
values outside the range of training.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from site_agent.data.dialect import looks_numeric
from site_agent.data.errors import some
from site_agent.data.preprocessing import Column, Preprocessing
from site_agent.data.tables import Table

WARN_ABOVE = 0.05


@dataclass(frozen=True)
class Drift:
    """One column. ``outside`` of its ``cells`` are outside the range of training (texts: are no level of it).

    ``missing`` cells are empty. ``expected`` is the mean share outside if nothing has changed: 2 of n + 1 for n training cells.
    """

    column: str
    kind: str
    cells: int
    missing: int
    outside: int
    low: float | None = None
    high: float | None = None
    expected: float = 0.0

    @property
    def share(self) -> float:
        """Share of the present cells that are outside."""
        return self.outside / self.cells if self.cells else 0.0

    def is_above(self, share: float) -> bool:
        """Whether the share outside exceeds ``share`` and twice the expected share."""
        return self.share > max(share, 2.0 * self.expected)


@dataclass(frozen=True)
class Looked:
    """The comparison, column by column."""

    source: str
    drifts: tuple[Drift, ...]
    extra: tuple[str, ...]
    reordered: bool
    texts_now_numbers: tuple[str, ...]
    above: float
    ranged: bool

    @property
    def beyond(self) -> tuple[str, ...]:
        """One sentence for each numeric column with values outside the range of training."""
        return tuple(
            f"{self.source}, column {d.column!r}: {d.outside} of {d.cells} cells ({100 * d.share:.0f} %) are outside the "
            f"range of training ({d.low:g} to {d.high:g}). The model extrapolates there: compare the units"
            for d in self.drifts
            if d.kind == "numeric" and d.is_above(self.above)
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the operator."""
        notes = list(self.beyond)
        if self.extra:
            notes.append(f"{self.source}: columns that the model does not use: {some(self.extra)}")
        notes += [
            f"{self.source}, column {name!r}: texts in training, and numbers now" for name in self.texts_now_numbers
        ]
        return tuple(notes)

    def fields(self) -> dict[str, Any]:
        return {
            "columns": {
                "extra": list(self.extra),
                "reordered": self.reordered,
                "texts_now_numbers": list(self.texts_now_numbers),
            },
            "drift": [{**asdict(d), "share": d.share, "warns": d.is_above(self.above)} for d in self.drifts],
            "ranges_known": self.ranged,
        }


def look(preprocessing: Preprocessing, table: Table, above: float = WARN_ABOVE, named: Sequence[str] = ()) -> Looked:
    """Compare a table with the training data.

    Parameters
    ----------
    above
        share of cells outside the range above which a column is reported.
    named
        columns with another purpose, which are not reported as unused.

    Raises
    ------
    BadTable
        a column is missing, or a cell is not a date or a number.
    """
    sources = preprocessing.sources
    wide = preprocessing.expanded(table)
    texts = [c.name for c in preprocessing.columns if c.kind == "text" and c.name in table.columns]
    return Looked(
        table.source,
        tuple(_drifts(preprocessing, wide)),
        tuple(name for name in table.columns if name not in {*sources, *named}),
        [name for name in table.columns if name in sources] != sources,
        tuple(name for name in texts if _became_numbers(preprocessing, wide, name)),
        above,
        preprocessing.ranges is not None,
    )


def _drifts(preprocessing: Preprocessing, table: Table) -> Iterator[Drift]:
    ranges = {} if preprocessing.ranges is None else preprocessing.ranges.columns
    for column in preprocessing.columns:
        cells = table.frame[column.name].drop_nulls()
        missing = len(table) - len(cells)
        if column.kind == "numeric" and column.name in ranges:
            low, high, seen = ranges[column.name]
            values = table.numbers(column.name)
            outside = int(((values < low) | (values > high)).sum())
            yield Drift(column.name, column.kind, len(cells), missing, outside, low, high, 2.0 / (seen + 1))
        elif column.kind == "text":
            yield Drift(column.name, column.kind, len(cells), missing, _unseen(column, table))


def _unseen(column: Column, table: Table) -> int:
    cells = table.frame[column.name].drop_nulls()
    return int((~cells.is_in(list(column.levels))).sum())


def _became_numbers(preprocessing: Preprocessing, table: Table, name: str) -> bool:
    """Whether the column held texts in training and holds numbers now: perhaps two columns changed places."""
    column = next(c for c in preprocessing.columns if c.name == name)
    cells = table.frame[name].drop_nulls()
    return looks_numeric(cells) and _unseen(column, table) == len(cells)
