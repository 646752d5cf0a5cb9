"""Records of runs. They are written before the message that depends on them is sent, so they survive a crash.

No record has a number of a site. A restarted coordinator begins an unfinished run again with the same sites.
"""

import json
import sqlite3
from contextlib import suppress
from dataclasses import asdict
from typing import Any, assert_never

from coordinator.driver import Timing
from coordinator.machine.records import AttemptBegan, Begun, Ended, HeadSigned, Record, StepDone
from coordinator.store.schema import Tables
from coreg_core.protocol.messages import Countersigned, Dismissed, Finished, LedgerHead
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
