"""Runs for commands and pages: a summary of each, its rounds, and the checkpoints of the sites' ledgers."""

import json
import sqlite3
from dataclasses import dataclass
from typing import Any

from coordinator.machine.records import HeadSigned
from coordinator.store.runs import ROUND_COLUMNS, RunStore, signed_head
from coreg_core.errors import UsageError
from coreg_core.protocol.plan import aligns_for

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

    def recent(self, most: int) -> list[RunSummary]:
        """The runs that are not over, then the latest others."""
        with self.reading():
            query = "select * from runs order by ended is not null, started desc, rowid desc limit ?"
            return [_summary(row) for row in self._rows(query, most)]

    def studies(self) -> list[dict[str, Any]]:
        """Each study, the most recent first: how many runs began, converged and are not over, and the latest run."""
        with self.reading():
            query = """
                select coalesce(nullif(json_extract(plan, '$.study'), ''), json_extract(plan, '$.federation')) as study,
                count(*) as runs, sum(stop is 'CONVERGED') as converged, sum(ended is null) as open,
                run as latest, max(started) as started
                from runs group by 1 order by max(started) desc"""
            return [dict(row) for row in self._rows(query)]

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
            begins = "select * from runs where substr(run, 1, length(?1)) = ?1 limit 100"
            rows = exact or [row for row in self._rows(begins, run) if not aligns_for(row["run"])]
        if len(rows) != 1:
            raise UsageError(f"{len(rows) or 'no'} runs begin with {run!r}; `coreg-coordinator runs` lists them.")
        return _summary(rows[0])

    def show(self, run: str) -> tuple[RunSummary, list[dict[str, Any]]]:
        """One run and its steps; a unique prefix of its name is enough."""
        found = self.find(run)
        with self.reading():
            rows = self._rows("select * from rounds where run = ? order by number", found.run)
            return found, [_round(row) for row in rows]

    def convergence(self, run: str, most: int) -> list[dict[str, Any]]:
        """At most ``most`` of the steps with figures of a run's last attempt, evenly spaced, and the last one."""
        with self.reading():
            numbered = (
                "select *, row_number() over (order by number desc) - 1 as nth, count(*) over () as total "
                "from rounds where run = ?1 and (residual <> '[]' or gap <> '[]') "
                "and attempt = (select max(attempt) from rounds where run = ?1)"
            )
            query = f"select * from ({numbered}) where nth % ((total - 1) / ?2 + 1) = 0 order by number"  # noqa: S608 - constant
            return [_round(row) for row in self._rows(query, run, most)]

    def phases(self, run: str) -> list[dict[str, Any]]:
        """The phases of a run, the current one last: steps, answer times (sum, longest) in seconds, bytes, last step."""
        with self.reading():
            query = """
                select phase, count(*) as steps, sum(seconds) as seconds, max(seconds) as longest,
                sum(bytes_sent + bytes_received) as bytes, max(at) as at
                from rounds where run = ? group by phase order by max(number)"""
            return [dict(row) for row in self._rows(query, run)]

    def checkpoints(self, *, run: str | None = None, site: str | None = None) -> list[HeadSigned]:
        """The heads of sites' ledgers at the ends of runs, signed by both sides, in order of receipt."""
        with self.reading():
            rows = self._db.execute(
                "select checkpoint from checkpoints where (?1 is null or run = ?1) and (?2 is null or site = ?2) "
                "order by rowid",
                (run, site),
            )
            return [signed_head(row["checkpoint"]) for row in rows.fetchall()]


def _round(row: sqlite3.Row) -> dict[str, Any]:
    plain = {name: row[name] for name in ROUND_COLUMNS if name != "run"}
    figures = {name: json.loads(row[name]) for name in ("residual", "gap")}
    return {**plain, **figures, "verified": bool(row["verified"])}


def _summary(row: sqlite3.Row) -> RunSummary:
    plan = json.loads(row["plan"])
    plan["objective"]["name"], plan["membership"]["sites"], plan["study"]  # a damaged plan is an error here
    plain = {name: row[name] for name in row.keys() if name not in _UNSHOWN}  # noqa: SIM118 - a Row iterates values
    return RunSummary(federation=plan["federation"], plan=plan, **plain)
