r"""Records of runs.

They are written before the message that depends on them is sent, so they survive a crash.

No record has a number of a site. A restarted coordinator begins an unfinished run again with the
same sites.

The queue: runs that were submitted, and runs to cancel. Other processes write it; the coordinator
reads it.
"""

import json
import sqlite3
import uuid
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, assert_never

from coordinator.config.study_toml import TrainedRun
from coordinator.machine.events import QueueRead
from coordinator.machine.records import (
    AttemptBegan,
    Begun,
    Ended,
    HeadSigned,
    Record,
    StepDone,
    Timing,
    worst,
)
from coordinator.store.schema import StoreTables, Values
from coreg_core.errors import UsageError
from coreg_core.messages import Countersigned, Dismissed, Finished, LedgerHead
from coreg_core.outcomes import Outcome
from coreg_core.plan import ASKS, Plan, aligns_for, next_alignment, on_demand, plan_from_dict

_UNSHOWN = ("plan", "plan_digest", "attempt", "participants")  # in a summary
TRAININGS = ("agreement", "additive")  # the objectives whose runs have models
TRAINED = ("CONVERGED", "MAX_ROUNDS", "STAGNATED")  # the outcomes with models


@dataclass(frozen=True)
class RunSummary:
    """``steps`` of all attempts, ``rounds`` of the last; ``residual`` and ``gap`` of its last
    verified round (10ᵏ).
    """

    run: str
    federation: str
    started: str
    ended: str | None
    stop: str | None
    reason: str | None
    steps: int
    rounds: int
    plan: Values
    residual: float | None = None
    gap: float | None = None


