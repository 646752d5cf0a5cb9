"""The memory of runs: one SQLite file in WAL mode. What is written here before a message goes out is never lost.

Arrays are kept as safetensors bytes: no pickle. A step is kept as the *sum* of its answers, one vector, from which the
state follows bit by bit; every 20th question the whole state is kept instead, and the sums before it go. Of a run that
is over the models stay, for as long as the file does.
"""

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, assert_never

import numpy as np
import safetensors.numpy

from coordinator.driver import Lap
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
from coordinator.store.checksums import row_seal, seal, seal_json, unseal, unseal_json
from coordinator.store.schema import FORMAT, open_database, open_for_reading, transaction
from coreg_core.agreement.schedules.schedule import FinalTargets, Progress
from coreg_core.errors import StorageError, UsageError
from coreg_core.numerics.arrays import Arr
from coreg_core.protocol.messages import PlanAccepted, Vector
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan, plan_from_dict


@dataclass(frozen=True)
class RunSummary:
    """A line of `runs`. ``closed`` is when nobody was waited for any more; ``rounds`` are complete ones, sweeps included."""

    run: str
    federation: str
    started: str
    ended: str | None
    closed: str | None
    stop: str | None
    reason: str | None
    questions: int
    rounds: int
    format: int
    plan: dict[str, Any]
    gap: float | None = None  # certified by the last verified round, of the worst column
    bound: float | None = None


