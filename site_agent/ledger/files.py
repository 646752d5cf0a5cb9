"""Read the ledger's file and verify its chain, also while an agent writes it."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coreg_core.errors import StorageError

GENESIS = "0" * 64  # the hash before the first line


@dataclass(frozen=True)
class Line:
    """A line: its number from 1, its hash, its entry, and the offset of its end in the file."""

    number: int
    sha256: str
    entry: dict[str, Any]
    end: int


def read_lines(path: Path) -> Iterator[Line]:
    """Every line in order; verifies the chain.

    A last line without a newline is left out: a crash or a full disk cut it, and its message was not sent.

    Raises
    ------
    StorageError
        a line is not JSON, or the chain is broken (names the line); the file cannot be read.
    """
    previous, end = GENESIS, 0
    try:
        with path.open("rb") as file:
            for number, whole in enumerate(file, start=1):
                if not whole.endswith(b"\n"):
                    return
                entry = _entry_of(whole)
                if entry is None or entry.get("previous") != previous or not {"at", "kind"} <= set(entry):
                    raise StorageError(
                        f"{path}, line {number}: the chain is broken: this line or the one before was changed, removed or "
                        "inserted. Keep the file as evidence, and restore the newest backup (docs/how-to/troubleshooting.md)."
                    )
                previous, end = hashlib.sha256(whole[:-1]).hexdigest(), end + len(whole)
                yield Line(number, previous, entry, end)
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror}).") from None


def _entry_of(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


def read_ledger(path: Path) -> Iterator[dict[str, Any]]:
    """Every entry, in order; see `read_lines`."""
    for line in read_lines(path):
        yield line.entry
