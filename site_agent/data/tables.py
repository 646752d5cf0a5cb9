"""Read a table as columns of cells: a CSV or Parquet file, a query, or a pandas or polars frame.

A cell is a text without white space around it. An empty cell and the texts of ``na_values`` are
missing; in an id only an empty cell is. A column is looked at when it is used, so the faults of
other columns do not matter.
"""

import csv
import io
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray
from polars.exceptions import PanicException, PolarsError

from coreg_core.arrays import Arr, Ints
from coreg_core.errors import BadData
from site_agent.data.cell_text import canonical, text_of, texts_of_column
from site_agent.data.databases import ask
from site_agent.data.notation import (
    HEAD,
    PLAIN,
    ROUNDED,
    SEPARATORS,
    Column,
    Decimals,
    Mark,
    Notation,
    advice,
    find_decimals,
    flag,
    grouped_note,
    kind_of,
    looks_numeric,
    numbers_under,
    read_numbers,
    separator_of,
    unguarded,
)
from site_agent.data.sources import (
    COLUMNS,
    FRAME,
    NA_VALUES,
    BadTable,
    Fault,
    Faults,
    Query,
    Source,
    some,
)

BOM = b"\xef\xbb\xbf"
BROKEN = "Quote a cell that holds a quote, and double the inner quote. End lines with LF or CRLF."
T = TypeVar("T")
EXACT = 1e15  # a larger id that was a number may have lost digits
_SWAPPED = bytes.maketrans(b".,", b",.")


# --- columns --------------------------------------------------------------------------------------


