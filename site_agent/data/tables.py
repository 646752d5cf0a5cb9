"""Read a table as columns of cells: a CSV or Parquet file, a query, or a pandas or polars frame.

A column is looked at when it is used, so the faults of other columns do not matter.
"""

import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray
from polars.exceptions import PanicException, PolarsError

from coreg_core.arrays import Arr, Ints
from coreg_core.errors import BadData
from site_agent.data.cell_text import canonical, unguarded
from site_agent.data.cells import Cells, is_numeric
from site_agent.data.csv_file import read_csv_file
from site_agent.data.databases import ask
from site_agent.data.inputs import Inputs
from site_agent.data.notation import (
    NUMBER,
    OPEN_MARK,
    Decimals,
    Notation,
    advice,
    flag,
    kind_of,
    most,
)
from site_agent.data.sources import (
    COLUMNS,
    FRAME,
    NA_VALUES,
    BadTable,
    DatabaseQuery,
    Faults,
    Source,
    TableFault,
    some,
)

T = TypeVar("T")
CLASSES_OF_A_STUDY = "classes of a study"  # the kind of a fault that a study can mend


@dataclass(frozen=True)
class Table:
    """Rows of a source: its columns, which of their cells are rows of the table, and their lines.

    ``notes`` are on the notation that the file shows, if it is not commas and decimal points.
    """

    source: str
    lines: Ints
    held: tuple[Cells, ...] = field(repr=False)
    kept: Ints = field(repr=False)
    notes: tuple[str, ...] = ()

    @cached_property
    def columns(self) -> list[str]:
        return [cells.name for cells in self.held]

    @cached_property
    def _by_name(self) -> dict[str, Cells]:
        return dict(zip(self.columns, self.held, strict=True))

    def __len__(self) -> int:
        return len(self.lines)

    def __contains__(self, column: object) -> bool:
        return column in self._by_name

    def fault(
        self,
        what: str,
        todo: str = "",
        kind: str = "table",
        column: str | None = None,
        rows: Sequence[int] = (),
    ) -> TableFault:
        """A fault of these rows of a column."""
        lines = ()
        if rows:
            lines = tuple(self.lines[list(rows)].tolist())
        return TableFault(self.source, what, todo, kind, column, lines)

    # --- columns ----------------------------------------------------------------------------------

    def require(self, names: Sequence[str], what: str, todo: str = "") -> None:
        """Raise `BadTable` for names that are no columns; ``todo``: more that helps."""
        missing = [name for name in names if name not in self]
        if not missing:
            return
        hints = []
        for name in missing:
            similar = self.like(name)
            if similar:
                hints.append(f"{similar!r} for {name!r}?")
        text = f"no column {', '.join(map(repr, missing))} ({what})."
        if hints:
            text += f" Did you mean {', '.join(hints)}"
        todo = f"The columns are {some(self.columns, COLUMNS)}.{todo}"
        about = ", ".join(missing)
        raise BadTable(TableFault(self.source, text, todo, kind="missing column", about=about))

    def like(self, name: str) -> str | None:
        """The column with the most similar name, or None."""
        # difflib counts upper and lower case as different letters, and that is the most frequent
        # mistake.
        folded = {column.casefold(): column for column in reversed(self.columns)}
        matches = get_close_matches(name.casefold(), list(folded), n=1)
        if not matches:
            return None
        return folded[matches[0]]

    def cells(self, name: str) -> Cells:
        """The cells of a column that can be read."""
        self.require([name], "asked for")
        what = f"the header has column {name!r} twice. Rename one."
        if not name:
            what = f"column {self.columns.index(name) + 1} has no name in the header."
        if not name or self._repeated[name] > 1:
            raise BadTable(self.fault(what, kind="header"))
        cells = self._by_name[name]
        if cells.numeric is None:
            cells.shown  # noqa: B018 - raises here
        return cells

    @cached_property
    def _repeated(self) -> Counter[str]:
        return Counter(self.columns)

    def select(self, names: Sequence[str]) -> "Table":
        return replace(self, held=tuple(self.cells(name) for name in names))

    def rows(self, keep: Ints | NDArray[np.bool_]) -> "Table":
        return replace(self, lines=self.lines[keep], kept=self.kept[keep])

    def beside(self, other: "Table") -> "Table":
        """With other rows of the same cells."""
        lines = np.union1d(self.lines, other.lines)
        return replace(self, lines=lines, kept=np.union1d(self.kept, other.kept))

    # --- values -----------------------------------------------------------------------------------

    def texts(self, name: str) -> list[str | None]:
        """The one text of each value. None: missing."""
        return self._present(name, self.cells(name).own)

    def counts(self, name: str) -> Counter[str]:
        """How often each text occurs."""
        return Counter(text for text in self.texts(name) if text is not None)

    def present(self, name: str) -> list[str]:
        """The cells that are not missing, as the source shows them."""
        return [text for text in self.shown(name) if text is not None]

    def shown(self, name: str) -> list[str | None]:
        """The cells as the source shows them. None: missing."""
        return self._present(name, self.cells(name).shown)

    def _present(self, name: str, texts: Sequence[str]) -> list[str | None]:
        missing = self.cells(name).missing
        return [None if missing[row] else texts[row] for row in self.kept.tolist()]

    def missing(self, name: str) -> NDArray[np.bool_]:
        return self.cells(name).missing[self.kept]

    def is_numeric(self, name: str) -> bool:
        """Whether any cell is a number, or half of them look like numbers, so that an unreadable
        number is a fault.
        """
        values = self.cells(name).numbers[self.kept]
        if not np.isnan(values).all():
            return True
        return most(self.present(name), NUMBER.search)

    def numbers(self, name: str, *, target: bool = False) -> Arr:
        """A column as float64, NaN where missing.

        ``target``: the advice about a fault is about a target.
        """
        values = self.cells(name).numbers[self.kept]
        unread = np.flatnonzero(np.isnan(values) & ~self.missing(name))
        if len(unread):
            raise BadTable(*self._no_numbers(name, unread, target))
        return values

    def _no_numbers(self, name: str, unread: Ints, target: bool) -> Iterator[TableFault]:
        """One fault for each kind of cell that is no number."""
        decimals = self.cells(name).decimals
        texts = self.shown(name)
        rows: dict[str, list[int]] = {}
        for row in unread.tolist():
            kind = kind_of(texts[row] or "", decimals.mark)
            rows.setdefault(kind, []).append(row)
        if target and "text" in rows and np.isnan(self.cells(name).numbers[self.kept]).all():
            yield self._texts_as_target(name)
            return
        for kind, places in rows.items():
            todo = advice(kind, name, target=target)
            if kind == OPEN_MARK:  # one fault for the whole table
                yield self.fault(f"{decimals.why}.", todo, kind)
                continue
            what = f"{texts[places[0]]!r} is not a finite number"
            if len(places) > 1:
                what = f"{texts[places[0]]!r} and similar cells are not finite numbers"
            if kind.startswith("decimal") and decimals.why:
                what += f": {decimals.why}"
            yield self.fault(f"{what}.", todo, kind, name, places)

    def _texts_as_target(self, name: str) -> TableFault:
        texts = sorted(set(self.present(name)))
        what = f"the target has {len(texts)} texts: {some(texts)}."
        if len(texts) > 2:
            todo = (
                "If they are classes, the study of a federation names all of them (classes in"
                " [model]), and coreg-sim benefit needs a column of yes and no. Else correct the"
                " wrong cells, or name another target."
            )
            return self.fault(what, todo, CLASSES_OF_A_STUDY, name)
        flags = " or ".join(flag("positive", text) for text in texts)
        todo = (
            f"If it is yes/no, add {flags}: the value that means 1 at every site. Else name another"
            " target."
        )
        return self.fault(what, todo, "text", name)

    # --- ids --------------------------------------------------------------------------------------

    def ids(self, name: str) -> list[str]:
        """An id column as NFC text, without the apostrophe against formulas. A missing id is
        empty.
        """
        self.require([name], "the id column")
        own = self.cells(name).own
        ids = []
        for row in self.kept.tolist():
            text = unicodedata.normalize("NFC", own[row])
            ids.append(unguarded(text))
        return ids

    def doubts(self, id_column: str | None) -> tuple[str, ...]:
        """A note on ids that were rounded."""
        rounded = ""
        if id_column and id_column in self:
            rounded = self.cells(id_column).rounded
        if not rounded:
            return ()
        return (
            f"{self.source}: {rounded!r} in {id_column!r} is a rounded number: a spreadsheet or a"
            " program read long ids as numbers, and their last digits are lost. Export the ids as"
            " text",
        )

    def with_id(self, column: str) -> "Table":
        """With the columns of an id in several, ``last_name+birth_date``, joined into one; missing
        if a part is.
        """
        parts = column.split("+")
        if column in self or len(parts) < 2:
            return self
        self.require(parts, "a part of the id")
        columns = [self.cells(part).own for part in parts]
        rows = zip(*columns, strict=True)
        joined = ["+".join(texts) if all(texts) else "" for texts in rows]
        others = [cells for cells in self.held if cells.name not in parts]
        return replace(self, held=(*others, Cells(column, joined, self.source)))

    # --- classes ----------------------------------------------------------------------------------

    def with_classes(self, column: str, positive: str, negative: str = "") -> "Table":
        """With 1 for the positive value of a yes/no column, and 0 for the other one, which is
        ``negative`` if that is known.
        """
        if not positive or column not in self:
            return self
        positive = canonical(positive)
        others = self.counts(column)
        del others[positive]
        unlike = [text for text in others if text.casefold() != positive.casefold()]
        zero = negative or max(unlike, key=others.__getitem__, default="")
        what = f"holds {some(sorted(others))} besides the positive value, {positive!r}."
        if negative:
            wrong = others.keys() - {negative}
            what = f"holds {some(sorted(wrong))}; known are {positive!r} and {negative!r}."
        todo = (
            "A yes/no target has two values. Correct these cells, or the positive value (capitals"
            " count)."
        )
        return self._coded(column, {positive: "1", zero: "0"}, what, todo)

    def with_places(self, column: str, classes: Sequence[str]) -> "Table":
        """With the place among the classes for each value of a column."""
        if not classes or column not in self:
            return self
        places = {canonical(name): str(place) for place, name in enumerate(classes)}
        unknown = self.counts(column).keys() - places.keys()
        what = f"holds {some(sorted(unknown))}; the classes are {some(classes)}."
        todo = "Correct these cells (capitals count), or the study's classes."
        return self._coded(column, places, what, todo)

    def _coded(self, column: str, codes: Mapping[str, str], what: str, todo: str) -> "Table":
        """With the code of each text of a column; a text without one is a fault."""
        valid = {None, *codes}
        wrong = [row for row, text in enumerate(self.texts(column)) if text not in valid]
        if wrong:
            raise BadTable(self.fault(what, todo, "classes", column, wrong))
        cells = self.cells(column)
        texts = np.where(cells.missing, "", cells.own).tolist()
        coded = Cells(column, [codes.get(text, "") for text in texts], self.source)
        held = list(self.held)
        held[self.columns.index(column)] = coded
        return replace(self, held=tuple(held))


