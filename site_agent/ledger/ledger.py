"""The ledger's writer: one process, one line at a time, synced to disk before its message leaves.

Opening the ledger verifies its chain: the agent's memory is read from these lines, so a changed ledger is refused.
`entries.py` defines the lines, and `site_agent.consent.memory` what is remembered of them.
"""

import contextlib
import datetime as dt
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from coreg_core.errors import StorageError
from coreg_core.protocol.messages import Countersigned, Fetched, FromSite, LedgerHead, Offer
from coreg_core.protocol.outcomes import Outcome
from coreg_wire.clock import utc_now
from coreg_wire.files.disk import AppendFile, Disk, exclusive
from coreg_wire.identity.names import load_certificates
from coreg_wire.identity.signatures import coordinator_fault, private_key, said_by_site, sign, to_hex
from site_agent.consent.memory import Memory
from site_agent.identity.identity import Identity
from site_agent.ledger.entries import Disclosed, countersigned, entry_for, read_lines, remember
from site_agent.machine.job import Told

MAX_AWAITED = 256  # heads that can wait for a countersignature
IN_USE = "another agent of this site is running in this folder and writes it. Keep that agent, or end it first."


class HeadSigner:
    """Signs heads with the key of the site's certificate, and checks countersignatures. Certificates are renewed."""

    def __init__(self, identity: Identity):
        self.site = identity.name
        self.certificate = to_hex(load_certificates(identity.certificate_pem, "site.pem")[0])
        self._private = private_key(identity.key_pem)
        self._authorities = load_certificates(identity.ca_pem, "ca.pem")

    def __repr__(self) -> str:
        return f"HeadSigner({self.site!r})"

    def sign(self, run: str, head: LedgerHead) -> str:
        """The site's signature on the head, in hexadecimal."""
        return sign(self._private, said_by_site(self.site, run, head))

    def fault(self, signature: str, receipt: Countersigned) -> str | None:
        """Why the receipt is not a valid countersignature of this signature, or None."""
        return coordinator_fault(self.site, signature, receipt, self._authorities)


class Ledger:
    """The ledger of one site; see the package's docstring.

    Parameters
    ----------
    path
        of the file. A last line that a crash cut is removed: its message was not sent. `torn` has its size in bytes.
    signer
        signs the head at each run's end; None without TLS.
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
        *,
        disk: Disk | None = None,
        now: Callable[[], dt.datetime] = utc_now,
    ):
        self.path, self.signer, self.new = path, signer, not path.exists()
        self._disk, self._now, self.torn = disk or Disk(), now, 0
        self.memory = Memory(self._write)
        self._lock = self.memory.lock  # several runs write to one chain
        self.sent: dict[str, Disclosed] = {}
        self.label_bearing = Disclosed(0, 0)  # vectors that depend on labels
        self._signed: dict[str, Fetched] = {}  # sent heads without a countersignature, by run
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
        """Verify the chain, load the memory from the lines, and open the file."""
        last = remember(self.path, self.memory)
        self._previous, self._lines = last.sha256, last.number
        file = self._disk.append_to(self.path)
        self.torn = self.path.stat().st_size - last.end
        if self.torn:
            file.truncate(last.end)
        return file

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
            beside, signer = {}, self.signer  # a new session can replace the signer
            if isinstance(message, Fetched) and signer is not None and not message.signature:
                head = LedgerHead(self._lines, self._previous, _time(self._now()))  # everything before this line
                message = replace(message, head=head, signature=signer.sign(message.run, head))
                beside = {"certificate": signer.certificate}
                self._signed[message.run] = message
                if len(self._signed) > MAX_AWAITED:
                    del self._signed[next(iter(self._signed))]
            elif isinstance(message, Offer) and (instances := self.memory.name_of(message.ids_digest)) is not None:
                beside = {"instances": instances}
            if outcome is not None:
                beside["outcome"] = outcome.name
            entry = entry_for(message, told) | beside
            self.memory.note(entry)
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
        if not fault and head.lines and self._hash_of(head.lines) != head.last:
            fault = f"its line {head.lines} is not the one that the coordinator countersigned"
        if fault:
            raise StorageError(
                f"{self.path}: an older copy of this site's ledger, or another one: {fault}. This site would not know what it "
                "has answered. Do not answer with it: see docs/how-to/operate-a-site.md."
            )

    def _hash_of(self, number: int) -> str | None:
        return next((line.sha256 for line in read_lines(self.path) if line.number == number), None)

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
            self.memory.note(countersigned(receipt))
            return None

    def _write(self, entry: dict[str, Any]) -> None:
        entry = {"at": _time(self._now()), **entry}
        line = json.dumps({**entry, "previous": self._previous}, sort_keys=True).encode()
        if not self._failed:
            try:
                self._file.write(line + b"\n")
            except OSError as error:
                self._failed = str(error.strerror)
        if self._failed:  # a line of another run after a half one would break the chain
            raise StorageError(f"{self.path}: the ledger cannot be written ({self._failed}); nothing was sent.")
        self._previous, self._lines = hashlib.sha256(line).hexdigest(), self._lines + 1

    def _count(self, kind: str, entry: dict[str, Any]) -> None:
        before, numbers = self.sent.get(kind, Disclosed(0, 0)), int(entry.get("numbers", 0))
        self.sent[kind] = Disclosed(before.messages + 1, before.numbers + numbers)
        if entry.get("labels") == "in the vectors":
            before = self.label_bearing
            self.label_bearing = Disclosed(before.messages + 1, before.numbers + numbers)

    def close(self) -> None:
        """Close the file and release the lock."""
        if hasattr(self, "_file"):
            self._file.close()
        self._held.close()


def _time(at: dt.datetime) -> str:
    return at.isoformat(timespec="milliseconds")
