"""The ledger as the agent writes it: one process, one line at a time, on the disk before its message leaves."""

import contextlib
import datetime as dt
import errno
import fcntl
import hashlib
import json
import os
import threading
from dataclasses import replace
from itertools import chain
from math import inf
from pathlib import Path
from typing import IO, Any

from coreg_core.errors import StorageError
from coreg_core.protocol.messages import Ask, Countersigned, Fetched, FromSite, Head, Inquiry, PlanAccepted
from coreg_core.protocol.plan import Plan
from coreg_wire.files.files import is_locked
from site_agent.ledger.entries import Disclosed, countersigned, entry_for
from site_agent.ledger.files import (
    CONTINUED,
    GENESIS,
    archive_of,
    archives,
    carried_bytes,
    ends_whole,
    last_line,
    lines_since,
    opened,
)
from site_agent.ledger.quota import Day, day_of
from site_agent.ledger.replay import KnownAs, Memory, recalled, remember
from site_agent.ledger.signing import HeadSigner
from site_agent.machine.differencing import Promises, SummedWith
from site_agent.machine.memory import Remembered

MOST_BYTES = 1 << 26  # of one file
MOST_AWAITED = 256  # heads whose countersignature may still come


class Ledger:
    """What left, line by line; see the package's docstring.

    Parameters
    ----------
    path
        of the file that is written.
    signer
        signs the head at each run's end; None without TLS.
    most_bytes
        beyond which the file is put aside, less what it carries of those before, and another one goes on.

    Raises
    ------
    StorageError
        it cannot be written, or another agent of this site writes it.
    """

    def __init__(self, path: Path, signer: HeadSigner | None = None, most_bytes: float = MOST_BYTES):
        self.path, self.signer = path, signer
        self._turn = threading.Lock()  # several runs answer at once, and the chain is one
        self.sent: dict[str, Disclosed] = {}
        self.label_bearing = Disclosed(0, 0)  # vectors in which labels are
        self._most_bytes = most_bytes
        self._memory: Memory | None = None
        self._day: Day | None = None
        self.promises = Promises()  # of the sets that this process's runs are about to be summed with
        self._known_as: dict[str, KnownAs] = {}
        self._signed: dict[str, Fetched] = {}  # heads that left, until they are countersigned, by run
        try:
            self._file = self._opened()
            last = last_line(path)
            # A line torn by a crash is kept, closed, and chained like any other: nothing is ever removed.
            self._previous = GENESIS if last is None else hashlib.sha256(last).hexdigest()
            self._lines = lines_since(path)
            if last is not None and not ends_whole(path):
                self._file.write(b"\n")
            self._bytes = path.stat().st_size - carried_bytes(path)
        except OSError as error:
            raise StorageError(f"{path}: the ledger cannot be written ({error.strerror}); nothing was sent.") from None

    def _opened(self) -> IO[bytes]:
        """The file that is written, locked; what a rotation that was cut short left behind is taken away."""
        while True:
            file = _appending(self.path)
            self._lock(file)
            # Between opening and locking, the agent that wrote it may have put it aside and ended.
            if os.path.samestat(os.fstat(file.fileno()), self.path.stat()):
                break
            file.close()
        _fresh(self.path).unlink(missing_ok=True)
        for archive in archives(self.path).values():
            if archive.samefile(self.path):
                archive.unlink()
        return file

    def _lock(self, file: IO[bytes]) -> None:
        """Two agents that append to one chain break it for good. The system lifts the lock, however the agent ends."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise StorageError(
                f"{self.path}: another agent of this site is running and writes it. Let it go on, or end it first."
            ) from None

    # --- writing --------------------------------------------------------------------------------------------------

    def record(
        self, message: FromSite, ask: Ask | Inquiry | None = None, remembered: Remembered | None = None
    ) -> FromSite:
        """Write down a message that is about to leave, and give it back as it leaves: with the ledger's head, where it has one.

        Parameters
        ----------
        message
            what leaves.
        ask
            the question that it answers.
        remembered
            what the site has to know of the run to go on in another process; of it, what does not follow from the entries
            stands in the entry as ``kept``, and is not sent.

        Raises
        ------
        StorageError
            it cannot be written: the message must not leave.
        """
        with self._turn:
            self._rotate_beyond_size()
            beside, signer = {}, self.signer  # which may be another one from the next session on
            if isinstance(message, Fetched) and signer is not None and not message.signature:
                head = Head(self._lines, self._previous, _told(dt.datetime.now(dt.UTC)))  # everything before this line
                message = replace(message, head=head, signature=signer.sign(message.run, head))
                beside = {"certificate": signer.certificate}
                self._signed[message.run] = message
                if len(self._signed) > MOST_AWAITED:
                    del self._signed[next(iter(self._signed))]
            elif isinstance(message, PlanAccepted) and message.ids_digest in self._known_as:
                beside = {"instances": self._known_as[message.ids_digest][0]}
            entry, at = entry_for(message, ask, remembered) | beside, dt.datetime.now(dt.UTC)
            self._write(entry, at)
            if self._day is not None:
                self._day.note(type(message).__name__, str(entry.get("run")), at)
            self._count(type(message).__name__, entry, asked=ask)
            return message

    def countersigned(self, receipt: Countersigned) -> str | None:
        """Write down what came back for the head of a run; why it is not, where it is not what it should be.

        Raises
        ------
        StorageError
            it cannot be written.
        """
        with self._turn:
            fetched, signer = self._signed.pop(receipt.run, None), self.signer
            if fetched is None or signer is None:
                return f"a countersignature came for run {receipt.run}, for which none was awaited"
            if not receipt.signature:
                return f"the coordinator did not countersign the head of this ledger: {receipt.reason}"
            fault = "it is of another head" if receipt.head != fetched.head else None
            fault = fault or signer.fault(fetched.signature, receipt)
            if fault is not None:
                return f"the coordinator's countersignature for run {receipt.run} was not kept: {fault}"
            self._write(countersigned(receipt), dt.datetime.now(dt.UTC))
            return None

    def _write(self, entry: dict[str, Any], at: dt.datetime) -> None:
        line = _line({"at": _told(at), **entry}, self._previous)
        try:
            _write_whole(self._file, line + b"\n")
            os.fsync(self._file.fileno())  # a quarter of a millisecond on the disks that we measured
        except OSError as error:
            raise StorageError(
                f"{self.path}: the ledger cannot be written ({error.strerror}); nothing was sent."
            ) from None
        self._wrote(line)
        if self._memory is not None:
            self._memory.add(entry)

    def _wrote(self, line: bytes) -> None:
        self._previous = hashlib.sha256(line).hexdigest()
        self._lines, self._bytes = self._lines + 1, self._bytes + len(line) + 1

    def _count(self, kind: str, entry: dict[str, Any], asked: Ask | Inquiry | None) -> None:
        before, numbers = self.sent.get(kind, Disclosed(0, 0)), int(entry.get("numbers", 0))
        self.sent[kind] = Disclosed(before.messages + 1, before.numbers + numbers)
        if entry.get("labels") == "in the vectors" or (isinstance(asked, Ask) and entry.get("part") == "affine"):
            before = self.label_bearing
            self.label_bearing = Disclosed(before.messages + 1, before.numbers + numbers)

    # --- one file after another -----------------------------------------------------------------------------------

    def _rotate_beyond_size(self) -> None:
        """Put the file aside, and go on in another whose first line carries its hash and what is remembered.

        At every instant the ledger's name leads to a whole file that this process has locked: the next one is made whole
        under another name, the old one gets its second name, and then the first name changes hands. A file system that has
        no second names has one ledger that grows.
        """
        if self._bytes < self._most_bytes:
            return
        archive = archive_of(self.path, max(archives(self.path), default=0) + 1)
        carried = {"after": archive.name, "lines": self._lines, "carried": self._remembered().to_json()}
        line = _line({"at": _told(dt.datetime.now(dt.UTC)), "kind": CONTINUED, **carried}, self._previous)
        with contextlib.ExitStack() as undo:
            try:
                undo.callback(_fresh(self.path).unlink, missing_ok=True)
                following = undo.enter_context(_appending(_fresh(self.path)))
                following.truncate(0)
                self._lock(following)
                _write_whole(following, line + b"\n")
                os.fsync(following.fileno())
                os.link(self.path, archive)
                undo.callback(archive.unlink)
                _fresh(self.path).replace(self.path)
            except OSError:
                self._most_bytes = inf  # nothing is lost: this process goes on in the file that there is
                return
            undo.pop_all()
        self._file.close()
        self._file = following
        self._wrote(line)
        self._bytes = 0  # what it carries does not count: it would be put aside again, and again
        _sync_folder(self.path.parent)

    # --- what it remembers ----------------------------------------------------------------------------------------

    def recall(self, plan: Plan, ids_digest: str) -> Remembered:
        """What it tells of this plan on the instances of that digest, and of this run of it.

        Raises
        ------
        StorageError
            a file cannot be read.
        """
        with self._turn:
            return recalled(self._remembered(), self.path, plan, self._names(ids_digest))

    def summed_with(self, ids_digest: str) -> frozenset[SummedWith]:
        """Every set of sites whose sum an answer on these instances went into, in any run of any plan.

        Raises
        ------
        StorageError
            a file cannot be read.
        """
        with self._turn:
            return self._remembered().summed_with(self._names(ids_digest))

    def know_as(self, ids_digest: str, names: KnownAs) -> None:
        """The instances whose digest goes out have these names here, the first for good: another digest of theirs is no news.

        Which digest goes out depends on the sites' `ids_secret`; what was told of the instances does not.
        """
        with self._turn:
            self._known_as[ids_digest] = names

    def _names(self, ids_digest: str) -> KnownAs:
        return (*self._known_as.get(ids_digest, ()), ids_digest)

    def objection(self, run: str | None, most: int) -> str | None:
        """Why not another run, or (None) not another answer, where so many a day are allowed; counted over restarts.

        Raises
        ------
        StorageError
            a file cannot be read.
        """
        with self._turn:
            now = dt.datetime.now(dt.UTC)
            if self._day is None:
                self._day = day_of_files(self.path, now)
            day = self._day
            return day.answer_objection(most, now) if run is None else day.run_objection(run, most, now)

    def _remembered(self) -> Memory:
        """Read once; from then on every line that is written is added: nobody else writes."""
        if self._memory is None:
            self._memory = remember(self.path)
        return self._memory

    def close(self) -> None:
        self._file.close()


def day_of_files(path: Path, now: dt.datetime) -> Day:
    """The 24 hours before, from all files of a ledger; of one that is not there, nothing.

    Raises
    ------
    StorageError
        a file cannot be read.
    """
    try:
        with contextlib.ExitStack() as ends:
            return day_of(chain.from_iterable(file for _, file in opened(path, ends)), now)
    except FileNotFoundError:
        return Day()
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror}).") from None


def is_written(path: Path) -> bool:
    """Whether an agent of this site is running: it holds its ledger."""
    return is_locked(path)


def _told(at: dt.datetime) -> str:
    return at.isoformat(timespec="milliseconds")


def _line(entry: dict[str, Any], previous: str) -> bytes:
    return json.dumps({**entry, "previous": previous}, sort_keys=True).encode()


def _appending(path: Path) -> IO[bytes]:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    return os.fdopen(descriptor, "ab", buffering=0)


def _write_whole(file: IO[bytes], data: bytes) -> None:
    """All of it, or an error: what fits on a disk that is nearly full is written without one."""
    if file.write(data) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _fresh(path: Path) -> Path:
    """The next file, until it has its name."""
    return path.with_name(path.name + ".next")


def _sync_folder(folder: Path) -> None:
    """The names are on the disk as well; where a folder cannot be synchronised, they are there before long."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