# --- reading --------------------------------------------------------------------------------------


def name_of(source: Source | Any) -> str:
    """A source in messages."""
    if isinstance(source, Path | DatabaseQuery):
        return str(source)
    return FRAME


def read_table(
    source: Source | Any,
    collected: Faults | None = None,
    na_values: Sequence[str] = NA_VALUES,
    notation: Notation = Notation(),  # noqa: B008 - it is frozen
) -> Table:
    """Read a CSV or Parquet file, the rows of a query, or a frame.

    Faults are added to ``collected``, and raised without it.
    """
    name = name_of(source)
    faults = Faults()
    missing = frozenset({*na_values, *map(canonical, na_values)})
    try:
        table = _read(source, name, missing, notation, faults)
    except FileNotFoundError:
        folder = Path(name).resolve().parent
        names = [path.name for path in folder.glob("*")]
        similar = get_close_matches(Path(name).name, names, n=1)
        todo = ""
        if similar:
            todo = f"Did you mean {similar[0]}?"
        raise BadTable(TableFault(name, f"no such file in {folder}.", todo, kind="file")) from None
    except (PolarsError, PanicException, OSError) as error:  # polars panics at some damage
        what = f"cannot be read as a table: {str(error).splitlines()[0]}"
        raise BadTable(TableFault(name, what, kind="file")) from None
    if not len(table) and not len(faults) and name != FRAME:
        faults.add(TableFault(name, "no rows below the header."))
    if collected is None or not len(table):
        faults.raise_any()
    else:
        collected.add(*faults)
    return table


