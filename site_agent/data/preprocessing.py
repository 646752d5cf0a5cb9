"""Encode the columns of a table as a float64 matrix.

The encoding is fitted once and kept in the model file, as plain numbers in JSON, without pickle.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from coreg_core.arrays import Arr
from coreg_core.errors import UsageError
from site_agent.data.column_notes import Range, notes_on_drift, notes_on_fit
from site_agent.data.columns import Column
from site_agent.data.dates import check_layout
from site_agent.data.fitting import ColumnOptions, fit_column
from site_agent.data.sources import COLUMNS, NA_VALUES, Faults, shortened, some
from site_agent.data.tables import Table


@dataclass(frozen=True)
class Preprocessing:
    """The encoding of all columns in order; ``ranges`` of numbers and dates are over labelled and
    shared rows.
    """

    columns: tuple[Column, ...]
    notes: tuple[str, ...] = ()
    ranges: Mapping[str, Range] | None = None
    na_values: tuple[str, ...] = NA_VALUES

    @property
    def feature_names(self) -> list[str]:
        return [name for column in self.columns for name in column.feature_names]

    @property
    def summary(self) -> str:
        """The columns that become features; a text column with the number of its levels."""
        texts = [
            f"{column.name} ({len(column.levels)} levels)" if column.levels else column.name
            for column in self.columns
        ]
        summary = shortened(texts, COLUMNS)
        indicators = [column.name for column in self.columns if column.indicator]
        if indicators:
            summary += f"; with an indicator of missing values: {shortened(indicators, 3)}"
        return summary

    @property
    def sources(self) -> list[str]:
        """The columns that a table must have, in the order of training."""
        return [column.name for column in self.columns]

    @classmethod
    def fit(
        cls,
        labelled: Table,
        unlabelled: Table | None = None,
        *,
        categorical: Sequence[str] = (),
        dates: Mapping[str, str] | None = None,
        scale: bool = True,
    ) -> "Preprocessing":
        """Fit the kind of each column on all rows, and its numbers on the labelled ones (the shared
        ones if none is).
        """
        options = ColumnOptions(categorical, dates or {}, scale)
        _check(options, labelled)
        tables = [labelled]
        if unlabelled is not None:
            tables = [labelled, unlabelled] if len(labelled) else [unlabelled]
        together = tables[0].beside(tables[-1])
        faults = Faults()
        columns = []
        for name in tables[0].columns:
            with faults.caught():
                columns.append(fit_column(name, tables, together, options))
        faults.raise_any()
        ranges = {}
        for column in columns:
            if column.kind in ("numeric", "date"):
                values = np.concatenate([column.numbers(table) for table in tables])
                values = values[~np.isnan(values)]
                least = float(values.min())
                greatest = float(values.max())
                ranges[column.name] = (least, greatest, len(values))
        notes = notes_on_fit(columns, tables, options)
        return cls(tuple(columns), tuple(notes), ranges)

    def transform(self, table: Table) -> Arr:
        """The matrix (n, d), C-contiguous float64."""
        table.require(self.sources, "a feature of this model")
        faults = Faults()
        blocks = []
        for column in self.columns:
            with faults.caught():
                blocks.append(column.encoded(table))
        faults.raise_any()
        return np.ascontiguousarray(np.hstack(blocks))

    def moved(self, table: Table) -> list[str]:
        """Notes on columns that differ from training: new texts, newly missing cells, values
        outside the range.
        """
        table.require(self.sources, "a feature of this model")
        ranges = self.ranges or {}
        out = list[str]()
        for column in self.columns:
            notes = notes_on_drift(column, table, ranges.get(column.name))
            out += [f"{table.source}, column {column.name!r}: {note}" for note in notes]
        return out

    def to_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = {
            "columns": list(map(asdict, self.columns)),
            "na_values": list(self.na_values),
        }
        if self.ranges is None:
            return plain
        return {**plain, "ranges": dict(self.ranges)}

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> "Preprocessing":
        columns = []
        for column in plain["columns"]:
            levels = tuple(column["levels"])
            columns.append(Column(**{**column, "levels": levels}))
        ranges: Any = plain.get("ranges")
        if ranges is not None:
            ranges = {name: tuple(values) for name, values in ranges.items()}
        return cls(tuple(columns), (), ranges, tuple(plain["na_values"]))


def _check(options: ColumnOptions, labelled: Table) -> None:
    for option, names in (("categorical", options.categorical), ("dates", options.dates)):
        unknown = [name for name in names if name not in labelled]
        if unknown:
            raise UsageError(
                f"--{option} {', '.join(unknown)}: no such feature column. The columns are"
                f" {some(labelled.columns, COLUMNS)}."
            )
    for name, layout in options.dates.items():
        check_layout(name, layout)
