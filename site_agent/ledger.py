"""The disclosure ledger: an append-only, hash-chained JSONL file of everything that this agent sent.

Knows messages and one file. Each line carries the hash of the line before it, so a line that is changed, removed or
put in later breaks the chain from there on; the last line, which no other follows, and lines that are cut off the end do
not show. An entry is on disk, and not in the system's memory alone, before its message is on the wire.

It is also what the site remembers of its answers over restarts (`recall`): how many it gave to a plan on a set of instances,
and which of them could become a run's result.
"""

import datetime as dt
import fcntl
import hashlib
import json
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, assert_never

from coreg_core.additive.grouping import Group
from coreg_core.additive.memory import SiteMemory
from coreg_core.additive.terms import Residuals
from coreg_core.errors import BadData, StorageError
from coreg_core.messages import (
    Ask,
    Fault,
    Fetched,
    FromSite,
    Hello,
    Inquiry,
    Leaving,
    Masked,
    PlanAccepted,
    PlanRefused,
    Prediction,
    Share,
)
from coreg_core.plan import Additive, Plan
from coreg_core.rounds.columns import Column
from coreg_wire.files import is_locked
from site_agent import disclosures
from site_agent.day import ANSWERS, Day, day_of
from site_agent.jobs.differencing import SummedWith
from site_agent.jobs.remembered import Remembered, Verified
from site_agent.jobs.training import digest_of

GENESIS = "0" * 64


@dataclass(frozen=True)
class Disclosed:
    """What left, by kind: messages, and numbers that depend on labels or features."""

    messages: int
    numbers: int


