"""The memory of runs: one SQLite file in WAL mode. What is written here before a message goes out is never lost.

Knows SQL, the records of events.py and JSON; no machine and no transport. State arrays are kept as safetensors bytes:
no pickle. A step is kept as the *sum* of its answers, one vector, from which the state follows bit by bit; every 20th
question the whole state is kept instead, and the sums before it go.
"""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from coordinator.events import Ended, Membership, Record, Resumption, Snapshot, StepTaken
from coreg_core.arrays import Arr
from coreg_core.errors import StorageError, UsageError
from coreg_core.messages import Plan, PlanAccepted, Vector

SCHEMA_VERSION = 1
SCHEMA = """
create table runs (
    run text primary key, plan_digest text not null, plan text not null,
    started text not null, ended text, stop text, reason text
);
create index runs_by_plan on runs (plan_digest, started);
create table memberships (
    run text not null references runs, attempt integer not null, round integer not null, membership text not null,
    primary key (run, attempt)
);
create table states (run text not null references runs, round integer not null, state blob not null, primary key (run));
create table sums (
    run text not null references runs, round integer not null, total blob not null, primary key (run, round)
);
create table rounds (
    run text not null references runs, round integer not null, attempt integer not null, sweep integer,
    answered integer not null, verified integer, residual text, gap text, prediction_bound text,
    seconds real not null, bytes_sent integer not null, bytes_received integer not null, at text not null,
    primary key (run, round, attempt)
);
"""


@dataclass(frozen=True)
class Measured:
    """What the driver's clock and the transport's counters say of one question."""

    seconds: float
    bytes_sent: int
    bytes_received: int


@dataclass(frozen=True)
class RunSummary:
    """A line of `runs`."""

    run: str
    federation: str
    started: str
    ended: str | None
    stop: str | None
    reason: str | None
    questions: int
    plan: dict[str, Any]


