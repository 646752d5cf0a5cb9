"""The run logs on this site's disk, one file for each run, from which another process resumes.

A file has a line of JSON and then the sums, each as a line of JSON and the bytes of its numbers. From a truncated or
damaged file the sums before the fault are used: the sites resume from the latest state that all of them have.
"""

import errno
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from coreg_core.errors import StorageError
from coreg_core.numerics.arrays import Arr
from coreg_core.protocol.messages import Head
from coreg_wire.files.disk import Disk
from coreg_wire.identity.names import check_study_name
from site_agent.machine.run_log import Ended, Kept, Sum, Total


class RunLogs:
    """The folder of a site's logs."""

    def __init__(self, folder: Path, disk: Disk | None = None):
        self.folder, self._disk = folder, disk or Disk()

    def of(self, run: str) -> "FileLog":
        """The log of one run.

        Raises
        ------
        UsageError
            the name is not valid for a run.
        """
        check_study_name(run, "run")
        return FileLog(self.folder / f"{run}.sums", self._disk)

    def forget(self, run: str) -> None:
        """Delete the log of a run that ended, after its result is written."""
        self._disk.remove(self.folder / f"{run}.sums")
        self._disk.remove(self.folder / f"{run}.end")


@dataclass(frozen=True)
class StoredSum:
    """`site_agent.machine.run_log.Total` on the disk: a vector is read when it is used, which is seldom."""

    path: Path
    start: int  # of its numbers, in bytes
    shape: tuple[int, int] | None
    scalars: tuple[float, ...]
    digest: bytes

    @property
    def values(self) -> Arr | None:
        """Raises `StorageError` where the file can no longer be read."""
        if self.shape is None:
            return None
        try:
            found = np.fromfile(self.path, dtype=np.float64, count=self.shape[0] * self.shape[1], offset=self.start)
            return found.reshape(self.shape)
        except (OSError, ValueError) as error:
            raise StorageError(f"{self.path}: the sums of this run can no longer be read ({error}).") from None

    @property
    def end(self) -> int:
        return self.start + (0 if self.shape is None else 8 * self.shape[0] * self.shape[1])


class FileLog:
    """`site_agent.machine.run_log.RunLog`."""

    def __init__(self, path: Path, disk: Disk):
        self._path, self._disk = path, disk
        self._end = path.with_suffix(".end")

    def load(self, data: str) -> Kept | None:
        """See `RunLog.load`."""
        try:
            with self._path.open("rb") as file:
                line = file.readline()
                head = json.loads(line)
                if head["data"] != data or not line.endswith(b"\n"):
                    return None
                kept = Kept(tuple(head["sites"]), data, bytes.fromhex(head["key"]), digests=tuple(head["digests"]))
                while line := file.readline():
                    found = self._read_sum(line, file)
                    if found is None or (after := kept.with_sum(found[0])).digests[-1] != found[1]:
                        return kept  # without `ended`, which belongs to a later state
                    kept = after
        except (OSError, ValueError, KeyError, TypeError):
            return None
        ended = self._ended()
        return replace(kept, ended=ended if ended is not None and ended.position == len(kept.sums) else None)

    def _read_sum(self, line: bytes, file: BinaryIO) -> tuple[StoredSum, str] | None:
        try:
            head: dict[str, Any] = json.loads(line)
            scalars, shape, values = tuple(map(float.fromhex, head["scalars"])), None, None
            start = file.tell()
            if head["shape"] is not None:
                rows, columns = head["shape"]
                shape = int(rows), int(columns)
                values = np.frombuffer(file.read(8 * rows * columns)).reshape(shape)
            return StoredSum(self._path, start, shape, scalars, Sum(values, scalars).digest), str(head["digest"])
        except (ValueError, KeyError, TypeError, OverflowError):
            return None

    def _ended(self) -> Ended | None:
        try:
            plain = json.loads(self._end.read_bytes())
            return Ended(Head(**plain["head"]), tuple(plain["sites"]), int(plain["position"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def begin(self, kept: Kept) -> None:
        """See `RunLog.begin`."""
        self._disk.make_folder(self._path.parent)
        self._disk.remove(self._end)
        last = kept.sums[-1] if kept.sums else None
        if isinstance(last, StoredSum):  # of this file, under the same head
            os.truncate(self._path, last.end)
            return
        head = {"sites": kept.sites, "data": kept.data, "key": kept.key.hex(), "digests": kept.digests[:1]}
        parts: list[bytes | memoryview] = [json.dumps(head).encode() + b"\n"]
        parts += [
            part for total, digest in zip(kept.sums, kept.digests[1:], strict=True) for part in _written(total, digest)
        ]
        self._disk.write_whole(self._path, b"".join(parts))

    def append(self, kept: Kept) -> Kept:
        """See `RunLog.append`. Not synced: after a power failure, lost sums are computed again."""
        total = kept.sums[-1]
        head, numbers = _written(total, kept.digests[-1])
        try:
            with self._path.open("ab", buffering=0) as file:
                start = file.tell() + len(head)
                if file.write(head) + file.write(numbers) != len(head) + len(numbers):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from None  # a write does not name its file
        stored = StoredSum(self._path, start, _shape(total.values), total.scalars, total.digest)
        return replace(kept, sums=(*kept.sums[:-1], stored))

    def end(self, ended: Ended) -> None:
        """See `RunLog.end`. The sums are synced first: after the end no site computes them again."""
        with self._path.open("rb") as file:
            os.fsync(file.fileno())
        plain = {"head": vars(ended.head), "sites": ended.sites, "position": ended.position}
        self._disk.write_whole(self._end, json.dumps(plain).encode())


def _shape(values: Arr | None) -> tuple[int, int] | None:
    return None if values is None else (values.shape[0], values.shape[1])


def _written(total: Total, digest: str) -> tuple[bytes, memoryview]:
    """A line of JSON, and the numbers."""
    values = total.values
    head = {"shape": _shape(values), "scalars": [x.hex() for x in total.scalars], "digest": digest}
    numbers = memoryview(b"") if values is None or not values.size else np.ascontiguousarray(values).data.cast("B")
    return json.dumps(head).encode() + b"\n", numbers
