"""Read files into columns of text: CSV and Parquet with polars, each cell as text first.

White space around a cell is removed. An empty cell and the texts of ``na_values`` are missing (null). All faults are listed,
with file, line (the header is line 1), column and value.
"""

import math
import re
import shlex
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

import numpy as np
import polars as pl
from polars.exceptions import PanicException, PolarsError

from coreg_core.numerics.arrays import Arr, Ints
from site_agent.data.csv_text import check_names, read_csv
from site_agent.data.dialect import Dialect, advice, dialect_of, kind_of, looks_numeric, numbers
from site_agent.data.errors import COLUMNS, BadTable, Fault, Faults, some
from site_agent.data.formulas import unguarded
from site_agent.data.sources import NA_VALUES, Source
from site_agent.data.sqlite_rows import ask

PLAIN = Dialect()


@dataclass(frozen=True)
class Table:
    """Text columns (null: missing) with their file, the line of each row, and the notation of numbers."""

    frame: pl.DataFrame
    source: str
    lines: Ints
    dialect: Dialect = PLAIN
    doubts: tuple[str, ...] = ()

    @property
    def columns(self) -> list[str]:
        return self.frame.columns

    def __len__(self) -> int:
        return self.frame.height

    def require(self, names: Sequence[str], what: str) -> None:
        """Check that the table has these columns.

        Raises
        ------
        BadTable
            a column is missing. The text names it, columns with similar names, and the columns of the table.
        """
        missing = [name for name in names if name not in self.frame.columns]
        if not missing:
            return
        hints = ", ".join(f"{found!r} for {name!r}?" for name in missing if (found := self.like(name)) is not None)
        raise BadTable(
            Fault(
                self.source,
                f"no column {', '.join(map(repr, missing))} ({what})." + (f" Did you mean {hints}" if hints else ""),
                f"The columns are {some(self.frame.columns, COLUMNS)}.",
                kind="missing column",
                about=", ".join(missing),
            )
        )

    def like(self, name: str) -> str | None:
        """The column with the most similar name, or None."""
        # difflib counts upper and lower case as different letters, and that is the most frequent mistake.
        folded = {column.casefold(): column for column in reversed(self.frame.columns)}
        return next((folded[match] for match in get_close_matches(name.casefold(), list(folded), n=1)), None)

    @property
    def notes(self) -> tuple[str, ...]:
        """The notation of the file, if it is not commas and decimal points, and cells that may mean a missing value."""
        told = (*(() if self.dialect.said is None else (self.dialect.said,)), *self.doubts)
        return tuple(f"{self.source}: {text}" for text in told)

    def select(self, names: Sequence[str]) -> "Table":
        return replace(self, frame=self.frame.select(names))

    def rows(self, keep: Ints) -> "Table":
        """Rows by index, in the given order."""
        return replace(self, frame=self.frame[keep], lines=self.lines[keep])

    def with_id(self, column: str) -> "Table":
        """With the columns of an id in several, written ``last_name+birth_date``, joined into one of that name. If a part is
        missing, so is the id.

        Raises
        ------
        BadTable
            a part is no column of the table.
        """
        parts = column.split("+")
        if column in self.columns or len(parts) < 2:
            return self
        self.require(parts, "a part of the id")
        return replace(
            self, frame=self.frame.with_columns(pl.concat_str(parts, separator="+").alias(column)).drop(parts)
        )

    def with_classes(self, column: str, positive: str) -> "Table":
        """With 1 for the positive value of a yes/no column, and 0 for the other one.

        Raises
        ------
        BadTable
            the column has more than two values, or two that are not the positive one.
        """
        if not positive or column not in self.columns:
            return self
        cells = self.frame[column]
        others = sorted(set(cells.drop_nulls().to_list()) - {positive})
        if len(others) > 1 or any(text.casefold() == positive.casefold() for text in others):
            what = f"{column!r} has the values {some(others)} besides the positive one, {positive!r}."
            todo = "A yes/no target has two values. Correct the cells, or name another positive value."
            often = max(others, key=lambda text: int((cells == text).sum()))
            rare = cells.is_in([text for text in others if text != often] or others).fill_null(False).to_numpy()
            lines = tuple(int(line) for line in self.lines[rare])
            raise BadTable(Fault(self.source, what, todo, "classes", column, lines))
        coded = pl.when(cells.is_null()).then(None).when(cells == positive).then(pl.lit("1")).otherwise(pl.lit("0"))
        return replace(self, frame=self.frame.with_columns(coded.alias(column)))

    def ids(self, column: str) -> list[str]:
        """An id column as NFC text, without the apostrophe against formulas. A missing id is empty."""
        self.require([column], "the id column")
        normal = (unicodedata.normalize("NFC", text or "").strip() for text in self.frame[column].to_list())
        return [unguarded(text) for text in normal]

    def is_numeric(self, column: str) -> bool:
        """Whether any cell is a number, or half of the cells look like numbers, so that an unreadable number is a fault."""
        cells = self.frame[column].drop_nulls()
        return bool(numbers(cells, self.dialect).is_not_null().any()) or looks_numeric(cells)

    def numbers(self, column: str, *, target: bool = False) -> Arr:
        """A column as float64, NaN where missing. ``target``: the advice about a fault is about a target.

        Raises
        ------
        BadTable
            cells that are not finite numbers, with their lines.
        """
        text = self.frame[column]
        values = numbers(text, self.dialect)
        bad = (values.is_null() | ~values.is_finite()) & text.is_not_null()
        if bad.any():
            raise BadTable(*self._no_numbers(column, bad.arg_true().to_numpy(), target))
        return values.fill_null(math.nan).to_numpy().astype(np.float64, copy=False)

    def _no_numbers(self, column: str, bad: Ints, target: bool) -> list[Fault]:
        """One fault for each kind of cell."""
        cells = self.frame[column].gather(bad).to_list()
        kinds = [kind_of(cell, self.dialect) for cell in cells]
        found = []
        known = self.frame[column].drop_nulls()
        if target and len(bad) == len(known) and known.n_unique() == 2:
            first, second = sorted(known.unique())
            what = f"the column has two values, {first!r} and {second!r}."
            either = f"--positive {shlex.quote(first)} or --positive {shlex.quote(second)}"
            todo = f"If it is a yes/no target, name the event whose probability you want: {either}, or positive in agent.toml."
            return [Fault(self.source, what, todo, "text", column)]
        if target and len(bad) == len(known) and "text" in kinds:
            what = f"the column has {known.n_unique()} different texts, such as {cells[0]!r}, and no number."
            return [Fault(self.source, what, "Name another target: a number, or two values.", "text", column)]
        for kind in dict.fromkeys(kinds):
            lines = [int(self.lines[i]) for i, k in zip(bad, kinds, strict=True) if k == kind]
            one, several = (
                ("is a detection limit, not a number", "and similar cells are detection limits, not numbers")
                if kind == "detection limit"
                else ("is not a finite number", "and similar cells are not finite numbers")
            )
            what = f"{cells[kinds.index(kind)]!r} {one if len(lines) == 1 else several}"
            if kind.startswith("decimal") and self.dialect.why:
                what += f": {self.dialect.why}"
            todo = advice(kind, column, self.dialect, target=target)
            found.append(Fault(self.source, f"{what}.", todo, kind, column, tuple(lines)))
        return found


