"""Runs for commands and pages: a summary of each, its rounds, and the checkpoints of the sites' ledgers."""

import json
import sqlite3
from dataclasses import dataclass
from typing import Any

from coordinator.machine.records import HeadSigned
from coordinator.store.runs import ROUND_COLUMNS, RunStore, signed_head
from coreg_core.errors import UsageError

_UNSHOWN = ("plan", "plan_digest", "attempt", "participants")


@dataclass(frozen=True)
class RunSummary:
    """A summary of a run.

    ``steps`` counts over all attempts, ``rounds`` the complete rounds of the last one, sweeps included. ``residual`` and
    ``gap`` are those of its last verified round, for the worst column, to a power of ten. ``pruned`` is the time at which the
    rounds were removed.
    """

    run: str
    federation: str
    started: str
    ended: str | None
    stop: str | None
    reason: str | None
    steps: int
    rounds: int
    plan: dict[str, Any]
    residual: float | None = None
    gap: float | None = None
    pruned: str | None = None


class Summaries(RunStore):
    """Reads the runs of a store for people and programs."""

    def runs(self) -> list[RunSummary]:
        """Every run, the latest first."""
        with self.reading():
            rows = self._db.execute("select * from runs order by started desc, rowid desc").fetchall()
            return [_summary(row) for row in rows]

    def latest(self, plan_digest: str) -> RunSummary | None:
        """The latest run of this plan that has not ended."""
        with self.reading():
            row = self._db.execute(
                "select * from runs where plan_digest = ? and ended is null order by started desc, rowid desc",
                (plan_digest,),
            ).fetchone()
            return None if row is None else _summary(row)

    def find(self, run: str) -> RunSummary:
        """One run; a unique prefix of its name is enough."""
        with self.reading():
            exact = self._rows("select * from runs where run = ?", run)
            rows = exact or self._rows("select * from runs where substr(run, 1, length(?1)) = ?1 limit 100", run)
        if len(rows) != 1:
            raise UsageError(f"{len(rows) or 'no'} runs begin with {run!r}; `coreg-coordinator runs` lists them.")
        return _summary(rows[0])

    def show(self, run: str) -> tuple[RunSummary, list[dict[str, Any]]]:
        """One run and its steps; a unique prefix of its name is enough."""
        found = self.find(run)
        with self.reading():
            shown = []
            for row in self._rows("select * from rounds where run = ? order by number", found.run):
                plain = {name: row[name] for name in ROUND_COLUMNS if name != "run"}
                for name in ("residual", "gap"):
                    plain[name] = json.loads(plain[name])
                plain["verified"] = bool(plain["verified"])
                shown.append(plain)
        return found, shown

    def checkpoints(self, *, run: str | None = None, site: str | None = None) -> list[HeadSigned]:
        """The heads of sites' ledgers at the ends of runs, signed by both sides, in order of receipt."""
        with self.reading():
            rows = self._db.execute(
                "select checkpoint from checkpoints where (?1 is null or run = ?1) and (?2 is null or site = ?2) "
                "order by rowid",
                (run, site),
            )
            return [signed_head(row["checkpoint"]) for row in rows.fetchall()]


def _summary(row: sqlite3.Row) -> RunSummary:
    plan = json.loads(row["plan"])
    plan["objective"]["name"], plan["membership"]["sites"], plan["study"]  # a damaged plan is an error here
    plain = {name: row[name] for name in row.keys() if name not in _UNSHOWN}  # noqa: SIM118 - a Row iterates values
    return RunSummary(federation=plan["federation"], plan=plan, **plain)
