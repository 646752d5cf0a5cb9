"""How a table that a model is to predict differs from those that it was made of: its columns, and where its values lie.

Columns are found by name, so that another order or one more changes nothing; both are told. A value beyond those of
training is where a model extrapolates.
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
    """One column: ``outside`` of ``cells`` are beyond what training saw (for texts: none of its levels), ``missing`` are empty.

    Of a number that is drawn as those of training were, 2 of n + 1 lie beyond n of them on average: ``expected``.
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
        """Of the cells that are there."""
        return self.outside / self.cells if self.cells else 0.0

    def is_above(self, share: float) -> bool:
        """Whether it is more than that, and more than twice what is expected of few rows."""
        return self.share > max(share, 2.0 * self.expected)


@dataclass(frozen=True)
class Looked:
    """What was found, column by column."""

    source: str
    drifts: tuple[Drift, ...]
    extra: tuple[str, ...]
    reordered: bool
    texts_now_numbers: tuple[str, ...]
    above: float
    ranged: bool

    @property
    def beyond(self) -> tuple[str, ...]:
        """A sentence a numeric column that lies elsewhere than in training."""
        return tuple(
            f"{self.source}, column {d.column!r}: {d.outside} of {d.cells} cells ({100 * d.share:.0f} %) are beyond what "
            f"training saw ({d.low:g} to {d.high:g}); the model extrapolates there"
            for d in self.drifts
            if d.kind == "numeric" and d.is_above(self.above)
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person who predicts should read."""
        told = list(self.beyond)
        if self.extra:
            told.append(f"{self.source}: columns that the model does not use: {some(self.extra)}")
        told += [
            f"{self.source}, column {name!r}: texts when the model was made, and numbers now"
            for name in self.texts_now_numbers
        ]
        return tuple(told)

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
    """Compare a table with what the model was made of; ``named`` are columns that are there for another reason.

    Raises
    ------
    BadTable
        a column that is not there; a cell that is no date or no number.
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
    """Texts then, and numbers now that are none of its levels: two columns may have changed places."""
    column = next(c for c in preprocessing.columns if c.name == name)
    cells = table.frame[name].drop_nulls()
    return looks_numeric(cells) and _unseen(column, table) == len(cells)
