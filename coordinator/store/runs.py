"""Records of runs: what is written here before a message goes out survives the process.

Arrays are kept as safetensors bytes. A step is kept as the sum of its answers, one vector, from which the state follows
bit by bit; every 20th question the whole state is kept instead, and the sums before it go. The models of a run that has
ended stay until they are pruned.
"""

import json
import sqlite3
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any, assert_never

import numpy as np
import safetensors.numpy

from coordinator.driver import Timing
from coordinator.machine.records import (
    Closed,
    Delivered,
    Ended,
    HeadSigned,
    MembershipChanged,
    Record,
    SiteExcluded,
    Sites,
    Snapshot,
    StepTaken,
)
from coordinator.machine.scheduler import Undelivered
from coordinator.store.checksums import (
    UNREADABLE,
    add_checksum,
    add_json_checksum,
    row_checksum,
    verify_checksum,
    verify_json_checksum,
)
from coordinator.store.schema import Tables
from coreg_core.agreement.schedules.schedule import FinalTargets, Progress
from coreg_core.errors import StorageError
from coreg_core.numerics.arrays import Arr
from coreg_core.protocol.messages import PlanAccepted
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan, Scoring, plan_from_dict
from coreg_core.protocol.vectors import Vector

# The columns of a row of `rounds`, in the order of its checksum.
ROUND_COLUMNS = (
    "run", "question", "attempt", "round", "answered", "verified", "residual", "gap", "prediction_bound", "phase", "seconds",
    "bytes_sent", "bytes_received", "at",
)  # fmt: skip