class Cells:
    """One column of a source.

    Texts (``raw``, or a function that reads them) and numbers are made when they are asked for.
    """

    def __init__(
        self,
        name: str,
        raw: Any,
        source: str,
        na_values: Sequence[str] = (),
        decimals: Decimals = Decimals(),  # noqa: B008 - it is frozen
        floats: pl.Series | None = None,
    ):
        self.name, self.decimals = name, decimals
        self._raw, self._source, self._na, self._floats = raw, source, frozenset(na_values), floats

    @cached_property
    def series(self) -> pl.Series:
        raw = self._raw() if callable(self._raw) else self._raw
        if isinstance(raw, pl.Series):
            if raw.dtype.is_numeric() or raw.dtype == pl.String:
                return raw
            if not (raw.dtype.is_nested() or raw.dtype in (pl.Binary, pl.Object, pl.Duration)):
                return pl.Series([text_of(value) for value in raw.to_list()], dtype=pl.String)
            raise self._holds(str(raw.dtype), str(raw.dtype.base_type()))
        if isinstance(dtype := getattr(raw, "dtype", None), np.dtype) and dtype.kind in "iuf":
            return pl.Series(self.name, raw.to_numpy())
        values = raw
        if hasattr(raw, "isna"):
            values = [
                None if gone else value
                for value, gone in zip(raw.tolist(), raw.isna().tolist(), strict=True)
            ]
        try:
            return pl.Series(self.name, [text_of(value) for value in values], dtype=pl.String)
        except TypeError as error:
            lines = tuple(
                i
                for i, value in enumerate(values, 1 + (self._source != FRAME))
                if isinstance(value, bytes)
            )
            raise self._holds(str(error), str(error), lines) from None

    def _holds(self, what: str, kind: str, lines: tuple[int, ...] = ()) -> BadTable:
        todo = "Leave the column out, or write it with numbers or text."
        return BadTable(
            Fault(self._source, f"holds {what}, not numbers or text.", todo, kind, self.name, lines)
        )

    def require_readable(self) -> None:
        """Raise `BadTable` if the column holds neither numbers nor text."""
        if not callable(self._raw):
            self.series  # noqa: B018 - raises here

    @property
    def _typed(self) -> bool:
        return not callable(self._raw) and self.series.dtype != pl.String

    @cached_property
    def codes(self) -> list[str]:
        """The numbers that mean a missing value."""
        return [text for text in self._na if PLAIN.fullmatch(text)]

    @cached_property
    def shown(self) -> list[str]:
        """Each cell as the source shows it; empty if the cell is missing."""
        if not self._typed:
            return [(value or "").strip() for value in self.series.to_list()]
        if self.series.dtype == pl.Float32:
            return [text_of(value) or "" for value in self.series.to_numpy()]
        return [text_of(value) or "" for value in self.series.to_list()]

    @cached_property
    def own(self) -> list[str]:
        """The one text of each value; empty if the cell is missing."""
        return self.shown if self._typed else texts_of_column(self.shown, self.decimals.mark)

    @cached_property
    def texts(self) -> list[str | None]:
        """The texts. None: missing."""
        return [None if gone else text for gone, text in zip(self._gone, self.own, strict=True)]

    @property
    def shown_texts(self) -> list[str | None]:
        """The cells as the source shows them. None: missing."""
        return [None if gone else text for gone, text in zip(self._gone, self.shown, strict=True)]

    @cached_property
    def _gone(self) -> list[bool]:
        pairs = zip(self.shown, self.own, strict=True)
        return [not text or shown in self._na or text in self._na for shown, text in pairs]

    @cached_property
    def numbers(self) -> Arr:
        """The numbers. NaN: missing, or no finite number."""
        if self.plain is not None:
            return self.plain
        texts = pl.DataFrame({"": self.shown_texts}, schema={"": pl.String})
        decimals = Decimals() if self._typed else self.decimals
        values = read_numbers(texts, decimals)[:, 0].to_numpy()
        return np.where(np.isfinite(values), values, math.nan)

    @cached_property
    def missing(self) -> NDArray[np.bool_]:
        if self.plain is not None:
            return np.isnan(self.plain)
        return np.array(self._gone, dtype=np.bool_)

    @cached_property
    def plain(self) -> Arr | None:
        """The numbers, if each cell is one or is empty, and none is a code for a missing value."""
        floats = self._floats
        if floats is None:
            if not self._typed and self.decimals != Decimals():
                return None
            floats = self.series.cast(pl.Float64, strict=False)
            if floats.null_count() != self.series.null_count():
                return None
        values = np.array(floats.to_numpy(), dtype=np.float64)
        if any((values == float(code)).any() for code in self.codes) or np.isinf(values).any():
            return None
        if not self._typed and int(np.isnan(values).sum()) != floats.null_count():  # the text NaN
            return None
        return values

    @property
    def rounded(self) -> str:
        """A cell that shows that long ids became rounded numbers; "" without one."""
        if self._typed and self.series.dtype.is_float():
            values = self.series.cast(pl.Float64).to_numpy()
            large = np.flatnonzero(np.abs(values) >= EXACT)
            return self.shown[large[0]] if len(large) else ""
        return next((text for text in self.shown if ROUNDED.fullmatch(text)), "")


# --- tables ---------------------------------------------------------------------------------------


CLASSES_OF_A_STUDY = "classes of a study"  # the kind of a fault that a study can mend


