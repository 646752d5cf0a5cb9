"""Read a CSV file into rows of text, with the line number of each row."""

import csv
import io
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray
from polars.exceptions import PolarsError

from coreg_core.numerics.arrays import Ints
from site_agent.data.dialect import SEPARATORS, separator_of
from site_agent.data.errors import BadTable, Fault, Faults, some

BROKEN = "Quote a cell that holds a quote, and double the inner quote. End lines with LF or CRLF."


def read_csv(path: Path, found: Faults) -> tuple[pl.DataFrame, Ints, str]:
    """The cells below the header, the line number of each row, and the separator.

    A row with another number of cells than the header becomes a fault in ``found`` and is left out.

    Raises
    ------
    BadTable
        the file is not CSV, or its header has an empty name or a name twice.
    """
    source = str(path)
    data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")  # Excel writes a byte order mark before the first name
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        fault = Fault(source, "not UTF-8 text.", "Save the table as UTF-8.", kind="encoding", lines=(line,))
        raise BadTable(fault) from None
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise BadTable(Fault(source, "a NUL byte. This is not a CSV file.", kind="encoding", lines=(line,)))
    if not text.strip():
        raise BadTable(Fault(source, "empty."))
    body = text.lstrip("\r\n \v\f")  # polars counts columns in the first line, even if it is blank
    separator = separator_of(body, source)
    outline = _outline(body, text[: len(text) - len(body)].count("\n"), source, separator)
    if outline.ragged:
        found.add(_uneven(source, outline, separator))
        # With ragged rows polars and the standard reader do not find the same rows, so take those of the standard reader.
        frame = pl.DataFrame(outline.cells, schema=[f"c{i}" for i in range(outline.width)], orient="row")
    else:
        frame = _read(body, source, separator)
    if frame.height != len(outline.begins):
        what = f"not a CSV table (two readers find {frame.height} and {len(outline.begins)} rows)."
        raise BadTable(Fault(source, what, BROKEN))
    names = [(name or "").strip() for name in frame.row(0)]
    check_names(names, source)
    keep = np.flatnonzero(~outline.blank)[1:]
    return frame[keep].rename(dict(zip(frame.columns, names, strict=True))), outline.begins[keep], separator


def _read(body: str, source: str, separator: str) -> pl.DataFrame:
    try:
        return pl.read_csv(
            body.encode(),
            has_header=False,
            infer_schema=False,
            raise_if_empty=False,
            truncate_ragged_lines=False,
            separator=separator,
        )
    except PolarsError as error:
        raise BadTable(Fault(source, f"not a CSV table ({str(error).splitlines()[0]}).", BROKEN)) from None


@dataclass
class _Outline:
    """The first line of each row, which rows are blank, and the lines with another number of cells than the header."""

    width: int
    begins: Ints
    blank: NDArray[np.bool_]
    ragged: dict[int, int] = field(default_factory=dict)  # line: cells
    cells: list[list[str | None]] = field(default_factory=list)  # the rows that fit; filled only if some do not


def _outline(text: str, above: int, source: str, separator: str) -> _Outline:
    """The first line of each row, counted as in an editor, and which rows are blank lines.

    polars does not count lines, pads short rows and reads a blank line as a row of nulls. So the standard reader reads the
    text too. A blank line is not a row. In a table with one column it is a missing cell, except at the end of the file.
    """
    begins: list[int] = []
    blank: list[bool] = []
    ragged: dict[int, int] = {}
    width, line = 0, above + 1
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=separator)
    try:
        for row in reader:
            empty = _is_blank(row, width)
            width = width or len(row)
            if len(row) != width and not empty:
                ragged[line] = len(row)
            else:
                begins.append(line)
                blank.append(empty)
            line = above + reader.line_num + 1
    except csv.Error as error:
        raise BadTable(
            Fault(
                source,
                f"not a CSV row ({error}).",
                "Look for a quote that is not closed or not doubled.",
                lines=(line,),
            )
        ) from None
    last = len(blank) - next(i for i, empty in enumerate(reversed(blank)) if not empty)
    missing = np.array([e and (width > 1 or i >= last) for i, e in enumerate(blank)])
    found = _Outline(width, np.array(begins), missing, ragged)
    if ragged:
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=separator))
        even = [row for row in rows if len(row) == width or _is_blank(row, width)]
        found.cells = [[*row, *[None] * (width - len(row))] for row in even]
    return found


def _is_blank(row: list[str], width: int) -> bool:
    """Whether the row is a blank line. A header never is; in a table with one column, spaces are a cell."""
    return width > 0 and (not row or (len(row) == 1 and width > 1 and not row[0].strip()))


def _uneven(source: str, outline: _Outline, separator: str) -> Fault:
    first = next(iter(outline.ragged.values()))
    counted = f"{first} cells" if len(outline.ragged) == 1 else f"{first} cells in the first of them"
    return Fault(
        source,
        f"{counted}, the header has {outline.width}.",
        f"Quote cells that hold {SEPARATORS[separator]}, or "
        + ("remove what follows the last column." if first > outline.width else "add the missing cells."),
        kind="ragged",
        lines=tuple(outline.ragged),
    )


def check_names(names: list[str], source: str) -> None:
    """Check that each column has a name of its own.

    Raises
    ------
    BadTable
        a name is empty or occurs twice.
    """
    found = Faults()
    if empty := [str(i + 1) for i, name in enumerate(names) if not name]:
        found.add(Fault(source, f"column {', '.join(empty)} has no name in the header.", kind="header"))
    if twice := sorted({name for name in names if names.count(name) > 1}):
        found.add(Fault(source, f"the header has column {some(twice)} twice. Rename one.", kind="header"))
    found.raise_any()