class RunStore(Tables):
    """The records of runs, written and read. Every method may raise `StorageError`."""

    # --- a run's beginning and end --------------------------------------------------------------------------------

    def begin(self, plan: Plan, at: str) -> None:
        """Move a run from the queue, if it is there, to the runs."""
        with self.transaction():
            self._begin(plan, at)

    def _begin(self, plan: Plan, at: str) -> None:
        self._db.execute(
            "insert or ignore into runs (run, plan_digest, plan, started) values (?, ?, ?, ?)",
            (plan.run, plan.digest, json.dumps(plan.to_dict()), at),
        )
        self._db.execute("delete from queue where run = ?", (plan.run,))

    def close_run(self, plan: Plan, outcome: Outcome, reason: str, at: str) -> None:
        """Close a run that is not under way; one of the queue is listed as a run all the same."""
        with self.transaction():
            self._begin(plan, at)
            self._db.execute(
                "update runs set ended = coalesce(ended, ?), stop = coalesce(stop, ?), reason = coalesce(reason, ?), "
                "closed = ? where run = ?",
                (at, outcome.name, reason, at, plan.run),
            )
            self._db.execute("delete from sums where run = ?", (plan.run,))
            self._db.execute("delete from states where run = ?", (plan.run,))

    # --- records --------------------------------------------------------------------------------------------------

    def write(self, run: str, record: Record, progress: Progress | None, measured: Timing, at: str) -> None:
        """Write one record in one transaction; ``progress`` is what a step showed."""
        # A power cut may undo a step: it is asked again, with the same bits. Every other record is durable.
        with self.transaction(durable=not isinstance(record, StepTaken)):
            match record:
                case SiteExcluded():
                    self._db.execute(
                        "insert or replace into exclusions values (?, ?, ?, ?)",
                        (run, record.site, record.outcome.name, record.reason),
                    )
                case MembershipChanged():
                    plain = {
                        "participants": record.participants,
                        "accepted": {site: asdict(a) for site, a in record.accepted.items()},
                        "returns": dict(record.returns),
                        "dropped": dict(record.dropped),
                    }
                    self._db.execute(
                        "insert or replace into memberships values (?, ?, ?, ?)",
                        (run, record.attempt, record.question, add_json_checksum(plain)),
                    )
                    self._write_state(run, record.question, record.state, record.affine)
                case StepTaken():
                    self._write_step(run, record, progress, measured, at)
                case Snapshot():
                    self._write_state(run, record.question, record.state, record.affine)
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
                    self._forget_scores(run)
                case Closed():
                    self._db.execute("update runs set closed = ? where run = ?", (at, run))
                case _:
                    assert_never(record)
        if isinstance(record, Snapshot | Ended):  # move the log into the file while little is in it
            with suppress(sqlite3.Error):
                self._db.execute("pragma wal_checkpoint(passive)")

    def last_checkpoint(self, site: str) -> tuple[str, int] | None:
        """The run at whose end this site's ledger was signed last, and its number of lines then."""
        with self.reading():
            row = self._db.execute(
                "select run, lines from checkpoints where site = ? order by rowid desc limit 1", (site,)
            ).fetchone()
            return None if row is None else (row["run"], row["lines"])

    def _write_state(self, run: str, question: int, state: Mapping[str, Arr], affine: Mapping[Sites, Vector]) -> None:
        arrays = {f"state/{name}": array for name, array in state.items()}
        arrays |= {f"affine/{json.dumps(sites)}": vector.values for sites, vector in affine.items()}
        self._db.execute("insert or replace into states values (?, ?, ?)", (run, question, _to_bytes(arrays)))
        self._db.execute("delete from sums where run = ?", (run,))

    def _write_step(self, run: str, step: StepTaken, progress: Progress | None, measured: Timing, at: str) -> None:
        self._db.execute(
            "insert or replace into sums values (?, ?, ?, ?, ?)",
            (run, step.question, step.part, step.answered, _to_bytes(_sum(step))),
        )
        shown: dict[str, Any] = {
            "run": run,
            "question": step.question,
            "attempt": step.attempt,
            "round": None if progress is None else progress.round,
            "answered": step.answered,
            "verified": None if progress is None else int(progress.verified),
            "residual": None if progress is None else _numbers(progress.residual),
            "gap": None if progress is None else _numbers(progress.gap),
            "prediction_bound": None if progress is None else _numbers(progress.prediction_bound),
            "phase": step.phase or None,
            "seconds": measured.seconds,
            "bytes_sent": measured.bytes_sent,
            "bytes_received": measured.bytes_received,
            "at": at,
        }
        values = [shown[name] for name in ROUND_COLUMNS]
        self._db.execute(
            f"insert or replace into rounds values ({', '.join('?' * (len(values) + 1))})",  # noqa: S608 - signs alone
            (*values, row_checksum(values)),
        )
        certified = progress if progress is not None and progress.verified else None
        self._db.execute(
            "update runs set questions = max(questions, ?), rounds = max(rounds, ?), gap = coalesce(?, gap), "
            "bound = coalesce(?, bound) where run = ?",
            (
                step.question + 1,
                0 if progress is None else progress.round,
                None if certified is None else _worst(certified.gap),
                None if certified is None else _worst(certified.prediction_bound),
                run,
            ),
        )

    def _write_end(self, run: str, end: Ended, at: str) -> None:
        self._db.execute(
            "update runs set ended = ?, stop = ?, reason = ? where run = ?", (at, end.outcome.name, end.reason, run)
        )
        if end.models is not None:
            self._db.execute("insert or replace into models values (?, ?)", (run, _to_bytes(_models(end.models))))
            last = self._db.execute(
                "select membership from memberships where run = ? order by attempt desc limit 1", (run,)
            ).fetchone()
            for site in verify_json_checksum(last["membership"])["participants"]:
                self._db.execute(
                    "insert or ignore into deliveries select ?1, ?2, null "
                    "where not exists (select 1 from exclusions where run = ?1 and site = ?2)",
                    (run, site),
                )
        self._db.execute("delete from sums where run = ?", (run,))
        self._db.execute("delete from states where run = ?", (run,))

    def _forget_scores(self, run: str) -> None:
        """Scores say what the sites' models say: they are kept until every site has fetched them, and no longer."""
        row = self._db.execute("select plan from runs where run = ?", (run,)).fetchone()
        left = self._db.execute("select 1 from deliveries where run = ? and at is null", (run,)).fetchone()
        if left is None and isinstance(_plan(row["plan"]).objective, Scoring):
            self._db.execute("delete from models where run = ?", (run,))

    # --- reading --------------------------------------------------------------------------------------------------

    def unfinished(self, at: str) -> tuple[list[Plan], list[tuple[str, str]]]:
        """The plans of the runs that have not ended, or whose sites are awaited, in the order in which they began.

        Runs whose plan cannot be read are closed as damaged; their names and the reasons come second.
        """
        with self.reading():
            query = "select run, plan, plan_digest from runs where closed is null order by started, rowid"
            rows = self._db.execute(query).fetchall()
        plans, damaged = list[Plan](), list[tuple[str, str]]()
        for row in rows:
            try:
                plan = _plan(row["plan"])
                if (plan.run, plan.digest) != (row["run"], row["plan_digest"]):
                    raise ValueError("it is not the plan that was written")
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
        """The closed runs that not all sites have fetched, by name; without those whose plan cannot be read."""
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
        """Whether the run ever asked a question."""
        with self.reading():
            return self._db.execute("select 1 from memberships where run = ?", (run,)).fetchone() is not None

    def records(self, run: str) -> list[Record]:
        """The records of this run that are still needed, in an order from which `state.resume` makes its state.

        Raises
        ------
        StorageError
            they are damaged.
        """
        try:
            return self._records(run)
        except (
            sqlite3.Error,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            safetensors.SafetensorError,
        ) as error:
            message = (
                f"{self.path}: the records of run {run} cannot be read ({error}). Restore the store from a backup."
            )
            raise StorageError(message) from None

    def _records(self, run: str) -> list[Record]:
        [summary] = self._rows("select * from runs where run = ?", run)
        if (plan := _plan(summary["plan"])).digest != summary["plan_digest"] or plan.run != run:
            raise ValueError("the plan is not the one that was written")
        records: list[Record] = [
            SiteExcluded(row["site"], Outcome[row["outcome"]], row["reason"])
            for row in self._rows("select * from exclusions where run = ? order by site", run)
        ]
        memberships = self._rows("select * from memberships where run = ? order by attempt desc limit 1", run)
        states = self._rows("select * from states where run = ?", run)
        if memberships:
            if not states and summary["ended"] is None:
                raise ValueError("the state is missing")
            records += self._training(run, memberships[0], states)
        if summary["ended"] is not None:
            models = self._rows("select * from models where run = ?", run)
            found = None if not models else _final_targets(models[0]["models"])
            records.append(Ended(Outcome[summary["stop"]], summary["reason"], found))
        delivered = self._rows("select site from deliveries where run = ? and at is not null order by site", run)
        records += [Delivered(row["site"]) for row in delivered]
        if summary["closed"] is not None:
            records.append(Closed())
        return records

    def _training(self, run: str, last: sqlite3.Row, states: list[sqlite3.Row]) -> list[Record]:
        plain = verify_json_checksum(last["membership"])
        accepted = {site: PlanAccepted(**fields) for site, fields in plain["accepted"].items()}
        state: dict[str, Arr] = {}
        affine: dict[Sites, Vector] = {}
        question = last["question"]
        if states:  # a run that has ended has none
            question = states[0]["question"]
            for name, array in _from_bytes(states[0]["state"]).items():
                kind, _, key = name.partition("/")
                if kind == "affine":
                    affine[tuple(json.loads(key))] = Vector(array)
                else:
                    state[key] = array
        changed = MembershipChanged(
            last["attempt"],
            question,
            tuple(plain["participants"]),
            accepted,
            state,
            plain["returns"],
            plain["dropped"],
            affine,
        )
        sums = self._rows("select * from sums where run = ? order by question", run)
        if [s["question"] for s in sums] != list(range(question, question + len(sums))):
            raise ValueError("a step is missing")
        return [changed, *(_step(s, last["attempt"]) for s in sums)]

    def _rows(self, query: str, run: str) -> list[sqlite3.Row]:
        return self._db.execute(query, (run,)).fetchall()

    def forecast(self, run: str) -> tuple[float, ...]:
        """The sums of the sites' forecasts (`coreg_core.additive.forecast`); empty for a run without them."""
        with self.reading():
            found = self._rows("select models from models where run = ?", run)
            return _final_targets(found[0]["models"]).beside if found else ()