@dataclass(frozen=True)
class Table:
    """Rows of a source: its columns, which of their cells are in the table, and the line of each
    row.
    """

    source: str
    lines: Ints
    held: tuple[Cells, ...] = field(repr=False)
    kept: Ints | None = field(repr=False)  # None: all rows
    found: tuple[str, ...] = ()

    @cached_property
    def columns(self) -> list[str]:
        return [cells.name for cells in self.held]

    @cached_property
    def _by_name(self) -> dict[str, list[Cells]]:
        found = dict[str, list[Cells]]()
        for cells in self.held:
            found.setdefault(cells.name, []).append(cells)
        return found

    def __len__(self) -> int:
        return len(self.lines)

    def require(self, names: Sequence[str], what: str, todo: str = "") -> None:
        """Raise `BadTable` for names that are no columns; ``todo``: more that helps."""
        missing = [name for name in names if name not in self._by_name]
        if not missing:
            return
        hints = ", ".join(
            f"{found!r} for {name!r}?" for name in missing if (found := self.like(name)) is not None
        )
        raise BadTable(
            Fault(
                self.source,
                f"no column {', '.join(map(repr, missing))} ({what})."
                + (f" Did you mean {hints}" if hints else ""),
                f"The columns are {some(self.columns, COLUMNS)}.{todo}",
                kind="missing column",
                about=", ".join(missing),
            )
        )

    def like(self, name: str) -> str | None:
        """The column with the most similar name, or None."""
        # difflib counts upper and lower case as different letters, and that is the most frequent
        # mistake.
        folded = {column.casefold(): column for column in reversed(self.columns)}
        return next(
            (folded[match] for match in get_close_matches(name.casefold(), list(folded), n=1)), None
        )

    def cells(self, name: str) -> Cells:
        having = self._by_name.get(name, [])
        if not having:
            self.require([name], "asked for")
        if not name:
            at = ", ".join(str(i) for i, cells in enumerate(self.held, 1) if not cells.name)
            raise BadTable(
                Fault(self.source, f"column {at} has no name in the header.", kind="header")
            )
        if len(having) > 1:
            raise BadTable(
                Fault(
                    self.source, f"the header has column {name!r} twice. Rename one.", kind="header"
                )
            )
        having[0].require_readable()
        return having[0]

    def texts(self, name: str) -> list[str | None]:
        return self._of_rows(self.cells(name).texts)

    def shown(self, name: str) -> list[str | None]:
        return self._of_rows(self.cells(name).shown_texts)

    def _of_rows(self, every: list[T]) -> list[T]:
        return every if self.kept is None else [every[i] for i in self.kept.tolist()]

    def missing(self, name: str) -> NDArray[np.bool_]:
        missing = self.cells(name).missing
        return missing if self.kept is None else np.asarray(missing[self.kept], dtype=np.bool_)

    def is_numeric(self, name: str) -> bool:
        """Whether any cell is a number, or half of them look like numbers, so that an unreadable
        number is a fault.
        """
        return not bool(np.isnan(self._read(name)).all()) or looks_numeric(self.shown(name))

    def _read(self, name: str) -> Arr:
        values = self.cells(name).numbers
        return values if self.kept is None else values[self.kept]

    def numbers(self, name: str, *, target: bool = False) -> Arr:
        """A column as float64, NaN where missing.

        ``target``: the advice about a fault is about a target.
        """
        values = self._read(name)
        if self.cells(name).plain is None and (bad := np.isnan(values) & ~self.missing(name)).any():
            raise BadTable(*self._no_numbers(name, np.flatnonzero(bad), target))
        return values

    def _no_numbers(self, name: str, bad: Ints, target: bool) -> list[Fault]:
        decimals, texts = self.cells(name).decimals, self.shown(name)
        cells = [texts[i] or "" for i in bad.tolist()]
        kinds = [kind_of(cell, decimals.mark) for cell in cells]
        known = {text for text in texts if text is not None}
        marked = decimals.mark == "?" and any(kind.startswith("decimal") for kind in kinds)
        if target and "text" in kinds and len(bad) == sum(text is not None for text in texts):
            what = f"the target has {len(known)} texts: {some(sorted(known))}."
            if len(known) > 2:
                todo = (
                    "If they are classes, the study names all of them (classes in [model]). Else"
                    " correct the wrong cells, or name another target."
                )
                return [Fault(self.source, what, todo, CLASSES_OF_A_STUDY, name)]
            flags = " or ".join(flag("positive", text) for text in sorted(known))
            todo = (
                f"If it is yes/no, add {flags}: the value that means 1 at every site. Else name"
                " another target."
            )
            return [Fault(self.source, what, todo, "text", name)]
        found = []
        if marked:  # one fault for the whole table
            todo = f"Give {flag('decimal', ',')}; or a point."
            found.append(Fault(self.source, f"{decimals.why}.", todo, "decimal mark"))
            kinds = ["" if kind.startswith("decimal") else kind for kind in kinds]
        for kind in filter(None, dict.fromkeys(kinds)):
            lines = [int(self.lines[i]) for i, k in zip(bad, kinds, strict=True) if k == kind]
            several = (
                "is not a finite number"
                if len(lines) == 1
                else "and similar cells are not finite numbers"
            )
            what = f"{cells[kinds.index(kind)]!r} {several}"
            if kind.startswith("decimal") and decimals.why:
                what += f": {decimals.why}"
            found.append(
                Fault(
                    self.source,
                    f"{what}.",
                    advice(kind, name, target=target),
                    kind,
                    name,
                    tuple(lines),
                )
            )
        return found

    def ids(self, name: str) -> list[str]:
        """An id column as NFC text, without the apostrophe against formulas. A missing id is
        empty.
        """
        self.require([name], "the id column")
        own = self.cells(name).own
        return [unguarded(unicodedata.normalize("NFC", text)) for text in self._of_rows(own)]

    @property
    def notes(self) -> tuple[str, ...]:
        """The notation that the file shows, if it is not commas and decimal points."""
        return tuple(f"{self.source}: {text}" for text in self.found)

    def doubts(self, names: Sequence[str], id_column: str | None = None) -> tuple[str, ...]:
        """Notes that need an answer: rounded ids, and cells of columns such as -99.0 where -99
        means a missing value.
        """
        told = []
        if id_column in self.columns and (cell := self.cells(str(id_column)).rounded):
            told.append(
                f"{self.source}: {cell!r} in {id_column!r} is a rounded number: a spreadsheet or a"
                " program read long ids as numbers, and their last digits are lost. Export the ids"
                " as text"
            )
        columns = [self.cells(name) for name in names]
        codes = sorted(
            {code for cells in columns for code in cells.codes if re.fullmatch(r"[+-]?\d+", code)}
        )
        for code in codes:
            found = dict[str, list[str]]()
            for cells in columns:
                if len(at := np.flatnonzero(cells.numbers == float(code))):
                    found[cells.name] = [cells.shown[i] for i in at]
            if found:
                form = next(iter(found.values()))[0]
                where = ", ".join(f"{name!r} ({len(forms)})" for name, forms in found.items())
                what = f"cells with {form} are not {code}, which means a missing value: in {where}"
                told.append(f"{self.source}: {what}. Add {form} to na_values")
        return tuple(told)

    def select(self, names: Sequence[str]) -> "Table":
        return replace(self, held=tuple(self.cells(name) for name in names))

    def rows(self, keep: Ints) -> "Table":
        return replace(
            self, lines=self.lines[keep], kept=keep if self.kept is None else self.kept[keep]
        )

    def beside(self, other: "Table") -> "Table":
        """With other rows of the same cells."""
        kept = (
            None if self.kept is None or other.kept is None else np.union1d(self.kept, other.kept)
        )
        return replace(self, lines=np.union1d(self.lines, other.lines), kept=kept)

    def with_id(self, column: str) -> "Table":
        """With the columns of an id in several, ``last_name+birth_date``, joined into one; missing
        if a part is.
        """
        parts = column.split("+")
        if column in self.columns or len(parts) < 2:
            return self
        self.require(parts, "a part of the id")
        every = zip(*(self.cells(part).own for part in parts), strict=True)
        joined = Cells(
            column, ["+".join(texts) if all(texts) else "" for texts in every], self.source
        )
        return replace(
            self, held=(*(cells for cells in self.held if cells.name not in parts), joined)
        )

    def with_classes(self, column: str, positive: str, negative: str = "") -> "Table":
        """With 1 for the positive value of a yes/no column, and 0 for the other one, which is
        ``negative`` if that is known.
        """
        if not positive or column not in self.columns:
            return self
        texts, positive = self.texts(column), canonical(positive)
        others = Counter(text for text in texts if text is not None and text != positive)
        alike = {text for text in others if text.casefold() == positive.casefold()}
        unknown = set(others) - {negative} if negative else set[str]()
        if len(others) > 1 or alike or unknown:
            wrong = alike or unknown or set(others) - {max(others, key=others.__getitem__)}
            lines = tuple(int(self.lines[i]) for i, text in enumerate(texts) if text in wrong)
            what = f"holds {some(sorted(others))} besides the positive value, {positive!r}."
            if unknown:
                what = f"holds {some(sorted(unknown))}; known are {positive!r} and {negative!r}."
            todo = (
                "A yes/no target has two values. Correct these cells, or the positive value"
                " (capitals count)."
            )
            raise BadTable(Fault(self.source, what, todo, "classes", column, lines))
        return self._coded(column, lambda text: str(int(text == positive)))

    def with_places(self, column: str, classes: Sequence[str]) -> "Table":
        """With the place among the classes for each value of a column."""
        if not classes or column not in self.columns:
            return self
        place = {canonical(name): str(i) for i, name in enumerate(classes)}
        texts = self.texts(column)
        unknown = set(filter(None, texts)) - place.keys()
        if unknown:
            lines = tuple(int(self.lines[i]) for i, text in enumerate(texts) if text in unknown)
            what = f"holds {some(sorted(unknown))}; the classes are {some(list(classes))}."
            todo = "Correct these cells (capitals count), or the study's classes."
            raise BadTable(Fault(self.source, what, todo, "classes", column, lines))
        return self._coded(column, lambda text: place.get(canonical(text)))

    def _coded(self, column: str, code: Callable[[str], str | None]) -> "Table":
        """With the code of each text of a column."""
        texts = self.cells(column).texts
        coded = [None if text is None else code(text) for text in texts]
        new = Cells(column, coded, self.source)
        return replace(self, held=tuple(new if each.name == column else each for each in self.held))


