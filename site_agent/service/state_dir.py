"""Where an agent that serves and its operator leave each other word: a folder of small files, for their owner alone.

STATE/status.json is what the agent is doing; STATE/pending/RUN.json a plan that waits for consent, and
STATE/decisions/RUN.json what was decided; STATE/history.jsonl a line for each run that ended here.
"""

import contextlib
import datetime as dt
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coreg_core.errors import StorageError, UsageError
from coreg_wire.files.files import write_whole
from coreg_wire.identity.names import check_study_name


def now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True)
class Decision:
    """What the operator said of a run."""

    approved: bool
    reason: str


@dataclass(frozen=True)
class Desk:
    """See the module's docstring."""

    folder: Path

    def open(self) -> None:
        """Make the folder.

        Raises
        ------
        StorageError
            it cannot be made.
        """
        try:
            for name in ("pending", "decisions"):
                (self.folder / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise StorageError(f"{self.folder}: cannot be made ({error.strerror}).") from None

    # --- the agent's side -----------------------------------------------------------------------------------------

    def ask(self, run: str, plan: dict[str, Any]) -> None:
        """Put a plan before the operator."""
        _write(self._file("pending", run), {"asked": now(), "plan": plan})

    def decision(self, run: str) -> Decision | None:
        """What the operator said of it; None so far."""
        said = _read(self._file("decisions", run))
        return None if said is None else Decision(bool(said["approved"]), str(said["reason"]))

    def clear(self, run: str) -> None:
        """The run is over, or not put to this site any more."""
        for what in ("pending", "decisions"):
            with contextlib.suppress(FileNotFoundError):
                self._file(what, run).unlink()

    def answered(self, run: str) -> None:
        """It does not wait any more; the decision stays, for an agent that is started again."""
        with contextlib.suppress(FileNotFoundError):
            self._file("pending", run).unlink()

    def tell(self, status: dict[str, Any]) -> None:
        """What the agent is doing now."""
        _write(self.folder / "status.json", {**status, "told": now()})

    def over(self, entry: dict[str, Any]) -> None:
        try:
            descriptor = os.open(self.folder / "history.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with os.fdopen(descriptor, "a", encoding="utf-8") as file:
                if file.tell() and not (self.folder / "history.jsonl").read_bytes().endswith(b"\n"):
                    file.write("\n")  # of an agent that was killed
                file.write(json.dumps({"at": now(), **entry}) + "\n")
        except OSError as error:
            raise StorageError(f"{self.folder}: cannot be written ({error.strerror}).") from None

    # --- the operator's side --------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any] | None:
        return _read(self.folder / "status.json")

    def pending(self) -> list[dict[str, Any]]:
        """The plans that wait for consent, the oldest first."""
        found = [_read(path) for path in (self.folder / "pending").glob("*.json")]
        return sorted((entry for entry in found if entry is not None), key=lambda entry: str(entry["asked"]))

    def decide(self, beginning: str, decision: Decision) -> str:
        """Say yes or no to a run that waits; its whole name.

        Raises
        ------
        UsageError
            no run that waits, or several, begin so.
        """
        waiting = [str(entry["plan"]["run"]) for entry in self.pending()]
        found = [run for run in waiting if run.startswith(beginning)]
        if len(found) != 1:
            raise UsageError(f"{len(found)} waiting runs begin with {beginning!r}; `coreg-agent pending` lists them.")
        said = {"approved": decision.approved, "reason": decision.reason, "at": now()}
        _write(self._file("decisions", found[0]), said)
        return found[0]

    def history(self) -> Iterator[dict[str, Any]]:
        """The runs that ended here, the oldest first."""
        try:
            with (self.folder / "history.jsonl").open(encoding="utf-8") as lines:
                for line in lines:
                    with contextlib.suppress(ValueError):  # the last line of an agent that was killed
                        yield json.loads(line)
        except FileNotFoundError:
            return

    def _file(self, what: str, run: str) -> Path:
        return self.folder / what / f"{check_study_name(run, 'run')}.json"


def _write(path: Path, value: dict[str, Any]) -> None:
    write_whole(path, json.dumps(value).encode() + b"\n", mode=0o600)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StorageError(f"{path}: cannot be read ({error}). Move it away.") from None
    return value