class Ledger:
    """See the module's docstring."""

    def __init__(self, path: Path):
        self.path = path
        self._turn = threading.Lock()  # several runs answer at once, and the chain is one
        self.sent: dict[str, Disclosed] = {}
        self.label_bearing = Disclosed(0, 0)  # vectors in which labels are
        self._day: Day | None = None
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            self._file = os.fdopen(descriptor, "ab", buffering=0)
            self._lock()
            last = _last_line(path)
            # A line torn by a crash is kept, closed, and chained like any other: nothing is ever removed.
            self._previous = GENESIS if last is None else hashlib.sha256(last).hexdigest()
            if last is not None and not _ends_whole(path):
                self._file.write(b"\n")
        except OSError as error:
            raise StorageError(f"{path}: the ledger cannot be written ({error.strerror}); nothing was sent.") from None

    def _lock(self) -> None:
        """Two agents that append to one chain break it for good. The system lifts the lock, however the agent ends."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise StorageError(
                f"{self.path}: another agent of this site is running and writes it. Let it go on, or end it first."
            ) from None

    def record(self, message: FromSite, ask: Ask | Inquiry | None = None, remembered: Remembered | None = None) -> None:
        """Write down a message that is about to leave.

        Parameters
        ----------
        message
            what leaves.
        ask
            the question that it answers.
        remembered
            what the site has to know of the run to go on in another process; of it, what does not follow from the entries
            stands in the entry as ``kept``, and is not sent.
        """
        with self._turn:
            self._record(message, ask, remembered)

    def _record(self, message: FromSite, ask: Ask | Inquiry | None, remembered: Remembered | None) -> None:
        at = dt.datetime.now(dt.UTC)
        entry = {"at": at.isoformat(timespec="milliseconds"), **_describe(message, ask)}
        if isinstance(message, Share | Masked) and isinstance(ask, Inquiry):
            residuals: Residuals = "smoothed" if remembered is None else remembered.residuals
            entry |= {"what": disclosures.words(ask, residuals), "labels": disclosures.labels_in(ask)}
        if isinstance(message, Share | Masked) and remembered is not None and remembered.kept is not None:
            entry["kept"] = remembered.kept.to_json()
            if remembered.fresh:
                entry["groups"] = [list(group) for group in remembered.fresh]
        if isinstance(message, Masked) and remembered is not None:
            entry |= {"participants": list(remembered.participants), "may_change": remembered.may_change}
        line = json.dumps({**entry, "previous": self._previous}, sort_keys=True).encode()
        try:
            self._file.write(line + b"\n")
            os.fsync(self._file.fileno())  # a quarter of a millisecond on the disks that we measured
        except OSError as error:
            raise StorageError(
                f"{self.path}: the ledger cannot be written ({error.strerror}); nothing was sent."
            ) from None
        self._previous = hashlib.sha256(line).hexdigest()
        kind = type(message).__name__
        if self._day is not None:
            self._day.note(kind, str(entry.get("run")), at)
        before = self.sent.get(kind, Disclosed(0, 0))
        numbers = int(entry.get("numbers", 0))
        self.sent[kind] = Disclosed(before.messages + 1, before.numbers + numbers)
        if entry.get("labels") == "in the vectors" or (isinstance(ask, Ask) and entry.get("part") == "affine"):
            before = self.label_bearing
            self.label_bearing = Disclosed(before.messages + 1, before.numbers + numbers)

    def objection(self, run: str | None, most: int) -> str | None:
        """Why not another run, or (None) not another answer, where so many a day are allowed; counted over restarts.

        Raises
        ------
        StorageError
            the file cannot be read.
        """
        with self._turn:
            now = dt.datetime.now(dt.UTC)
            if self._day is None:
                self._day = day_of_file(self.path, now)
            day = self._day
            return day.answer_objection(most, now) if run is None else day.run_objection(run, most, now)

    def close(self) -> None:
        """No more entries."""
        self._file.close()


def day_of_file(path: Path, now: dt.datetime) -> Day:
    """The last 24 hours of a ledger; of one that is not there, nothing.

    Raises
    ------
    StorageError
        the file cannot be read.
    """
    try:
        with path.open("rb") as lines:
            return day_of(lines, now)
    except FileNotFoundError:
        return Day()
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror}).") from None


def is_written(path: Path) -> bool:
    """Whether an agent of this site is running: it holds its ledger."""
    return is_locked(path)


def _describe(message: FromSite, ask: Ask | Inquiry | None) -> dict[str, Any]:
    kind = type(message).__name__
    match message:
        case Hello():
            return {"kind": kind, "protocol": message.protocol, "release": message.release}
        case PlanAccepted():
            told = {
                "bound": message.bound,
                "squared_norm": message.squared_norm,
                "rounding": message.rounding,
                "threads": message.threads,
            }
            instances = {"n_unlabelled": message.n_unlabelled, "ids_digest": message.ids_digest}
            digests = {"data_digest": message.data_digest, "plan": message.plan_digest}
            numbers = 3 if message.bound or message.squared_norm or message.rounding else 0
            return {"kind": kind, "run": message.run, "numbers": numbers, **told, **instances, **digests}
        case PlanRefused():
            return {"kind": kind, "run": message.run, "text": message.reason}
        case Prediction():
            sent = {"numbers": message.values.values.size, "sha256": message.values.digest, "sent": "in clear"}
            return {"kind": kind, **_where(message), **sent, **(_question(ask) if isinstance(ask, Ask) else {})}
        case Share():
            values, scalars = message.values, len(message.scalars)
            numbers = scalars + (0 if values is None else values.values.size)
            sent = {"numbers": numbers, "scalars": scalars, "sha256": None if values is None else values.digest}
            asked = _inquiry(ask) if isinstance(ask, Inquiry) else {}
            return {"kind": kind, **_where(message), **sent, "sent": "in clear", **asked}
        case Masked():
            sent = {"numbers": message.words.values.size, "sha256": message.words.digest, "sent": "masked"}
            asked = _question(ask) if isinstance(ask, Ask) else _inquiry(ask) if isinstance(ask, Inquiry) else {}
            return {"kind": kind, **_where(message), **sent, **asked}
        case Fault():
            return {"kind": kind, **_where(message), "text": message.reason}
        case Fetched():
            return {"kind": kind, "run": message.run}
        case Leaving():
            return {"kind": kind, "text": message.reason}
        case _:
            assert_never(message)


def _where(message: Prediction | Share | Masked | Fault) -> dict[str, Any]:
    return {"run": message.run, "question": message.question, "attempt": message.attempt}


def _question(ask: Ask) -> dict[str, Any]:
    columns = [[column.coupling, column.weight] for column in ask.columns]
    return {"part": ask.part, "target": ask.targets.digest, "columns": columns, "verifies": ask.verifies}


def _inquiry(ask: Inquiry) -> dict[str, Any]:
    target = None if ask.targets is None else ask.targets.digest
    return {"question_kind": ask.kind.name, "part": ask.part, "step": ask.step, "target": target, "asked": ask.digest}


def recall(path: Path, plan: Plan, ids_digest: str) -> Remembered:
    """What the ledger tells of this plan on the instances of that digest, and of this run of it.

    Raises
    ------
    StorageError
        the file cannot be read.
    """
    plans: dict[str, tuple[Any, Any]] = {}
    found, groups, matching = Remembered(), set[Group](), set[bytes]()
    for entry in _entries(path, matching):
        run, kind = entry.get("run"), entry.get("kind")
        groups.update(tuple(group) for group in entry.get("groups", ()))  # of every plan and run
        if kind == "PlanAccepted":
            plans[str(run)] = (entry.get("plan"), entry.get("ids_digest"))
            if plans[str(run)] == (plan.digest, ids_digest):
                matching.add(json.dumps(str(run))[1:-1].encode())
        elif kind not in ANSWERS or plans.get(str(run)) != (plan.digest, ids_digest):
            continue
        elif run != plan.run:
            found = replace(found, answered=found.answered + 1)
        else:
            found = _after(found, entry)
    mine: Residuals = plan.objective.residuals if isinstance(plan.objective, Additive) else "smoothed"
    return replace(found, groups=frozenset(groups), residuals=mine)


def _after(found: Remembered, entry: dict[str, Any]) -> Remembered:
    """What a site remembers once it has given the answer of that entry."""
    number, told = (entry["question"], entry["attempt"]), {"participants": tuple(entry.get("participants", ()))}
    if "question_kind" in entry:
        verified = Verified(entry["target"], ()) if entry["question_kind"] == "MODEL" else None
        kept = SiteMemory.from_json(entry["kept"]) if "kept" in entry else None
        return found.after(number, entry["asked"], verified, kept=kept, **told)
    columns = tuple(Column(*column) for column in entry["columns"])
    verified = Verified(entry["target"], columns) if entry["verifies"] else None
    return found.after(number, digest_of(entry["part"], entry["target"], columns), verified, **told)


def summed_with(path: Path, ids_digest: str) -> frozenset[SummedWith]:
    """Every set of sites whose sum an answer on these instances went into, in any run of any plan.

    Raises
    ------
    StorageError
        the file cannot be read.
    """
    runs, found, matching = dict[str, Any](), set[SummedWith](), set[bytes]()
    for entry in _entries(path, matching):
        run = str(entry.get("run"))
        if entry.get("kind") == "PlanAccepted":
            runs[run] = entry.get("ids_digest")
            if runs[run] == ids_digest:
                matching.add(json.dumps(run)[1:-1].encode())
        elif entry.get("kind") == "Masked" and runs.get(run) == ids_digest:
            found.add(SummedWith(frozenset(entry["participants"]), bool(entry["may_change"])))
    return frozenset(found)


# As `Ledger.record` writes it; a text that holds it holds it with its quotes escaped.
_RUN = re.compile(rb'"run": "((?:[^"\\]|\\.)*)"')


def _entries(path: Path, matching: set[bytes]) -> Iterator[dict[str, Any]]:
    """Every line that is an entry; one that was torn by a crash was never followed by its message.

    Of an agent that stays, most lines are answers to other plans: they are told by their run, and not read further.
    ``matching`` are the runs that matter, as JSON has them, and grows while this goes on.
    """
    try:
        with path.open("rb") as lines:
            for line in lines:
                told = b'"PlanAccepted"' in line or b'"groups"' in line
                if not (told or any(run in matching for run in _RUN.findall(line))):
                    continue
                try:
                    entry = json.loads(line)
                except ValueError:
                    continue
                if isinstance(entry, dict):
                    yield entry
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror}).") from None


def read_ledger(path: Path) -> Iterator[dict[str, Any]]:
    """Every entry, in order, the chain checked on the way.

    Raises
    ------
    BadData
        a line is not JSON, or the chain is broken; says which line.
    StorageError
        the file cannot be read.
    """
    previous = GENESIS
    try:
        with path.open("rb") as lines:
            closed = 0  # a torn line that was ended, and that nothing has followed yet
            for number, line in enumerate(lines, start=1):
                whole, line = line.endswith(b"\n"), line.rstrip(b"\n")
                try:
                    entry = json.loads(line)
                except ValueError:
                    # Torn by a crash or a full disk: nothing was sent with it. The next line is chained to it as it stands, so
                    # that it was nothing else shows there.
                    previous, closed = hashlib.sha256(line).hexdigest(), number if whole else 0
                    yield {
                        "at": "",
                        "kind": "torn",
                        "line": number,
                        "previous": "",
                        "text": "not an entry; nothing was sent",
                    }
                    continue
                if not isinstance(entry, dict) or entry.get("previous") != previous or not {"at", "kind"} <= set(entry):
                    raise BadData(f"{path}, line {number}: the chain is broken; a line was changed, removed or put in.")
                previous, closed = hashlib.sha256(line).hexdigest(), 0
                yield entry
            if closed:  # an agent that ends a torn line writes the next one at once
                raise BadData(
                    f"{path}, line {closed}: not a ledger entry, and nothing is chained to it; it was changed."
                )
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror}).") from None


def _last_line(path: Path) -> bytes | None:
    if not path.exists() or path.stat().st_size == 0:
        return None
    with path.open("rb") as file:
        size, reach = file.seek(0, os.SEEK_END), 65536
        while True:  # a refusal's text is as long as it is
            file.seek(max(0, size - reach))
            _, newline, last = file.read().rstrip(b"\n").rpartition(b"\n")
            if newline or reach >= size:
                return last
            reach *= 8


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
