"""The notices of a coordinator, for commands and pages. A killed coordinator can lose those of the last few seconds."""

import json
import threading
from pathlib import Path
from typing import Any

from coordinator.store.schema import Tables
from coreg_core.protocol.outcomes import Notice

MAX_NOTICES = 5000  # older ones are deleted


class History(Tables):
    """The table. `add` collects notices on the event loop; `flush` writes them, in a thread."""

    def __init__(self, path: Path, *, read_only: bool = False):
        super().__init__(path, read_only=read_only)
        self._lock, self._added = threading.Lock(), list[tuple[str, str, str]]()

    def add(self, notice: Notice, at: str) -> None:
        """Record a notice that has a sentence. Answered steps have none: they are in the table of rounds."""
        if notice.text:
            with self._lock:
                self._added.append((at, notice.run, json.dumps(notice.to_dict())))

    def flush(self) -> None:
        """Write the collected notices."""
        with self._lock:
            added, self._added = self._added, []
        if added:
            with self.transaction(durable=False):
                self._db.executemany("insert into notices (at, run, notice) values (?, ?, ?)", added)
                self._db.execute(
                    "delete from notices where number <= (select max(number) from notices) - ?", (MAX_NOTICES,)
                )

    def notices(self, run: str | None = None, limit: int = 50) -> list[dict[str, Any]]:
        """The latest notices of one run or of all runs as JSON objects with their time ``at``, newest first."""
        with self.reading():
            query = "select at, notice from notices where ?1 is null or run = ?1 order by number desc limit ?2"
            return [{"at": at, **json.loads(notice)} for at, notice in self._db.execute(query, (run, limit)).fetchall()]