# --- reading --------------------------------------------------------------------------------------


def name_of(source: Source | Any) -> str:
    """A source in messages."""
    return str(source) if isinstance(source, Path | Query) else FRAME


def read_table(
    source: Source | Any,
    found: Faults | None = None,
    na_values: Sequence[str] = NA_VALUES,
    notation: Notation = Notation(),  # noqa: B008 - it is frozen
) -> Table:
    """Read a CSV or Parquet file, the rows of a query, or a frame.

    ``found`` collects faults, which are raised without it.
    """
    name, here = name_of(source), Faults()
    try:
        table = _read(source, name, na_values, notation, here)
    except FileNotFoundError:
        folder = Path(name).resolve().parent
        like = get_close_matches(Path(name).name, [each.name for each in folder.glob("*")], n=1)
        todo = f"Did you mean {like[0]}?" if like else ""
        raise BadTable(Fault(name, f"no such file in {folder}.", todo, kind="file")) from None
    except (
        PolarsError,
        PanicException,
        OSError,
        UnicodeDecodeError,
    ) as error:  # polars panics at some damage
        what = f"cannot be read as a table: {str(error).splitlines()[0]}"
        raise BadTable(Fault(name, what, kind="file")) from None
    if not len(table) and name != FRAME:
        if not len(here):  # rows that cannot be read are told already
            here.add(Fault(name, "no rows below the header."))
        here.raise_any()
    if found is None:
        here.raise_any()
    else:
        found.add(*here)
    return table