class RunStore:
    """See the module's docstring. Every method may raise `StorageError`; use it from one thread at a time."""

    def __init__(self, path: Path, *, read_only: bool = False):
        self.path = path
        self._db = open_for_reading(path) if read_only else open_database(path)

    def close(self) -> None:
        """Fold the log into the file."""
        self._db.close()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """A file that was damaged raises many things; all of them mean this."""
        try:
            yield
        except (sqlite3.Error, ValueError, LookupError, TypeError, safetensors.SafetensorError) as error:
            raise StorageError(
                f"{self.path}: cannot be read ({error}). Restore it from a backup, or move it away and start a new run."
            ) from None

    # --- writing --------------------------------------------------------------------------------------------------

    def begin(self, plan: Plan, started: str) -> None:
        with transaction(self._db, self.path):
            self._db.execute(
                "insert into runs (run, plan_digest, plan, started, format) values (?, ?, ?, ?, ?)",
                (plan.run, plan.digest, json.dumps(plan.to_dict()), started, FORMAT),
            )

    def abandon(
        self,
        run: str,
        at: str,
        outcome: Outcome = Outcome.INTERRUPTED,
        reason: str = "abandoned: a new run was asked for (--new)",
    ) -> None:
        """The operator wants a new run instead, or none: this one is over, whatever it was waiting for."""
        with transaction(self._db, self.path):
            self._db.execute(
                "update runs set ended = coalesce(ended, ?), stop = coalesce(stop, ?), reason = coalesce(reason, ?), "
                "closed = ? where run = ?",
                (at, outcome.name, reason, at, run),
            )
            self._db.execute("delete from sums where run = ?", (run,))

    def write(self, run: str, record: Record, progress: Progress | None, measured: Lap, at: str) -> None:
        """One record, in one transaction; ``progress`` is what a step showed."""
        # A step that is lost is asked again, on the same bits; everything else is missed.
        with transaction(self._db, self.path, marked=not isinstance(record, StepTaken)):
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
                        (run, record.attempt, record.question, seal_json(plain)),
                    )
                    self._write_state(run, record.question, record.state, record.affine)
                case StepTaken():
                    self._write_step(run, record, progress, measured, at)
                case Snapshot():
                    self._write_state(run, record.question, record.state, record.affine)
                case Ended():
                    self._db.execute(
                        "update runs set ended = ?, stop = ?, reason = ? where run = ?",
                        (at, record.outcome.name, record.reason, run),
                    )
                    if record.models is not None:
                        models = _to_bytes(_models(record.models))
                        self._db.execute("insert or replace into models values (?, ?)", (run, models))
                    self._db.execute("delete from sums where run = ?", (run,))
                    self._db.execute("delete from states where run = ?", (run,))
                case HeadSigned():
                    plain, lines = asdict(record), record.receipt.head.lines
                    self._db.execute(
                        "insert or replace into heads values (?, ?, ?, ?)", (run, record.site, lines, seal_json(plain))
                    )
                case Delivered():
                    self._db.execute("insert or replace into deliveries values (?, ?, ?)", (run, record.site, at))
                case Closed():
                    self._db.execute("update runs set closed = ? where run = ?", (at, run))
                case _:
                    assert_never(record)
        if isinstance(record, Snapshot | Ended):  # what the log holds goes into the file while little is in it
            with suppress(sqlite3.Error):
                self._db.execute("pragma wal_checkpoint(passive)")

    def _write_state(self, run: str, question: int, state: Mapping[str, Arr], affine: Mapping[Sites, Vector]) -> None:
        arrays = {f"state/{name}": array for name, array in state.items()}
        arrays |= {f"affine/{json.dumps(sites)}": vector.values for sites, vector in affine.items()}
        self._db.execute("insert or replace into states values (?, ?, ?)", (run, question, _to_bytes(arrays)))
        self._db.execute("delete from sums where run = ?", (run,))

    def _write_step(self, run: str, step: StepTaken, progress: Progress | None, measured: Lap, at: str) -> None:
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
        shown["seal"] = row_seal(shown.values())
        names = ", ".join(shown)
        values = ", ".join(f":{name}" for name in shown)
        self._db.execute(f"insert or replace into rounds ({names}) values ({values})", shown)  # noqa: S608 - our names

    # --- reading --------------------------------------------------------------------------------------------------

    def unfinished(self, plan_digest: str) -> str | None:
        """The latest run of this plan that is not closed."""
        with self._reading():
            row = self._db.execute(
                "select run from runs where plan_digest = ? and closed is null and format = ? "
                "order by started desc, rowid desc",
                (plan_digest, FORMAT),
            ).fetchone()
            return None if row is None else str(row["run"])

    def left_unfinished(self) -> list[Plan]:
        """The plans of every run that is not closed and that this release can take up, in the order in which they began."""
        with self._reading():
            rows = self._db.execute(
                "select run, plan, plan_digest from runs where closed is null and format = ? order by started, rowid",
                (FORMAT,),
            ).fetchall()
            plans = [plan_from_dict(json.loads(row["plan"])) for row in rows]
            for row, plan in zip(rows, plans, strict=True):
                if (plan.digest, plan.run) != (row["plan_digest"], row["run"]):
                    raise ValueError(f"the plan of run {row['run']} is not the one that was written")
            return plans

    def has_begun(self, run: str) -> bool:
        """Whether the run ever had a question put to anybody."""
        with self._reading():
            found = self._db.execute("select 1 from memberships where run = ?", (run,)).fetchone()
            return found is not None

    def records(self, run: str) -> list[Record]:
        """What of this run is still needed, in an order from which `jobs.recorded.resume` makes what it remembered."""
        with self._reading():
            records: list[Record] = [
                SiteExcluded(row["site"], Outcome[row["outcome"]], row["reason"])
                for row in self._rows("select * from exclusions where run = ? order by site", run)
            ]
            memberships = self._rows("select * from memberships where run = ? order by attempt desc limit 1", run)
            models = self._rows("select * from models where run = ?", run)
            states = self._rows("select * from states where run = ?", run)
            [summary] = self._rows("select * from runs where run = ?", run)
            if memberships:
                if not states and summary["ended"] is None:
                    raise ValueError(f"run {run} lacks its state")
                records += self._training(run, memberships[0], states)
            if summary["ended"] is not None:
                found = None
                if models:
                    arrays = _from_bytes(models[0]["models"])
                    beside = tuple(arrays["beside"].tolist()) if "beside" in arrays else ()
                    found = FinalTargets(arrays["targets"], arrays["weights"], beside)
                records.append(Ended(Outcome[summary["stop"]], summary["reason"], found))
            delivered = self._rows("select site from deliveries where run = ? order by site", run)
            records += [Delivered(row["site"]) for row in delivered]
            if summary["closed"] is not None:
                records.append(Closed())
            return records

    def _training(self, run: str, last: sqlite3.Row, states: list[sqlite3.Row]) -> list[Record]:
        plain = unseal_json(last["membership"])
        accepted = {site: PlanAccepted(**fields) for site, fields in plain["accepted"].items()}
        state: dict[str, Arr] = {}
        affine: dict[Sites, Vector] = {}
        question = last["question"]
        if states:  # none is left of a run that is over
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
            raise StorageError(f"{self.path}: run {run} lacks a step. Start a new run (--new).")
        return [changed, *(_step(s, last["attempt"]) for s in sums)]

    def _rows(self, query: str, run: str) -> list[sqlite3.Row]:
        return self._db.execute(query, (run,)).fetchall()

    def heads(self, *, run: str | None = None, site: str | None = None) -> list[dict[str, Any]]:
        """Where sites' ledgers stood at the ends of runs, signed by both sides, in the order in which they came."""
        with self._reading():
            rows = self._db.execute(
                "select head from heads where (?1 is null or run = ?1) and (?2 is null or site = ?2) order by rowid",
                (run, site),
            )
            return [unseal_json(row["head"]) for row in rows.fetchall()]

    def forecast(self, run: str) -> tuple[float, ...]:
        """What the sites' forecasts summed to, of a run that had them (`coreg_core.additive.forecast`); nothing of others."""
        with self._reading():
            found = self._rows("select models from models where run = ?", run)
            arrays = _from_bytes(found[0]["models"]) if found else {}
            return tuple(arrays["beside"].tolist()) if "beside" in arrays else ()

    def runs(self) -> list[RunSummary]:
        with self._reading():
            rows = self._db.execute(
                "select runs.*, (select count(*) from rounds where rounds.run = runs.run) as questions, "
                "(select max(round) from rounds where rounds.run = runs.run) as rounds, "
                "(select gap || '|' || prediction_bound from rounds where rounds.run = runs.run and verified = 1 "
                "order by question desc limit 1) as certified "
                "from runs order by started desc, rowid desc"
            ).fetchall()
            return [_summary(row) for row in rows]

    def find(self, run: str) -> RunSummary:
        """One run; a unique beginning of its name is enough.

        Raises
        ------
        UsageError
            no run, or several, begin so.
        """
        runs = self.runs()
        found = [s for s in runs if s.run == run] or [s for s in runs if s.run.startswith(run)]
        if len(found) != 1:
            raise UsageError(f"{len(found)} runs begin with {run!r}; `coreg-coordinator runs` lists them.")
        return found[0]

    def show(self, run: str) -> tuple[RunSummary, list[dict[str, Any]]]:
        """One run and its answered questions; a unique beginning of its name is enough.

        Raises
        ------
        UsageError
            no run, or several, begin so.
        """
        found = self.find(run)
        with self._reading():
            shown = []
            for row in self._rows("select * from rounds where run = ? order by question, attempt", found.run):
                plain = {key: row[key] for key in row.keys() if key not in ("run", "seal")}  # noqa: SIM118 - a Row iterates values
                for name in ("residual", "gap", "prediction_bound"):
                    plain[name] = None if plain[name] is None else json.loads(plain[name])
                plain["verified"] = None if plain["verified"] is None else bool(plain["verified"])
                shown.append(plain)
        return found, shown


