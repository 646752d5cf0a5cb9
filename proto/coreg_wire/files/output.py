"""A file that a command writes for its user.

It replaces nothing but an earlier file of the same kind: never a table that is an input, a key, a
ledger or a model. A new one has mode 0600.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from coreg_core.errors import StorageError, UsageError
from coreg_wire.files.disk import write_whole

# Of each suffix: whether an existing file is one of that kind.
Kinds = Mapping[str, Callable[[Path], bool]]


def begins_with(*beginnings: bytes) -> Callable[[Path], bool]:
    """Whether a file has one of these beginnings."""

    def of_this_kind(path: Path) -> bool:
        with path.open("rb") as file:
            return file.read(max(map(len, beginnings))).startswith(beginnings)

    return of_this_kind


PICTURES: Kinds = {
    ".svg": begins_with(b"<?xml", b"<svg"),
    ".png": begins_with(b"\x89PNG"),
    ".pdf": begins_with(b"%PDF"),
}
ONNX: Kinds = {".onnx": begins_with(b"\x08")}  # the field of the format's version


def check_output(path: Path, option: str, kinds: Kinds) -> None:
    """Check before the work that the file can be written. UsageError, StorageError: it cannot."""
    suffix = path.suffix.lower()
    if suffix not in kinds:
        raise UsageError(f"{path}: is written as {' or '.join(kinds)}. Give {option} such a name.")
    if path.is_symlink():
        raise UsageError(
            f"{path} is a link to {path.readlink()}. Name the file itself, or remove the link."
        )
    if not path.resolve().parent.is_dir():
        raise StorageError(
            f"{path.resolve().parent}: no such folder. Make it, or give another {option}."
        )
    if not path.exists():
        return
    try:
        earlier = path.is_file() and (not path.stat().st_size or kinds[suffix](path))
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror}).") from None
    if not earlier:
        raise UsageError(
            f"{path} exists and is no earlier output of this command, so it is not overwritten."
            f" Remove it, or give another {option}."
        )


def write_output(path: Path, data: bytes, option: str, kinds: Kinds) -> None:
    """Write the file, if it can be; see `check_output`."""
    check_output(path, option, kinds)
    # An earlier output that was opened to a group, on purpose, stays open.
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
    write_whole(path, data, mode=mode)
