"""Faults of a table: a sentence for a person, fields for a program, and an error that lists all of them.

The text of a fault can show a cell, because only the site's own operator reads it. Its fields name the kind of the cell and
never its content.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from coreg_core.errors import BadData

SHOWN = 5  # lines or names in one sentence
COLUMNS = 20  # names of columns in one sentence
MOST = 20  # sentences of one error; `coreg-agent check` shows them all


@dataclass(frozen=True)
class Fault:
    """One fault of a table. ``kind``: the problem in a word or two, for a program; ``about``: a column that the file lacks."""

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
        """Fields for a program, without the content of a cell."""
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
    """A table that cannot be used, with all its faults. Their advice is for a site that has an agent.toml."""

    def __init__(self, *faults: Fault):
        self.faults = faults
        super().__init__(self._told())

    def advised(self, advice: Callable[[str], str]) -> "BadTable":
        """The same faults with other advice, for a command that reads no agent.toml."""
        return BadTable(*(replace(fault, todo=advice(fault.todo)) for fault in self.faults))

    def _told(self) -> str:
        if len(self.faults) == 1:
            return self.faults[0].text
        more = [f"{len(self.faults) - MOST} more; `coreg-agent check` lists them all"] * (len(self.faults) > MOST)
        return "\n  ".join([f"{len(self.faults)} faults in the table:", *(f.text for f in self.faults[:MOST]), *more])


class Faults:
    """Collects faults, each once, so that reading can continue. `raise_any` raises them together."""

    def __init__(self) -> None:
        self._found: dict[Fault, None] = {}

    def add(self, *faults: Fault) -> None:
        self._found |= dict.fromkeys(faults)

    @contextmanager
    def caught(self) -> Iterator[None]:
        try:
            yield
        except BadTable as error:
            self.add(*error.faults)

    def __iter__(self) -> Iterator[Fault]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def raise_any(self) -> None:
        """Raise the collected faults, by file in reading order, then by line."""
        if self._found:
            files = list(dict.fromkeys(fault.file for fault in self._found))  # as they were read
            raise BadTable(*sorted(self._found, key=lambda fault: (files.index(fault.file), fault.lines)))


def some(names: Iterable[object], most: int = SHOWN) -> str:
    """The first ``most`` names, quoted, and the number of the others."""
    return shortened([repr(name) for name in names], most)


def shortened(texts: Sequence[str], most: int) -> str:
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more
