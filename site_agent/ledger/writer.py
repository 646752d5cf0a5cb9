"""The ledger's writer: one process, one line at a time, synced to disk before its message leaves.

Opening the ledger verifies its chain: the agent's memory is read from these lines, so a changed ledger is refused.
`entries.py` defines the lines, and `replay.py` the memory.
"""

import contextlib
import datetime as dt
import hashlib
import json
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from coreg_core.errors import StorageError
from coreg_core.protocol.messages import Countersigned, Fetched, FromSite, LedgerHead, Offer
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan
from coreg_wire.clock import utc_now
from coreg_wire.files.disk import AppendFile, Disk
from coreg_wire.files.locks import exclusive
from site_agent.ledger.entries import Disclosed, countersigned, entry_for
from site_agent.ledger.files import (
    CONTINUED,
    GENESIS,
    MARK,
    archive_of,
    archives,
    carried_bytes,
    entry_of,
    hash_of,
    last_hash,
    read_lines,
    readable,
)
from site_agent.ledger.operators import OperatorRecords
from site_agent.ledger.quota import DAY, RollingQuota
from site_agent.ledger.replay import KnownAs, Memory, carried_memory
from site_agent.ledger.signing import HeadSigner
from site_agent.machine.differencing import Promises, SummedWith
from site_agent.machine.memory import Remembered, Told

MAX_BYTES = 1 << 26  # of one file
MAX_AWAITED = 256  # heads that can wait for a countersignature
IN_USE = "another agent of this site is running in this folder and writes it. Keep that agent, or end it first."


