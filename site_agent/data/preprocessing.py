"""Encode text columns as a float64 matrix. The encoding is fitted once and kept in the model file.

The fit equals SimpleImputer, StandardScaler and OneHotEncoder of scikit-learn. It is stored as plain numbers in JSON, without
pickle. Means and scales are from the labelled rows. Levels and missing values are from the labelled and unlabelled rows.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import polars as pl

from coreg_core.errors import UsageError
from coreg_core.numerics.arrays import Arr
from site_agent.data.dates import DateColumn, asked, expanded, holds_dates, settle
from site_agent.data.dialect import setting
from site_agent.data.errors import COLUMNS, BadTable, Fault, Faults, shortened, some
from site_agent.data.ranges import Ranges
from site_agent.data.shared_set import SiteTable
from site_agent.data.sources import NA_VALUES
from site_agent.data.standardise import mean_of_present, standard
from site_agent.data.tables import Table

Kind: TypeAlias = Literal["numeric", "boolean", "text"]
MOST_LEVELS = 200  # the limit of the 2006 paper for the KDD Cup data (section 5.2)
MANY_LEVELS = 10  # a column with fewer is not reported as most of the features
LARGEST = 1e150  # above it, squares overflow, and so do variances and kernels
TRUE, FALSE = frozenset({"true", "yes"}), frozenset({"false", "no"})


@dataclass(frozen=True)
class Column:
    """The encoding of one column: (x − mean)/scale for numbers, a 0/1 column per level for text, and an indicator."""

    name: str
    kind: Kind
    mean: float = 0.0
    scale: float = 1.0
    fill: float = 0.0
    levels: tuple[str, ...] = ()
    indicator: bool = False
    indicator_mean: float = 0.0
    indicator_scale: float = 1.0

    @property
    def feature_names(self) -> list[str]:
        """The names of its features."""
        own = [f"{self.name}={level}" for level in self.levels] if self.kind == "text" else [self.name]
        return [*own, f"{self.name} is missing"] if self.indicator else own


@dataclass(frozen=True)
class Preprocessing:
    """The encoding of all columns, in order, with notes for the operator."""

    columns: tuple[Column, ...]
    notes: tuple[str, ...] = ()
    dates: tuple[DateColumn, ...] = ()
    ranges: Ranges | None = None
    na_values: tuple[str, ...] = NA_VALUES

    @property
    def feature_names(self) -> list[str]:
        return [name for column in self.columns for name in column.feature_names]

    @property
    def summary(self) -> str:
        """The columns that become features; a text column with the number of its levels."""
        texts = [f"{c.name} ({len(c.levels)} levels)" if c.kind == "text" else c.name for c in self.columns]
        missing = [c.name for c in self.columns if c.indicator]
        return shortened(texts, COLUMNS) + (
            f"; with an indicator of missing values: {shortened(missing, 3)}" if missing else ""
        )

    @property
    def sources(self) -> list[str]:
        """The columns that a table must have, in the order of training."""
        made = {date.called(part): date.name for date in self.dates for part in date.parts}
        return list(dict.fromkeys(made.get(column.name, column.name) for column in self.columns))

    def expanded(self, table: Table) -> Table:
        """The table with the features of its date columns.

        Raises
        ------
        BadTable
            a column is missing, or a cell is not a date.
        """
        table.require(self.sources, "a feature of this model")
        return expanded(table, self.dates) if self.dates else table

    @classmethod
    def fit(
        cls,
        table: SiteTable,
        *,
        categorical: Sequence[str] = (),
        dates: Sequence[str] = (),
        scale: bool = True,
    ) -> "Preprocessing":
        """Fit the kind of each column on all rows, and its numbers on the labelled rows (or the shared ones if none is labelled).

        Raises
        ------
        BadTable
            a numeric column has a cell that is not a number, or a column has too many levels or no value.
        UsageError
            ``categorical`` or ``dates`` names a column that the table does not have.
        """
        if len(table.labelled) == 0:
            return cls.fit_columns(table.unlabelled, categorical=categorical, dates=dates, scale=scale)
        return cls.fit_columns(table.labelled, table.unlabelled, categorical=categorical, dates=dates, scale=scale)

    @classmethod
    def fit_columns(
        cls,
        labelled: Table,
        unlabelled: Table | None = None,
        *,
        categorical: Sequence[str] = (),
        dates: Sequence[str] = (),
        scale: bool = True,
    ) -> "Preprocessing":
        """Fit on two tables, or on one; see `fit`."""
        if unknown := [name for name in categorical if name not in labelled.columns]:
            raise UsageError(
                f"--categorical {', '.join(unknown)}: no such feature column. "
                f"The columns are {some(labelled.columns, COLUMNS)}."
            )
        tables = [labelled] if unlabelled is None else [labelled, unlabelled]
        found, columns, of_dates = Faults(), list[Column](), list[DateColumn]()
        for date in asked(dates, labelled.columns):
            with found.caught():
                tables, known = _with_dates(tables, date)
                of_dates.append(known)
        unusable = {date.name for date in asked(dates, labelled.columns)} - {date.name for date in of_dates}
        for name in tables[0].columns:
            if name in unusable:
                continue
            with found.caught():
                having = [t for t in tables if name in t.columns]  # a missing column is a fault already
                columns.append(_fit_column(name, having, name in categorical, scale))
        found.raise_any()
        constant = [c.name for c in columns if c.kind != "text" and _constant(tables[0], c)]
        notes = [f"constant among the labelled rows, so without effect: {some(constant, COLUMNS)}"] if constant else []
        notes += _wide(
            columns, tables[0], categorical, {date.called(part): part for date in of_dates for part in date.parts}
        )
        ranges = Ranges.of(
            {c.name: [_numbers(t, c.name, c.kind) for t in tables] for c in columns if c.kind == "numeric"}
        )
        return cls(tuple(columns), tuple(notes), tuple(of_dates), ranges)

    def transform(self, table: Table) -> Arr:
        """The matrix (n, d), C-contiguous float64.

        Raises
        ------
        BadTable
            a column is missing, or a cell is not a number.
        """
        table = self.expanded(table)
        X = np.empty((len(table), len(self.feature_names)))
        at, found = 0, Faults()
        for column in self.columns:
            with found.caught():
                block = _encode(column, table)
                X[:, at : at + block.shape[1]] = block
                at += block.shape[1]
        found.raise_any()
        return X

    def notes_on(self, table: Table) -> tuple[str, ...]:
        """Notes for the operator: the number of unknown texts and of newly missing cells in each column.

        Raises
        ------
        BadTable
            a column is missing.
        """
        table = self.expanded(table)
        notes = []
        for column in self.columns:
            text = table.frame[column.name]
            if column.kind == "text":
                unseen = text.drop_nulls().filter(~text.drop_nulls().is_in(list(column.levels)))
                if len(unseen):
                    notes.append(
                        f"{table.source}, column {column.name!r}: {len(unseen)} cells hold a text that training never "
                        f"had ({unseen[0]!r} first). They count as none of its levels"
                    )
            if not column.indicator and (missing := text.null_count()):
                instead = "none of its levels" if column.kind == "text" else "the mean"
                notes.append(
                    f"{table.source}, column {column.name!r}: {missing} cells are missing, and none was in "
                    f"training. They count as {instead}"
                )
        return tuple(notes)

    def to_json(self) -> dict[str, Any]:
        """Plain values for the model file."""
        plain: dict[str, Any] = {
            "columns": [asdict(column) for column in self.columns],
            "na_values": list(self.na_values),
        }
        if self.dates:
            plain["dates"] = [asdict(date) for date in self.dates]
        if self.ranges is not None:
            plain["ranges"] = asdict(self.ranges)
        return plain

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> "Preprocessing":
        columns = tuple(Column(**{**column, "levels": tuple(column["levels"])}) for column in plain["columns"])
        dates = tuple(DateColumn(**{**date, "parts": tuple(date["parts"])}) for date in plain.get("dates", ()))
        ranges = Ranges.from_json(plain["ranges"]) if "ranges" in plain else None
        return cls(columns, (), dates, ranges, tuple(plain.get("na_values", ("NA",))))  # older files knew NA alone


# --- fitting ------------------------------------------------------------------------------------------------------


def _with_dates(tables: list[Table], date: DateColumn) -> tuple[list[Table], DateColumn]:
    """The tables with one column of dates made features, and how it is written."""
    known = settle(date, [t for t in tables if date.name in t.columns])
    found, out = Faults(), list[Table]()
    for table in tables:
        with found.caught():
            out.append(expanded(table, [known]) if date.name in table.columns else table)
    found.raise_any()
    return out, known


def _fit_column(name: str, tables: list[Table], categorical: bool, scale: bool) -> Column:
    kind: Kind = "text" if categorical else _kind(name, tables)
    labelled = tables[0]
    if labelled.frame[name].null_count() == len(labelled):
        what = "no labelled row has a value, so the model cannot learn from it."
        raise BadTable(Fault(labelled.source, what, f"Leave it out: {setting('drop', name)}.", "missing", name))
    missing = np.concatenate([t.frame[name].is_null().to_numpy() for t in tables])
    indicator = bool(missing.any())
    own = labelled.frame[name].is_null().to_numpy().astype(np.float64)
    indicator_mean, indicator_scale = standard(own) if indicator and scale else (0.0, 1.0)
    shared: dict[str, Any] = {
        "indicator": indicator,
        "indicator_mean": indicator_mean,
        "indicator_scale": indicator_scale,
    }
    if kind == "text":
        return Column(name, kind, levels=_levels(name, tables), **shared)
    found, read = Faults(), list[Arr]()
    for table in tables:  # check the cells of every table, not only the labelled one
        with found.caught():
            read.append(_numbers(table, name, kind))
    found.raise_any()
    values = read[0]
    largest = int(np.nanargmax(np.abs(values)))
    if abs(values[largest]) > LARGEST:
        what = f"{labelled.frame[name][largest]!r} is outside ±{LARGEST:g}, so its square overflows."
        todo, line = "Correct the cell, or write the column in another unit.", int(labelled.lines[largest])
        raise BadTable(Fault(labelled.source, what, todo, "too large", name, (line,)))
    if (one := float(values[largest])) == np.nanmin(values) == np.nanmax(values):
        # The floating-point mean of 0.1, 0.1 and 0.1 is not 0.1. With the value itself, a constant column becomes exact zeros.
        return Column(name, kind, one if scale else 0.0, 1.0, one, **shared)
    fill = mean_of_present(values)
    mean, deviation = standard(np.where(np.isnan(values), fill, values)) if scale else (0.0, 1.0)
    return Column(name, kind, mean, deviation, fill, **shared)


def _kind(name: str, tables: list[Table]) -> Kind:
    """Numeric if any cell is a number, so that one typing error is a fault and does not make the column one-hot."""
    values = pl.concat([t.frame[name] for t in tables]).drop_nulls()
    if len(values) == 0:
        todo = f"Leave it out: {setting('drop', name)}."
        raise BadTable(Fault(tables[0].source, "no row has a value.", todo, "missing", name))
    if any(t.is_numeric(name) for t in tables):
        return "numeric"
    return "boolean" if set(values.str.to_lowercase().unique().to_list()) <= TRUE | FALSE else "text"


def _levels(name: str, tables: list[Table]) -> tuple[str, ...]:
    values = pl.concat([t.frame[name] for t in tables]).drop_nulls().unique().sort()
    if len(values) > MOST_LEVELS:
        what = f"{len(values)} different texts. At most {MOST_LEVELS} are one-hot encoded."
        instead = f"Make features of its dates ({setting('dates', name)})" if holds_dates(values) else "Group them"
        todo = f"{instead}, or leave the column out ({setting('drop', name)})."
        if len(values) == sum(len(t) for t in tables) and not holds_dates(values):
            todo = f"If it is the id, give --id {name}, or id in agent.toml. Otherwise: {todo}"
        raise BadTable(Fault(tables[0].source, what, todo, "text", name))
    return tuple(sorted(values.to_list()))


def _constant(table: Table, column: Column) -> bool:
    values = _numbers(table, column.name, column.kind)
    return bool(np.nanmin(values) == np.nanmax(values))


def _wide(columns: Sequence[Column], table: Table, categorical: Sequence[str], parts: Mapping[str, str]) -> list[str]:
    """Warnings of texts that look like dates, and of a column that makes most of the features. ``parts``: those of dates."""
    notes, total = list[str](), sum(len(column.feature_names) for column in columns)
    for column in columns:
        if column.kind != "text":
            continue
        makes = f"column {column.name!r} makes {len(column.feature_names)} of {total} features, one for each text"
        if column.name not in categorical and holds_dates(table.frame[column.name].drop_nulls()):
            notes.append(
                f"{makes}. Its texts look like dates: {setting('dates', column.name)}; or leave the column out (drop)"
            )
        elif len(column.levels) >= MANY_LEVELS and 2 * len(column.feature_names) > total:
            todo = f"Group the texts, or leave the column out: {setting('drop', column.name)}"
            if column.name in parts:
                todo = f"If that is too many, remove {parts[column.name]!r} from the column's entry in dates"
            notes.append(f"{makes}. {todo}")
    return notes


# --- applying -----------------------------------------------------------------------------------------------------


def _encode(column: Column, table: Table) -> Arr:
    text = table.frame[column.name]
    if column.kind == "text":
        block = np.zeros((len(table), len(column.levels)))
        places = {level: j for j, level in enumerate(column.levels)}
        codes = np.array(
            [places.get(value, -1) if value is not None else -1 for value in text.to_list()], dtype=np.int64
        )
        known = np.flatnonzero(
            codes >= 0
        )  # an unknown text becomes a row of zeros, as with OneHotEncoder(handle_unknown="ignore")
        block[known, codes[known]] = 1.0
    else:
        values = _numbers(table, column.name, column.kind)
        values = np.where(np.isnan(values), column.fill, values)
        block = ((values - column.mean) / column.scale)[:, None]
    if not column.indicator:
        return block
    missing = text.is_null().to_numpy().astype(np.float64)
    return np.column_stack([block, (missing - column.indicator_mean) / column.indicator_scale])


def _numbers(table: Table, name: str, kind: Kind) -> Arr:
    if kind == "numeric":
        return table.numbers(name)
    text = table.frame[name].str.to_lowercase()
    bad = ~text.is_in(list(TRUE | FALSE)) & text.is_not_null()
    if bad.any():
        rows = bad.arg_true().to_list()
        what = f"{table.frame[name][rows[0]]!r} is neither true nor false (nor yes nor no)"
        lines = tuple(int(table.lines[row]) for row in rows)
        raise BadTable(Fault(table.source, f"{what}. The column was boolean in training.", "", "text", name, lines))
    values = text.is_in(list(TRUE)).cast(pl.Float64)
    return np.where(text.is_null().to_numpy(), math.nan, values.fill_null(0.0).to_numpy())
