"""What a serving agent keeps for its operator's commands, and for itself after a restart.

One SQLite file in a folder that only its owner can read. Every method opens it for one transaction,
so the agent's threads and the commands never share a connection.

A request is a plan that waits for the operator's decision (``waits``), or waited. Its digest and
its words never change: the operator approves by the name of the run, so this name stands for one
plan and one set of keys. `close_request` keeps the decision, for an agent that restarts. The
coordinator proposes the plans of open runs again, so an agent that opens the store waits for
nothing yet.
"""

import datetime as dt
import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coreg_core.errors import CoregError, StorageError, UsageError
from coreg_core.plan import Plan, plan_from_dict
from coreg_wire.clock import timestamp, utc_now
from coreg_wire.files.disk import make_private_folder, write_whole

MOST_REQUESTS = 1000  # runs without a decision whose plan and members are remembered
MOST_HISTORY = 50_000  # ended runs
SCHEMA = """
create table requests (
    run text primary key, digest text not null, words text not null, asked text not null,
    expires text, plan text not null, about text not null, waits integer not null,
    approved integer, reason text, seen text, decided_by text, decided_at text, noted integer
);
create table standing (study text primary key, plan text not null);
create table history (number integer primary key, entry text not null);
create table status (number integer primary key, status text not null);
"""


@dataclass(frozen=True)
class Decision:
    """The operator's decision on a run; ``words``, ``digest`` and ``about``: of the members, and of
    the plan, as shown. ``by``: the user who decided, "" of no person; ``at``: when; ``noted``:
    whether the ledger has it.
    """

    approved: bool
    reason: str
    words: str = ""
    digest: str = ""
    about: Mapping[str, str] = field(default_factory=dict)
    by: str = ""
    at: str = ""
    noted: bool = False


