"""Records of the operators of this site's answers, beside its ledger: a file each, synced before the first answer."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from coreg_core.errors import StorageError
from coreg_wire.files.disk import Disk
from site_agent.machine.operators import Operator, objection


class OperatorRecords:
    """The folder of these files."""

    def __init__(self, folder: Path, disk: Disk | None = None):
        self.folder, self._disk, self._lock = folder, disk or Disk(), threading.Lock()

    def admit(self, operator: Operator, run: str) -> str | None:
        """The reason against answers of this operator. Without one, the operator is on record when this returns.

        Raises
        ------
        StorageError
            a record cannot be read or written: no answer must be sent.
        """
        with self._lock:
            try:
                path = self.folder / f"{operator.digest}.operator"
                if (reason := self.objection(operator)) is not None or path.exists():
                    return reason
                self._disk.make_folder(self.folder)
                head = json.dumps({"run": run, "instances": len(operator.instances)}).encode() + b"\n"
                self._disk.write_whole(path, head + operator.instances.astype("<u8").tobytes())
            except OSError as error:
                raise StorageError(f"{self.folder}: cannot be used ({error.strerror}); no answer was sent.") from None
        return None

    def objection(self, operator: Operator) -> str | None:
        """The reason why `admit` would refuse this operator, or None. Writes nothing.

        Raises
        ------
        StorageError
            a record cannot be read.
        """
        return objection(operator, self._known())

    def _known(self) -> Iterator[Operator]:
        for path in sorted(self.folder.glob("*.operator")) if self.folder.exists() else ():
            head, _, data = path.read_bytes().partition(b"\n")
            try:
                whole = 8 * json.loads(head)["instances"] == len(data)
            except (ValueError, KeyError, TypeError):
                whole = False
            if not whole:
                raise StorageError(f"{path}: not a valid record of an operator. Restore it from a backup.")
            yield Operator(path.stem, np.frombuffer(data, dtype="<u8"))
