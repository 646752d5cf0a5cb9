"""Read a CSV file as columns of texts, with the line of each row.

polars reads the file if each of its lines is one row of the header's width. Other files have cells
over several lines, blank lines, or rows of another length. The standard library's reader reads
those, since it knows the line of each row. A row of another length is a fault, and is left out.

polars does not tell a short row from one with empty cells, and takes a stray quote as text. So
lines and separators are counted, and a file with a quote inside a text is read row by row.

Columns whose first cells are numbers are read as numbers. Their texts are read when they are asked
for, for example of an id. A column is one of numbers if it has as many numbers as texts.
"""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import polars as pl
from polars.exceptions import PolarsError

from coreg_core.arrays import Ints
from site_agent.data.notation import (
    HEAD,
    SEPARATORS,
    Decimals,
    Mark,
    Notation,
    as_numbers,
    find_decimals,
    separator_of,
)
from site_agent.data.sources import BadTable, Faults, TableFault

BOM = b"\xef\xbb\xbf"
BROKEN = "Quote a cell that holds a quote, and double the inner quote. End lines with LF or CRLF."
Texts: TypeAlias = dict[str, pl.Series]
_SWAPPED = bytes.maketrans(b".,", b",.")


@dataclass(frozen=True)
class CsvFile:
    """The columns of a file, and the line of each row.

    A column is its name, its texts or a function that reads them, and its numbers. The numbers are
    None if a cell is neither a number nor empty.
    """

    columns: Sequence[tuple[str, Any, pl.Series | None]]
    lines: Ints
    decimals: Decimals


def read_csv_file(path: Path, notation: Notation, faults: Faults) -> tuple[CsvFile, list[str]]:
    """Read a CSV file; with notes on its notation.

    (1) Decode the file. (2) Find the separator. (3) Read the rows. ``faults`` collects those of
    rows, BadTable is another fault.
    """
    source = str(path)
    # (1)
    body, above = _body(path.read_bytes(), source)
    # (2)
    separator = notation.separator or separator_of(body, source)
    # (3)
    file = _by_line(body, above, separator, notation.decimal)
    if file is None:
        names, texts, lines = _by_row(body, above, separator, source, faults)
        decimals = find_decimals(notation.decimal, names, texts, texts.to_dict, separator)
        no_numbers = [None] * len(names)
        columns = list(zip(names, texts, no_numbers, strict=True))
        file = CsvFile(columns, lines, decimals)
    notes = []
    if separator != "," and notation.separator is None:
        notes.append(f"columns separated by {SEPARATORS[separator]}")
    if file.decimals.note:
        notes.append(file.decimals.note)
    return file, notes


def _body(data: bytes, source: str) -> tuple[bytes, int]:
    """The table without what stands above its header, and how many lines that is."""
    try:
        if not data.isascii():  # a decoded copy takes longer than the other checks
            data.decode()
    except UnicodeDecodeError as error:
        todo = "Save the table as UTF-8."
        raise _not_text(data, error.start, "not UTF-8 text.", todo, source) from None
    if b"\0" in data:
        what = "a NUL byte. This is not a CSV file."
        raise _not_text(data, data.index(b"\0"), what, "", source)
    # Excel writes a byte order mark before the first name.
    body = data.removeprefix(BOM).lstrip(b"\r\n \v\f")
    if not body:
        raise BadTable(TableFault(source, "empty."))
    above = data[: len(data) - len(body)].count(b"\n")
    # polars overlooks an empty cell too many in a last line that does not end.
    if not body.endswith(b"\n") or body.endswith((b"\n\n", b"\n\r\n")):
        body = body.rstrip(b"\r\n") + b"\n"
    return body, above


def _not_text(data: bytes, at: int, what: str, todo: str, source: str) -> BadTable:
    line = data[:at].count(b"\n") + 1
    return BadTable(TableFault(source, what, todo, kind="encoding", lines=(line,)))


def _count(body: bytes, character: str) -> int:
    codes = np.frombuffer(body, np.uint8)
    return int(np.count_nonzero(codes == ord(character)))