def read_inputs(
    inputs: Inputs,
    faults: Faults | None = None,
    source: Source | Any | None = None,
    *,
    joined: bool = True,
) -> Table:
    """Read the table of these inputs, or another ``source`` of the same notation.

    ``joined``: an id in several columns is joined into one.
    """
    if source is None:
        source = inputs.table
    table = read_table(source, faults, inputs.na_values, inputs.notation)
    if joined:
        return table.with_id(inputs.id or "")
    return table


def _read(
    source: Any, name: str, na_values: frozenset[str], notation: Notation, faults: Faults
) -> Table:
    notes: list[str] = []
    if isinstance(source, Path) and source.suffix.lower() == ".csv":
        file, notes = read_csv_file(source, notation, faults)
        columns = file.columns
        decimals = file.decimals
        lines = file.lines
    else:
        columns = _columns_of(source, name)
        decimals = Decimals(notation.decimal or ".")
        height = len(columns[0][1]) if columns else 0
        first = 1 if name == FRAME else 2
        lines = np.arange(first, first + height)
    held = tuple(
        Cells(column.strip(), raw, name, na_values, decimals, numeric)
        for column, raw, numeric in columns
    )
    noted = tuple(f"{name}: {note}" for note in notes)
    return Table(name, lines, held, np.arange(len(lines)), noted)


