"""A column of a table as features: the values that its encoding is made of, and the encoding."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from coreg_core.arrays import Arr, Ints
from site_agent.data.cell_text import canonical
from site_agent.data.dates import ZONE, day_of, without_zone
from site_agent.data.sources import BadTable, TableFault
from site_agent.data.tables import Table

Kind: TypeAlias = Literal["numeric", "boolean", "date", "text"]
TRUTH = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}


@dataclass(frozen=True)
class Column:
    """(x − mean)/scale of numbers and dates (``layout``: days since 1970), 0/1 for each level, and
    an indicator.
    """

    name: str
    kind: Kind
    mean: float = 0.0
    scale: float = 1.0
    fill: float = 0.0
    levels: tuple[str, ...] = ()
    indicator: bool = False
    indicator_mean: float = 0.0
    indicator_scale: float = 1.0
    layout: str = ""

    @property
    def feature_names(self) -> list[str]:
        names = [self.name]
        if self.kind == "text":
            names = [f"{self.name}={level}" for level in self.levels]
        if self.indicator:
            return [*names, f"{self.name} is missing"]
        return names

    @property
    def scales(self) -> list[float]:
        """What one unit of each feature is in the column's own units."""
        scales = [self.scale]
        if self.kind == "text":
            scales = [1.0] * len(self.levels)
        if self.indicator:
            return [*scales, self.indicator_scale]
        return scales

    def numbers(self, table: Table) -> Arr:
        """The values of a column that is no text; NaN is missing."""
        if self.kind == "numeric":
            return table.numbers(self.name)
        texts = table.shown(self.name)
        values = {text: self._value(text) for text in set(texts)}
        unread = [row for row, text in enumerate(texts) if values[text] is None]
        if unread:
            raise BadTable(self._unread(table, texts[unread[0]] or "", unread))
        return np.array([values[text] for text in texts], dtype=np.float64)

    def _value(self, text: str | None) -> float | None:
        """The number that a date or a truth value means; None if the text is neither."""
        if text is None:
            return np.nan
        if self.kind == "date":
            return day_of(text, self.layout)
        return TRUTH.get(text.lower())

    def _unread(self, table: Table, text: str, rows: list[int]) -> TableFault:
        what = f"{text!r} is not true or false."
        todo = "Correct the cell, or leave it empty."
        kind = "text"
        if self.kind == "date":
            what = f"{text!r} is not a date of the format {self.layout}, without time zone."
            kind = "date"
            if ZONE.search(text):
                todo = without_zone(self.name)
        return table.fault(what, todo, kind, self.name, rows)

    def places(self, table: Table) -> Ints:
        """The place of each row's level; -1: missing, or a text that is no level.

        A text that is a level as the source shows it stays that one: where training found codes,
        their decimals count.
        """
        texts = table.shown(self.name)
        of_level = {level: place for place, level in enumerate(self.levels)}
        places: dict[str | None, int] = {None: -1}
        for text in set(texts):
            if text is not None:
                places[text] = of_level.get(text, of_level.get(canonical(text), -1))
        return np.array([places[text] for text in texts], dtype=np.int64)

    def encoded(self, table: Table) -> Arr:
        if self.kind == "text":
            # An unknown text becomes a row of zeros, as with
            # OneHotEncoder(handle_unknown="ignore").
            levels = np.arange(len(self.levels))
            block: Arr = np.equal.outer(self.places(table), levels).astype(np.float64)
        else:
            values = self.numbers(table)
            filled = np.where(np.isnan(values), self.fill, values)
            block = ((filled - self.mean) / self.scale)[:, np.newaxis]
        if not self.indicator:
            return block
        missing = table.missing(self.name).astype(np.float64)
        return np.column_stack([block, (missing - self.indicator_mean) / self.indicator_scale])