def _summary(row: sqlite3.Row) -> RunSummary:
    plan = json.loads(row["plan"])
    gap, bound = _certified(row)
    return RunSummary(
        run=row["run"],
        federation=plan["federation"],
        started=row["started"],
        ended=row["ended"],
        closed=row["closed"],
        stop=row["stop"],
        reason=row["reason"],
        questions=row["questions"],
        rounds=row["rounds"] or 0,
        format=row["format"],
        plan=plan,
        gap=gap,
        bound=bound,
    )


def _certified(row: sqlite3.Row) -> tuple[float | None, float | None]:
    if row["certified"] is None:
        return None, None
    gap, bound = (
        max((x for x in json.loads(part) if x is not None), default=None) for part in row["certified"].split("|")
    )
    return gap, bound


def _models(models: FinalTargets) -> dict[str, Arr]:
    arrays = {"targets": models.targets, "weights": models.weights}
    return arrays | ({"beside": np.array(models.beside, dtype=np.float64)} if models.beside else {})


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


def _to_bytes(arrays: Mapping[str, Arr]) -> bytes:
    return seal(bytes(safetensors.numpy.save({name: np.asarray(a, order="C") for name, a in arrays.items()})))


def _from_bytes(data: bytes) -> dict[str, Arr]:
    return dict(safetensors.numpy.load(unseal(data)))
