"""Verify a ledger against its signatures: one party alone cannot rewrite lines that both sides
signed.

The audit reads the chain. It checks every head against its line, the site's certificate beside it
and the federation's authority, and every countersignature in the same way. It also checks the heads
that the coordinator kept, if they are given.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from sys import intern
from typing import Any

from cryptography import x509
from pydantic import TypeAdapter

from coreg_core.errors import BadData, StorageError
from coreg_core.messages import Countersigned, LedgerHead
from coreg_wire.identity.names import certificate_name
from coreg_wire.identity.signatures import coordinator_fault, from_hex, site_fault
from site_agent.ledger.ledger import Line, read_lines


@dataclass(frozen=True)
class SignedHead:
    """A head with the site's signature, and the coordinator's countersignature if it is known."""

    site: str
    run: str
    head: LedgerHead
    signature: str
    certificate: str
    receipt: Countersigned | None = None


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
    for kept in record:
        _check_record(kept, authorities)
    reading = _Reading(path, authorities, site, {kept.head.lines for kept in record})
    for line in read_lines(path):
        reading.read(line)
    for kept in sorted(
        record, key=lambda kept: -kept.head.lines
    ):  # longest first, to report all missing lines
        reading.hold_to(kept)
    return reading.found(len(record))


def _check_record(kept: SignedHead, authorities: Sequence[x509.Certificate]) -> None:
    fault = site_fault(
        kept.site, kept.run, kept.head, kept.signature, kept.certificate, authorities
    )
    if fault is not None:
        raise BadData(f"{kept.site} did not sign the record's head of run {kept.run}: {fault}.")
    if kept.receipt is not None:
        fault = _receipt_fault(kept, kept.receipt, authorities)
        if fault is not None:
            raise BadData(
                f"the coordinator did not sign the record's head of run {kept.run}: {fault}."
            )


def _receipt_fault(
    signed: SignedHead, receipt: Countersigned, authorities: Sequence[x509.Certificate]
) -> str | None:
    if (receipt.run, receipt.head) != (signed.run, signed.head):
        return "it is for another head"
    return coordinator_fault(signed.site, signed.signature, receipt, authorities)


class _Reading:
    """The state of an audit while it reads the lines."""

    def __init__(
        self,
        path: Path,
        authorities: Sequence[x509.Certificate],
        site: str | None,
        wanted: set[int],
    ):
        self._path = path
        self._authorities = authorities
        self._site = site
        self._wanted = wanted
        self._lines = 0
        self._last = ""
        self._unsigned = 0
        self._heads: list[SignedHead] = []
        self._receipts: dict[tuple[str, int], Countersigned] = {}
        self._hashes: dict[int, str] = {}  # of the lines that the record names
        self._kinds: list[str] = []

    def read(self, line: Line) -> None:
        kind = intern(str(line.entry["kind"]))
        if kind == "Fetched":
            self._signed(line)
        elif kind == "Countersigned":
            self._countersigned(line)
        self._lines = line.number
        self._last = line.sha256
        self._kinds.append(kind)
        if line.number in self._wanted:
            self._hashes[line.number] = line.sha256

    def _signed(self, line: Line) -> None:
        if "signature" not in line.entry:
            self._unsigned += 1
            return
        signed = self._head_of(line)
        if (signed.head.lines, signed.head.last) != (self._lines, self._last):
            raise self._damaged(
                f"the head of run {signed.run}, signed at {signed.head.at}, covers"
                f" {signed.head.lines} lines up to {signed.head.last[:16]}…, but {self._lines}"
                f" lines up to {self._last[:16]}… precede it: lines were changed, removed or"
                " inserted, and the chain was recomputed",
                line,
            )
        fault = site_fault(
            signed.site,
            signed.run,
            signed.head,
            signed.signature,
            signed.certificate,
            self._authorities,
        )
        if fault is not None:
            raise self._damaged(
                f"the head of run {signed.run} is not signed by {signed.site}: {fault}", line
            )
        self._heads.append(signed)

    def _head_of(self, line: Line) -> SignedHead:
        entry = line.entry
        try:
            head = LedgerHead(
                int(entry["head"]["lines"]), str(entry["head"]["last"]), str(entry["head"]["at"])
            )
            run = str(entry["run"])
            signature = str(entry["signature"])
            certificate = str(entry["certificate"])
            self._site = self._site or certificate_name(
                from_hex(certificate, "the certificate beside the head")
            )
        except (KeyError, TypeError, ValueError, OverflowError, BadData) as error:
            raise self._damaged(f"the head cannot be read ({error})", line) from None
        return SignedHead(self._site, run, head, signature, certificate)

    def _countersigned(self, line: Line) -> None:
        entry = line.entry
        try:
            words = (
                str(entry[name]) for name in ("run", "countersigned", "signature", "certificate")
            )
            run, at, signature, certificate = words
            receipt = Countersigned(run, LedgerHead(**entry["head"]), at, signature, certificate)
        except (KeyError, TypeError) as error:
            raise self._damaged(f"the countersignature cannot be read ({error})", line) from None
        signed = next(
            (s for s in self._heads if (s.run, s.head) == (receipt.run, receipt.head)), None
        )
        fault = (
            "no such head was signed"
            if signed is None
            else _receipt_fault(signed, receipt, self._authorities)
        )
        if fault is not None:
            raise self._damaged(
                f"the countersignature for run {receipt.run} is not the coordinator's: {fault}",
                line,
            )
        self._receipts[receipt.run, receipt.head.lines] = receipt

    def hold_to(self, kept: SignedHead) -> None:
        """Compare a head of the coordinator's record, whose signatures are valid."""
        told = (
            f"{kept.site} signed a head over {kept.head.lines} lines at the end of run {kept.run},"
            f" {kept.head.at}"
        )
        if kept.head.lines > self._lines:
            raise self._damaged(
                f"{told}, but this ledger has {self._lines}: its last lines were removed"
            )
        if self._hashes.get(kept.head.lines) != kept.head.last:
            what = (
                f"line {kept.head.lines} of this ledger is a different one: the ledger was replaced"
            )
            raise self._damaged(f"{told}, and {what}")
        if kept.receipt is not None:
            self._receipts[kept.run, kept.head.lines] = kept.receipt
        if not any((s.run, s.head) == (kept.run, kept.head) for s in self._heads):
            self._heads.append(kept)

    def found(self, compared: int) -> Audited:
        if self._unsigned and not self._heads:
            raise self._damaged(
                f"it records {self._unsigned} results and no signature. Without signatures the"
                " chain does not protect against the owner of the file (signatures were removed)"
            )
        ordered = sorted(self._heads, key=lambda s: s.head.lines)
        heads = [replace(s, receipt=self._receipts.get((s.run, s.head.lines))) for s in ordered]
        both = next((s for s in reversed(heads) if s.receipt is not None), None)
        signed = 0 if both is None else both.head.lines
        after = Counter(self._kinds[signed:])
        own = heads[-1] if heads else None
        return Audited(self._lines, tuple(heads), own, both, dict(after), compared)

    def _damaged(self, what: str, line: Line | None = None) -> StorageError:
        where = self._path if line is None else f"{self._path}, line {line.number}"
        return StorageError(
            f"{where}: {what}. The ledger was changed, or parts of it are missing. Do not start the"
            " agent; look for the missing lines in backups, and tell the coordinator's operator."
        )


def read_record(path: Path, site: str | None = None) -> list[SignedHead]:
    """Checkpoints from a file with the output of `coreg-coordinator show RUN --json`, of one run or
    of several.
    """
    mine = [head for head in _checkpoints(path) if site is None or head.site == site]
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
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StorageError(f"{path}: cannot be read ({error}).") from None
    try:
        runs = [json.loads(line) for line in text.splitlines() if line.strip()]
        return [head_of(checkpoint) for run in runs for checkpoint in run["checkpoints"]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise BadData(
            f"{path}: not a run as `coreg-coordinator show RUN --json` writes it."
        ) from None


def head_of(checkpoint: dict[str, Any]) -> SignedHead:
    receipt = TypeAdapter(Countersigned).validate_python(checkpoint["receipt"])
    signed = SignedHead(
        site=checkpoint["site"],
        run=receipt.run,
        head=receipt.head,
        signature=checkpoint["signature"],
        certificate=checkpoint["certificate"],
        receipt=receipt,
    )
    return TypeAdapter(SignedHead).validate_python(asdict(signed))  # a number is no signature
