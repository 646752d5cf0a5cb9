"""Verify a ledger against its signatures: one party alone cannot rewrite lines that both sides
signed.

The audit reads the chain. It checks every head against its line, the site's certificate beside it
and the federation's authority, and every countersignature in the same way. It also checks the heads
that the coordinator kept, if they are given.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from sys import intern

from cryptography import x509
from pydantic import TypeAdapter

from coreg_core.errors import BadData, StorageError
from coreg_core.messages import Countersigned, LedgerHead
from coreg_wire.identity.names import certificate_name
from coreg_wire.identity.signatures import coordinator_fault, from_hex, site_fault
from site_agent.consent.memory import Entry
from site_agent.ledger.ledger import LedgerLine, read_lines


@dataclass(frozen=True)
class SignedHead:
    """A head with the site's signature, and the coordinator's countersignature if it is known."""

    site: str
    run: str
    head: LedgerHead
    signature: str
    certificate: str
    receipt: Countersigned | None = None


# Of a line or a record: a number is no signature.
HEAD = TypeAdapter(SignedHead)
RECEIPT = TypeAdapter(Countersigned)


@dataclass(frozen=True)
class Audited:
    """The result of an audit without faults, as far as the lines are signed."""

    lines: int
    heads: tuple[SignedHead, ...]
    own: SignedHead | None  # the last head that the site signed
    both: SignedHead | None  # the last that the coordinator countersigned
    after: Mapping[str, int]  # lines after that one, by kind
    compared: int  # heads of the coordinator's own record; all match


def audit(
    path: Path,
    authorities: Sequence[x509.Certificate],
    site: str | None = None,
    record: Sequence[SignedHead] = (),
) -> Audited:
    """Read the whole ledger, and verify every signature."""
    longest_first = sorted(record, key=lambda kept: -kept.head.lines)  # reports all missing lines
    for kept in record:
        _check_record(kept, authorities)
    reading = _Reading(path, authorities, site, {kept.head.lines for kept in record})
    for line in read_lines(path):
        reading.read(line)
    for kept in longest_first:
        reading.hold_to(kept)
    return reading.audited(len(record))


def _check_record(kept: SignedHead, authorities: Sequence[x509.Certificate]) -> None:
    faults = {kept.site: _head_fault(kept, authorities)}
    if kept.receipt is not None:
        faults["the coordinator"] = _receipt_fault(kept, kept.receipt, authorities)
    for signer, fault in faults.items():
        if fault is not None:
            raise BadData(f"{signer} did not sign the record's head of run {kept.run}: {fault}.")


def _head_fault(signed: SignedHead, authorities: Sequence[x509.Certificate]) -> str | None:
    return site_fault(
        signed.site, signed.run, signed.head, signed.signature, signed.certificate, authorities
    )


def _receipt_fault(
    signed: SignedHead, receipt: Countersigned, authorities: Sequence[x509.Certificate]
) -> str | None:
    if (receipt.run, receipt.head) != (signed.run, signed.head):
        return "it is for another head"
    return coordinator_fault(signed.site, signed.signature, receipt, authorities)


@dataclass(eq=False)
class _Reading:
    """The state of an audit while it reads the lines."""

    path: Path
    authorities: Sequence[x509.Certificate]
    site: str | None
    wanted: set[int]  # lines that the record names, and their hashes
    hashes: dict[int, str] = field(default_factory=dict)
    lines: int = 0
    last: str = ""
    unsigned: int = 0
    heads: list[SignedHead] = field(default_factory=list)
    receipts: dict[tuple[str, int], Countersigned] = field(default_factory=dict)
    kinds: list[str] = field(default_factory=list)

    def read(self, line: LedgerLine) -> None:
        kind = intern(str(line.entry["kind"]))
        if kind == "Fetched" and "signature" in line.entry:
            self._signed(line)
        elif kind == "Fetched":
            self.unsigned += 1
        elif kind == "Countersigned":
            self._countersigned(line)
        self.lines = line.number
        self.last = line.sha256
        self.kinds.append(kind)
        if line.number in self.wanted:
            self.hashes[line.number] = line.sha256

    def _signed(self, line: LedgerLine) -> None:
        entry = line.entry
        try:
            own = from_hex(str(entry.get("certificate")), "the certificate beside the head")
            self.site = self.site or certificate_name(own)
            signed = HEAD.validate_python({**entry, "site": self.site})
        except (ValueError, BadData) as error:
            raise self._damaged(f"the head cannot be read ({error})", line) from None
        head = signed.head
        if (head.lines, head.last) != (self.lines, self.last):
            signed_lines = f"{head.lines} lines up to {head.last[:16]}…"
            lines = f"{self.lines} lines up to {self.last[:16]}…"
            text = (
                f"the head of run {signed.run}, signed at {head.at}, covers {signed_lines}, but"
                f" {lines} precede it: lines were changed, removed or inserted, and the chain was"
                " recomputed"
            )
            raise self._damaged(text, line)
        fault = _head_fault(signed, self.authorities)
        if fault:
            text = f"the head of run {signed.run} is not signed by {signed.site}: {fault}"
            raise self._damaged(text, line)
        self.heads.append(signed)

    def _countersigned(self, line: LedgerLine) -> None:
        entry = line.entry
        try:
            receipt = RECEIPT.validate_python({**entry, "at": entry.get("countersigned")})
        except ValueError as error:
            raise self._damaged(f"the countersignature cannot be read ({error})", line) from None
        fault: str | None = "no such head was signed"
        for signed in self.heads:
            if (signed.run, signed.head) == (receipt.run, receipt.head):
                fault = _receipt_fault(signed, receipt, self.authorities)
        if fault is not None:
            text = f"the countersignature for run {receipt.run} is not the coordinator's: {fault}"
            raise self._damaged(text, line)
        self.receipts[receipt.run, receipt.head.lines] = receipt

    def hold_to(self, kept: SignedHead) -> None:
        """Compare a head of the coordinator's record, whose signatures are valid."""
        lines = kept.head.lines
        signed = f"{kept.site} signed a head over {lines} lines at the end of run {kept.run},"
        if lines > self.lines:
            lost = f"but this ledger has {self.lines}: its last lines were removed"
            raise self._damaged(f"{signed} {kept.head.at}, {lost}")
        if self.hashes.get(lines) != kept.head.last:
            other = f"line {lines} of this ledger is a different one: the ledger was replaced"
            raise self._damaged(f"{signed} {kept.head.at}, and {other}")
        if kept.receipt is not None:
            self.receipts[kept.run, lines] = kept.receipt
        if not any((head.run, head.head) == (kept.run, kept.head) for head in self.heads):
            self.heads.append(kept)

    def audited(self, compared: int) -> Audited:
        if self.unsigned and not self.heads:
            raise self._damaged(
                f"it records {self.unsigned} results and no signature. Without signatures the"
                " chain does not protect against the owner of the file (signatures were removed)"
            )
        heads = []
        own: SignedHead | None = None
        both: SignedHead | None = None
        after = self.kinds
        for signed in sorted(self.heads, key=lambda signed: signed.head.lines):
            lines = signed.head.lines
            own = replace(signed, receipt=self.receipts.get((signed.run, lines)))
            heads.append(own)
            if own.receipt is not None:
                both = own
                after = self.kinds[lines:]
        return Audited(self.lines, tuple(heads), own, both, dict(Counter(after)), compared)

    def _damaged(self, what: str, line: LedgerLine | None = None) -> StorageError:
        where = f"{self.path}"
        if line is not None:
            where += f", line {line.number}"
        return StorageError(
            f"{where}: {what}. The ledger was changed, or parts of it are missing. Do not start the"
            " agent; look for the missing lines in backups, and tell the coordinator's operator."
        )