def _read(
    source: Any, name: str, na_values: Sequence[str], notation: Notation, found: Faults
) -> Table:
    if isinstance(source, Path) and not source.exists():
        raise FileNotFoundError(source)
    if isinstance(source, Path) and source.suffix.lower() == ".csv":
        return _csv(source, na_values, notation, found)
    names, columns = _columns_of(source, name)
    decimals = Decimals(notation.decimal or ".", notation.decimal is not None)
    held = tuple(
        Cells(n.strip(), raw, name, na_values, decimals)
        for n, raw in zip(names, columns, strict=True)
    )
    first = 1 if name == FRAME else 2
    rows = len(columns[0]) if len(columns) else 0
    return Table(name, np.arange(first, first + rows), held, None)


def _columns_of(source: Any, name: str) -> tuple[list[str], Sequence[Any]]:
    """Names and columns of a source whose columns have types."""
    if hasattr(source, "columns") and hasattr(source, "iloc"):
        names = [str(each) for each in source.columns]
        return names, [source.iloc[:, i] for i in range(source.shape[1])]
    if isinstance(source, Query):
        source = ask(source)
    elif isinstance(source, Path):
        source = _parquet(source, name)
    if not isinstance(source, pl.DataFrame):
        what = type(source).__name__
        raise BadData(f"a pandas or polars DataFrame with named columns is needed, not a {what}.")
    return source.columns, source.get_columns()


