"""The ledger's files: the current one, `ledger.jsonl`, and its archives, `ledger-0001.jsonl` and so on.

They are one chain. The first line of each later file has the number of lines before it and the hash of the last one, so
a missing file is detected. Files can be read while an agent writes.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from coreg_core.errors import StorageError

GENESIS = "0" * 64
CONTINUED = "Continued"  # the first line of a file that continues another
TORN = "torn"
MARK = b" #torn"  # at the end of a torn line that an agent has found and closed


@dataclass(frozen=True)
class Line:
    """A line: its position, its hash and its entry."""

    path: Path
    number: int  # in its file
    since: int  # since the ledger's first line
    sha256: str
    entry: dict[str, Any]
    torn: bool = False
    whole: bool = True  # it ends with a newline
    marked: bool = False  # torn, and closed by an agent


@contextmanager
def readable(path: Path, number: int | None = None) -> Iterator[None]:
    """A context for using an entry of that file: an entry with another form can raise many kinds of error.

    Raises
    ------
    StorageError
        replaces each of them.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        where = path if number is None else f"{path}, line {number}"
        raise StorageError(
            f"{where}: not an entry of this release ({error!r}). Restore the ledger from a backup: without it, this site has "
            "no record of its earlier answers."
        ) from None


def archive_of(path: Path, number: int) -> Path:
    """The path of an archive."""
    return path.with_name(f"{path.stem}-{number:04d}{path.suffix}")


def archives(path: Path) -> dict[int, Path]:
    """The archives of this ledger by number, in order."""
    found = {}
    for other in path.parent.glob(f"{path.stem}-*{path.suffix}"):
        digits = other.name.removeprefix(f"{path.stem}-").removesuffix(path.suffix)
        if digits.isdigit() and other == archive_of(path, int(digits)):
            found[int(digits)] = other
    return dict(sorted(found.items()))


def opened(path: Path, ends: ExitStack) -> list[tuple[Path, IO[bytes]]]:
    """A consistent snapshot of the ledger's files, the oldest first.

    It opens the current file before it lists the archives. If the agent archives that file meanwhile, the list contains it
    under its new name; that file and later ones are then left out of the list.

    Raises
    ------
    OSError
        the ledger cannot be opened.
    """
    last = ends.enter_context(path.open("rb"))
    mine = os.fstat(last.fileno())
    files = []
    for archive in archives(path).values():
        file = ends.enter_context(archive.open("rb"))
        if os.path.samestat(os.fstat(file.fileno()), mine):
            break
        files.append((archive, file))
    return [*files, (path, last)]


def entry_of(line: bytes) -> dict[str, Any] | None:
    """The entry of a line; None for a line that a crash or a full disk left incomplete."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


def read_lines(path: Path, *, only_last: bool = False) -> Iterator[Line]:
    """Every line of every file, in order; verifies the chain.

    The entry of a torn line has the kind "torn". If archives are missing, the first line's number shows that.

    Parameters
    ----------
    path
        of the current file; archives are found beside it.
    only_last
        read only the current file. It must continue the latest archive, if that exists.

    Raises
    ------
    StorageError
        a line is not JSON, or the chain is broken (names the line); a file is missing or cannot be read.
    """
    try:
        with ExitStack() as ends:
            previous, since, line = GENESIS, 0, None
            files = opened(path, ends)
            if only_last and len(files) > 1:
                *_, (before, _), (name, file) = files
                if (_continued(file) or {}).get("previous") != last_hash(before):
                    raise StorageError(f"{name}: does not continue {before.name}; one of the two was changed.")
                files = files[-1:]
            for first, (name, file) in enumerate(files):
                beginning = _continued(file)
                if first == 0 and beginning is not None:
                    previous, since = str(beginning["previous"]), int(beginning["lines"])
                elif beginning is not None and beginning.get("lines") != since:
                    raise StorageError(
                        f"{name}: continues line {beginning.get('lines')}, but the file before it ends at line {since}: "
                        "a file between them is missing, or lines were removed. Put the file back beside this one."
                    )
                for line in _chained(name, file, previous, since):
                    previous, since = line.sha256, line.since
                    yield line
            if line is not None and line.torn and line.whole and not line.marked:
                raise StorageError(
                    f"{line.path}, line {line.number}: not a ledger entry, and no line follows it; it was changed."
                )
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror}).") from None


def _continued(file: IO[bytes]) -> dict[str, Any] | None:
    entry = entry_of(file.readline())
    file.seek(0)
    if entry is None or entry.get("kind") != CONTINUED:
        return None
    return entry if isinstance(entry.get("lines"), int) and isinstance(entry.get("previous"), str) else None


def _chained(path: Path, file: IO[bytes], previous: str, since: int) -> Iterator[Line]:
    for number, line in enumerate(file, start=1):
        whole, line = line.endswith(b"\n"), line.rstrip(b"\n")
        sha256 = hashlib.sha256(line).hexdigest()
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            # Torn by a crash or a full disk: its message was not sent. The next line contains its hash, so the torn line
            # cannot be changed later.
            entry = {"at": "", "kind": TORN, "line": number, "previous": "", "text": "not an entry; nothing was sent"}
            marked = line.endswith(MARK)
            yield Line(path, number, since + number, sha256, entry, torn=True, whole=whole, marked=marked)
        else:
            if not isinstance(entry, dict) or entry.get("previous") != previous or not {"at", "kind"} <= set(entry):
                raise StorageError(
                    f"{path}, line {number}: the chain is broken: this line or the one before was changed, removed or inserted. "
                    "Keep the file as evidence, and restore the newest backup (docs/how-to/troubleshooting.md)."
                )
            yield Line(path, number, since + number, sha256, entry, whole=whole)
        previous = sha256


def read_ledger(path: Path) -> Iterator[dict[str, Any]]:
    """Every entry of every file, in order; see `read_lines`."""
    for line in read_lines(path):
        yield line.entry


def hash_of(path: Path, number: int) -> str | None:
    """The hash of a line, counted since the ledger's first one; None if the files that are here do not have it."""
    try:
        with path.open("rb") as file:
            earlier = int((_continued(file) or {"lines": 0})["lines"])
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror}).") from None
    lines = read_lines(path, only_last=number > earlier)
    return next((line.sha256 for line in lines if line.since == number), None)


def last_hash(path: Path) -> str:
    """The hash of the last line of a file."""
    with path.open("rb") as file:
        size, reach = file.seek(0, os.SEEK_END), 65536
        while True:  # a line can have any length
            file.seek(max(0, size - reach))
            _, newline, last = file.read().rstrip(b"\n").rpartition(b"\n")
            if newline or reach >= size:
                return hashlib.sha256(last).hexdigest()
            reach *= 8


def carried_bytes(path: Path) -> int:
    """The length of the first line in bytes if it carries the memory of earlier files, else 0."""
    with path.open("rb") as file:
        return 0 if _continued(file) is None else len(file.readline())