def _columns_of(source: Any, name: str) -> list[tuple[str, Any, Any]]:
    """Names and columns of a source whose columns have types, and its numbers."""
    if isinstance(source, DatabaseQuery):
        source = ask(source)
    elif isinstance(source, Path):
        source = _parquet(source, name)
    if hasattr(source, "iloc") and hasattr(source, "columns"):
        columns = [source.iloc[:, place] for place in range(source.shape[1])]
    elif isinstance(source, pl.DataFrame):
        columns = source.get_columns()
    else:
        what = type(source).__name__
        raise BadData(f"a pandas or polars DataFrame with named columns is needed, not a {what}.")
    numbers = [column if is_numeric(column) else None for column in columns]
    return list(zip(map(str, source.columns), columns, numbers, strict=True))


def _parquet(path: Path, name: str) -> pl.DataFrame:
    suffix = path.suffix.lower()
    if suffix in (".parquet", ".pq"):
        return pl.read_parquet(path, glob=False)  # polars would take t[1].parquet as a pattern
    instead = ""
    if suffix.startswith(".xls"):
        instead = " In Excel, save it as 'CSV UTF-8'."
    what = f"{suffix or 'a file without a suffix'} is neither .csv nor .parquet.{instead}"
    raise BadTable(TableFault(name, what, kind="file"))