class RunStore:
    """See the module's docstring. Every method may raise `StorageError`; use it from one thread at a time."""

    def __init__(self, path: Path):
        self.path = path
        try:
            self._db = sqlite3.connect(path, timeout=5.0, isolation_level=None, check_same_thread=False)
            self._db.row_factory = sqlite3.Row
            self._db.execute("pragma page_size = 32768")  # of a new file: vectors are large
            self._db.execute("pragma journal_mode = wal")
            self._db.execute("pragma synchronous = normal")
            self._db.execute("pragma wal_autocheckpoint = 4096")
            self._db.execute("pragma foreign_keys = on")
            version = self._db.execute("pragma user_version").fetchone()[0]
        except sqlite3.Error as error:
            raise StorageError(
                f"{path}: cannot be opened as a run store ({error}). Check the path and its rights."
            ) from None
        if version not in (0, SCHEMA_VERSION):
            raise StorageError(f"{path}: written by another version (schema {version}, this is {SCHEMA_VERSION}).")
        if version == 0:
            with self._transaction():
                if self._db.execute("pragma user_version").fetchone()[0] == SCHEMA_VERSION:
                    return  # another process made it meanwhile
                for statement in SCHEMA.split(";\n"):
                    if statement.strip():
                        self._db.execute(statement)
                self._db.execute(f"pragma user_version = {SCHEMA_VERSION}")

    def close(self) -> None:
        """Fold the log into the file."""
        self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self._db.execute("begin immediate")
            try:
                yield
            except BaseException:
                self._db.execute("rollback")
                raise
            self._db.execute("commit")
        except sqlite3.Error as error:
            raise StorageError(f"{self.path}: {error}. Free some space or mend the disk, then run again.") from None

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
        """A new run."""
        with self._transaction():
            self._db.execute(
                "insert into runs (run, plan_digest, plan, started) values (?, ?, ?, ?)",
                (plan.run, plan.digest, json.dumps(plan.to_dict()), started),
            )

    def write(self, run: str, record: Record, measured: Measured, at: str) -> None:
        """One record, in one transaction."""
        with self._transaction():
            match record:
                case Membership():
                    plain = {
                        "n_unlabelled": record.n_unlabelled,
                        "ids_digest": record.ids_digest,
                        "participants": {site: asdict(a) for site, a in record.participants.items()},
                    }
                    self._db.execute(
                        "insert or replace into memberships values (?, ?, ?, ?)",
                        (run, record.attempt, record.round, json.dumps(plain)),
                    )
                    self._write_state(run, record.round, record.state)
                case StepTaken():
                    self._write_step(run, record, measured, at)
                case Snapshot():
                    self._write_state(run, record.round, record.state)
                case Ended():
                    self._db.execute(
                        "update runs set ended = ?, stop = ?, reason = ? where run = ?",
                        (at, record.stop.name, record.reason, run),
                    )
                    self._db.execute("delete from sums where run = ?", (run,))

    def _write_state(self, run: str, round_: int, state: dict[str, Arr]) -> None:
        self._db.execute("insert or replace into states values (?, ?, ?)", (run, round_, _arrays_to_bytes(state)))
        self._db.execute("delete from sums where run = ?", (run,))

    def _write_step(self, run: str, step: StepTaken, measured: Measured, at: str) -> None:
        self._db.execute(
            "insert or replace into sums values (?, ?, ?)",
            (run, step.round, _arrays_to_bytes({"total": step.total.values})),
        )
        p = step.progress
        shown = (
            (None,) * 5
            if p is None
            else (
                p.round,
                int(p.verified),
                *(
                    json.dumps([x if np.isfinite(x) else None for x in a.tolist()])
                    for a in (p.residual, p.gap, p.prediction_bound)
                ),
            )
        )
        sweep, verified, residual, gap, bound = shown
        self._db.execute(
            "insert or replace into rounds values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                run,
                step.round,
                step.attempt,
                sweep,
                step.answered,
                verified,
                residual,
                gap,
                bound,
                measured.seconds,
                measured.bytes_sent,
                measured.bytes_received,
                at,
            ),
        )

    # --- reading --------------------------------------------------------------------------------------------------

    def unfinished(self, plan_digest: str) -> tuple[str, Resumption | None] | None:
        """The latest run of this plan that has not ended: its name, and where it was (None: before its first round)."""
        with self._reading():
            row = self._db.execute(
                "select run from runs where plan_digest = ? and ended is null order by started desc, rowid desc",
                (plan_digest,),
            ).fetchone()
            return None if row is None else (row["run"], self._resumption(row["run"]))

    def _resumption(self, run: str) -> Resumption | None:
        last = self._db.execute(
            "select * from memberships where run = ? order by attempt desc limit 1", (run,)
        ).fetchone()
        if last is None:
            return None
        state = self._db.execute("select * from states where run = ?", (run,)).fetchone()
        sums = self._db.execute("select * from sums where run = ? order by round", (run,)).fetchall()
        plain = json.loads(last["membership"])
        participants = {site: PlanAccepted(**fields) for site, fields in plain["participants"].items()}
        membership = Membership(
            last["attempt"], last["round"], plain["n_unlabelled"], plain["ids_digest"], participants, {}
        )
        expected = list(range(state["round"], state["round"] + len(sums)))
        if [s["round"] for s in sums] != expected:
            raise StorageError(f"{self.path}: run {run} lacks a step. Start a new run (--new).")
        totals = tuple(Vector(_arrays_from_bytes(s["total"])["total"]) for s in sums)
        return Resumption(membership, state["round"], _arrays_from_bytes(state["state"]), totals)

    def runs(self) -> list[RunSummary]:
        """Every run, the latest first."""
        with self._reading():
            rows = self._db.execute(
                "select runs.*, (select count(*) from rounds where rounds.run = runs.run) as questions "
                "from runs order by started desc, rowid desc"
            ).fetchall()
            return [_summary(row) for row in rows]

    def show(self, run: str) -> tuple[RunSummary, list[dict[str, Any]]]:
        """One run and its rounds; a unique beginning of its name is enough.

        Raises:
            UsageError: no run, or several, begin so.
        """
        runs = self.runs()
        found = [s for s in runs if s.run == run] or [s for s in runs if s.run.startswith(run)]
        if len(found) != 1:
            raise UsageError(f"{len(found)} runs begin with {run!r}; `coreg-coordinator runs` lists them.")
        with self._reading():
            rows = self._db.execute(
                "select * from rounds where run = ? order by round, attempt", (found[0].run,)
            ).fetchall()
            rounds = []
            for row in rows:
                plain = {key: row[key] for key in row.keys() if key != "run"}  # noqa: SIM118 - a Row iterates its values
                for name in ("residual", "gap", "prediction_bound"):
                    plain[name] = None if plain[name] is None else json.loads(plain[name])
                plain["verified"] = None if plain["verified"] is None else bool(plain["verified"])
                rounds.append(plain)
        return found[0], rounds


def _summary(row: sqlite3.Row) -> RunSummary:
    plan = json.loads(row["plan"])
    return RunSummary(
        row["run"], plan["federation"], row["started"], row["ended"], row["stop"], row["reason"], row["questions"], plan
    )


def _arrays_to_bytes(arrays: dict[str, Arr]) -> bytes:
    return bytes(safetensors.numpy.save({name: np.asarray(a, order="C") for name, a in arrays.items()}))


def _arrays_from_bytes(data: bytes) -> dict[str, Arr]:
    return dict(safetensors.numpy.load(data))
