"""The queue: runs that were submitted, and runs to cancel. Other processes write it; the coordinator reads it."""

import json

from coordinator.machine.events import QueueRead
from coordinator.store.schema import Tables
from coreg_core.errors import UsageError
from coreg_core.protocol.plan import Plan, plan_from_dict


class Queue(Tables):
    """See the module's docstring. Every method may raise `StorageError`."""

    def submit(self, plan: Plan, at: str) -> int:
        """Append a run; the number of runs that wait before it."""
        with self.transaction():
            (before,) = self._db.execute(
                "select count(*) from queue where run not in (select run from cancellations)"
            ).fetchone()
            self._db.execute(
                "insert into queue (run, plan, submitted) values (?, ?, ?)",
                (plan.run, json.dumps(plan.to_dict()), at),
            )
        return int(before)

    def waiting(self) -> list[tuple[Plan, str]]:
        """The runs that will begin, in order, with the time of submission; without cancelled ones."""
        return self._waiting("where run not in (select run from cancellations)")

    def cancelled(self) -> list[tuple[Plan, str]]:
        """The queued runs that were cancelled while no coordinator served, with the time of submission."""
        return self._waiting("where run in (select run from cancellations)")

    def _waiting(self, which: str = "") -> list[tuple[Plan, str]]:
        with self.reading():
            rows = self._db.execute(f"select plan, submitted from queue {which} order by number").fetchall()  # noqa: S608 - constant
            return [(plan_from_dict(json.loads(row["plan"])), row["submitted"]) for row in rows]

    def read(self) -> QueueRead:
        """The runs that wait, and the runs to cancel that have not ended."""
        waiting = tuple(plan for plan, _ in self._waiting())  # a cancelled one is told to its sites, and removed
        with self.reading():
            rows = self._db.execute(
                "select c.run, c.reason from cancellations c left join runs r on r.run = c.run where r.ended is null"
            ).fetchall()
            return QueueRead(waiting, {row["run"]: row["reason"] for row in rows})

    def cancel(self, prefix: str, reason: str, at: str) -> tuple[str, bool]:
        """Request the end of a run; return its whole name, and whether it had begun."""
        with self.reading():
            matches = "where substr(run, 1, length(?1)) = ?1"
            begun = dict(self._db.execute(f"select run, ended from runs {matches}", (prefix,)).fetchall())  # noqa: S608 - constant
            queued = {row[0] for row in self._db.execute(f"select run from queue {matches}", (prefix,))}  # noqa: S608 - constant
            cancelled = {row["run"] for row in self._db.execute("select run from cancellations")}
        found = {*begun, *queued}
        if len(found) != 1:
            raise UsageError(f"{len(found) or 'no'} runs begin with {prefix!r}; `coreg-coordinator runs` lists them.")
        [run] = found
        if run in cancelled or begun.get(run) is not None:
            raise UsageError(f"run {run} is over, or cancelled already.")
        with self.transaction():
            self._db.execute("insert or ignore into cancellations values (?, ?, ?)", (run, at, reason))
        return run, run in begun
