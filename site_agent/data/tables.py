"""Files to columns of text: CSV and Parquet through polars, every cell read as text first.

Knows files and polars; nothing of encoding, kernels or rounds. A cell is stripped; an empty one and NA are missing (null).
Errors name file, line (as an editor counts them: the header is line 1), column and value.
"""

import csv
import io
import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray
from polars.exceptions import PolarsError

from coreg_core.arrays import Arr, Ints
from coreg_core.errors import BadData

MISSING = ("", "NA")
SHOWN = 5  # lines or names in one message


@dataclass(frozen=True)
class Table:
    """Text columns (null: missing), the file they came from, and the line of each row in it."""

    frame: pl.DataFrame
    source: str
    lines: Ints

    @property
    def columns(self) -> list[str]:
        """Names, in the file's order."""
        return self.frame.columns

    def __len__(self) -> int:
        return self.frame.height

    def require(self, names: Sequence[str], what: str) -> None:
        """Every named column is there.

        Raises
        ------
        BadData
            names the missing ones, those that look like them, and those that there are.
        """
        missing = [name for name in names if name not in self.frame.columns]
        if not missing:
            return
        # Upper and lower case apart is the commonest slip, and difflib sees two other letters in it.
        folded = {column.casefold(): column for column in reversed(self.frame.columns)}
        close = {
            name: [folded[match] for match in get_close_matches(name.casefold(), list(folded), n=1)] for name in missing
        }
        hints = ", ".join(f"{found[0]!r} for {name!r}?" for name, found in close.items() if found)
        raise BadData(
            f"{self.source}: no column {', '.join(map(repr, missing))} ({what})."
            + (f" Did you mean {hints}" if hints else "")
            + f" The columns are {', '.join(map(repr, self.frame.columns[:50]))}."
        )

    def select(self, names: Sequence[str]) -> "Table":
        """Some columns."""
        return Table(self.frame.select(names), self.source, self.lines)

    def rows(self, keep: Ints) -> "Table":
        """Some rows, by index, in that order."""
        return Table(self.frame[keep], self.source, self.lines[keep])

    def ids(self, column: str) -> list[str]:
        """An id column as normalised text; missing ones are empty."""
        self.require([column], "the id column")
        return [unicodedata.normalize("NFC", text or "").strip() for text in self.frame[column].to_list()]

    def numbers(self, column: str) -> Arr:
        """A column as float64, NaN where missing.

        Raises
        ------
        BadData
            the first cell that is no finite number, with its line.
        """
        text = self.frame[column]
        values = text.cast(pl.Float64, strict=False)
        bad = (values.is_null() | ~values.is_finite()) & text.is_not_null()
        if bad.any():
            row = int(bad.arg_true()[0])
            raise BadData(
                f"{self.source}, line {self.lines[row]}, column {column!r}: {text[row]!r} is not a finite number. "
                "Mend the cell (missing is an empty cell or NA), or list the column as categorical."
            )
        return values.fill_null(math.nan).to_numpy().astype(np.float64, copy=False)


def read_table(path: Path) -> Table:
    """A CSV or Parquet file as text columns.

    Raises
    ------
    BadData
        missing, unreadable, neither CSV nor Parquet, without rows, with a column named twice or not at all.
    """
    source = str(path)
    try:
        match path.suffix.lower():
            case ".csv":
                frame, lines = _read_csv(path)
            case ".parquet" | ".pq":  # a name like t[1].parquet is a name, not a pattern
                frame = _parquet_as_text(pl.read_parquet(path, glob=False), source)
                lines = np.arange(2, frame.height + 2)
            case suffix:
                raise BadData(f"{source}: {suffix or 'a file without a suffix'} is neither .csv nor .parquet.")
    except FileNotFoundError:
        raise BadData(f"{source}: no such file.") from None
    except (PolarsError, OSError, UnicodeDecodeError) as error:
        raise BadData(f"{source}: cannot be read as a table: {str(error).splitlines()[0]}") from None
    if frame.height == 0:
        raise BadData(f"{source}: no rows below the header.")
    text = pl.all().str.strip_chars()
    frame = frame.select(pl.when(text.is_in(MISSING)).then(None).otherwise(text).name.keep())
    return Table(frame, source, lines)


