"""What is wrong with a table, as values: a sentence for a person, fields for a program, and all of them at once.

A fault's text may show the cell that it is about, for the eyes of the site's own operator; its fields say of which kind
the cell is, and never what stands in it.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from coreg_core.errors import BadData

SHOWN = 5  # lines or names in one sentence
COLUMNS = 20  # names of columns in one sentence
MOST = 20  # sentences of one error; `coreg-agent check` shows them all


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with a table: in which file, lines and column, what it is, and what to do about it.

    ``kind`` says in a word or two what was found there ("text", "decimal comma", "missing"), for a program to read; ``about``
    names a column that is not there.
    """

    file: str
    what: str
    todo: str = ""
    kind: str = "table"
    column: str | None = None
    lines: tuple[int, ...] = ()
    about: str | None = None

    @property
    def text(self) -> str:
        column = "" if self.column is None else f", column {self.column!r}"
        return f"{self.file}{_places(self.lines)}{column}: {self.what}{' ' if self.todo else ''}{self.todo}"

    def fields(self) -> dict[str, Any]:
        """For a program: nothing of what stands in a cell."""
        return {
            "file": self.file,
            "row": self.lines[0] if self.lines else None,
            "rows": len(self.lines),
            "column": self.column if self.about is None else self.about,
            "kind": self.kind,
            "do": self.todo,
        }


def _places(lines: Sequence[int]) -> str:
    if len(lines) < 2:
        return "".join(f", line {line}" for line in lines)
    if len(lines) > SHOWN:
        return f", lines {', '.join(map(str, lines[:SHOWN]))} and {len(lines) - SHOWN} more"
    return f", lines {', '.join(map(str, lines[:-1]))} and {lines[-1]}"


class BadTable(BadData):
    """A table that cannot be used, with every fault that was found."""

    def __init__(self, *faults: Fault):
        self.faults = faults
        super().__init__(self._told())

    def _told(self) -> str:
        if len(self.faults) == 1:
            return self.faults[0].text
        more = [f"{len(self.faults) - MOST} more; `coreg-agent check` lists them all"] * (len(self.faults) > MOST)
        return "\n  ".join(
            [f"{len(self.faults)} faults in the table:", *(f.text for f in self.faults[:MOST]), *more],
        )


class Faults:
    """Faults so far, each once: reading goes on where it can, and `raise_any` ends it where there was one."""

    def __init__(self) -> None:
        self._found: dict[Fault, None] = {}

    def add(self, *faults: Fault) -> None:
        self._found |= dict.fromkeys(faults)

    @contextmanager
    def caught(self) -> Iterator[None]:
        """What is wrong in this block is kept, and what comes after it is tried all the same."""
        try:
            yield
        except BadTable as error:
            self.add(*error.faults)

    def __iter__(self) -> Iterator[Fault]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def raise_any(self) -> None:
        """End here if anything was found: by file, and in a file by line, as somebody goes through it who mends it.

        Raises
        ------
        BadTable
            with all of it.
        """
        if self._found:
            files = list(dict.fromkeys(fault.file for fault in self._found))  # as they were read
            raise BadTable(*sorted(self._found, key=lambda fault: (files.index(fault.file), fault.lines)))


def some(names: Iterable[object], most: int = SHOWN) -> str:
    """The first ``most`` of them, quoted, and how many more there are."""
    return shortened([repr(name) for name in names], most)


def shortened(texts: Sequence[str], most: int) -> str:
    """The first ``most`` of them, and how many more there are."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more
