"""Studies that repeat: the coordinator queues a new run of the same plan at each of their dates."""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from sqlite3 import Row

from coordinator.store.checksums import UNREADABLE, add_json_checksum, verify_json_checksum
from coordinator.store.queue import Queue
from coreg_core.protocol.plan import Plan, plan_from_dict

_UNFINISHED = """
select run from queue where json_valid(plan) and json_extract(plan, '$.value.study') = ?1
union all
select run from runs where ended is null and json_valid(plan) and json_extract(plan, '$.study') = ?1
"""


@dataclass(frozen=True)
class Repeat:
    """A study, the seconds between two of its runs, and the next date (ISO 8601, UTC)."""

    study: str
    seconds: float
    next: str


class Repeats(Queue):
    """See the module's docstring. Every method may raise `StorageError`."""

    def repeat(self, plan: Plan, seconds: float, now: datetime) -> Repeat:
        """Repeat this plan from ``now`` on, instead of an earlier plan of the same study."""
        first = _date(now + timedelta(seconds=seconds))
        with self.transaction():
            row = (plan.study, add_json_checksum(plan.to_dict()), seconds, first)
            self._db.execute("insert or replace into repeats values (?, ?, ?, ?)", row)
        return Repeat(plan.study, seconds, first)

    def end_repeat(self, study: str) -> bool:
        """Queue no more runs of the study; False if it did not repeat. Runs that are queued or active go on."""
        with self.transaction():
            return self._db.execute("delete from repeats where study = ?", (study,)).rowcount > 0

    def repeats(self) -> list[Repeat]:
        """The studies that repeat, the next date first."""
        return [Repeat(row["study"], row["seconds"], row["next"]) for row in self._repeats()]

    def queue_due(self, now: datetime) -> Iterator[tuple[str, str]]:
        """Queue a run of each study whose date has come; yield each study without a run, and the reason.

        Dates that passed while no coordinator served give one run, not one for each. A study whose last run has not ended
        waits for its next date. The dates keep their distance from the first submission.
        """
        for row in self._repeats():
            study, date, seconds = row["study"], datetime.fromisoformat(row["next"]), row["seconds"]
            if (late := (now - date).total_seconds()) < 0:
                return
            try:
                plan = plan_from_dict(verify_json_checksum(row["plan"]))
            except UNREADABLE as error:
                self.end_repeat(study)
                yield study, f"its plan cannot be read ({error}). It does not repeat any more: submit the study again"
                continue
            with self.reading():
                unfinished = self._db.execute(_UNFINISHED, (study,)).fetchone()
            if unfinished is None:
                self.submit(replace(plan, run=uuid.uuid4().hex[:12]), now.isoformat(timespec="milliseconds"))
            following = _date(date + timedelta(seconds=seconds * (1 + late // seconds)))
            with self.transaction():
                self._db.execute("update repeats set next = ? where study = ?", (following, study))
            if unfinished is not None:
                yield study, f"run {unfinished['run']} has not ended. Its next date is {following}"

    def _repeats(self) -> list[Row]:
        with self.reading():
            return self._db.execute("select * from repeats order by next, study").fetchall()


def _date(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")
