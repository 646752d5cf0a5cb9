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
from coordinator.store.schema import Tables
from coreg_core.protocol.messages import Countersigned, Head, LedgerHead
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan, plan_from_dict

# The columns of `rounds`, in order.
ROUND_COLUMNS = (
    "run", "number", "attempt", "answered", "round", "phase", "verified", "residual", "gap", "seconds",
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
                        (run, record.attempt, json.dumps(asdict(record))),
                    )
                case StepDone():
                    self._write_step(run, record, measured, at)
                case Ended():
                    self._write_end(run, record, at)
                case HeadSigned():
                    self._db.execute(
                        "insert or replace into checkpoints values (?, ?, ?, ?)",
                        (run, record.site, record.receipt.head.lines, json.dumps(asdict(record))),
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

    def _write_end(self, run: str, end: Ended, at: str) -> None:
        heads = json.dumps([asdict(head) for head in end.heads])
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

    def unfinished(self) -> list[Plan]:
        """The plans of the runs that are not closed, in order of their beginning."""
        with self.reading():
            rows = self._db.execute("select plan from runs where closed is null order by started, rowid")
            return [_plan(row["plan"]) for row in rows.fetchall()]

    def undelivered(self) -> dict[str, Undelivered]:
        """The closed runs that some site has not fetched, by name."""
        with self.reading():
            rows = self._db.execute(
                "select d.run, plan, group_concat(site) as sites from deliveries d join runs r on r.run = d.run "
                "where d.at is null and r.closed is not null group by d.run order by r.started"
            ).fetchall()
            return {row["run"]: Undelivered(_plan(row["plan"]), frozenset(row["sites"].split(","))) for row in rows}

    def has_begun(self, run: str) -> bool:
        """Whether an attempt of the run has begun."""
        with self.reading():
            return self._db.execute("select 1 from attempts where run = ?", (run,)).fetchone() is not None

    def records(self, run: str) -> list[Record]:
        """The records of this run that `state.resume` needs, in order."""
        with self.reading():
            return self._records(run)

    def _records(self, run: str) -> list[Record]:
        [summary] = self._rows("select * from runs where run = ?", run)
        records: list[Record] = [
            SiteExcluded(row["site"], Outcome[row["outcome"]], row["reason"])
            for row in self._rows("select * from exclusions where run = ? order by site", run)
        ]
        attempts = self._rows("select * from attempts where run = ? order by attempt desc limit 1", run)
        if attempts:
            plain = json.loads(attempts[0]["began"])
            steps = max(plain["steps"], summary["steps"])
            records.append(AttemptBegan(**plain | {"participants": tuple(plain["participants"]), "steps": steps}))
        if summary["ended"] is not None:
            heads = json.loads(summary["heads"] or "[]")
            records.append(Ended(Outcome[summary["stop"]], summary["reason"], tuple(Head(**head) for head in heads)))
        delivered = self._rows("select site from deliveries where run = ? and at is not null order by site", run)
        records += [Delivered(row["site"]) for row in delivered]
        if summary["closed"] is not None:
            records.append(Closed())
        return records

    def _rows(self, query: str, run: str) -> list[sqlite3.Row]:
        return self._db.execute(query, (run,)).fetchall()


def signed_head(text: str) -> HeadSigned:
    """A row of `checkpoints`."""
    plain = json.loads(text)
    receipt = plain["receipt"]
    return HeadSigned(**{**plain, "receipt": Countersigned(**{**receipt, "head": LedgerHead(**receipt["head"])})})


def _plan(text: str) -> Plan:
    return plan_from_dict(json.loads(text))