def _by_line(
    body: bytes, above: int, separator: str, decimal: Literal[".", ","] | None
) -> CsvFile | None:
    """The columns, if each line is one row of the header's width; else None."""
    header, _, rows = body.partition(b"\n")
    if body.count(b"\r") != body.count(b"\r\n"):
        return None
    read = partial(pl.read_csv, has_header=False, separator=separator)
    try:
        [names] = csv.reader([header.decode()], delimiter=separator, strict=True)
        schema = {str(place): pl.String for place in range(len(names))}
        texts = cache(lambda: read(rows, schema=schema).to_dict())
        head = read(rows, schema=schema, n_rows=HEAD)
        decimals = find_decimals(decimal, names, head, texts, separator)
        kinds = schema | _kinds_of(head, decimals.mark, separator)
        if b'"' in body and _hold_quotes(kinds, texts):
            return None
        pointed = rows
        if decimals.mark == "," and separator != ",":
            pointed = rows.translate(_SWAPPED)
        columns = read(pointed, schema=kinds, ignore_errors=True)
        numbers = _numbers(columns, texts)
    except (csv.Error, PolarsError):
        return None
    if not _is_complete(columns, body, separator):
        return None
    named = []
    for name, place in zip(names, schema, strict=True):
        named.append((name, partial(_column, texts, place), numbers.get(place)))
    lines = np.arange(columns.height) + above + 2
    return CsvFile(named, lines, decimals)


def _column(texts: Callable[[], Texts], place: str) -> pl.Series:
    return texts()[place]


def _hold_quotes(kinds: Mapping[str, object], texts: Callable[[], Texts]) -> bool:
    """Whether a text has a quote inside, which can be a doubled one or a stray one."""
    for place, kind in kinds.items():
        if kind == pl.String and texts()[place].str.contains('"', literal=True).any():
            return True
    return False


def _is_complete(columns: pl.DataFrame, body: bytes, separator: str) -> bool:
    """Whether each line is a row, and no row is too short: polars fills it up.

    It refuses a row with too many cells.
    """
    if columns.width < 2 or columns.height != _count(body, "\n") - 1:
        return False
    last = columns.to_series(columns.width - 1)
    if not last.null_count():
        return True
    between = (columns.height + 1) * (columns.width - 1)
    return b'"' not in body and _count(body, separator) == between


def _kinds_of(head: pl.DataFrame, mark: Mark, separator: str) -> dict[str, type[pl.DataType]]:
    """The columns whose first cells are numbers. No cell can have the separator as a mark."""
    if mark in ("?", separator):
        return {}
    numbers = head.select(as_numbers(mark))
    names = [name for name in head.columns if numbers[name].count() == head[name].count()]
    return dict.fromkeys(names, pl.Float64)


def _numbers(columns: pl.DataFrame, texts: Callable[[], Texts]) -> dict[str, pl.Series]:
    """The columns with as many finite numbers as texts."""
    numbers = {}
    for column in columns.select(pl.col(pl.Float64)):
        finite = column.is_finite().sum()
        if finite == columns.height or finite == texts()[column.name].count():
            numbers[column.name] = column
    return numbers


def _by_row(
    body: bytes, above: int, separator: str, source: str, faults: Faults
) -> tuple[list[str], pl.DataFrame, Ints]:
    """Names, cells and the first line of each row, by the standard library's reader."""
    text = list(io.StringIO(body.decode(), newline=""))
    reader = csv.reader(text, strict=True, delimiter=separator)
    rows: list[list[str]] = []
    lines: list[int] = []
    ragged: dict[int, int] = {}
    begin = 0
    try:
        for cells in reader:
            row = cells or [""]  # of a blank line
            line = above + begin + 1
            _check_quotes(row, "".join(text[begin : reader.line_num]), source)
            if not rows or len(row) == len(rows[0]):
                rows.append(row)
                lines.append(line)
            elif row[0].strip() or len(row) > 1:
                ragged[line] = len(row)
            begin = reader.line_num
    except csv.Error as error:
        what = f"not a CSV row ({error})."
        todo = "Look for a quote that is not closed or not doubled."
        raise BadTable(TableFault(source, what, todo, lines=(above + begin + 1,))) from None
    names = rows.pop(0)
    if ragged:
        faults.add(_ragged(ragged, len(names), separator, source))
    schema = {str(place): pl.String for place in range(len(names))}
    texts = pl.DataFrame(rows, schema=schema, orient="row")
    return names, texts, np.array(lines[1:], dtype=np.int64)


def _check_quotes(row: list[str], line: str, source: str) -> None:
    for cell in row:
        quoted = cell.replace('"', '""')
        if '"' in cell and f'"{quoted}"' not in line:
            what = f"not a CSV table (a quote inside the cell {cell!r})."
            raise BadTable(TableFault(source, what, BROKEN))


def _ragged(ragged: dict[int, int], width: int, separator: str, source: str) -> TableFault:
    first = next(iter(ragged.values()))
    counted = f"{first} cells"
    if len(ragged) > 1:
        counted = f"{first} cells in the first of them"
    todo = "add the missing cells."
    if first > width:
        todo = "remove what follows the last column."
    return TableFault(
        source,
        f"{counted}, the header has {width}.",
        f"Quote cells that hold {SEPARATORS[separator]}, or {todo}",
        kind="ragged",
        lines=tuple(ragged),
    )
