"""The run logs on this site's disk, one file for each run, from which another process resumes.

A file has a line of JSON and then the sums, each as a line of JSON and the bytes of its numbers. From a truncated or
damaged file the sums before the fault are used: the sites resume from the latest state that all of them have.
"""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from coreg_core.protocol.messages import Head
from coreg_wire.files.disk import Disk
from coreg_wire.identity.names import check_study_name
from site_agent.machine.run_log import Ended, Kept, Sum


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
                    found = _read_sum(line, file)
                    if found is None or (after := kept.with_sum(found[0])).digests[-1] != found[1]:
                        return kept  # without `ended`, which belongs to a later state
                    kept = after
        except (OSError, ValueError, KeyError, TypeError):
            return None
        ended = self._ended()
        return replace(kept, ended=ended if ended is not None and ended.position == len(kept.sums) else None)

    def _ended(self) -> Ended | None:
        try:
            plain = json.loads(self._end.read_bytes())
            return Ended(Head(**plain["head"]), dict(plain["signers"]), int(plain["position"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def begin(self, kept: Kept) -> None:
        """See `RunLog.begin`."""
        self._disk.make_folder(self._path.parent)
        self._disk.remove(self._end)
        head = {"sites": kept.sites, "data": kept.data, "key": kept.key.hex(), "digests": kept.digests[:1]}
        parts = [json.dumps(head).encode() + b"\n"]
        parts += [
            part for total, digest in zip(kept.sums, kept.digests[1:], strict=True) for part in _written(total, digest)
        ]
        self._disk.write_whole(self._path, b"".join(parts))

    def append(self, kept: Kept) -> None:
        """See `RunLog.append`. Not synced: after a power failure, lost sums are computed again."""
        with self._path.open("ab") as file:
            for part in _written(kept.sums[-1], kept.digests[-1]):
                file.write(part)

    def end(self, ended: Ended) -> None:
        """See `RunLog.end`. The sums are synced first: after the end no site computes them again."""
        with self._path.open("rb") as file:
            os.fsync(file.fileno())
        plain = {"head": vars(ended.head), "signers": dict(ended.signers), "position": ended.position}
        self._disk.write_whole(self._end, json.dumps(plain).encode())


def _written(total: Sum, digest: str) -> list[bytes]:
    shape = None if total.values is None else list(total.values.shape)
    head = {"shape": shape, "scalars": [x.hex() for x in total.scalars], "digest": digest}
    values = b"" if total.values is None else np.ascontiguousarray(total.values).tobytes()
    return [json.dumps(head).encode() + b"\n", values]


def _read_sum(line: bytes, file: BinaryIO) -> tuple[Sum, str] | None:
    try:
        head: dict[str, Any] = json.loads(line)
        scalars, values = tuple(map(float.fromhex, head["scalars"])), None
        if head["shape"] is not None:
            rows, columns = head["shape"]
            values = np.frombuffer(file.read(8 * rows * columns)).reshape(rows, columns)
        return Sum(values, scalars), str(head["digest"])
    except (ValueError, KeyError, TypeError, OverflowError):
        return None