def _parquet(path: Path, name: str) -> pl.DataFrame:
    suffix = path.suffix.lower()
    if suffix in (".parquet", ".pq"):
        return pl.read_parquet(path, glob=False)  # polars would take t[1].parquet as a pattern
    instead = " In Excel, save it as 'CSV UTF-8'." if suffix.startswith(".xls") else ""
    what = f"{suffix or 'a file without a suffix'} is neither .csv nor .parquet.{instead}"
    raise BadTable(Fault(name, what, kind="file"))


def _csv(path: Path, na_values: Sequence[str], notation: Notation, found: Faults) -> Table:
    source, data = str(path), path.read_bytes()
    try:
        if not data.isascii():  # a decoded copy takes longer than the rest of the checks
            data.decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        fault = Fault(
            source, "not UTF-8 text.", "Save the table as UTF-8.", kind="encoding", lines=(line,)
        )
        raise BadTable(fault) from None
    if b"\0" in data:
        line = data[: data.index(b"\0")].count(b"\n") + 1
        raise BadTable(
            Fault(source, "a NUL byte. This is not a CSV file.", kind="encoding", lines=(line,))
        )
    # Excel writes a byte order mark before the first name; polars counts columns in the first line,
    # even if it is blank.
    body = data.removeprefix(BOM).lstrip(b"\r\n \v\f")
    if not body:
        raise BadTable(Fault(source, "empty."))
    above = data[: len(data) - len(body)].count(b"\n")
    if body.endswith((b"\n\n", b"\n\r\n")):
        body = body.rstrip(b"\r\n")
    separator = notation.separator or separator_of(body, source)
    read = _by_line(body, above, separator, notation.decimal)
    columns, lines = read or _by_row(body.decode().rstrip("\r\n"), above, separator, source, found)
    decimals = Decimals(notation.decimal or ".", thousands=notation.decimal is not None)
    if notation.decimal is None:
        decimals = find_decimals(columns, separator)
    told = [f"columns separated by {SEPARATORS[separator]}"] * (
        separator != "," and notation.separator is None
    )
    if notation.decimal is not None:
        decimals = replace(decimals, note=grouped_note(columns, notation.decimal))
    told += [decimals.note] * bool(decimals.note)
    held = tuple(
        Cells(
            each.name,
            each.texts,
            source,
            na_values,
            decimals,
            each.floats if each.mark == decimals.mark else None,
        )
        for each in columns
    )
    return Table(source, lines, held, None, tuple(told))


def _by_line(
    body: bytes, above: int, separator: str, decimal: Mark | None
) -> tuple[list[Column], Ints] | None:
    """The columns, if each line is one row; None: read row by row.

    Texts of columns of numbers are read when asked for.
    """
    # polars pads short rows, and does not see cells that follow.
    end = body.find(b"\n")
    if end < 0 or (b"\r" in body and body.count(b"\r") != body.count(b"\r\n")):
        return None
    try:
        names = next(
            csv.reader([body[:end].decode().rstrip("\r")], delimiter=separator, strict=True)
        )
    except csv.Error:
        return None
    if len(names) < 2 or any('"' in name for name in names):
        return None
    every = [str(i) for i in range(len(names))]

    def read(
        columns: Sequence[str], kind: type[pl.DataType] = pl.String, rows: int | None = None
    ) -> pl.DataFrame:
        swapped = kind is pl.Float64 and mark == ","
        found = pl.read_csv(
            body.translate(_SWAPPED) if swapped else body,
            has_header=False,
            skip_rows=1,
            schema=dict.fromkeys(every, kind),
            columns=[int(each) for each in columns],
            n_rows=rows,
            separator=separator,
            quote_char='"',
            ignore_errors=kind is pl.Float64,  # a cell that is no number becomes null
        )
        return (
            found
            if kind is pl.Float64
            else found.select(pl.when(pl.all() != "").then(pl.all()).name.keep())
        )

    try:
        head = read(every, rows=HEAD)
        marks: list[Mark] = ["."] if separator == "," else [decimal] if decimal else [".", ","]
        numeric, mark = max(
            ((numbers_under(head, each), each) for each in marks), key=lambda found: len(found[0])
        )
        numbers = read(numeric, pl.Float64) if numeric else pl.DataFrame()
        whole = {each for each in numeric if not numbers[each].null_count()}
        others = [each for each in every if each not in whole]
        texts = read(others) if others else pl.DataFrame()
    except PolarsError:
        return None
    height, octets = max(numbers.height, texts.height), np.frombuffer(body, np.uint8)
    if height != np.count_nonzero(octets == ord("\n")) - body.endswith(b"\n"):
        return None
    between = (height + 1) * (len(every) - 1)
    if np.count_nonzero(octets == ord(separator)) != between and (
        b'"' not in body or _quoted(separator).sub("", body.decode()).count(separator) != between
    ):
        return None  # a row has too many cells, if none has too few (below)
    if (
        b'"' in body
        and others
        and any(texts.select(pl.all().str.contains('"', literal=True).any()).row(0))
    ):
        return None  # a doubled quote, or a stray one
    if every[-1] not in whole and (ends := texts[every[-1]].is_null()).any():
        lines, quoted = body.decode().split("\n"), _quoted(separator)
        if any(
            quoted.sub("", lines[i + 1]).count(separator) != len(every) - 1
            for i in ends.arg_true().to_list()
        ):
            return None

    @cache
    def texts_of_numbers() -> pl.DataFrame:
        return read([each for each in every if each in whole])

    def text(column: str) -> pl.Series:
        return texts_of_numbers()[column] if column in whole else texts[column]

    columns = [
        Column(name.strip(), head[i], partial(text, i))
        for i, name in zip(every, names, strict=True)
    ]
    tried = set(numeric)
    for i, column in zip(every, columns, strict=True):
        if i in whole or (i in tried and numbers[i].null_count() == texts[i].null_count()):
            column.mark, column.floats = mark, numbers[i]
    return columns, np.arange(height) + above + 2