class Ledger:
    """The ledger of one site; see the package's docstring.

    Parameters
    ----------
    path
        of the current file.
    signer
        signs the head at each run's end; None without TLS.
    max_bytes
        size at which the file becomes an archive, without the memory on its first line.
    disk, now
        the files and the clock of this process.

    Raises
    ------
    StorageError
        the ledger was changed, cannot be written, or another agent of this site writes it.
    """

    def __init__(
        self,
        path: Path,
        signer: HeadSigner | None = None,
        max_bytes: float = MAX_BYTES,
        *,
        disk: Disk | None = None,
        now: Callable[[], dt.datetime] = utc_now,
    ):
        self.path, self.signer, self.new = path, signer, not path.exists()
        self._disk, self._now, self._max_bytes = disk or Disk(), now, max_bytes
        self._lock = threading.Lock()  # several runs write to one chain
        self.sent: dict[str, Disclosed] = {}
        self.label_bearing = Disclosed(0, 0)  # vectors that depend on labels
        self.operators = operators_of(path, disk)
        self.promises = Promises()  # sets of sites reserved by open runs of this process
        self._known_as: dict[str, KnownAs] = {}
        self._signed: dict[str, Fetched] = {}  # sent heads without a countersignature, by run
        self._memory, self._quota = Memory(), RollingQuota()
        self._previous, self._lines, self._bytes = GENESIS, 0, 0
        self._failed = ""  # the reason of a failed write: how much of its line is on the disk is not known
        self._held = contextlib.ExitStack()
        try:
            self._held.enter_context(exclusive(path, IN_USE))
            self._file = self._opened()
        except OSError as error:
            self.close()
            raise StorageError(f"{path}: the ledger cannot be written ({error.strerror}); nothing was sent.") from None
        except StorageError:
            self.close()
            raise

    def _opened(self) -> AppendFile:
        """Open the current file and verify its chain; remove remnants of an interrupted rotation."""
        self._disk.remove(_next(self.path))
        end = b""
        if not self.new:
            for archive in archives(self.path).values():
                if archive.samefile(self.path):
                    self._disk.remove(archive)
            end = self._read()
            self._bytes = self.path.stat().st_size - carried_bytes(self.path)
        file = self._disk.append_to(self.path)
        if end:  # a line torn by a crash is marked and stays in the chain: no line is ever removed
            file.write(end)
            self._previous = last_hash(self.path)
        return file

    def _read(self) -> bytes:
        """Verify the chain, and load memory and quota from the lines. Returns what the last line lacks."""
        begun, end, now = False, b"", self._now()
        carried = carried_memory(self.path)
        if carried is not None:
            count_files(self._quota, reversed(archives(self.path).values()), now)
        for line in read_lines(self.path, only_last=carried is not None or not archives(self.path)):
            with readable(line.path, line.number):
                if not begun and carried is not None:
                    self._memory = carried
                elif not line.torn:
                    self._memory.add(line.entry)
                if not line.torn:
                    self._quota.add(line.entry)
            begun = True
            self._previous, self._lines = line.sha256, line.since
            end = b"" if line.whole else MARK * line.torn + b"\n"
        self._quota.forget_before(now)
        return end

    # --- writing --------------------------------------------------------------------------------------------------

    def record(self, message: FromSite, told: Told | None = None, outcome: Outcome | None = None) -> FromSite:
        """Write the line for a message before it leaves. Returns the message to send, with a signed head if it has one.

        Parameters
        ----------
        message
            the message.
        told
            the disclosure of an answer with numbers.
        outcome
            the run's, beside the confirmation of its end.

        Raises
        ------
        StorageError
            the line cannot be written: the message must not leave.
        """
        with self._lock:
            self._rotate_beyond_size()
            beside, signer = {}, self.signer  # a new session can replace the signer
            if isinstance(message, Fetched) and signer is not None and not message.signature:
                head = LedgerHead(self._lines, self._previous, _time(self._now()))  # everything before this line
                message = replace(message, head=head, signature=signer.sign(message.run, head))
                beside = {"certificate": signer.certificate}
                self._signed[message.run] = message
                if len(self._signed) > MAX_AWAITED:
                    del self._signed[next(iter(self._signed))]
            elif isinstance(message, Offer) and message.ids_digest in self._known_as:
                beside = {"instances": self._known_as[message.ids_digest][0]}
            if told is not None and told.fresh:
                told = replace(told, fresh=self._memory.untold(told.fresh))
            if outcome is not None:
                beside["outcome"] = outcome.name
            entry = entry_for(message, told) | beside
            self._write(entry)
            self._count(type(message).__name__, entry)
            return message

    def awaits(self, run: str, head: LedgerHead) -> bool:
        """Whether that head was sent and is not countersigned yet. It takes no lock: another thread can be at the disk."""
        sent = self._signed.get(run)
        return sent is not None and sent.head == head

    def compare(self, head: LedgerHead) -> None:
        """Compare with the last head of this ledger that the coordinator countersigned.

        Raises
        ------
        StorageError
            this ledger is an older copy, or another one.
        """
        with self._lock:
            lines = self._lines
        fault = f"it has {lines} lines, and the coordinator countersigned {head.lines}" if head.lines > lines else ""
        if not fault and head.lines and hash_of(self.path, head.lines) not in (None, head.last):
            fault = f"its line {head.lines} is not the one that the coordinator countersigned"
        if fault:
            raise StorageError(
                f"{self.path}: an older copy of this site's ledger, or another one: {fault}. This site would not know what it "
                "has answered. Do not answer with it: see docs/how-to/back-up-and-restore.md."
            )

    def countersigned(self, receipt: Countersigned) -> str | None:
        """Write the countersignature of a head. Returns the reason if it is not valid and was not written.

        Raises
        ------
        StorageError
            the line cannot be written.
        """
        with self._lock:
            fetched, signer = self._signed.pop(receipt.run, None), self.signer
            if fetched is None or signer is None:
                return f"received a countersignature for run {receipt.run} without a signed head"
            if not receipt.signature:
                return f"the coordinator did not countersign the head of this ledger: {receipt.reason}"
            fault = "it is for another head" if receipt.head != fetched.head else None
            fault = fault or signer.fault(fetched.signature, receipt)
            if fault is not None:
                return (
                    f"the coordinator's countersignature for run {receipt.run} is not valid and was not kept: {fault}"
                )
            self._write(countersigned(receipt))
            return None

    def _write(self, entry: dict[str, Any]) -> None:
        entry = {"at": _time(self._now()), **entry}
        line = _line(entry, self._previous)
        if not self._failed:
            try:
                self._file.write(line + b"\n")
            except OSError as error:
                self._failed = str(error.strerror)
        if self._failed:  # a line of another run after a half one would break the chain
            raise StorageError(f"{self.path}: the ledger cannot be written ({self._failed}); nothing was sent.")
        self._wrote(line)
        self._memory.add(entry)
        self._quota.add(entry)

    def _wrote(self, line: bytes) -> None:
        self._previous = hashlib.sha256(line).hexdigest()
        self._lines, self._bytes = self._lines + 1, self._bytes + len(line) + 1

    def _count(self, kind: str, entry: dict[str, Any]) -> None:
        before, numbers = self.sent.get(kind, Disclosed(0, 0)), int(entry.get("numbers", 0))
        self.sent[kind] = Disclosed(before.messages + 1, before.numbers + numbers)
        if entry.get("labels") == "in the vectors":
            before = self.label_bearing
            self.label_bearing = Disclosed(before.messages + 1, before.numbers + numbers)

    def _rotate_beyond_size(self) -> None:
        """Archive the file, and continue in another whose first line carries its hash and the memory.

        The ledger's name refers to a complete file at all times: the next file is written under a temporary name, the old
        one gets the archive's name as a second link, and then the next one replaces it. Without hard links the file grows.
        """
        if self._bytes < self._max_bytes:
            return
        archive = archive_of(self.path, max(archives(self.path), default=0) + 1)
        carried = {"after": archive.name, "lines": self._lines, "carried": self._memory.to_json()}
        line = _line({"at": _time(self._now()), "kind": CONTINUED, **carried}, self._previous)
        with contextlib.ExitStack() as undo:
            try:
                undo.callback(self._disk.remove, _next(self.path))
                self._disk.remove(_next(self.path))
                following = self._disk.append_to(_next(self.path))
                undo.callback(following.close)
                following.write(line + b"\n")
                self._disk.link(self.path, archive)
                undo.callback(self._disk.remove, archive)
                self._disk.replace(_next(self.path), self.path)
            except OSError:
                self._max_bytes = inf  # no data is lost: this process continues in the current file
                return
            undo.pop_all()
        self._file.close()
        self._file = following
        self._wrote(line)
        self._bytes = 0  # without the carried memory: otherwise a large memory would cause endless rotations
        self._disk.sync_folder(self.path.parent)

    # --- memory ---------------------------------------------------------------------------------------------------

    def recall(self, plan: Plan, ids_digest: str) -> Remembered:
        """The records of this plan on the instances of that digest."""
        with self._lock:
            return self._memory.recall(plan, self._names(ids_digest))

    def fetched(self, run: str) -> Outcome | None:
        """See `Memory.fetched`."""
        with self._lock:
            return self._memory.fetched(run)

    def summed_with(self, ids_digest: str) -> frozenset[SummedWith]:
        """Every set of sites that an answer on these instances was summed with, in any run of any plan."""
        with self._lock:
            return self._memory.summed_with(self._names(ids_digest))

    def know_as(self, ids_digest: str, names: KnownAs) -> None:
        """Register the site's names of the instances of a digest; the first name is permanent.

        The digest that leaves the site changes with `ids_secret`, but earlier disclosures of the instances stay known.
        """
        with self._lock:
            self._known_as[ids_digest] = names

    def _names(self, ids_digest: str) -> KnownAs:
        return (*self._known_as.get(ids_digest, ()), ids_digest)

    def objection(self, run: str | None, limit: int) -> str | None:
        """The reason against another run (for None: another answer) under that daily limit, or None. Restarts do not reset it."""
        with self._lock:
            if run is None:
                return self._quota.answer_objection(limit, self._now())
            return self._quota.run_objection(run, limit, self._now())

    def close(self) -> None:
        """Close the file and release the lock."""
        if hasattr(self, "_file"):
            self._file.close()
        self._held.close()


