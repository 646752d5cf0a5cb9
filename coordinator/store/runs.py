"""Records of runs. They are written before the message that depends on them is sent, so they survive a crash.

No record has a number of a site. The sites keep the sums, and continue from the last one that all of them have.
"""

import json
import sqlite3
from contextlib import suppress
from dataclasses import asdict
from typing import Any, assert_never

from coordinator.driver import Timing
from coordinator.machine.records import (
    AttemptBegan,
    Closed,
    Delivered,
    Ended,
    HeadSigned,
    Record,
    SiteExcluded,
    StepDone,
)
from coordinator.machine.scheduler import Undelivered
from coordinator.store.checksums import UNREADABLE, add_json_checksum, row_checksum, verify_json_checksum
from coordinator.store.schema import Tables
from coreg_core.errors import StorageError
from coreg_core.protocol.messages import Countersigned, Head, LedgerHead
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan, plan_from_dict

# The columns of a row of `rounds`, in the order of its checksum.
ROUND_COLUMNS = (
    "run", "number", "attempt", "answered", "round", "phase", "verified", "level", "residual", "gap", "bound", "seconds",
    "bytes_sent", "bytes_received", "at",
)  # fmt: skip


class RunStore(Tables):
    """The records of runs, written and read. Every method may raise `StorageError`."""

    # --- a run's beginning and end --------------------------------------------------------------------------------

    def begin(self, plan: Plan, at: str) -> None:
        """Move a run from the queue to the runs; insert it if it is not in the queue."""
        with self.transaction():
            self._begin(plan, at)

    def _begin(self, plan: Plan, at: str) -> None:
        self._db.execute(
            "insert or ignore into runs (run, plan_digest, plan, started) values (?, ?, ?, ?)",
            (plan.run, plan.digest, json.dumps(plan.to_dict()), at),
        )
        self._db.execute("delete from queue where run = ?", (plan.run,))

    def close_run(self, plan: Plan, outcome: Outcome, reason: str, at: str) -> None:
        """Close a run that is not active. A run in the queue is moved to the runs."""
        with self.transaction():
            self._begin(plan, at)
            self._db.execute(
                "update runs set ended = coalesce(ended, ?), stop = coalesce(stop, ?), reason = coalesce(reason, ?), "
                "closed = ? where run = ?",
                (at, outcome.name, reason, at, plan.run),
            )

    # --- records --------------------------------------------------------------------------------------------------

    def write(self, run: str, record: Record, measured: Timing, at: str) -> None:
        """Write one record in one transaction."""
        # A power failure may undo a step, since the sites keep their position. Every other record is durable.
        with self.transaction(durable=not isinstance(record, StepDone)):
            match record:
                case SiteExcluded():
                    self._db.execute(
                        "insert or replace into exclusions values (?, ?, ?, ?)",
                        (run, record.site, record.outcome.name, record.reason),
                    )
                case AttemptBegan():
                    self._db.execute(
                        "insert or replace into attempts values (?, ?, ?)",
                        (run, record.attempt, add_json_checksum(asdict(record))),
                    )
                case StepDone():
                    self._write_step(run, record, measured, at)
                case Ended():
                    self._write_end(run, record, at)
                case HeadSigned():
                    plain, lines = asdict(record), record.receipt.head.lines
                    self._db.execute(
                        "insert or replace into checkpoints values (?, ?, ?, ?)",
                        (run, record.site, lines, add_json_checksum(plain)),
                    )
                case Delivered():
                    self._db.execute("insert or replace into deliveries values (?, ?, ?)", (run, record.site, at))
                case Closed():
                    self._db.execute("update runs set closed = ? where run = ?", (at, run))
                case _:
                    assert_never(record)
        if isinstance(record, Ended):  # checkpoint the write-ahead log while it is small
            with self._in_turn, suppress(sqlite3.Error):
                self._db.execute("pragma wal_checkpoint(passive)")

    def last_checkpoint(self, site: str) -> Countersigned | None:
        """The last receipt for a head of this site's ledger; None if it is damaged, which `verify` reports."""
        with self.reading():
            row = self._db.execute(
                "select checkpoint from checkpoints where site = ? order by rowid desc limit 1", (site,)
            ).fetchone()
        try:
            receipt = verify_json_checksum(row["checkpoint"])["receipt"]
            return Countersigned(**{**receipt, "head": LedgerHead(**receipt["head"])})
        except (ValueError, LookupError, TypeError):  # no row, or a damaged one
            return None

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
        values += [json.dumps(told) for told in (report.level, report.residual, report.gap, report.bound)]
        values += [measured.seconds, measured.bytes_sent, measured.bytes_received, at]
        self._db.execute(
            f"insert or replace into rounds values ({', '.join('?' * (len(values) + 1))})",  # noqa: S608 - signs alone
            (*values, row_checksum(values)),
        )
        shown = report if report.verified else None
        known = [[x for x in told if x >= 0.0] for told in (report.gap, report.bound)]  # -1 means none
        worst = [max(told, default=None) if shown else None for told in (report.level, *known)]
        self._db.execute(
            "update runs set steps = max(steps, ?), rounds = max(rounds, ?), level = coalesce(?, level), "
            "gap = coalesce(?, gap), bound = coalesce(?, bound) where run = ?",
            (step.number + 1, report.round, *worst, run),
        )

    def _write_end(self, run: str, end: Ended, at: str) -> None:
        heads = add_json_checksum({"heads": [asdict(head) for head in end.heads]})
        self._db.execute(
            "update runs set ended = ?, stop = ?, reason = ?, heads = ? where run = ?",
            (at, end.outcome.name, end.reason, heads, run),
        )
        for head in end.heads:
            self._db.execute(
                "insert or ignore into deliveries select ?1, ?2, null "
                "where not exists (select 1 from exclusions where run = ?1 and site = ?2)",
                (run, head.site),
            )

    # --- reading --------------------------------------------------------------------------------------------------

    def unfinished(self, at: str) -> tuple[list[Plan], list[tuple[str, str]]]:
        """The plans of the runs that are not closed, in order of their beginning.

        Runs whose plan cannot be read are closed as damaged; the second list has their names and the reasons.
        """
        with self.reading():
            query = "select run, plan, plan_digest from runs where closed is null order by started, rowid"
            rows = self._db.execute(query).fetchall()
        plans, damaged = list[Plan](), list[tuple[str, str]]()
        for row in rows:
            try:
                plan = _plan(row["plan"])
                if (plan.run, plan.digest) != (row["run"], row["plan_digest"]):
                    raise ValueError("it differs from the written plan")
                plans.append(plan)
            except UNREADABLE as error:
                damaged.append((row["run"], f"Its plan cannot be read ({error})."))
        for run, reason in damaged:
            with self.transaction():
                self._db.execute(
                    "update runs set ended = coalesce(ended, ?1), stop = ?2, reason = ?3, closed = ?1 where run = ?4",
                    (at, Outcome.DAMAGED.name, reason, run),
                )
        return plans, damaged

    def undelivered(self) -> dict[str, Undelivered]:
        """The closed runs that some site has not fetched, by name; without runs whose plan cannot be read."""
        with self.reading():
            rows = self._db.execute(
                "select plan, group_concat(site) as sites from deliveries d join runs r on r.run = d.run "
                "where d.at is null and r.closed is not null group by d.run order by r.started"
            ).fetchall()
        found = dict[str, Undelivered]()
        for row in rows:
            with suppress(*UNREADABLE):
                plan = _plan(row["plan"])
                found[plan.run] = Undelivered(plan, frozenset(row["sites"].split(",")))
        return found

    def has_begun(self, run: str) -> bool:
        """Whether an attempt of the run has begun."""
        with self.reading():
            return self._db.execute("select 1 from attempts where run = ?", (run,)).fetchone() is not None

    def records(self, run: str) -> list[Record]:
        """The records of this run that `state.resume` needs, in order.

        Raises
        ------
        StorageError
            a record is damaged.
        """
        try:
            with self._in_turn:
                return self._records(run)
        except (sqlite3.Error, ValueError, LookupError, TypeError, AttributeError) as error:
            message = (
                f"{self.path}: the records of run {run} cannot be read ({error}). Restore the store from a backup."
            )
            raise StorageError(message) from None

    def _records(self, run: str) -> list[Record]:
        [summary] = self._rows("select * from runs where run = ?", run)
        if (plan := _plan(summary["plan"])).digest != summary["plan_digest"] or plan.run != run:
            raise ValueError("the plan differs from the written one")
        records: list[Record] = [
            SiteExcluded(row["site"], Outcome[row["outcome"]], row["reason"])
            for row in self._rows("select * from exclusions where run = ? order by site", run)
        ]
        attempts = self._rows("select * from attempts where run = ? order by attempt desc limit 1", run)
        if attempts:
            plain = verify_json_checksum(attempts[0]["began"])
            steps = max(plain["steps"], summary["steps"])
            records.append(AttemptBegan(**plain | {"participants": tuple(plain["participants"]), "steps": steps}))
        if summary["ended"] is not None:
            heads = [] if summary["heads"] is None else verify_json_checksum(summary["heads"])["heads"]
            records.append(Ended(Outcome[summary["stop"]], summary["reason"], tuple(Head(**head) for head in heads)))
        delivered = self._rows("select site from deliveries where run = ? and at is not null order by site", run)
        records += [Delivered(row["site"]) for row in delivered]
        if summary["closed"] is not None:
            records.append(Closed())
        return records

    def _rows(self, query: str, run: str) -> list[sqlite3.Row]:
        return self._db.execute(query, (run,)).fetchall()


def _plan(text: str) -> Plan:
    return plan_from_dict(json.loads(text))