@dataclass(frozen=True)
class StateStore:
    """See the module's docstring. Every method can raise `StorageError`."""

    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / "state.sqlite"

    def open(self) -> None:
        """Make the file, whole at once; the requests of an earlier process no longer wait."""
        try:
            make_private_folder(self.folder)
        except OSError as error:
            raise StorageError(f"{self.folder}: cannot be created ({error.strerror}).") from None
        if not self.path.exists():
            with closing(sqlite3.connect(":memory:")) as empty:
                empty.executescript(SCHEMA)
                write_whole(self.path, empty.serialize(), mode=0o600)
        with self.database() as db:
            known = {row["name"] for row in db.execute("pragma table_info(requests)")}
            for column in ("decided_by text", "decided_at text", "noted integer"):
                if column.split()[0] not in known:  # the file is of an earlier build
                    db.execute(f"alter table requests add column {column}")
            db.execute("update requests set waits = 0")

    @contextmanager
    def intact(self) -> Iterator[None]:
        """Turn the many exceptions of a damaged file into a `StorageError`."""
        try:
            yield
        except CoregError:
            raise
        except (sqlite3.Error, LookupError, TypeError, ValueError, AttributeError) as error:
            text = f"{self.path}: cannot be read or written ({error!r})"
            raise StorageError(f"{text}. If the disk is not full, move the file away.") from None

    @contextmanager
    def database(self) -> Iterator[sqlite3.Connection]:
        """A connection for one transaction."""
        with self.intact(), closing(sqlite3.connect(self.path)) as db, db:
            db.row_factory = sqlite3.Row
            yield db

    def _execute(self, query: str, *values: Any) -> list[sqlite3.Row]:
        with self.database() as db:
            return db.execute(query, values).fetchall()

    # --- the agent's side -------------------------------------------------------------------------

    def request_approval(
        self, plan: Plan, about: Mapping[str, str], seconds: float = 0.0, words: str = ""
    ) -> bool:
        """Ask the operator: the plan by heading, unconfirmed ``words``, and ``seconds`` until it
        expires (0: never).

        False: this name was shown with another plan or other words. They can have been confirmed
        for another run meanwhile: then there are none.
        """
        now = utc_now()
        expires = (now + dt.timedelta(seconds=seconds)).isoformat() if seconds > 0 else None
        shown = (json.dumps(about), json.dumps(plan.to_dict()))
        new = (plan.run, plan.digest, words, timestamp(), expires, *shown)
        with self.database() as db:
            # The coordinator's deadline stays if the question is put again.
            changed = db.execute(
                "insert into requests (run, digest, words, asked, expires, about, plan, waits)"
                " values (?, ?, ?, ?, ?, ?, ?, 1) on conflict (run) do update"
                " set about = excluded.about, plan = excluded.plan, words = excluded.words,"
                " waits = 1"
                " where digest = excluded.digest and excluded.words in (words, '')",
                new,
            ).rowcount
            db.execute(
                "delete from requests where not waits and approved is null and run not in"
                " (select run from requests order by asked desc limit ?)",
                (MOST_REQUESTS,),
            )
        return changed == 1

    def decision(self, run: str) -> Decision | None:
        query = "select * from requests where run = ? and approved >= 0"
        with self.intact():
            for row in self._execute(query, run):
                return Decision(
                    bool(row["approved"]),
                    row["reason"],
                    row["words"],
                    row["digest"],
                    json.loads(row["seen"]),
                    row["decided_by"] or "",
                    row["decided_at"] or "",
                    bool(row["noted"]),
                )
            return None

    def mark_noted(self, run: str) -> None:
        """The ledger has the decision."""
        self._execute("update requests set noted = 1 where run = ?", run)

    def close_request(self, run: str) -> None:
        """End the wait; the decision stays, for an agent that restarts."""
        self._execute("update requests set waits = 0 where run = ?", run)

    def clear(self, run: str) -> None:
        """End the wait, and drop the decision."""
        self._execute("update requests set waits = 0, approved = null where run = ?", run)

    def write_status(self, status: dict[str, Any]) -> None:
        text = json.dumps({**status, "updated_at": timestamp()})
        self._execute("replace into status values (1, ?)", text)

    def append_history(self, entry: dict[str, Any]) -> None:
        with self.database() as db:
            text = json.dumps({"at": timestamp(), **entry})
            added = db.execute("insert into history (entry) values (?)", (text,))
            oldest = (added.lastrowid or 0) - MOST_HISTORY
            db.execute("delete from history where number <= ?", (oldest,))

    def keep_standing(self, plan: Plan) -> None:
        """Keep a standing plan that every site agreed to, until another one of its study."""
        text = json.dumps(plan.to_dict())
        self._execute("replace into standing values (?, ?)", plan.study, text)

    def standing(self, study: str = "") -> Plan:
        """The standing plan of a study, or the only one."""
        plans = dict(map(tuple, self._execute("select study, plan from standing order by study")))
        asked = [name for name in plans if study in ("", name)]
        if len(asked) != 1:
            raise UsageError(
                f"name one standing study of this site: {', '.join(plans) or 'there is none'}. A"
                " run of a scoring study with standing = true makes one."
            )
        return plan_from_dict(json.loads(plans[asked[0]]))

    def standing_studies(self) -> list[str]:
        return [str(row["study"]) for row in self._execute("select study from standing order by 1")]

    # --- the operator's side ----------------------------------------------------------------------

    def status(self) -> dict[str, Any] | None:
        for row in self._execute("select status from status"):
            status: dict[str, Any] = json.loads(row["status"])
            return status
        return None

    def pending(self) -> list[dict[str, Any]]:
        """What waits for a decision, in the order in which it was asked."""
        return [
            {key: row[key] for key in ("digest", "words", "asked", "expires")}
            | {key: json.loads(row[key]) for key in ("about", "plan")}
            for row in self._execute("select * from requests where waits order by asked, run")
        ]

    def pending_run(self, prefix: str) -> tuple[str, dict[str, Any]]:
        """The name of the one pending run that begins with this prefix, and its request."""
        pending = {str(entry["plan"]["run"]): entry for entry in self.pending()}
        runs = [run for run in pending if run.startswith(prefix)]
        if len(runs) != 1:
            raise UsageError(
                f"{len(runs) or 'no'} pending runs begin with {prefix!r}. `coreg-agent pending`"
                " lists them, `coreg-agent status` and `coreg-agent runs` the others."
            )
        return runs[0], pending[runs[0]]

    def record_decision(self, run: str, request: dict[str, Any], decision: Decision) -> None:
        """Approve or refuse what the operator saw of a pending run: ``request`` of `pending_run`.

        What changed since is judged and asked again. UsageError: the run no longer waits.
        """
        counted = self._execute(
            "update requests set approved = ?, reason = ?, seen = ?, decided_by = ?,"
            " decided_at = ?, noted = 0 where run = ? and digest = ? and waits returning run",
            decision.approved,
            decision.reason,
            json.dumps(request["about"]),
            decision.by,
            timestamp(),
            run,
            request["digest"],
        )
        if not counted:
            raise UsageError(f"run {run} does not wait any more, and nothing was decided.")

    def history(self) -> list[dict[str, Any]]:
        """The ended runs, the latest last."""
        rows = self._execute("select entry from history order by number")
        return [json.loads(row["entry"]) for row in rows]
