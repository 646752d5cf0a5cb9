"""The ledger's lines, and its writer: one process, one line at a time, synced to disk before its
message leaves.

Opening the ledger verifies its chain: the agent's memory is read from these lines, so a changed
ledger is refused. `site_agent.consent.memory` has what is remembered of them.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from coreg_core.errors import StorageError
from coreg_core.messages import (
    Answer,
    Approval,
    Countersigned,
    Fault,
    Fetched,
    FromSite,
    Hello,
    Leaving,
    LedgerHead,
    Offer,
    PlanRefused,
    Unaligned,
    Wanted,
)
from coreg_core.outcomes import Outcome
from coreg_core.plan import QUESTIONS
from coreg_wire.clock import timestamp
from coreg_wire.files.disk import AppendFile, Disk, exclusive
from coreg_wire.identity.names import load_certificates
from coreg_wire.identity.signatures import (
    coordinator_fault,
    is_signed,
    private_key,
    said_by_site,
    sign,
    to_hex,
)
from coreg_wire.transport.fields import MAX_TEXT
from site_agent.consent.memory import Entry, Memory
from site_agent.disclosure import Disclosure
from site_agent.identity.identity import Identity

GENESIS = "0" * 64  # the hash before the first line


@dataclass(frozen=True)
class LedgerLine:
    """A line: its number from 1, its hash, its entry, and the offset of its end in the file."""

    number: int
    sha256: str
    entry: Entry
    end: int


def read_lines(path: Path) -> Iterator[LedgerLine]:
    """Every line, with the chain verified. A torn last line is left out: its message was not
    sent.
    """
    previous = GENESIS
    end = 0
    try:
        with path.open("rb") as file:
            for number, whole in enumerate(file, start=1):
                if not whole.endswith(b"\n"):
                    return
                entry = _entry(whole)
                if entry.get("previous") != previous or not {"at", "kind"} <= entry.keys():
                    raise StorageError(
                        f"{path}, line {number}: the chain is broken: this line or the one before"
                        " was changed, removed or inserted. Keep the file as evidence, and restore"
                        " the newest backup (docs/how-to/troubleshoot.md)."
                    )
                previous = hashlib.sha256(whole[:-1]).hexdigest()
                end += len(whole)
                yield LedgerLine(number, previous, entry, end)
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror}).") from None


def _entry(line: bytes) -> Entry:
    """Empty if it is none."""
    with contextlib.suppress(ValueError, RecursionError):
        entry = json.loads(line)
        if isinstance(entry, dict):
            return entry
    return {}


def read_ledger(path: Path) -> Iterator[Entry]:
    for line in read_lines(path):
        yield line.entry


def remember(path: Path, memory: Memory) -> LedgerLine:
    """Read the ledger at that path into the memory; its last line, or an empty one if there is no
    ledger.
    """
    line = LedgerLine(0, GENESIS, {}, 0)
    for line in read_lines(path) if path.exists() else ():
        try:
            memory.add(line.entry)
        except (TypeError, ValueError, AttributeError, KeyError, OverflowError) as error:
            raise StorageError(
                f"{path}, line {line.number}: not an entry of this release ({error!r}). Restore the"
                " ledger from a backup: without it, this site has no record of its earlier"
                " answers."
            ) from None
    return line


def require_ledger(path: Path, salt: Path) -> None:
    """Refuse to begin a second ledger: the site's first start made the salt beside the first
    one.
    """
    if salt.exists() and not path.exists():
        raise StorageError(
            f"{path} is missing, and {salt} exists: this site has had a ledger. Without it, the "
            "site would not know what it has answered. Restore it from a backup, or name it with "
            "--ledger. Without one the site needs a new name (docs/how-to/operate-a-site.md)."
        )


# --- writing --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Disclosed:
    """Counts of one kind: messages that left, and numbers in them that depend on labels or
    features.
    """

    messages: int
    numbers: int


def entry_for(message: FromSite, disclosure: Disclosure | None) -> Entry:
    """The line for a message before it leaves; see `Ledger.record`."""
    if not isinstance(message, Answer):
        return _describe(message)
    entry: Entry = {
        "kind": "Answer",
        "run": message.run,
        "attempt": message.attempt,
        "step": message.step,
        "report": dict(vars(message.report)),
    }
    if disclosure is not None:
        size, digest = digest_of(message)
        kind = QUESTIONS[disclosure.question]
        entry |= {
            "numbers": disclosure.numbers,
            "bytes": size,
            "sha256": digest,
            "sent": "sealed" if disclosure.sealed else "in clear",
            "question": disclosure.question,
            "what": kind.discloses,
            "labels": kind.labels,
            "participants": list(disclosure.sites) if disclosure.sealed else [],
            "may_change": disclosure.may_change,
        }
    return entry


def digest_of(answer: Answer) -> tuple[int, str]:
    """The bytes that an answer carries, and their SHA-256: its words, then each part after its
    receiver.
    """
    size = 0
    digest = hashlib.sha256()
    if answer.summed is not None:
        size = len(answer.summed.data)
        digest.update(answer.summed.data)
    for part in answer.parts:
        size += len(part.data)
        digest.update(f"\n{part.receiver} {len(part.data)}\n".encode())
        digest.update(part.data)
    return size, digest.hexdigest()


def countersigned(receipt: Countersigned) -> Entry:
    """The line for a received countersignature: nothing leaves with it."""
    return {
        "kind": "Countersigned",
        "run": receipt.run,
        "head": asdict(receipt.head),
        "countersigned": receipt.at,
        "signature": receipt.signature,
        "certificate": receipt.certificate,
    }


# What a line has of its message, beside what `_describe` adds under other names.
_FIELDS = {
    Hello: ("protocol", "release"),
    Offer: ("run", "attempt", "n_unlabelled", "ids_digest", "data_digest"),
    Approval: ("run", "given"),
    Unaligned: ("run",),
    Wanted: ("study",),
    PlanRefused: ("run",),
    Fault: ("run", "attempt", "step"),
    Fetched: ("run",),
    Leaving: (),
}


def _describe(message: FromSite) -> Entry:
    kind = type(message)
    entry: Entry = {"kind": kind.__name__}
    for name in _FIELDS[kind]:
        entry[name] = getattr(message, name)
    match message:
        case Offer():
            entry["plan"] = message.plan_digest
        case PlanRefused() | Fault() | Leaving():
            entry["text"] = message.reason[:MAX_TEXT]  # as it leaves
        case Fetched() if message.signature:
            entry |= {"head": asdict(message.head), "signature": message.signature}
    return entry


MAX_AWAITED = 256  # heads that can wait for a countersignature
IN_USE = (
    "another agent of this site is running in this folder and writes it. Keep that agent, or end it"
    " first."
)


class HeadSigner:
    """Signs heads with the key of the site's certificate, and checks countersignatures.

    Certificates are renewed.
    """

    def __init__(self, identity: Identity):
        self.site = identity.name
        self.certificate = to_hex(load_certificates(identity.certificate_pem, "site.pem")[0])
        self._private = private_key(identity.key_pem)
        self._authorities = load_certificates(identity.ca_pem, "ca.pem")

    def sign(self, run: str, head: LedgerHead) -> str:
        """The site's signature on the head, in hexadecimal."""
        return sign(self._private, said_by_site(self.site, run, head))

    def signed(self, receipt: Countersigned) -> bool:
        """Whether the receipt's head was signed by this key."""
        statement = said_by_site(self.site, receipt.run, receipt.head)
        return is_signed(self._private.public_key(), receipt.site_signature, statement)

    def fault(self, signature: str, receipt: Countersigned) -> str | None:
        """Why the receipt is not a valid countersignature of this signature, or None."""
        return coordinator_fault(self.site, signature, receipt, self._authorities)