def _quoted(separator: str) -> re.Pattern[str]:
    return re.compile(rf'(?:(?<=[{separator}\r\n])|\A)"[^"]*(?:""[^"]*)*"(?=[{separator}\r\n]|\Z)')


def _by_row(
    body: str, above: int, separator: str, source: str, found: Faults
) -> tuple[list[Column], Ints]:
    """The columns by the standard reader, and the first line of each row; a row of another length
    is a fault, and left out.
    """
    rows, begins, ragged, line = list[list[str]](), list[int](), dict[int, int](), above + 1
    reader = csv.reader(io.StringIO(body, newline=""), strict=True, delimiter=separator)
    try:
        for row in reader:
            width = len(rows[0]) if rows else len(row)
            blank = not row or (len(row) == 1 and width > 1 and not row[0].strip())
            if len(row) == width or (blank and width == 1):
                rows.append(row or [""])
                begins.append(line)
            elif not blank:
                ragged[line] = len(row)
            line = above + reader.line_num + 1
    except csv.Error as error:
        todo = "Look for a quote that is not closed or not doubled."
        raise BadTable(Fault(source, f"not a CSV row ({error}).", todo, lines=(line,))) from None
    if (at := (plain := _quoted(separator).sub("", body)).find('"')) >= 0:
        cell = (
            re.split(rf"[{separator}\r\n]", plain[:at])[-1]
            + re.split(rf"[{separator}\r\n]", plain[at:])[0]
        )
        raise BadTable(
            Fault(source, f"not a CSV table (a quote inside the cell {cell!r}).", BROKEN)
        )
    if ragged:
        first, width = next(iter(ragged.values())), len(rows[0])
        counted = f"{first} cells" if len(ragged) == 1 else f"{first} cells in the first of them"
        todo = "remove what follows the last column." if first > width else "add the missing cells."
        todo = f"Quote cells that hold {SEPARATORS[separator]}, or {todo}"
        found.add(
            Fault(
                source,
                f"{counted}, the header has {width}.",
                todo,
                kind="ragged",
                lines=tuple(ragged),
            )
        )
    cells = list(zip(*rows[1:], strict=True)) or [()] * len(rows[0])
    texts = [pl.Series([cell or None for cell in each], dtype=pl.String) for each in cells]
    columns = [
        Column(name.strip(), each.head(HEAD), each.clone)
        for name, each in zip(rows[0], texts, strict=True)
    ]
    return columns, np.array(begins[1:], dtype=np.int64)
