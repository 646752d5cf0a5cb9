"""Read a CSV file as columns of texts, with the line of each row.

polars reads the file if each of its lines is one row of the header's width. Other files have cells
over several lines, blank lines, or rows of another length. The standard library's reader reads
those, since it knows the line of each row. A row of another length is a fault, and is left out.

polars does not tell a short row from one with empty cells, and takes a quote after a space as text.
So lines and separators are counted, and a file with such a quote is read row by row.
"""

import csv
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from polars.exceptions import PolarsError

from coreg_core.arrays import Ints
from site_agent.data.notation import SEPARATORS, Decimals, Notation, find_decimals, separator_of
from site_agent.data.sources import BadTable, Fault, Faults

BOM = b"\xef\xbb\xbf"
BROKEN = "Quote a cell that holds a quote, and double the inner quote. End lines with LF or CRLF."


@dataclass(frozen=True)
class CsvFile:
    """The names of the header, their columns as texts ("0", "1", …), and the line of each row."""

    names: list[str]
    texts: pl.DataFrame
    lines: Ints
    decimals: Decimals
    notes: tuple[str, ...]


def read_csv_file(path: Path, notation: Notation, faults: Faults) -> CsvFile:
    """Read a CSV file.

    (1) Decode the file. (2) Find the separator. (3) Read the rows. (4) Find the decimal mark.
    ``faults`` collects those of rows, BadTable is another fault.
    """
    source = str(path)
    # (1)
    body, above = _body(path.read_bytes(), source)
    # (2)
    separator = notation.separator or separator_of(body, source)
    # (3)
    read = _by_line(body, separator)
    if read is None:
        names, texts, lines = _by_row(body.decode(), above, separator, source, faults)
        marks = {".", ","}
    else:
        names, texts = read
        lines = np.arange(above + 2, above + 2 + texts.height)
        marks = {mark for mark in (".", ",") if mark != separator and mark.encode() in body}
        if _count(body, separator) > _separators(texts):
            marks.add(separator)
    # (4)
    if notation.decimal is None:
        decimals = find_decimals(names, texts, separator, marks)
    else:
        decimals = Decimals(notation.decimal)
    notes = [decimals.note] if decimals.note else []
    if separator != "," and notation.separator is None:
        notes.insert(0, f"columns separated by {SEPARATORS[separator]}")
    return CsvFile(names, texts, lines, decimals, tuple(f"{source}: {note}" for note in notes))


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
        raise BadTable(Fault(source, "empty."))
    above = data[: len(data) - len(body)].count(b"\n")
    # polars overlooks an empty cell too many in a last line that does not end.
    return body.rstrip(b"\r\n") + b"\n", above


def _not_text(data: bytes, at: int, what: str, todo: str, source: str) -> BadTable:
    line = data[:at].count(b"\n") + 1
    return BadTable(Fault(source, what, todo, kind="encoding", lines=(line,)))


def _separators(texts: pl.DataFrame) -> int:
    return (texts.height + 1) * (texts.width - 1)


def _count(body: bytes, character: str) -> int:
    return int(np.count_nonzero(np.frombuffer(body, np.uint8) == ord(character)))


def _by_line(body: bytes, separator: str) -> tuple[list[str], pl.DataFrame] | None:
    """Names and cells, if each line is one row of the header's width; else None."""
    header, _, rows = body.partition(b"\n")
    lone_returns = b"\r" in body and body.count(b"\r") != body.count(b"\r\n")
    if lone_returns or b' "' in body:
        return None
    try:
        names = next(csv.reader([header.decode()], delimiter=separator, strict=True))
        schema = {str(place): pl.String for place in range(len(names))}
        texts = pl.read_csv(rows, has_header=False, schema=schema, separator=separator)
    except (csv.Error, PolarsError):
        return None
    if len(names) < 2 or texts.height != _count(rows, "\n"):
        return None
    # polars refuses a row with too many cells, and fills up one with too few.
    last = texts.to_series(texts.width - 1)
    exact = b'"' not in body and _count(body, separator) == _separators(texts)
    if last.null_count() and not exact:
        return None
    return [name.strip() for name in names], texts


def _by_row(
    body: str, above: int, separator: str, source: str, faults: Faults
) -> tuple[list[str], pl.DataFrame, Ints]:
    """Names and cells by the standard library's reader, and the first line of each row."""
    text = list(io.StringIO(body, newline=""))
    reader = csv.reader(text, strict=True, delimiter=separator)
    rows = list[list[str]]()
    lines = list[int]()
    ragged = dict[int, int]()
    begin = 0
    try:
        for cells in reader:
            row = cells or [""]  # of a blank line
            line = above + begin + 1
            if not rows or len(row) == len(rows[0]):
                _check_quotes(row, "".join(text[begin : reader.line_num]), source)
                rows.append(row)
                lines.append(line)
            elif row[0].strip() or len(row) > 1:
                ragged[line] = len(row)
            begin = reader.line_num
    except csv.Error as error:
        what = f"not a CSV row ({error})."
        todo = "Look for a quote that is not closed or not doubled."
        raise BadTable(Fault(source, what, todo, lines=(above + begin + 1,))) from None
    names = [name.strip() for name in rows.pop(0)]
    if ragged:
        faults.add(_ragged(ragged, len(names), separator, source))
    schema = {str(place): pl.String for place in range(len(names))}
    texts = pl.DataFrame(rows, schema=schema, orient="row")
    return names, texts, np.array(lines[1:], dtype=np.int64)


def _check_quotes(row: list[str], line: str, source: str) -> None:
    for cell in row:
        if '"' in cell and '"{}"'.format(cell.replace('"', '""')) not in line:
            what = f"not a CSV table (a quote inside the cell {cell!r})."
            raise BadTable(Fault(source, what, BROKEN))


def _ragged(ragged: dict[int, int], width: int, separator: str, source: str) -> Fault:
    first = next(iter(ragged.values()))
    counted = f"{first} cells" if len(ragged) == 1 else f"{first} cells in the first of them"
    todo = "remove what follows the last column." if first > width else "add the missing cells."
    return Fault(
        source,
        f"{counted}, the header has {width}.",
        f"Quote cells that hold {SEPARATORS[separator]}, or {todo}",
        kind="ragged",
        lines=tuple(ragged),
    )
