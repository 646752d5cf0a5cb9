"""Encode the columns of a table as a float64 matrix.

The encoding is fitted once and kept in the model file.

The fit equals SimpleImputer, StandardScaler and OneHotEncoder of scikit-learn. It is stored as
plain numbers in JSON, without pickle. Means and scales are from the labelled rows. Levels and
missing values are from the labelled and unlabelled rows.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date, timedelta
from typing import Any, Literal, TypeAlias

import numpy as np
import polars as pl
from jaxtyping import Float64

from coreg_core.arrays import Arr, Ints
from coreg_core.errors import UsageError
from coreg_core.spread import constant, mean_and_deviation
from coreg_wire.clock import utc_now
from site_agent.data.cell_text import canonical
from site_agent.data.dates import ZONE, check_layout, day_of, find_layout, holds_dates, without_zone
from site_agent.data.notation import flag
from site_agent.data.sources import COLUMNS, NA_VALUES, BadTable, Fault, Faults, shortened, some
from site_agent.data.tables import Table

Kind: TypeAlias = Literal["numeric", "boolean", "date", "text"]
Range: TypeAlias = tuple[float, float, int]  # least, greatest, cells
MOST_LEVELS = 200  # the limit of the 2006 paper for the KDD Cup data (section 5.2)
FEW_LEVELS = 20  # a column with more, and with more than a tenth of its rows, holds no categories
MANY_LEVELS = 10  # a column with fewer is not reported as most of the features
OUTSIDE = 0.05  # a larger share of cells outside the range of training is reported
# Above the one squares overflow, and so do variances and kernels; below the other they vanish.
LARGEST, SMALLEST = 1e150, 1e-150
TRUE, FALSE = frozenset({"true", "yes"}), frozenset({"false", "no"})


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
        own = (
            [f"{self.name}={level}" for level in self.levels]
            if self.kind == "text"
            else [self.name]
        )
        return [*own, f"{self.name} is missing"] if self.indicator else own

    @property
    def scales(self) -> list[float]:
        """What one unit of each feature is in the column's own units."""
        own = [1.0] * len(self.levels) if self.kind == "text" else [self.scale]
        return [*own, self.indicator_scale] if self.indicator else own

    def numbers(self, table: Table) -> Arr:
        """The values of a column that is no text; NaN is missing."""
        if self.kind == "numeric":
            return table.numbers(self.name)
        texts = table.shown(self.name)
        read: dict[str, float | None] = {}
        for text in {text for text in texts if text is not None}:
            if self.kind == "date":
                read[text] = day_of(text, self.layout)
            else:
                read[text] = 1.0 if text.lower() in TRUE else 0.0 if text.lower() in FALSE else None
        bad = [i for i, text in enumerate(texts) if text is not None and read[text] is None]
        if bad:
            lines = tuple(int(table.lines[i]) for i in bad)
            dates = (
                f"a date of the format {self.layout}, without time zone"
                if self.kind == "date"
                else "true or false"
            )
            what, kind = (
                f"{texts[bad[0]]!r} is not {dates}.",
                "date" if self.kind == "date" else "text",
            )
            todo = "Correct the cell, or leave it empty."
            if self.kind == "date" and ZONE.search(texts[bad[0]] or ""):
                todo = without_zone(self.name)
            raise BadTable(
                Fault(
                    table.source,
                    what,
                    todo,
                    kind,
                    self.name,
                    lines,
                )
            )
        return np.array(
            [math.nan if text is None else read[text] for text in texts], dtype=np.float64
        )

    def places(self, table: Table) -> Ints:
        """The place of each row's level; -1: missing, or a text that is no level.

        A text that is a level as the source shows it stays that one: where training found codes,
        their decimals count.
        """
        places = {level: j for j, level in enumerate(self.levels)}
        found = [
            -1 if shown is None else places.get(shown, places.get(canonical(shown), -1))
            for shown in table.shown(self.name)
        ]
        return np.array(found, dtype=np.int64)

    def encoded(self, table: Table) -> Arr:
        if self.kind == "text":
            # An unknown text becomes a row of zeros, as with
            # OneHotEncoder(handle_unknown="ignore").
            places = self.places(table)[:, np.newaxis]
            block: Arr = (places == np.arange(len(self.levels))).astype(np.float64)
        else:
            values = self.numbers(table)
            filled = np.where(np.isnan(values), self.fill, values)
            block = np.asarray((filled - self.mean) / self.scale, dtype=np.float64)[:, np.newaxis]
        if not self.indicator:
            return block
        missing = table.missing(self.name).astype(np.float64)
        return np.column_stack([block, (missing - self.indicator_mean) / self.indicator_scale])


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
            f"{c.name} ({len(c.levels)} levels)" if c.kind == "text" else c.name
            for c in self.columns
        ]
        missing = [c.name for c in self.columns if c.indicator]
        indicated = f"; with an indicator of missing values: {shortened(missing, 3)}" * bool(
            missing
        )
        return shortened(texts, COLUMNS) + indicated

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
        dates = dates or {}
        _check_options(labelled, categorical, dates)
        tables = [table for table in (labelled, unlabelled) if table is not None]
        if len(tables) > 1 and not len(labelled):
            tables = tables[1:]
        fitting = _Fitting.of(tables, frozenset(categorical), dates, scale)
        found, columns = Faults(), list[Column]()
        for name in tables[0].columns:
            with found.caught():
                columns.append(fitting.column(name))
        found.raise_any()
        values = {
            column.name: np.concatenate([column.numbers(table) for table in tables])
            for column in columns
            if column.kind in ("numeric", "date")
        }
        ranges = dict[str, Range]()
        for name, every in values.items():
            known = every[~np.isnan(every)]
            if len(known):
                ranges[name] = (float(known.min()), float(known.max()), len(known))
        return cls(tuple(columns), tuple(_notes(fitting, columns, values)), ranges)

    def transform(self, table: Table) -> Arr:
        """The matrix (n, d), C-contiguous float64."""
        table.require(self.sources, "a feature of this model")
        X = np.empty((len(table), len(self.feature_names)))
        at, found = 0, Faults()
        for column in self.columns:
            with found.caught():
                block = column.encoded(table)
                X[:, at : at + block.shape[1]] = block
                at += block.shape[1]
        found.raise_any()
        return X

    def moved(self, table: Table) -> list[str]:
        """Notes on columns that differ from training: new texts, newly missing cells, values
        outside the range.
        """
        table.require(self.sources, "a feature of this model")
        return [
            f"{table.source}, column {column.name!r}: {note}"
            for column in self.columns
            for note in _moved(column, table, (self.ranges or {}).get(column.name))
        ]

    def to_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = {
            "columns": [asdict(c) for c in self.columns],
            "na_values": list(self.na_values),
        }
        return plain if self.ranges is None else {**plain, "ranges": dict(self.ranges)}

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> "Preprocessing":
        columns = tuple(
            Column(**{**column, "levels": tuple(column["levels"])}) for column in plain["columns"]
        )
        ranges = plain.get("ranges")
        known = (
            None
            if ranges is None
            else {name: (float(a), float(b), int(n)) for name, (a, b, n) in ranges.items()}
        )
        return cls(columns, (), known, tuple(plain["na_values"]))


