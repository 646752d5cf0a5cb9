r"""Records of runs. They are written before the message that depends on them is sent, so they survive a crash.

No record has a number of a site. A restarted coordinator begins an unfinished run again with the same sites.

The queue: runs that were submitted, and runs to cancel. Other processes write it; the coordinator reads it.
"""

import json
import sqlite3
import threading
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, assert_never

from coordinator.driver import Timing
from coordinator.machine.events import QueueRead
from coordinator.machine.records import AttemptBegan, Begun, Ended, HeadSigned, Record, StepDone
from coordinator.store.schema import Tables
from coreg_core.errors import UsageError
from coreg_core.protocol.messages import Countersigned, Dismissed, Finished, LedgerHead
from coreg_core.protocol.outcomes import Notice, Outcome
from coreg_core.protocol.plan import Plan, aligns_for, next_alignment, plan_from_dict

# The columns of `rounds`, in order.
ROUND_COLUMNS = (
    "run", "number", "attempt", "answered", "round", "phase", "verified", "residual", "gap", "seconds",
    "bytes_sent", "bytes_received", "at",
)  # fmt: skip


class RunStore(Tables):
    """The records of runs, written and read. Every method may raise `StorageError`."""

    # --- a run's beginning and end --------------------------------------------------------------------------------

    def begin(self, plan: Plan, at: str) -> Plan:
        """Move a run from the queue to the runs; insert it if it is not in the queue.

        An alignment of ids whose name has ended gets the next name: sites keep the end of the earlier one.
        """
        with self.transaction():
            while aligns_for(plan.run) and self._rows(
                "select 1 from runs where run = ? and ended is not null", plan.run
            ):
                plan = next_alignment(plan)
            self._begin(plan, at)
        return plan

    def _begin(self, plan: Plan, at: str) -> None:
        self._db.execute(
            "insert or ignore into runs (run, plan_digest, plan, started) values (?, ?, ?, ?)",
            (plan.run, plan.digest, json.dumps(plan.to_dict()), at),
        )
        self._db.execute("delete from queue where run = ?", (plan.run,))

    def close_run(self, plan: Plan, outcome: Outcome, reason: str, at: str) -> None:
        """End a run that is not active. A run in the queue is moved to the runs."""
        with self.transaction():
            self._begin(plan, at)
            self._db.execute(
                "update runs set ended = ?, stop = ?, reason = ? where run = ? and ended is null",
                (at, outcome.name, reason, plan.run),
            )

    # --- records --------------------------------------------------------------------------------------------------

    def write(self, run: str, record: Record, measured: Timing, at: str) -> None:
        """Write one record in one transaction."""
        # A power failure can undo a step, since every attempt begins from its beginning. Every other record is durable.
        with self.transaction(durable=not isinstance(record, StepDone)):
            match record:
                case AttemptBegan():  # the rounds and figures of a run are those of its last attempt
                    self._db.execute(
                        "update runs set attempt = ?, participants = ?, rounds = 0, residual = null, gap = null "
                        "where run = ?",
                        (record.attempt, json.dumps(record.participants), run),
                    )
                case StepDone():
                    self._write_step(run, record, measured, at)
                case Ended():
                    self._db.execute(
                        "update runs set ended = ?, stop = ?, reason = ? where run = ?",
                        (at, record.outcome.name, record.reason, run),
                    )
                case HeadSigned():
                    self._db.execute(
                        "insert or replace into checkpoints values (?, ?, ?, ?)",
                        (run, record.site, record.receipt.head.lines, json.dumps(asdict(record))),
                    )
                case _:
                    assert_never(record)
        if isinstance(record, Ended):  # checkpoint the write-ahead log while it is small
            with self._in_turn, suppress(sqlite3.Error):
                self._db.execute("pragma wal_checkpoint(passive)")

    def last_checkpoint(self, site: str) -> Countersigned | None:
        """The last receipt for a head of this site's ledger."""
        with self.reading():
            row = self._db.execute(
                "select checkpoint from checkpoints where site = ? order by rowid desc limit 1", (site,)
            ).fetchone()
            if row is None:
                return None
            return signed_head(row["checkpoint"]).receipt

    def _write_step(self, run: str, step: StepDone, measured: Timing, at: str) -> None:
        report = step.report
        values: list[Any] = [
            run,
            step.number,
            step.attempt,
            step.answered,
            report.round,
            report.phase,
            int(report.verified),
        ]
        values += [json.dumps(told) for told in (report.residual, report.gap)]
        values += [measured.seconds, measured.bytes_sent, measured.bytes_received, at]
        self._db.execute(
            f"insert or replace into rounds values ({', '.join('?' * len(values))})",  # noqa: S608 - signs alone
            values,
        )
        known = [[x for x in told if x >= 0.0] for told in (report.residual, report.gap)]  # -1 means none
        worst = [max(told, default=None) if report.verified else None for told in known]
        self._db.execute(
            "update runs set steps = max(steps, ?), rounds = max(rounds, ?), residual = coalesce(?, residual), "
            "gap = coalesce(?, gap) where run = ?",
            (step.number + 1, report.round, *worst, run),
        )

    # --- reading --------------------------------------------------------------------------------------------------

    def unfinished(self) -> list[Plan]:
        """The plans of the runs that have not ended, in order of their beginning."""
        with self.reading():
            rows = self._db.execute("select plan from runs where ended is null order by started, rowid")
            return [plan_from_dict(json.loads(row["plan"])) for row in rows.fetchall()]

    def begun(self, run: str) -> Begun:
        """The last attempt of a run, its participants, and the number of steps so far."""
        with self.reading():
            [row] = self._rows("select attempt, participants, steps from runs where run = ?", run)
            return Begun(row["attempt"], tuple(json.loads(row["participants"])), row["steps"])

    def has_begun(self, run: str) -> bool:
        """Whether an attempt of the run has begun."""
        return self.begun(run).attempt >= 0

    def end_for(self, run: str, site: str) -> Finished | Dismissed | None:
        """The end of a run for a site that waits for it; `Dismissed` if the run ended without this site, None before its end."""
        query = "select stop, reason, participants from runs where run = ? and ended is not null"
        with self.reading():
            for row in self._rows(query, run):
                outcome, participants = Outcome[row["stop"]], json.loads(row["participants"])
                if site in participants or not participants:  # it ended before an attempt began
                    return Finished(run, outcome, row["reason"])
                why = f"{site}: the run ended ({outcome.name.lower()}) with {', '.join(participants)}, and without this site."
                return Dismissed(run, Outcome.STALLED, why)
            return None

    def _rows(self, query: str, *values: Any) -> list[sqlite3.Row]:
        return self._db.execute(query, values).fetchall()


def signed_head(text: str) -> HeadSigned:
    """A row of `checkpoints`."""
    plain = json.loads(text)
    receipt = plain["receipt"]
    return HeadSigned(**{**plain, "receipt": Countersigned(**{**receipt, "head": LedgerHead(**receipt["head"])})})


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
        found = {run for run in (*begun, *queued) if run == prefix or not aligns_for(run)}
        if len(found) != 1:
            raise UsageError(f"{len(found) or 'no'} runs begin with {prefix!r}; `coreg-coordinator runs` lists them.")
        [run] = found
        if run in cancelled or begun.get(run) is not None:
            raise UsageError(f"run {run} is over, or cancelled already.")
        with self.transaction():
            self._db.execute("insert or ignore into cancellations values (?, ?, ?)", (run, at, reason))
        return run, run in begun


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
