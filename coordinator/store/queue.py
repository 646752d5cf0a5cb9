"""What the operator says to a coordinator that stands, and what it says to the operator: a few tables of the run store.

`submit`, `cancel` and the pages write and read them from other processes; no listener and no credentials of their own
are needed. A queued run begins in the same transaction that takes it out of the queue.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coordinator.store.checksums import seal_json, unseal_json
from coordinator.store.schema import FORMAT, Tables, transaction
from coreg_core.errors import UsageError
from coreg_core.protocol.plan import Plan, plan_from_dict


@dataclass(frozen=True)
class Attendance:
    """What is known of a site: its open session, or its last one; its certificate's end; why it was last turned away."""

    site: str
    since: str | None
    ended: str | None
    release: str
    until: str
    refusal: str | None
    refused: str | None

    @property
    def connected(self) -> bool:
        return self.since is not None and self.ended is None

    def seen(self, told: str | None) -> str | None:
        """When it was last here, where nobody serves; None of a site that never was.

        A coordinator that was killed could not write down that its sessions ended: then it is when it spoke last (``told`` of
        `Queue.said`).
        """
        return self.ended if self.since is None or self.ended is not None else max(self.since, told or self.since)


class Queue(Tables):
    """See the module's docstring."""

    # --- the queue ------------------------------------------------------------------------------------------------

    def submit(self, plan: Plan, at: str) -> int:
        """Put a run in at the end; how many wait before it."""
        with transaction(self._db, self.path):
            (before,) = self._db.execute(
                "select count(*) from queue where begun is null and run not in (select run from cancellations)"
            ).fetchone()
            self._db.execute(
                "insert into queue (run, plan, submitted) values (?, ?, ?)", (plan.run, seal_json(plan.to_dict()), at)
            )
        return int(before)

    def waiting(self) -> list[tuple[Plan, str]]:
        """The runs that have not begun, in order, and when each was submitted."""
        with self._reading():
            rows = self._db.execute(
                "select plan, submitted from queue where begun is null and run not in (select run from cancellations) "
                "order by number"
            ).fetchall()
            return [(plan_from_dict(unseal_json(row["plan"])), row["submitted"]) for row in rows]

    def begin(self, plan: Plan, at: str) -> None:
        """Out of the queue and into the runs, at one instant."""
        with transaction(self._db, self.path):
            self._db.execute(
                "insert into runs (run, plan_digest, plan, started, format) values (?, ?, ?, ?, ?)",
                (plan.run, plan.digest, json.dumps(plan.to_dict()), at, FORMAT),
            )
            self._db.execute("update queue set begun = ? where run = ?", (at, plan.run))

    def cancel(self, beginning: str, reason: str, at: str) -> tuple[str, bool]:
        """Ask that a run end; its whole name, and whether it had begun.

        Raises
        ------
        UsageError
            no run, or several, begin so, or it is over.
        """
        with self._reading():
            runs = {row["run"]: row["ended"] for row in self._db.execute("select run, ended from runs")}
            queued = {row["run"] for row in self._db.execute("select run from queue where begun is null")}
            gone = {row["run"] for row in self._db.execute("select run from cancellations")}
        found = [run for run in {*runs, *queued} if run.startswith(beginning)]
        if len(found) != 1:
            raise UsageError(f"{len(found)} runs begin with {beginning!r}; `coreg-coordinator runs` lists them.")
        [run] = found
        if run in gone or runs.get(run) is not None:
            raise UsageError(f"run {run} is over, or cancelled already.")
        with transaction(self._db, self.path):
            self._db.execute("insert or ignore into cancellations values (?, ?, ?)", (run, at, reason))
        return run, run in runs

    def cancelled(self) -> dict[str, str]:
        """The runs that have begun, are not over, and shall end; why."""
        with self._reading():
            rows = self._db.execute(
                "select c.run, c.reason from cancellations c join runs on runs.run = c.run where runs.ended is null"
            ).fetchall()
            return {row["run"]: row["reason"] for row in rows}

    def cancelled_in_the_queue(self) -> list[tuple[Plan, str]]:
        """The runs that were cancelled before they began, and why."""
        with self._reading():
            rows = self._db.execute(
                "select plan, reason from queue join cancellations using (run) where begun is null order by number"
            ).fetchall()
            return [(plan_from_dict(unseal_json(row["plan"])), row["reason"]) for row in rows]

    # --- who is there ---------------------------------------------------------------------------------------------

    def opened(self, site: str, release: str, until: str, at: str) -> None:
        self._attend(
            site, "since = :at, ended = null, release = :release, until = :until", at, release=release, until=until
        )

    def ended(self, site: str, at: str) -> None:
        self._attend(site, "ended = :at", at)

    def turned_away(self, site: str, reason: str, at: str) -> None:
        """A site was not let in, or was put out."""
        self._attend(site, "refusal = :reason, refused = :at", at, reason=reason)

    def all_ended(self, at: str) -> None:
        """The coordinator starts, or ends: nobody is connected. Whoever came after that has been here at least as long."""
        with transaction(self._db, self.path, marked=False):
            self._db.execute("update attendance set ended = max(coalesce(since, ''), ?) where ended is null", (at,))

    def _attend(self, site: str, changes: str, at: str, **values: str) -> None:
        with transaction(self._db, self.path, marked=False):
            self._db.execute("insert or ignore into attendance (site, release, until) values (?, '', '')", (site,))
            self._db.execute(
                f"update attendance set {changes} where site = :site",  # noqa: S608 - our names
                {"site": site, "at": at, **values},
            )

    def attendance(self) -> list[Attendance]:
        """Every site that was ever here, in site order."""
        with self._reading():
            rows = self._db.execute("select * from attendance order by site").fetchall()
            return [Attendance(**dict(row)) for row in rows]

    # --- the service itself ---------------------------------------------------------------------------------------

    def say(self, values: Mapping[str, Any], at: str) -> None:
        """What the coordinator tells of itself: where it listens, since when, in which state."""
        with transaction(self._db, self.path, marked=False):
            for name, value in {**values, "told": at}.items():
                self._db.execute("insert or replace into service values (?, ?)", (name, json.dumps(value)))

    def said(self) -> dict[str, Any]:
        with self._reading():
            return {row["name"]: json.loads(row["value"]) for row in self._db.execute("select * from service")}