# --- fitting --------------------------------------------------------------------------------------


def _check_options(labelled: Table, categorical: Sequence[str], dates: Mapping[str, str]) -> None:
    for option, names in (("categorical", categorical), ("dates", dates)):
        if unknown := [name for name in names if name not in labelled.columns]:
            raise UsageError(
                f"--{option} {', '.join(unknown)}: no such feature column. The columns are"
                f" {some(labelled.columns, COLUMNS)}."
            )
    for name, layout in dates.items():
        check_layout(name, layout)


@dataclass(frozen=True)
class _Fitting:
    """The rows that columns are fitted on, and what the operator says of them."""

    tables: list[Table]  # the labelled rows, and the shared ones; the first has all columns
    together: Table | None  # all rows, if both are of one file
    categorical: frozenset[str]
    dates: Mapping[str, str]
    scale: bool

    @classmethod
    def of(
        cls,
        tables: list[Table],
        categorical: frozenset[str],
        dates: Mapping[str, str],
        scale: bool,
    ) -> "_Fitting":
        together = tables[0].beside(tables[1]) if len(tables) > 1 else None
        return cls(tables, together, categorical, dates, scale)

    def having(self, name: str) -> list[Table]:
        """The tables with this column; that one lacks it is a fault already."""
        return [table for table in self.tables if name in table.columns]

    def column(self, name: str) -> Column:
        """(1) its kind, (2) missing values, (3) levels, or (4) the numbers."""
        tables = self.having(name)
        labelled = tables[0]
        # (1)
        column = self._of_its_kind(name, tables)
        # (2)
        missing = labelled.missing(name).astype(np.float64)
        if missing.all():
            what = "no labelled row has a value, so the model cannot learn from it."
            todo = f"Leave it out: {flag('drop', name)}."
            raise BadTable(Fault(labelled.source, what, todo, "missing", name))
        if any(bool(table.missing(name).any()) for table in tables):
            mean, deviation = _standard(missing) if self.scale else (0.0, 1.0)
            column = replace(column, indicator=True, indicator_mean=mean, indicator_scale=deviation)
        # (3)
        if column.kind == "text":
            return replace(column, levels=_levels(name, tables, name in self.categorical))
        # (4)
        self._check_cells(column, tables)
        return self._of_numbers(column, labelled)

    def _of_its_kind(self, name: str, tables: list[Table]) -> Column:
        if name in self.categorical:
            return Column(name, "text")
        if layout := self.dates.get(name):
            return Column(name, "date", layout=layout)
        kind, found = kind_of_column(name, tables)
        return Column(name, kind, layout=found or "")

    def _check_cells(self, column: Column, tables: list[Table]) -> None:
        """Check the cells of all rows; a column of one file is one fault."""
        found, checked = Faults(), tables
        cells = [table.cells(column.name) for table in tables]
        if self.together is not None and len(cells) > 1 and cells[0] is cells[1]:
            checked = [self.together]
        for table in checked:
            with found.caught():
                column.numbers(table)
        found.raise_any()

    def _of_numbers(self, column: Column, labelled: Table) -> Column:
        values = column.numbers(labelled)
        if fault := size_fault(labelled, column.name, values):
            raise BadTable(fault)
        if _constant(values):
            # The floating-point mean of 0.1, 0.1 and 0.1 is not 0.1. With the value itself, a
            # constant column becomes exact zeros.
            one = float(values[~np.isnan(values)][0])
            return replace(column, mean=one if self.scale else 0.0, fill=one)
        fill = mean_of_present(values)
        filled = np.where(np.isnan(values), fill, values)
        mean, deviation = _standard(filled) if self.scale else (0.0, 1.0)
        return replace(column, mean=mean, scale=deviation, fill=fill)