def read_table(path: Source, found: Faults | None = None, na_values: Sequence[str] = NA_VALUES) -> Table:
    """Read a CSV or Parquet file, or the rows of a query, as text columns.

    Parameters
    ----------
    found
        collects faults that leave the rest of the table readable; without it they are raised.
    na_values
        texts of cells that mean a missing value, compared after white space is stripped.

    Raises
    ------
    BadTable
        the file is missing, unreadable, neither CSV nor Parquet, or without rows; a column has no name, or two have the same.
    """
    source = str(path)
    here = Faults()
    try:
        frame, lines, separator = _read(path, source, here)
    except FileNotFoundError:
        raise BadTable(Fault(source, f"no such file in {Path(source).resolve().parent}.", kind="file")) from None
    except (PolarsError, PanicException, OSError, UnicodeDecodeError) as error:  # polars panics at some damage
        what = f"cannot be read as a table: {str(error).splitlines()[0]}"
        raise BadTable(Fault(source, what, kind="file")) from None
    if frame.height == 0:
        if not len(here):  # rows that cannot be read are told already
            here.add(Fault(source, "no rows below the header."))
        here.raise_any()
    if found is None:
        here.raise_any()
    else:
        found.add(*here)
    text = pl.all().str.strip_chars()
    frame = frame.select(pl.when(text.is_in(["", *na_values])).then(None).otherwise(text).name.keep())
    dialect = PLAIN if separator is None else dialect_of(frame, separator)
    return Table(frame, source, lines, dialect, tuple(_other_forms(frame, na_values)))


def _other_forms(frame: pl.DataFrame, na_values: Sequence[str]) -> Iterator[str]:
    """Notes on cells such as -99.0 where -99 means a missing value: a text is compared as it is written."""
    codes = [value for value in na_values if re.fullmatch(r"[+-]?\d+", value)]
    for code in codes:
        for cell in (f"{code}.0", f"{code},0"):
            found = {column.name: int((column == cell).sum()) for column in frame.iter_columns()}
            if where := [f"{name!r} ({count})" for name, count in found.items() if count]:
                what = f"cells with {cell} are not {code}, which means a missing value: in {', '.join(where)}"
                yield f"{what}. Add {cell} to na_values"


def _read(path: Source, source: str, found: Faults) -> tuple[pl.DataFrame, Ints, str | None]:
    """The rows, the line of each, and the separator (None for Parquet and queries)."""
    if not isinstance(path, Path):
        frame = ask(path)
        return frame, np.arange(2, frame.height + 2), None
    match path.suffix.lower():
        case ".csv":
            return read_csv(path, found)
        case ".parquet" | ".pq":  # polars would take t[1].parquet as a pattern
            frame = _parquet_as_text(pl.read_parquet(path, glob=False), source)
            return frame, np.arange(2, frame.height + 2), None
        case suffix:
            instead = " In Excel, save it as 'CSV UTF-8'." if suffix.startswith(".xls") else ""
            what = f"{suffix or 'a file without a suffix'} is neither .csv nor .parquet.{instead}"
            raise BadTable(Fault(source, what, kind="file"))


def _parquet_as_text(frame: pl.DataFrame, source: str) -> pl.DataFrame:
    check_names([name.strip() for name in frame.columns], source)
    columns, found = [], Faults()
    for series in frame.rename({name: name.strip() for name in frame.columns}).iter_columns():
        if series.dtype.is_float():
            # repr is the shortest text that reads back to the same number. 1.0 becomes 1, as an id in a CSV file.
            values = [
                None if v is None or math.isnan(v) else repr(v).removesuffix(".0")
                for v in series.cast(pl.Float64).to_list()
            ]
            columns.append(pl.Series(series.name, values, dtype=pl.String))
        elif series.dtype.is_nested() or series.dtype in (pl.Binary, pl.Object, pl.Duration):
            found.add(
                Fault(
                    source,
                    f"holds {series.dtype}, not numbers or text.",
                    "Write the file again without the column, or with numbers or text.",
                    str(series.dtype.base_type()),
                    series.name,
                )
            )
        else:
            columns.append(series.cast(pl.String))
    found.raise_any()
    return pl.DataFrame(columns)
