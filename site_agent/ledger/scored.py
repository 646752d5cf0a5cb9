"""Record of the individuals that were scored together, beside the ledger: 16 bytes each, synced before the answer."""

import threading
from pathlib import Path

import numpy as np

from coreg_core.errors import StorageError
from coreg_core.masking.fixed_point import WORD
from coreg_wire.files.disk import Disk
from site_agent.machine.scoring import Pairs


class ScoredFile:
    """`site_agent.machine.scoring.ScoredRecord` in a file.

    Raises
    ------
    StorageError
        the record cannot be read or written: no answer must be sent.
    """

    def __init__(self, path: Path, disk: Disk | None = None):
        self.path, self._disk, self.lock = path, disk or Disk(), threading.RLock()

    def pairs(self) -> Pairs:
        """All records. A last one that a crash cut was not answered."""
        try:
            data = self.path.read_bytes() if self.path.exists() else b""
        except OSError as error:
            raise StorageError(f"{self.path}: cannot be read ({error.strerror}); no answer was sent.") from None
        return np.frombuffer(data[: len(data) // 16 * 16], dtype=WORD).reshape(-1, 2)

    def add(self, pairs: Pairs) -> None:
        """See `ScoredRecord.add`."""
        with self.lock:
            whole = np.unique(np.concatenate([self.pairs(), pairs]), axis=0)
            try:
                self._disk.write_whole(self.path, whole.tobytes())
            except OSError as error:
                raise StorageError(f"{self.path}: cannot be written ({error.strerror}); no answer was sent.") from None
