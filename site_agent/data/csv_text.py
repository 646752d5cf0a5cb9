"""A CSV file to rows of text and the line on which each begins."""

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

BROKEN = "A quote inside a cell is doubled and its cell quoted; lines end in LF or CRLF."


def read_csv(path: Path, found: Faults) -> tuple[pl.DataFrame, Ints, str]:
    """The cells below the header, the line on which each row begins, and what stands between columns.

    Rows that have another number of cells than the header are put into ``found`` and left out.

    Raises
    ------
    BadTable
        not a CSV file, or a header that names a column twice or not at all.
    """
    source = str(path)
    data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")  # the mark that Excel writes is no part of the first name
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        fault = Fault(source, "not UTF-8 text.", "Save the table as UTF-8.", kind="encoding", lines=(line,))
        raise BadTable(fault) from None
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise BadTable(Fault(source, "a NUL byte; this is not a CSV file.", kind="encoding", lines=(line,)))
    if not text.strip():
        raise BadTable(Fault(source, "empty."))
    body = text.lstrip("\r\n \v\f")  # polars takes the number of columns from the first line, be it blank
    separator = separator_of(body, source)
    outline = _outline(body, text[: len(text) - len(body)].count("\n"), source, separator)
    if outline.ragged:
        found.add(_uneven(source, outline, separator))
        # Rows and their lines belong together only where polars reads what the standard reader does.
        frame = pl.DataFrame(outline.cells, schema=[f"c{i}" for i in range(outline.width)], orient="row")
    else:
        frame = _read(body, source, separator)
    if frame.height != len(outline.begins):
        what = f"not a CSV table ({frame.height} or {len(outline.begins)} rows, as one reads it)."
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
    """Lines on which rows begin, which of them are blank, and those of another width than the header."""

    width: int
    begins: Ints
    blank: NDArray[np.bool_]
    ragged: dict[int, int] = field(default_factory=dict)  # line: cells
    cells: list[list[str | None]] = field(default_factory=list)  # the rows that fit, where some do not


def _outline(text: str, above: int, source: str, separator: str) -> _Outline:
    """The line on which each row begins, counted as an editor would, and which rows are blank lines.

    polars counts no lines, pads short rows and reads a blank line as a row without values, so the standard reader goes
    over the text too. A blank line is no row; in a table of one column it is a missing cell, unless it is at the end.
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
                "Look there for a quote that is never closed or not doubled.",
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
    """The header is no blank line, be its only name empty; and spaces are a cell where there is one column."""
    return width > 0 and (not row or (len(row) == 1 and width > 1 and not row[0].strip()))


def _uneven(source: str, outline: _Outline, separator: str) -> Fault:
    first = next(iter(outline.ragged.values()))
    told = f"{first} cells" if len(outline.ragged) == 1 else f"{first} cells in the first of them"
    return Fault(
        source,
        f"{told}, the header has {outline.width}.",
        f"Quote a cell that holds one of the {SEPARATORS[separator]} between columns, or add what is missing.",
        kind="ragged",
        lines=tuple(outline.ragged),
    )


def check_names(names: list[str], source: str) -> None:
    """Every column has a name, and no two the same.

    Raises
    ------
    BadTable
        they do not.
    """
    found = Faults()
    if empty := [str(i + 1) for i, name in enumerate(names) if not name]:
        found.add(Fault(source, f"column {', '.join(empty)} has no name in the header.", kind="header"))
    if twice := sorted({name for name in names if names.count(name) > 1}):
        found.add(Fault(source, f"column {some(twice)} stands there twice; rename one.", kind="header"))
    found.raise_any()