def _notes(
    fitting: _Fitting, columns: Sequence[Column], values: Mapping[str, Arr]
) -> Iterator[str]:
    """Sentences about columns that can be read otherwise, or that have no effect."""
    labelled = fitting.tables[0]
    total = sum(len(column.feature_names) for column in columns)
    for column in columns:
        if column.kind == "date":
            yield from _found_layout(labelled, column, fitting.dates)
        if column.kind == "numeric":
            yield from _codes(labelled, column)
    alike = [c.name for c in columns if c.kind != "text" and _constant(c.numbers(labelled))]
    if alike:
        yield f"constant among the labelled rows, so without effect: {some(alike, COLUMNS)}"
    for column in columns:
        own = len(column.feature_names)
        if len(column.levels) >= MANY_LEVELS and 2 * own > total:
            yield (
                f"column {column.name!r} makes {own} of {total} features, one for each text."
                f" Group the texts, or leave the column out: {flag('drop', column.name)}"
            )
        if column.kind == "date":
            yield from _after(utc_now().date(), column, values[column.name])


def _found_layout(table: Table, column: Column, given: Mapping[str, str]) -> Iterator[str]:
    """A note on the order of day and month that the cells showed."""
    if column.name in given or column.layout not in ("%d/%m/%Y", "%m/%d/%Y"):
        return
    texts = [text for text in dict.fromkeys(table.shown(column.name)) if text is not None]
    shown = " and ".join(map(repr, texts[:2]))
    yield (
        f"{table.source}: read as dates of the format {column.layout}, as their numbers show:"
        f" {shown} in {column.name!r}"
    )


def kind_of_column(name: str, tables: list[Table]) -> tuple[Kind, str | None]:
    """Numeric if any cell is a number, so that one typing error is a fault and does not make the
    column one-hot.
    """
    if any(table.is_numeric(name) for table in tables):
        return "numeric", None
    places = [
        (table.source, int(line), text)
        for table in tables
        for line, text in zip(table.lines, table.shown(name), strict=True)
        if text is not None
    ]
    if not places:
        todo = f"Leave it out: {flag('drop', name)}."
        raise BadTable(Fault(tables[0].source, "no row has a value.", todo, "missing", name))
    texts = [text for *_, text in places]
    if holds_dates(texts):
        return "date", find_layout(name, places)
    return "boolean" if {text.lower() for text in texts} <= TRUE | FALSE else "text", None