def _read_csv(path: Path) -> tuple[pl.DataFrame, Ints]:
    """The cells below the header, and the line on which each row begins."""
    data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")  # the mark that Excel writes is no part of the first name
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise BadData(f"{path}, line {line}: not UTF-8 text. Save the table as UTF-8.") from None
    if "\0" in text:
        raise BadData(
            f"{path}, line {text[: text.index(chr(0))].count(chr(10)) + 1}: a NUL byte; this is not a CSV file."
        )
    if not text.strip():
        raise BadData(f"{path}: empty.")
    body = text.lstrip()  # polars takes the number of columns from the first line, be it blank
    begins, blank = _outline(body, text[: len(text) - len(body)].count("\n"), path)
    broken = "A quote inside a cell is doubled and its cell quoted; lines end in LF or CRLF."
    try:
        frame = pl.read_csv(
            body.encode(), has_header=False, infer_schema=False, raise_if_empty=False, truncate_ragged_lines=False
        )
    except PolarsError as error:
        raise BadData(f"{path}: not a CSV table ({str(error).splitlines()[0]}). {broken}") from None
    if frame.height != len(begins):  # then rows and their lines would not belong together
        raise BadData(f"{path}: not a CSV table ({frame.height} or {len(begins)} rows, as one reads it). {broken}")
    names = [(name or "").strip() for name in frame.row(0)]
    _check_names(names, str(path))
    keep = np.flatnonzero(~blank)[1:]
    return frame[keep].rename(dict(zip(frame.columns, names, strict=True))), begins[keep]


def _outline(text: str, above: int, path: Path) -> tuple[Ints, NDArray[np.bool_]]:
    """The line on which each row begins, counted as an editor would, and which rows are blank lines.

    polars counts no lines, pads short rows and reads a blank line as a row without values, so the standard reader goes
    over the text too. A blank line is no row; in a table of one column it is a missing cell, unless it is at the end.
    """
    begins: list[int] = []
    blank: list[bool] = []
    width, line = 0, above + 1
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for row in reader:
            # The header is none, be its only name empty; and spaces are a cell where there is one column.
            empty = width > 0 and (not row or (len(row) == 1 and width > 1 and not row[0].strip()))
            width = width or len(row)
            if len(row) != width and not empty:
                raise BadData(
                    f"{path}, line {line}: {len(row)} cells, the header has {width}. "
                    "Quote a cell that holds a comma, or add what is missing."
                )
            begins.append(line)
            blank.append(empty)
            line = above + reader.line_num + 1
    except csv.Error as error:
        raise BadData(
            f"{path}, line {line}: not a CSV row ({error}). Look there for a quote that is never closed or not doubled."
        ) from None
    last = len(blank) - next(i for i, empty in enumerate(reversed(blank)) if not empty)
    return np.array(begins), np.array([e and (width > 1 or i >= last) for i, e in enumerate(blank)])


def _check_names(names: list[str], source: str) -> None:
    if empty := [str(i + 1) for i, name in enumerate(names) if not name]:
        raise BadData(f"{source}: column {', '.join(empty[:SHOWN])} has no name in the header.")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise BadData(f"{source}: column {', '.join(map(repr, twice[:SHOWN]))} stands there twice; rename one.")


def _parquet_as_text(frame: pl.DataFrame, source: str) -> pl.DataFrame:
    _check_names([name.strip() for name in frame.columns], source)
    columns = []
    for series in frame.rename({name: name.strip() for name in frame.columns}).iter_columns():
        if series.dtype.is_float():
            # repr: the shortest text that reads back to the same number; 1.0 is 1, as the same id stands in a CSV file.
            values = [
                None if v is None or math.isnan(v) else repr(v).removesuffix(".0")
                for v in series.cast(pl.Float64).to_list()
            ]
            columns.append(pl.Series(series.name, values, dtype=pl.String))
        elif series.dtype.is_nested() or series.dtype in (pl.Binary, pl.Object, pl.Duration):
            raise BadData(
                f"{source}, column {series.name!r}: holds {series.dtype}, which is no number and no text. "
                "Write the file again without it, or with numbers or text in its place."
            )
        else:
            columns.append(series.cast(pl.String))
    return pl.DataFrame(columns)
