"""Compare a table for prediction with the training data: its columns, its texts and missing cells, and the range of its values.

Columns are found by name, so their order and additional columns change nothing; both are reported. A model extrapolates at
values outside the range of training.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date, timedelta
from typing import Any

from site_agent.data.errors import some
from site_agent.data.notation import looks_numeric
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
        return self.outside / self.cells if self.cells else 0.0

    def is_above(self, share: float) -> bool:
        """Whether the share outside exceeds ``share`` and twice the expected share."""
        return self.share > max(share, 2.0 * self.expected)

    @property
    def ends(self) -> str:
        ends = (self.low or 0.0, self.high or 0.0)
        days = self.kind == "date"
        return " to ".join(str(date(1970, 1, 1) + timedelta(days=end)) if days else f"{end:g}" for end in ends)


@dataclass(frozen=True)
class Looked:
    """The comparison, column by column. ``cells``: notes on texts that are new and cells that are newly missing."""

    source: str
    drifts: tuple[Drift, ...]
    cells: tuple[str, ...]
    extra: tuple[str, ...]
    reordered: bool
    texts_now_numbers: tuple[str, ...]
    above: float
    ranged: bool

    @property
    def values(self) -> tuple[str, ...]:
        """Notes on cells: `cells`, and numbers and dates outside the range of training."""
        outside = (
            f"{self.source}, column {d.column!r}: {d.outside} of {d.cells} cells ({100 * d.share:.0f} %) are outside the "
            f"range of training ({d.ends}). The model extrapolates there"
            + ("" if d.kind == "date" else ": compare the units")
            for d in self.drifts
            if d.kind != "text" and d.is_above(self.above)
        )
        return (*self.cells, *outside)

    @property
    def notes(self) -> tuple[str, ...]:
        extra = [f"{self.source}: columns that the model does not use: {some(self.extra)}"] * bool(self.extra)
        numbers = (
            f"{self.source}, column {name!r}: texts in training, and numbers now" for name in self.texts_now_numbers
        )
        return (*self.values, *extra, *numbers)

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
    sources = preprocessing.sources
    table.require(sources, "a feature of this model")
    texts = [column for column in preprocessing.columns if column.kind == "text"]
    return Looked(
        table.source,
        tuple(_drifts(preprocessing, table)),
        tuple(note for column in preprocessing.columns for note in _notes(column, table)),
        tuple(name for name in table.columns if name not in {*sources, *named}),
        [name for name in table.columns if name in sources] != sources,
        tuple(column.name for column in texts if _became_numbers(column, table)),
        above,
        preprocessing.ranges is not None,
    )


def _drifts(preprocessing: Preprocessing, table: Table) -> Iterator[Drift]:
    for column in preprocessing.columns:
        missing = int(table.missing(column.name).sum())
        cells = len(table) - missing
        if column.kind == "text":
            yield Drift(column.name, column.kind, cells, missing, len(_unseen(column, table)))
        elif known := (preprocessing.ranges or {}).get(column.name):
            low, high, seen = known
            values = column.numbers(table)
            outside = int(((values < low) | (values > high)).sum())
            yield Drift(column.name, column.kind, cells, missing, outside, low, high, 2.0 / (seen + 1))


def _notes(column: Column, table: Table) -> Iterator[str]:
    where = f"{table.source}, column {column.name!r}"
    if column.kind == "text" and (unseen := _unseen(column, table)):
        first = f"{len(unseen)} cells hold a text that training never had ({unseen[0]!r} first)"
        yield f"{where}: {first}. They count as none of its levels"
    if not column.indicator and (missing := int(table.missing(column.name).sum())):
        instead = "none of its levels" if column.kind == "text" else "the mean"
        yield f"{where}: {missing} cells are missing, and none was in training. They count as {instead}"


def _unseen(column: Column, table: Table) -> list[str]:
    levels = frozenset(column.levels)
    return [text for text in table.texts(column.name) if text is not None and text not in levels]


def _became_numbers(column: Column, table: Table) -> bool:
    """Whether the column held texts in training and holds numbers now: perhaps two columns changed places."""
    texts = [text for text in table.texts(column.name) if text is not None]
    return looks_numeric(texts) and len(_unseen(column, table)) == len(texts)