def read_record(path: Path, site: str | None = None) -> list[SignedHead]:
    """Checkpoints from a file with the output of `coreg-coordinator show RUN --json`, of one run or
    of several.
    """
    mine = _checkpoints(path)
    if site is not None:
        mine = [head for head in mine if head.site == site]
    if not mine:
        of = "" if site is None else f" of {site}"
        todo = "with the last RUN in which this site took part to its end: a refused run has none"
        raise BadData(
            f"{path}: no checkpoint{of} in it. Write it by `coreg-coordinator show RUN --json`,"
            f" {todo}."
        )
    if len({head.site for head in mine}) > 1:
        raise BadData(
            f"{path}: checkpoints of several sites. Put the site's site.pem beside the ledger."
        )
    return mine


def _checkpoints(path: Path) -> list[SignedHead]:
    """All checkpoints of all runs in the file."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise StorageError(f"{path}: cannot be read ({error}).") from None
    try:
        heads = list[SignedHead]()
        for line in lines:
            if line.strip():
                heads += map(head_of, json.loads(line)["checkpoints"])
        return heads
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise BadData(
            f"{path}: not a run as `coreg-coordinator show RUN --json` writes it."
        ) from None


def head_of(checkpoint: Entry) -> SignedHead:
    receipt = checkpoint["receipt"]
    about = {"run": receipt["run"], "head": receipt["head"]}
    return HEAD.validate_python({**checkpoint, **about})
