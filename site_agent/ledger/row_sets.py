"""Records of the labelled rows whose moments were opened, beside the ledger: a file each, synced before the answer."""

import json
import threading
from pathlib import Path

import numpy as np

from coreg_core.errors import StorageError
from coreg_wire.files.disk import Disk
from site_agent.machine.row_sets import RowSet


class RowSetFiles:
    """`site_agent.machine.row_sets.RowSets` in a folder.

    Raises
    ------
    StorageError
        a record cannot be read or written: no answer must be sent.
    """

    def __init__(self, folder: Path, disk: Disk | None = None):
        self.folder, self._disk, self.lock = folder, disk or Disk(), threading.RLock()

    def earlier(self) -> list[RowSet]:
        """All records."""
        with self.lock:
            paths = sorted(self.folder.glob("*.rows")) if self.folder.exists() else []
            return [self._read(path) for path in paths]

    def keep(self, opened: RowSet, run: str) -> None:
        """See `RowSets.keep`."""
        head = {"run": run, "rows": len(opened.rows), "features": opened.features, "openings": opened.openings}
        data = json.dumps(head).encode() + b"\n" + opened.individuals.tobytes() + opened.rows.tobytes()
        with self.lock:
            try:
                self._disk.make_folder(self.folder)
                self._disk.write_whole(self.folder / f"{opened.digest}.rows", data)
            except OSError as error:
                raise StorageError(f"{self.folder}: cannot be used ({error.strerror}); no answer was sent.") from None

    def _read(self, path: Path) -> RowSet:
        try:
            head, _, data = path.read_bytes().partition(b"\n")
            told = json.loads(head)
            individuals, rows = np.frombuffer(data, dtype="<u8").reshape(2, told["rows"])
            return RowSet(individuals, rows, told["features"], told["openings"])
        except OSError as error:
            raise StorageError(f"{path}: cannot be read ({error.strerror}); no answer was sent.") from None
        except (ValueError, KeyError, TypeError):
            raise StorageError(f"{path}: not a valid record of opened rows. Restore it from a backup.") from None
