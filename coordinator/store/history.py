"""The notices of a coordinator, for commands and pages. A killed coordinator can lose those of the last few seconds."""

import json
import threading
from dataclasses import dataclass
from pathlib import Path

from coordinator.machine.notices import Notice, StepAnswered, from_fields, to_fields
from coordinator.store.schema import Tables

MAX_NOTICES = 5000  # older ones are deleted


@dataclass(frozen=True)
class NoticeRow:
    """A notice and its time."""

    at: str
    notice: Notice


class History(Tables):
    """The table. `add` collects notices on the event loop; `flush` writes them, in a thread."""

    def __init__(self, path: Path, *, read_only: bool = False):
        super().__init__(path, read_only=read_only)
        self._lock, self._added = threading.Lock(), list[tuple[str, str, str, str]]()

    def add(self, notice: Notice, at: str) -> None:
        """Record a notice, except answered steps, which are in the table of rounds."""
        if not isinstance(notice, StepAnswered):
            with self._lock:
                row = (at, getattr(notice, "run", ""), type(notice).__name__, json.dumps(to_fields(notice)))
                self._added.append(row)

    def flush(self) -> None:
        """Write the collected notices."""
        with self._lock:
            added, self._added = self._added, []
        if added:
            with self.transaction(durable=False):
                self._db.executemany("insert into notices (at, run, kind, fields) values (?, ?, ?, ?)", added)
                self._db.execute(
                    "delete from notices where number <= (select max(number) from notices) - ?", (MAX_NOTICES,)
                )

    def notices(self, run: str | None = None, limit: int = 50) -> list[NoticeRow]:
        """The latest notices of one run or of all runs, newest first."""
        with self.reading():
            rows = self._db.execute(
                "select at, kind, fields from notices where ?1 is null or run = ?1 order by number desc limit ?2",
                (run, limit),
            ).fetchall()
            found = [(r["at"], from_fields(r["kind"], json.loads(r["fields"]))) for r in rows]
            return [NoticeRow(at, notice) for at, notice in found if notice is not None]