def _levels(name: str, tables: list[Table], categorical: bool) -> tuple[str, ...]:
    cells = [text for table in tables for text in table.texts(name) if text is not None]
    levels, rows = sorted(set(cells)), sum(map(len, tables))
    many, todo = len(levels), f"Group them, or leave the column out: {flag('drop', name)}."
    if many <= (MOST_LEVELS if categorical else min(MOST_LEVELS, max(FEW_LEVELS, rows // 10))):
        return tuple(levels)
    what = (
        f"{many} different texts in {rows} rows, such as {cells[0]!r}. Each would become a feature."
    )
    if many <= MOST_LEVELS:
        todo = f"If they are categories: {flag('categorical', name)}. {todo}"
    raise BadTable(Fault(tables[0].source, what, todo, "text", name))


_COMPACT = r"^(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])$"


def _codes(table: Table, column: Column) -> Iterator[str]:
    """A note on numbers that look like dates or codes, with the option to say it."""
    name, values = column.name, column.numbers(table)
    values = values[~np.isnan(values)]
    if not (values == np.floor(values)).all():
        return
    texts = pl.Series([text for text in table.shown(name) if text is not None], dtype=pl.String)
    if texts.str.contains(_COMPACT).all():
        yield (
            f"{name!r} looks like dates, such as {texts[0]!r}, and is read as numbers:"
            f" {flag('dates', f'{name}=%Y%m%d')} reads the dates"
        )
    codes = texts.filter(texts.str.contains(r"^0\d"))
    if len(codes):
        yield (
            f"{name!r} looks like codes, such as {codes[0]!r}, and is read as numbers:"
            f" {flag('categorical', name)} keeps the texts, {flag('drop', name)} leaves it out"
        )


def _after(today: date, column: Column, days: Arr) -> Iterator[str]:
    """A note on dates after today: most are a wrong century, or a wrong format."""
    after = np.flatnonzero(days > (today - date(1970, 1, 1)).days)
    if len(after):
        last = date(1970, 1, 1) + timedelta(days=float(days[after].max()))
        yield (
            f"dates after today in {column.name!r}: {len(after)}, up to {last}. If that cannot be,"
            f" correct the cells or the format: {flag('dates', f'{column.name}=%d.%m.%Y')}"
        )


def _moved(column: Column, table: Table, known: Range | None) -> Iterator[str]:
    missing = int(table.missing(column.name).sum())
    if column.kind == "text":
        unknown = (column.places(table) < 0) & ~table.missing(column.name)
        texts = table.shown(column.name)
        new = [texts[i] for i in np.flatnonzero(unknown)]
        if new:
            first = f"cells with a text that training never had: {len(new)} ({new[0]!r} first)"
            yield f"{first}. They count as none of its levels"
    elif known is not None:
        low, high, seen = known
        values = column.numbers(table)
        outside, cells = int(((values < low) | (values > high)).sum()), len(table) - missing
        # Of n training cells and no change, 2 of n + 1 new ones are outside.
        if outside > cells * max(OUTSIDE, 4.0 / (seen + 1)):
            day, dated = date(1970, 1, 1), column.kind == "date"
            ends = [str(day + timedelta(days=x)) if dated else f"{x:g}" for x in (low, high)]
            share = f"{outside} of {cells} cells ({100 * outside / cells:.0f} %)"
            yield (
                f"{share} are outside the range of training ({' to '.join(ends)}). The model"
                " extrapolates there"
            )
    if missing and not column.indicator:
        instead = "none of its levels" if column.kind == "text" else "the mean"
        yield f"missing cells: {missing}, and none in training. They count as {instead}"


def size_fault(table: Table, name: str, values: Arr) -> Fault | None:
    """A column of which float64 does not hold the squares; it has one value at least."""
    largest = int(np.nanargmax(np.abs(values)))
    size = abs(values[largest])
    if size == 0.0 or SMALLEST <= size <= LARGEST:
        return None
    text = table.shown(name)[largest]
    what, kind = f"{text!r} is outside ±{LARGEST:g}, so its square overflows.", "too large"
    todo = "Correct the cell, or write the column in another unit."
    if size < SMALLEST:
        what = f"no value is above {SMALLEST:g}, so their squares vanish; the largest is {text!r}."
        kind, todo = "too small", "Write the column in another unit."
    return Fault(table.source, what, todo, kind, name, (int(table.lines[largest]),))


def _constant(values: Float64[Arr, " n"]) -> bool:
    return bool(constant(values[:, None])[0])


def _standard(values: Float64[Arr, " n"]) -> tuple[float, float]:
    mean, deviation = mean_and_deviation(values[:, None])
    return float(mean[0]), float(deviation[0])


def mean_of_present(values: Float64[Arr, " n"]) -> float:
    """The mean of the values that are not NaN, equal to the bit to scikit-learn's SimpleImputer."""
    missing = np.isnan(values)
    total = np.where(missing, 0.0, values)[:, None].sum(axis=0)[0]
    return float(total / (len(values) - int(missing.sum())))