def count_files(quota: RollingQuota, files: Iterable[Path], now: dt.datetime) -> None:
    """Count the last 24 hours of these files, the newest first; stops at the first file with older entries.

    Raises
    ------
    StorageError
        an entry has another form.
    """
    since, found = _time(now - DAY), list[list[dict[str, Any]]]()
    for path in files:
        with path.open("rb") as lines, readable(path):
            entries = [entry for line in lines if (entry := entry_of(line)) is not None and "at" in entry]
            found.append([entry for entry in entries if entry["at"] > since])
            if len(found[-1]) < len(entries):
                break
    for recent in reversed(found):  # in the order of the ledger
        for entry in recent:
            with readable(path):
                quota.add(entry)


def operators_of(path: Path, disk: Disk | None = None) -> OperatorRecords:
    """The records of operators of the ledger at this path."""
    return OperatorRecords(path.with_suffix(".operators"), disk)


def quota_of(path: Path, now: dt.datetime) -> RollingQuota:
    """The last 24 hours of a ledger, also while another process writes it; empty if there is no ledger.

    Raises
    ------
    StorageError
        a file cannot be read.
    """
    found = RollingQuota()
    try:
        if path.exists():
            count_files(found, (path, *reversed(archives(path).values())), now)
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror}).") from None
    found.forget_before(now)
    return found


def _time(at: dt.datetime) -> str:
    return at.isoformat(timespec="milliseconds")


def _line(entry: dict[str, Any], previous: str) -> bytes:
    return json.dumps({**entry, "previous": previous}, sort_keys=True).encode()


def _next(path: Path) -> Path:
    """The temporary path of the next file."""
    return path.with_name(path.name + ".next")
