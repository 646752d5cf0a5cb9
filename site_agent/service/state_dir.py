"""The folder in which a serving agent and its operator's commands exchange files; only their owner
can read it.

STATE/status.json: the agent's status. STATE/pending/RUN.json: a plan that waits for approval.
STATE/decisions/RUN.json: the decision. STATE/asked/RUN.json: what was shown of it.
STATE/standing/STUDY.json: a standing plan.
STATE/history.jsonl: a line for each run that ended here.
"""

import contextlib
import datetime as dt
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coreg_core.errors import StorageError, UsageError
from coreg_core.names import check_name
from coreg_core.plan import Plan, plan_from_dict
from coreg_wire.clock import timestamp, utc_now
from coreg_wire.files.disk import Disk

MOST_ASKED = 1000  # runs whose plan and members are remembered
MOST_HISTORY = 16 << 20  # bytes


@dataclass(frozen=True)
class Decision:
    """The operator's decision on a run; ``words``, ``digest`` and ``about``: of the members, and of
    the plan, as shown.
    """

    approved: bool
    reason: str
    words: str = ""
    digest: str = ""
    about: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class StateDir:
    """See the module's docstring. Every method can raise `StorageError`."""

    folder: Path
    disk: Disk = field(default_factory=Disk)

    def open(self) -> None:
        """Make the folders.

        Requests of an earlier process go: the coordinator proposes the plans of open runs again.
        """
        try:
            for name in ("pending", "decisions", "asked", "standing"):
                self.disk.make_folder(self.folder / name)
            for path in (self.folder / "pending").glob("*.json"):
                self.disk.remove(path)
        except OSError as error:
            raise StorageError(f"{self.folder}: cannot be created ({error.strerror}).") from None

    # --- the agent's side -------------------------------------------------------------------------

    def request_approval(
        self,
        run: str,
        plan: dict[str, Any],
        about: Mapping[str, str] | None = None,
        seconds: float = 0.0,
        words: str = "",
        digest: str = "",
    ) -> bool:
        """Ask the operator: the plan by heading, unconfirmed ``words``, and ``seconds`` until it
        expires (0: never).
        """
        expires = None if seconds <= 0 else (utc_now() + dt.timedelta(seconds=seconds)).isoformat()
        shown = {"digest": digest, "words": words}
        asked = self._file("asked", run)
        if (before := _read(asked)) is not None and any(
            before[key] != value for key, value in shown.items()
        ):
            return False  # what the operator approves by this name must not change
        shown |= before or {
            "asked": timestamp(),
            "expires": expires,
        }  # the coordinator's deadline stays
        self._write(asked, shown)
        entry = {**shown, "about": dict(about or {}), "plan": plan}
        for old in sorted(asked.parent.glob("*.json"), key=lambda path: -path.stat().st_mtime)[
            MOST_ASKED:
        ]:
            self.disk.remove(old)
        self._write(self._file("pending", run), entry)
        return True

    def decision(self, run: str) -> Decision | None:
        found = _read(self._file("decisions", run))
        if found is None:
            return None
        reason, words, digest = (str(found[key]) for key in ("reason", "words", "digest"))
        return Decision(bool(found["approved"]), reason, words, digest, found.get("about", {}))

    def close_request(self, run: str) -> None:
        """Remove the request; the decision stays, for an agent that restarts."""
        with contextlib.suppress(UsageError):  # a run with an invalid name has no file here
            self.disk.remove(self._file("pending", run))

    def clear(self, run: str) -> None:
        with contextlib.suppress(UsageError):  # a run with an invalid name has no file here
            for what in ("pending", "decisions"):
                self.disk.remove(self._file(what, run))

    def write_status(self, status: dict[str, Any]) -> None:
        self._write(self.folder / "status.json", {**status, "updated_at": timestamp()})

    def append_history(self, entry: dict[str, Any]) -> None:
        """Add an entry; of a file that has become large the newer half stays."""
        path = self.folder / "history.jsonl"
        try:
            if path.exists() and path.stat().st_size > MOST_HISTORY:
                lines = path.read_bytes().splitlines(keepends=True)
                self.disk.write_whole(path, b"".join(lines[len(lines) // 2 :]))
            torn = path.exists() and not _ends_with_newline(
                path
            )  # the agent was killed during the last write
            file = self.disk.append_to(path)
            file.write(b"\n" * torn + json.dumps({"at": timestamp(), **entry}).encode() + b"\n")
            file.close()
        except OSError as error:
            raise StorageError(f"{self.folder}: cannot be written ({error.strerror}).") from None

    def keep_standing(self, plan: Plan) -> None:
        """Keep a standing plan that every site agreed to, until another one of its study."""
        self._write(self._file("standing", plan.study), plan.to_dict())

    def standing(self, study: str = "") -> Plan:
        """The standing plan of a study, or the only one."""
        names = [path.stem for path in sorted((self.folder / "standing").glob("*.json"))]
        asked = [name for name in names if study in ("", name)]
        if len(asked) != 1:
            raise UsageError(
                f"name one standing study of this site: {', '.join(names) or 'there is none'}. A"
                " run of a scoring study with standing = true makes one."
            )
        return plan_from_dict(_read(self._file("standing", asked[0])) or {})

    # --- the operator's side ----------------------------------------------------------------------

    def status(self) -> dict[str, Any] | None:
        return _read(self.folder / "status.json")

    def pending(self) -> list[dict[str, Any]]:
        found = [_read(path) for path in (self.folder / "pending").glob("*.json")]
        return sorted(
            (entry for entry in found if entry is not None), key=lambda entry: str(entry["asked"])
        )

    def pending_run(self, prefix: str) -> tuple[str, dict[str, Any]]:
        """The name of the one pending run that begins with this prefix, and its request."""
        pending = {str(entry["plan"]["run"]): entry for entry in self.pending()}
        found = [run for run in pending if run.startswith(prefix)]
        if len(found) != 1:
            raise UsageError(
                f"{len(found) or 'no'} pending runs begin with {prefix!r}. `coreg-agent pending`"
                " lists them, `coreg-agent status` and `coreg-agent runs` the others."
            )
        [run] = found
        return run, pending[run]

    def record_decision(self, prefix: str, decision: Decision) -> tuple[str, str]:
        """Approve or refuse a pending run.

        Returns the run's name, and the eight words that this confirms or refuses.
        """
        run, request = self.pending_run(prefix)
        entry = {"approved": decision.approved, "reason": decision.reason, "at": timestamp()}
        entry |= {key: request[key] for key in ("words", "digest", "about")}
        self._write(self._file("decisions", run), entry)
        return run, str(entry["words"])

    def history(self) -> Iterator[dict[str, Any]]:
        try:
            with (self.folder / "history.jsonl").open(encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    # An incomplete line of an agent that was killed.
                    with contextlib.suppress(ValueError, RecursionError):
                        yield json.loads(line)
        except FileNotFoundError:
            return

    def _file(self, what: str, run: str) -> Path:
        return self.folder / what / f"{check_name(run, 'run')}.json"

    def _write(self, path: Path, value: dict[str, Any]) -> None:
        self.disk.write_whole(path, json.dumps(value).encode() + b"\n")


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        if file.seek(0, 2) == 0:
            return True
        file.seek(-1, 2)
        return file.read(1) == b"\n"


def _read(path: Path) -> dict[str, Any] | None:
    try:
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise StorageError(f"{path}: cannot be read ({error}). Move it away.") from None
    return value
