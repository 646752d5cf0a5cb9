"""The ledger's files: the one that is written, `ledger.jsonl`, and those that were put aside before it,
`ledger-0001.jsonl` on.

They are one chain. The first line of each later file says how many lines there are before it, and carries their last
one's hash; a file that was moved away is missed by that. Reading goes on beside an agent that writes.
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
CONTINUED = "Continued"  # the first line of a file that goes on from another
TORN = "torn"


@dataclass(frozen=True)
class Line:
    """A line: where it stands, its number since the ledger was begun, its hash, and what it says."""

    path: Path
    number: int  # in its file
    since: int  # since the ledger was begun
    sha256: str
    entry: dict[str, Any]
    torn: bool = False
    whole: bool = True  # its end is there


@contextmanager
def readable(path: Path, number: int | None = None) -> Iterator[None]:
    """Use an entry of that file: one that no agent of this release wrote raises many kinds of error.

    Raises
    ------
    StorageError
        instead of each of them.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        where = path if number is None else f"{path}, line {number}"
        raise StorageError(
            f"{where}: not an entry that an agent of this release writes ({error!r}). Restore the ledger from a backup. "
            "Without it this site would not remember what it has sent."
        ) from None


def archive_of(path: Path, number: int) -> Path:
    """The name under which a file is put aside."""
    return path.with_name(f"{path.stem}-{number:04d}{path.suffix}")


def archives(path: Path) -> dict[int, Path]:
    """What was put aside of this ledger, by number, in order."""
    found = {}
    for other in path.parent.glob(f"{path.stem}-*{path.suffix}"):
        digits = other.name.removeprefix(f"{path.stem}-").removesuffix(path.suffix)
        if digits.isdigit() and other == archive_of(path, int(digits)):
            found[int(digits)] = other
    return dict(sorted(found.items()))


def opened(path: Path, ends: ExitStack) -> list[tuple[Path, IO[bytes]]]:
    """Every file of the ledger, the oldest first, as it is at one instant.

    The one that is written is opened before the others are looked for: should the agent put it aside meanwhile, it is among them
    under its new name too, and what comes from there on is later than that instant.

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
    """What a line says; None where it says nothing: it was torn by a crash or a full disk."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


def read_lines(path: Path, *, only_last: bool = False) -> Iterator[Line]:
    """Every line of every file, in order, the chain verified on the way.

    The entry of a torn line has the kind "torn". If older files are not here, the first line says at which number it begins.

    Parameters
    ----------
    path
        of the file that is written; older ones are found beside it.
    only_last
        read that file alone; it has to continue the file before it, if that one is here.

    Raises
    ------
    StorageError
        a line is not JSON, or the chain is broken (says which line); a file is missing or cannot be read.
    """
    try:
        with ExitStack() as ends:
            previous, since, line = GENESIS, 0, None
            files = opened(path, ends)
            if only_last and len(files) > 1:
                *_, (before, _), (name, file) = files
                if (_continued(file) or {}).get("previous") != _last_hash(before):
                    raise StorageError(f"{name}: does not continue {before.name}; one of the two was changed.")
                files = files[-1:]
            for first, (name, file) in enumerate(files):
                beginning = _continued(file)
                if first == 0 and beginning is not None:
                    previous, since = str(beginning["previous"]), int(beginning["lines"])
                elif beginning is not None and beginning.get("lines") != since:
                    raise StorageError(
                        f"{name}: goes on after line {beginning.get('lines')}, and what is here before it ends at line {since}: "
                        "a file is missing between them, or lines were cut off. Put it back beside this one."
                    )
                for line in _chained(name, file, previous, since):
                    previous, since = line.sha256, line.since
                    yield line
            if (
                line is not None and line.torn and line.whole
            ):  # an agent that ends a torn line writes the next one at once
                raise StorageError(
                    f"{line.path}, line {line.number}: not a ledger entry, and nothing is chained to it; it was changed."
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
            # Torn by a crash or a full disk: nothing was sent with it. The next line is chained to it as it stands, so
            # that it was nothing else shows there.
            entry = {"at": "", "kind": TORN, "line": number, "previous": "", "text": "not an entry; nothing was sent"}
            yield Line(path, number, since + number, sha256, entry, torn=True, whole=whole)
        else:
            if not isinstance(entry, dict) or entry.get("previous") != previous or not {"at", "kind"} <= set(entry):
                raise StorageError(
                    f"{path}, line {number}: the chain is broken; a line was changed, removed or put in."
                )
            yield Line(path, number, since + number, sha256, entry, whole=whole)
        previous = sha256


def read_ledger(path: Path) -> Iterator[dict[str, Any]]:
    """Every entry of every file, in order; see `read_lines`."""
    for line in read_lines(path):
        yield line.entry


def _last_hash(path: Path) -> str:
    """The hash of the last line of a file."""
    with path.open("rb") as file:
        size, reach = file.seek(0, os.SEEK_END), 65536
        while True:  # a refusal's text is as long as it is
            file.seek(max(0, size - reach))
            _, newline, last = file.read().rstrip(b"\n").rpartition(b"\n")
            if newline or reach >= size:
                return hashlib.sha256(last).hexdigest()
            reach *= 8


def carried_bytes(path: Path) -> int:
    """How long the first line is, where it carries what earlier files said."""
    with path.open("rb") as file:
        return 0 if _continued(file) is None else len(file.readline())
