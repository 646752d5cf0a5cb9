"""The ledger's lines: what each says of a message that leaves, and how they are read and verified."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, assert_never

from coreg_core.computation.question import KINDS
from coreg_core.errors import StorageError
from coreg_core.protocol.messages import (
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
)
from site_agent.consent.memory import Memory
from site_agent.machine.job import Told

GENESIS = "0" * 64  # the hash before the first line


@dataclass(frozen=True)
class Line:
    """A line: its number from 1, its hash, its entry, and the offset of its end in the file."""

    number: int
    sha256: str
    entry: dict[str, Any]
    end: int


def read_lines(path: Path) -> Iterator[Line]:
    """Every line in order; verifies the chain.

    A last line without a newline is left out: a crash or a full disk cut it, and its message was not sent.

    Raises
    ------
    StorageError
        a line is not JSON, or the chain is broken (names the line); the file cannot be read.
    """
    previous, end = GENESIS, 0
    try:
        with path.open("rb") as file:
            for number, whole in enumerate(file, start=1):
                if not whole.endswith(b"\n"):
                    return
                entry = _entry_of(whole)
                if entry is None or entry.get("previous") != previous or not {"at", "kind"} <= set(entry):
                    raise StorageError(
                        f"{path}, line {number}: the chain is broken: this line or the one before was changed, removed or "
                        "inserted. Keep the file as evidence, and restore the newest backup (docs/how-to/troubleshoot.md)."
                    )
                previous, end = hashlib.sha256(whole[:-1]).hexdigest(), end + len(whole)
                yield Line(number, previous, entry, end)
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror}).") from None


def _entry_of(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


def read_ledger(path: Path) -> Iterator[dict[str, Any]]:
    """Every entry, in order; see `read_lines`."""
    for line in read_lines(path):
        yield line.entry


def remember(path: Path, memory: Memory) -> Line:
    """Read the ledger at that path into the memory; its last line, or an empty one if there is no ledger.

    Raises
    ------
    StorageError
        the file cannot be read, or was changed.
    """
    line = Line(0, GENESIS, {}, 0)
    for line in read_lines(path) if path.exists() else ():
        try:
            memory.add(line.entry)
        except (TypeError, ValueError, AttributeError, KeyError, OverflowError) as error:
            raise StorageError(
                f"{path}, line {line.number}: not an entry of this release ({error!r}). Restore the ledger from a backup: "
                "without it, this site has no record of its earlier answers."
            ) from None
    return line


# --- writing ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Disclosed:
    """Counts of one kind: messages that left, and numbers in them that depend on labels or features."""

    messages: int
    numbers: int


def entry_for(message: FromSite, told: Told | None) -> dict[str, Any]:
    """The line for a message before it leaves; see `Ledger.record`."""
    entry = _describe(message)
    if isinstance(message, Answer) and told is not None and message.words is not None:
        asked = told.asked
        entry |= {
            "numbers": asked.layout.plain + asked.layout.scalars or len(message.words.values),
            "words": len(message.words.values),
            "sha256": message.words.digest,
            "sent": "sealed" if told.sealed else "in clear",
            "question": asked.kind,
            "what": KINDS[asked.kind].discloses,
            "labels": KINDS[asked.kind].labels,
            "participants": list(told.sites) if told.sealed else [],
            "may_change": told.may_change,
        }
    return entry


def countersigned(receipt: Countersigned) -> dict[str, Any]:
    """The line for a received countersignature: nothing leaves with it."""
    signed = {"countersigned": receipt.at, "signature": receipt.signature, "certificate": receipt.certificate}
    return {"kind": "Countersigned", "run": receipt.run, "head": head_told(receipt.head), **signed}


def head_told(head: LedgerHead) -> dict[str, Any]:
    return {"lines": head.lines, "last": head.last, "at": head.at}


def _describe(message: FromSite) -> dict[str, Any]:
    kind = type(message).__name__
    match message:
        case Hello():
            return {"kind": kind, "protocol": message.protocol, "release": message.release}
        case Offer():
            about = {"attempt": message.attempt, "plan": message.plan_digest, "n_unlabelled": message.n_unlabelled}
            digests = {"ids_digest": message.ids_digest, "data_digest": message.data_digest}
            return {"kind": kind, "run": message.run, **about, **digests}
        case Approval():
            return {"kind": kind, "run": message.run, "given": message.given}
        case Unaligned():
            return {"kind": kind, "run": message.run}
        case PlanRefused():
            return {"kind": kind, "run": message.run, "text": message.reason}
        case Answer():
            report = {key: value for key, value in vars(message.report).items() if value}
            return {"kind": kind, **_where(message), "report": report}
        case Fault():
            return {"kind": kind, **_where(message), "text": message.reason}
        case Fetched():
            signed = {"head": head_told(message.head), "signature": message.signature} if message.signature else {}
            return {"kind": kind, "run": message.run, **signed}
        case Leaving():
            return {"kind": kind, "text": message.reason}
        case _:
            assert_never(message)


def _where(message: Answer | Fault) -> dict[str, Any]:
    return {"run": message.run, "attempt": message.attempt, "step": message.step}