def _plan(text: str) -> Plan:
    return plan_from_dict(json.loads(text))


def _models(models: FinalTargets) -> dict[str, Arr]:
    arrays = {"targets": models.targets, "weights": models.weights}
    return arrays | ({"beside": np.array(models.beside, dtype=np.float64)} if models.beside else {})


def _final_targets(data: bytes) -> FinalTargets:
    arrays = _from_bytes(data)
    beside = tuple(arrays["beside"].tolist()) if "beside" in arrays else ()
    return FinalTargets(arrays["targets"], arrays["weights"], beside)


def _sum(step: StepTaken) -> dict[str, Arr]:
    arrays = {} if step.total is None else {"total": step.total.values}
    return arrays | ({"scalars": np.array(step.scalars, dtype=np.float64)} if step.scalars else {})


def _step(row: sqlite3.Row, attempt: int) -> StepTaken:
    arrays = _from_bytes(row["total"])
    total = Vector(arrays["total"]) if "total" in arrays else None
    scalars = tuple(arrays["scalars"].tolist()) if "scalars" in arrays else ()
    return StepTaken(row["question"], attempt, row["part"], total, row["answered"], scalars)


def _numbers(values: Arr) -> str:
    return json.dumps([x if np.isfinite(x) else None for x in values.tolist()])


def _worst(values: Arr) -> float | None:
    finite = [x for x in values.tolist() if np.isfinite(x)]
    return max(finite, default=None)


def _to_bytes(arrays: Mapping[str, Arr]) -> bytes:
    return add_checksum(bytes(safetensors.numpy.save({name: np.asarray(a, order="C") for name, a in arrays.items()})))


def _from_bytes(data: bytes) -> dict[str, Arr]:
    return dict(safetensors.numpy.load(verify_checksum(data)))