class Ledger:
    """The ledger of one site; see the package's docstring.

    ``torn``: bytes of a last line that a crash cut, which is removed.
    """

    def __init__(self, path: Path, signer: HeadSigner | None = None, *, disk: Disk | None = None):
        self.path = path
        self.signer = signer
        self.new = not path.exists()
        self._disk = disk or Disk()
        self.torn = 0
        self.memory = Memory(self._write)
        self._lock = self.memory.lock  # several runs write to one chain
        self.sent: dict[str, Disclosed] = {}
        self._signed: dict[str, Fetched] = {}  # sent heads without a countersignature, by run
        # the reason of a failed write: how much of its line is on the disk is not known
        self._failed = ""
        self._held = contextlib.ExitStack()
        try:
            self._held.enter_context(exclusive(path, IN_USE))
            self._file = self._opened()
        except OSError as error:
            self.close()
            raise StorageError(
                f"{path}: the ledger cannot be written ({error.strerror}); nothing was sent."
            ) from None
        except StorageError:
            self.close()
            raise

    def _opened(self) -> AppendFile:
        """Verify the chain, load the memory from the lines, and open the file."""
        last = remember(self.path, self.memory)
        self._previous = last.sha256
        self._lines = last.number
        file = self._disk.append_to(self.path)
        self.torn = self.path.stat().st_size - last.end
        if self.torn:
            file.truncate(last.end)
        return file

    # --- writing ----------------------------------------------------------------------------------

    def record(
        self,
        message: FromSite,
        disclosure: Disclosure | None = None,
        outcome: Outcome | None = None,
    ) -> FromSite:
        """Write the line for a message; returns the message to send.

        If it raises, the message must not leave.
        """
        with self._lock:
            beside = dict[str, str]()
            signer = self.signer  # a new session can replace the signer
            if isinstance(message, Fetched) and signer is not None and not message.signature:
                message = self._with_head(message, signer)
                beside["certificate"] = signer.certificate
            elif isinstance(message, Offer):
                instances = self.memory.name_of(message.ids_digest)
                if instances is not None:
                    beside["instances"] = instances
            elif isinstance(message, Approval) and message.given:
                beside["plan"] = self.memory.deciding.get(message.run, "")
            if outcome is not None:
                beside["outcome"] = outcome.name
            entry = entry_for(message, disclosure) | beside
            self.memory.note(entry)
            kind = entry["kind"]
            before = self.sent.get(kind, Disclosed(0, 0))
            numbers = before.numbers + int(entry.get("numbers", 0))
            self.sent[kind] = Disclosed(before.messages + 1, numbers)
            return message

    def _with_head(self, message: Fetched, signer: HeadSigner) -> Fetched:
        """The message with the signed head of everything before its line."""
        head = LedgerHead(self._lines, self._previous, timestamp())
        message = replace(message, head=head, signature=signer.sign(message.run, head))
        self._signed[message.run] = message
        if len(self._signed) > MAX_AWAITED:
            del self._signed[next(iter(self._signed))]
        return message

    def awaits(self, run: str, head: LedgerHead) -> bool:
        """Whether that head was sent and is not countersigned yet.

        It takes no lock: another thread can be at the disk.
        """
        sent = self._signed.get(run)
        return sent is not None and sent.head == head

    def compare(self, receipt: Countersigned) -> bool:
        """Compare with the last head of this ledger that the coordinator countersigned.

        False: this site's key did not sign it, so it says nothing.
        """
        head = receipt.head
        if self.signer is None or not self.signer.signed(receipt):
            return False
        with self._lock:
            lines = self._lines
        if head.lines > lines:
            raise self._other(
                f"it has {lines} lines, and the coordinator countersigned {head.lines}"
            )
        there = (line.sha256 for line in read_lines(self.path) if line.number == head.lines)
        if head.lines and next(there, None) != head.last:
            raise self._other(
                f"its line {head.lines} is not the one that the coordinator countersigned"
            )
        return True

    def _other(self, fault: str) -> StorageError:
        return StorageError(
            f"{self.path}: an older copy of this site's ledger, or another one: {fault}. This"
            " site would not know what it has answered. Do not answer with it: see"
            " docs/how-to/operate-a-site.md."
        )

    def countersigned(self, receipt: Countersigned) -> str | None:
        """Write the countersignature of a head.

        Returns the reason if it is not valid and was not written.
        """
        with self._lock:
            run = receipt.run
            fetched = self._signed.pop(run, None)
            if fetched is None or self.signer is None:
                return f"received a countersignature for run {run} without a signed head"
            if not receipt.signature:
                return (
                    f"the coordinator did not countersign the head of this ledger: {receipt.reason}"
                )
            fault: str | None = "it is for another head"
            if receipt.head == fetched.head:
                fault = self.signer.fault(fetched.signature, receipt)
            if fault is not None:
                return (
                    f"the coordinator's countersignature for run {run} is not valid and was"
                    f" not kept: {fault}"
                )
            self.memory.note(countersigned(receipt))
            return None

    def _write(self, entry: Entry) -> Entry:
        """Write a line, and return its entry with the time."""
        entry = {"at": timestamp(), **entry}
        line = json.dumps({**entry, "previous": self._previous}, sort_keys=True).encode()
        if not self._failed:
            try:
                self._file.write(line + b"\n")
            except OSError as error:
                self._failed = str(error.strerror)
        if self._failed:  # a line of another run after a half one would break the chain
            raise StorageError(
                f"{self.path}: the ledger cannot be written ({self._failed}); nothing was sent."
            )
        self._previous = hashlib.sha256(line).hexdigest()
        self._lines += 1
        return entry

    def close(self) -> None:
        """Close the file and release the lock."""
        if hasattr(self, "_file"):
            self._file.close()
        self._held.close()