class RunStore(StoreTables):
    """The runs, their records, and the queue. Every method may raise `StorageError`."""

    # --- a run's beginning and end ----------------------------------------------------------------

    def begin(self, plan: Plan, at: str) -> tuple[Plan, Begun]:
        """Move or insert a run; its plan and what is stored of it.

        An alignment that has ended gets the next name.
        """
        with self.transaction():
            while aligns_for(plan.run) and self._rows(
                "select 1 from runs where run = ? and ended is not null", plan.run
            ):
                plan = next_alignment(plan)
            self._begin(plan, at)
        return plan, self.begun(plan.run)

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

    # --- records ----------------------------------------------------------------------------------

    def write(self, run: str, record: Record, measured: Timing, at: str) -> None:
        """Write one record in one transaction."""
        # A power failure can undo a step, since every attempt begins from its beginning. Every
        # other record is durable.
        with self.transaction(durable=not isinstance(record, StepDone)):
            match record:
                # the rounds and figures of a run are those of its last attempt
                case AttemptBegan():
                    self._db.execute(
                        "update runs set attempt = ?, participants = ?, rounds = 0, residual ="
                        " null, gap = null where run = ?",
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
            rows = self._rows(
                "select checkpoint from checkpoints where site = ? order by rowid desc limit 1",
                site,
            )
            if rows:
                return signed_head(rows[0]["checkpoint"]).message
            return None

    def _write_step(self, run: str, step: StepDone, measured: Timing, at: str) -> None:
        report = step.report
        row = {
            "run": run,
            "number": step.number,
            "attempt": step.attempt,
            "answered": step.answered,
            "round": report.round,
            "phase": step.phase,
            "verified": int(report.verified),
            "residual": json.dumps(report.residual),
            "gap": json.dumps(report.gap),
            "seconds": measured.seconds,
            "bytes_sent": measured.bytes_sent,
            "bytes_received": measured.bytes_received,
            "at": at,
        }
        verified = (report.residual, report.gap) if report.verified else ((), ())
        columns = ", ".join(row)
        places = ", :".join(row)
        statement = f"insert or replace into rounds ({columns}) values (:{places})"  # noqa: S608
        self._db.execute(statement, row)
        self._db.execute(
            "update runs set steps = max(steps, ?), rounds = max(rounds, ?), "
            "residual = coalesce(?, residual), gap = coalesce(?, gap) where run = ?",
            (step.number + 1, report.round, *map(worst, verified), run),
        )

    # --- reading ----------------------------------------------------------------------------------

    def unfinished(self) -> list[Plan]:
        """The plans of the runs that have not ended, in order of their beginning."""
        with self.reading():
            rows = self._db.execute(
                "select plan from runs where ended is null order by started, rowid"
            )
            return [plan_from_dict(json.loads(row["plan"])) for row in rows.fetchall()]

    def begun(self, run: str) -> Begun:
        """The last attempt of a run, its participants, and the number of steps so far."""
        with self.reading():
            [row] = self._rows("select attempt, participants, steps from runs where run = ?", run)
            return Begun(row["attempt"], tuple(json.loads(row["participants"])), row["steps"])

    def end_for(self, run: str, site: str) -> Finished | Dismissed | None:
        """The end of a run for a site that waits for it; `Dismissed` if the run ended without this
        site. None before its end, and to a site that its plan does not list.
        """
        query = (
            "select plan, stop, reason, participants from runs where run = ? and ended is not null"
        )
        with self.reading():
            for row in self._rows(query, run):
                if site not in plan_from_dict(json.loads(row["plan"])).sites:
                    return None
                outcome = Outcome[row["stop"]]
                participants = json.loads(row["participants"])
                if site in participants or not participants:  # it ended before an attempt began
                    return Finished(run, outcome, row["reason"])
                why = (
                    f"{site}: the run ended ({outcome.name.lower()}) with"
                    f" {', '.join(participants)}, and without this site."
                )
                return Dismissed(run, Outcome.STALLED, why)
            return None

    def standing(self, study: str, sites: Sequence[str]) -> Plan | None:
        """The plan of a new run of a standing study, if its latest run with some of these sites
        stands.
        """
        query = """
            select plan, json_extract(plan, '$.objective.standing') as stands from runs
            where stop = 'CONVERGED' and run not like ? and json_extract(plan, '$.study') = ?
            and json_extract(plan, '$.objective.name') <> 'alignment'
            order by started desc, rowid desc limit 1"""
        with self.reading():
            rows = self._rows(query, f"%{ASKS}%", study)
        if not rows or not rows[0]["stands"]:
            return None
        plan = plan_from_dict(json.loads(rows[0]["plan"]))
        if set(sites) & set(plan.sites):
            return on_demand(plan, uuid.uuid4().hex[:12])
        return None

    # --- the queue --------------------------------------------------------------------------------

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
        """The runs that will begin, in order, with the time of submission; without cancelled
        ones.
        """
        return self._waiting("where run not in (select run from cancellations)")

    def cancelled(self) -> list[tuple[Plan, str]]:
        """The queued runs that were cancelled while no coordinator served, with the time of
        submission.
        """
        return self._waiting("where run in (select run from cancellations)")

    def _waiting(self, which: str = "") -> list[tuple[Plan, str]]:
        with self.reading():
            rows = self._db.execute(
                f"select plan, submitted from queue {which} order by number"  # noqa: S608
            ).fetchall()
            return [(plan_from_dict(json.loads(row["plan"])), row["submitted"]) for row in rows]

    def read(self) -> QueueRead:
        """The runs that wait, and the runs to cancel that have not ended."""
        # A cancelled run is among them: its sites hear of it, and it is removed.
        waiting = tuple(plan for plan, _ in self._waiting())
        with self.reading():
            rows = self._db.execute(
                "select c.run, c.reason from cancellations c left join runs r on r.run = c.run"
                " where r.ended is null"
            ).fetchall()
            return QueueRead(waiting, {row["run"]: row["reason"] for row in rows})

    def cancel(self, prefix: str, reason: str, at: str) -> tuple[str, bool]:
        """Request the end of a run; return its whole name, and whether it had begun."""
        run = self.name_of(prefix)
        with self.reading():
            cancelled = self._rows("select 1 from cancellations where run = ?", run)
            begun = [
                row["ended"] for row in self._rows("select ended from runs where run = ?", run)
            ]
        if cancelled or (begun and begun[0] is not None):
            raise UsageError(f"run {run} is over, or cancelled already.")
        with self.transaction():
            self._db.execute(
                "insert or ignore into cancellations values (?, ?, ?)", (run, at, reason)
            )
        return run, bool(begun)

    # --- for people and programs ------------------------------------------------------------------

    def runs(self) -> list[RunSummary]:
        """Every run, the latest first."""
        with self.reading():
            return [
                _summary(row)
                for row in self._rows("select * from runs order by started desc, rowid desc")
            ]

    def recent(self, most: int) -> list[RunSummary]:
        """The runs that are not over, then the latest others."""
        with self.reading():
            query = (
                "select * from runs order by ended is not null, started desc, rowid desc limit ?"
            )
            return [_summary(row) for row in self._rows(query, most)]

    def studies(self) -> list[Values]:
        """Each study, the most recent first: how many runs began, converged and are not over, and
        the latest run.
        """
        with self.reading():
            query = """
                select coalesce(
                    nullif(json_extract(plan, '$.study'), ''), json_extract(plan, '$.federation')
                ) as study,
                count(*) as runs, sum(stop is 'CONVERGED') as converged, sum(ended is null) as open,
                run as latest, max(started) as started
                from runs group by 1 order by max(started) desc"""
            return [dict(row) for row in self._rows(query)]

    def latest(self, plan_digest: str) -> RunSummary | None:
        """The latest run of this plan that has not ended."""
        with self.reading():
            query = (
                "select * from runs where plan_digest = ? and ended is null order by started desc,"
                " rowid desc"
            )
            rows = self._rows(query, plan_digest)
            if rows:
                return _summary(rows[0])
            return None

    def name_of(self, prefix: str) -> str:
        """The name of the run, begun or in the queue, whose name or whose name alone begins so."""
        with self.reading():
            query = "select run from runs union select run from queue"
            names = [row["run"] for row in self._rows(query) if row["run"].startswith(prefix)]
        found = [run for run in names if run == prefix] or [
            run for run in names if not aligns_for(run)
        ]
        if len(found) != 1:
            raise UsageError(
                f"{len(found) or 'no'} runs begin with {prefix!r}; `coreg-coordinator runs` lists"
                " them."
            )
        return str(found[0])

    def find(self, run: str) -> RunSummary:
        """One run that has begun; a unique prefix of its name is enough."""
        name = self.name_of(run)
        with self.reading():
            rows = self._rows("select * from runs where run = ?", name)
            if rows:
                return _summary(rows[0])
        raise UsageError(f"run {name} has not begun.")

    def show(self, run: str) -> tuple[RunSummary, list[Values]]:
        """One run and its steps; a unique prefix of its name is enough."""
        found = self.find(run)
        with self.reading():
            rows = self._rows("select * from rounds where run = ? order by number", found.run)
            return found, [_round(row) for row in rows]

    def convergence(self, run: str, most: int) -> list[Values]:
        """At most ``most`` of the steps with figures of a run's last attempt, evenly spaced, and
        the last one.
        """
        with self.reading():
            numbered = (
                "select *, row_number() over (order by number desc) - 1 as nth, count(*) over () as"
                " total from rounds where run = ?1 and (residual <> '[]' or gap <> '[]') and"
                " attempt = (select max(attempt) from rounds where run = ?1)"
            )
            query = (
                f"select * from ({numbered}) where nth % ((total - 1) / ?2 + 1) = 0 order by number"  # noqa: S608 - constant
            )
            return [_round(row) for row in self._rows(query, run, most)]

    def phases(self, run: str) -> list[Values]:
        """The phases of a run, the current one last: steps, answer times (sum, longest) in seconds,
        bytes, last step.
        """
        with self.reading():
            query = """
                select phase, count(*) as steps, sum(seconds) as seconds, max(seconds) as longest,
                sum(bytes_sent + bytes_received) as bytes, max(at) as at
                from rounds where run = ? group by phase order by max(number)"""
            return [dict(row) for row in self._rows(query, run)]

    def checkpoints(self, run: str) -> list[HeadSigned]:
        """The heads of sites' ledgers at the end of a run, signed by both sides, in order of
        receipt.
        """
        with self.reading():
            rows = self._rows(
                "select checkpoint from checkpoints where run = ? order by rowid", run
            )
            return [signed_head(row["checkpoint"]) for row in rows]

    def _rows(self, query: str, *values: Any) -> list[sqlite3.Row]:
        return self._db.execute(query, values).fetchall()


def signed_head(text: str) -> HeadSigned:
    """A row of `checkpoints`."""
    plain = json.loads(text)
    receipt = plain["receipt"]
    return HeadSigned(
        **{**plain, "receipt": Countersigned(**{**receipt, "head": LedgerHead(**receipt["head"])})}
    )


def _round(row: sqlite3.Row) -> Values:
    plain = {name: row[name] for name in row.keys() if name not in ("run", "nth", "total")}  # noqa: SIM118 - as above
    figures = {name: json.loads(row[name]) for name in ("residual", "gap")}
    return {**plain, **figures, "verified": bool(row["verified"])}


def _summary(row: sqlite3.Row) -> RunSummary:
    plan = json.loads(row["plan"])
    # A damaged plan is an error here.
    plan["objective"]["name"], plan["membership"]["sites"], plan["study"]
    plain = {name: row[name] for name in row.keys() if name not in _UNSHOWN}  # noqa: SIM118 - a Row iterates values
    return RunSummary(federation=plan["federation"], plan=plan, **plain)


def trained_run(store: Path, run: str) -> TrainedRun:
    """The run whose models are scored: the one with this prefix, or the latest run with models."""
    if not store.exists():
        raise UsageError(f"{store}: no such run store; train first.")
    with closing(RunStore(store)) as runs:
        candidates = [runs.find(run)] if run else runs.runs()
        for summary in candidates:
            terms = summary.plan["objective"]
            # A scoring and an alignment have results, and no model.
            if terms["name"] in TRAININGS and summary.stop in TRAINED:
                columns = max(len(terms.get("classes", ())), 1)
                return TrainedRun(
                    summary.run, terms["name"], runs.begun(summary.run).participants, columns
                )
    found = f"run {candidates[0].run} has no models" if run else "no run has models"
    raise UsageError(f"{store}: {found}. Train first (`coreg-coordinator run`).")
