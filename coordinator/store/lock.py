"""The lock of a run store: only one coordinator at a time writes it."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from coordinator.store.status import Status
from coreg_core.errors import StorageError
from coreg_wire.files.locks import exclusive


@contextmanager
def store_of(path: Path) -> Iterator[None]:
    """Hold the run store for this process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(path, f"in use by {_holder(path)}. End it first, or give another --store."):
        yield


def _holder(path: Path) -> str:
    with suppress(StorageError):
        status = Status(path, read_only=True)
        known = status.service()
        status.close()
        if "pid" in known:
            return f"the coordinator with process id {known['pid']} on {known['host']}"
    return "another coordinator"
