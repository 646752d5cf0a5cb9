"""A ledger held to its signatures: what both sides signed cannot have been written anew by whoever has the file.

Reads the chain of all files; holds every head to the line that it is of, to the site's certificate beside it and to the
federation's authority, and every countersignature likewise; and the heads that the coordinator kept, where they are
given, to these lines.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from sys import intern
from typing import Any

from cryptography import x509

from coreg_core.errors import BadData, StorageError
from coreg_core.protocol.messages import Countersigned, LedgerHead
from coreg_wire.identity.checkpoints import coordinator_fault, site_fault
from coreg_wire.identity.names import certificate_name
from coreg_wire.identity.signatures import from_hex
from site_agent.ledger.files import CONTINUED, Line, read_lines, readable
from site_agent.ledger.replay import Memory


@dataclass(frozen=True)
class SignedHead:
    """A head with the site's signature, and what the coordinator made of it, where that is known."""

    site: str
    run: str
    head: LedgerHead
    signature: str
    certificate: str
    receipt: Countersigned | None = None


@dataclass(frozen=True)
class Audited:
    """What was found: nothing is wrong as far as the lines are signed.

    ``own`` is the last head that the site signed and ``both`` the last that the coordinator countersigned; ``after`` counts the
    lines beyond that one, by kind. ``compared`` heads of the coordinator's own record fit.
    """

    files: int
    lines: int
    torn: tuple[int, ...]
    heads: tuple[SignedHead, ...]
    own: SignedHead | None
    both: SignedHead | None
    after: Mapping[str, int]
    compared: int


def audit(
    path: Path, authorities: Sequence[x509.Certificate], site: str | None = None, record: Sequence[SignedHead] = ()
) -> Audited:
    """Read the ledger through, and hold it to every signature.

    Parameters
    ----------
    path
        the ledger that is written; older files are found beside it.
    authorities
        whose certificates are believed: the federation's, and earlier ones of it.
    site
        whose ledger it is; None believes the first head.
    record
        heads of this site that the coordinator kept, or somebody else.

    Raises
    ------
    BadData
        ``record`` has a head that the site, or the coordinator, never signed.
    StorageError
        the ledger is not what was signed, the chain is broken, lines are missing, or it cannot be read.
    """
    for kept in record:
        _check_record(kept, authorities)
    reading = _Reading(path, authorities, site, {kept.head.lines for kept in record})
    for line in read_lines(path):
        reading.read(line)
    for kept in sorted(
        record, key=lambda kept: -kept.head.lines
    ):  # how much is missing, if something is, is told first
        reading.hold_to(kept)
    return reading.found(len(record))


def _check_record(kept: SignedHead, authorities: Sequence[x509.Certificate]) -> None:
    fault = site_fault(kept.site, kept.run, kept.head, kept.signature, kept.certificate, authorities)
    if fault is not None:
        raise BadData(f"the record's head of run {kept.run} is none that {kept.site} signed: {fault}.")
    if kept.receipt is not None:
        fault = _receipt_fault(kept, kept.receipt, authorities)
        if fault is not None:
            raise BadData(f"the record's head of run {kept.run} is none that the coordinator signed: {fault}.")


def _receipt_fault(signed: SignedHead, receipt: Countersigned, authorities: Sequence[x509.Certificate]) -> str | None:
    if (receipt.run, receipt.head) != (signed.run, signed.head):
        return "it is of another head"
    return coordinator_fault(signed.site, signed.signature, receipt, authorities)


class _Reading:
    """What is known of a ledger as far as it was read."""

    def __init__(self, path: Path, authorities: Sequence[x509.Certificate], site: str | None, wanted: set[int]):
        self._path, self._authorities, self._site, self._wanted = path, authorities, site, wanted
        self._files: set[Path] = set()
        self._torn: list[int] = []
        self._lines, self._last, self._unsigned = 0, "", 0
        self._heads: list[SignedHead] = []
        self._receipts: dict[tuple[str, int], Countersigned] = {}
        self._hashes: dict[int, str] = {}  # of the lines that the record speaks of
        self._kinds: list[str] = []
        self._memory = Memory()

    def read(self, line: Line) -> None:
        if not self._lines and line.since != 1:
            raise self._damaged(
                f"lines 1 to {line.since - 1} are not here, but in files that were put aside before {line.path.name}. "
                "Put them back beside it"
            )
        kind = intern(str(line.entry["kind"]))
        if line.torn:
            self._torn.append(line.since)
        elif kind == CONTINUED:
            self._held_to_memory(line)
        elif kind == "Fetched":
            self._signed(line)
        elif kind == "Countersigned":
            self._countersigned(line)
        if not line.torn:
            with readable(line.path, line.number):
                self._memory.add(line.entry)
        self._lines, self._last = line.since, line.sha256
        self._files.add(line.path)
        self._kinds.append(kind)
        if line.since in self._wanted:
            self._hashes[line.since] = line.sha256

    def _held_to_memory(self, line: Line) -> None:
        carried = line.entry.get("carried")
        known = json.loads(json.dumps(self._memory.to_json()))
        if isinstance(carried, dict) and carried.get("version") == known["version"] and carried != known:
            raise self._damaged("what it carries of the files before it is not what these say", line)

    def _signed(self, line: Line) -> None:
        if "signature" not in line.entry:
            self._unsigned += 1
            return
        signed = self._head_of(line)
        if (signed.head.lines, signed.head.last) != (self._lines, self._last):
            raise self._damaged(
                f"the head of run {signed.run} was signed {signed.head.at} over {signed.head.lines} lines up to "
                f"{signed.head.last[:16]}…, and before it there are {self._lines} up to {self._last[:16]}…: lines were changed, "
                "removed or put in, and the chain was made anew",
                line,
            )
        fault = site_fault(
            signed.site, signed.run, signed.head, signed.signature, signed.certificate, self._authorities
        )
        if fault is not None:
            raise self._damaged(f"the head of run {signed.run} is not signed by {signed.site}: {fault}", line)
        self._heads.append(signed)

    def _head_of(self, line: Line) -> SignedHead:
        entry = line.entry
        try:
            head = LedgerHead(int(entry["head"]["lines"]), str(entry["head"]["last"]), str(entry["head"]["at"]))
            run, signature = str(entry["run"]), str(entry["signature"])
            certificate = str(entry["certificate"])
            self._site = self._site or certificate_name(from_hex(certificate, "what stands beside the head"))
        except (KeyError, TypeError, ValueError, OverflowError, BadData) as error:
            raise self._damaged(f"a head that cannot be read ({error})", line) from None
        return SignedHead(self._site, run, head, signature, certificate)

    def _countersigned(self, line: Line) -> None:
        entry = line.entry
        try:
            words = (str(entry[name]) for name in ("run", "countersigned", "signature", "certificate"))
            run, at, signature, certificate = words
            receipt = Countersigned(run, LedgerHead(**entry["head"]), at, signature, certificate)
        except (KeyError, TypeError) as error:
            raise self._damaged(f"a countersignature that cannot be read ({error})", line) from None
        signed = next((s for s in self._heads if (s.run, s.head) == (receipt.run, receipt.head)), None)
        fault = "no such head was signed" if signed is None else _receipt_fault(signed, receipt, self._authorities)
        if fault is not None:
            raise self._damaged(f"the countersignature for run {receipt.run} is not the coordinator's: {fault}", line)
        self._receipts[receipt.run, receipt.head.lines] = receipt

    def hold_to(self, kept: SignedHead) -> None:
        """A head of the coordinator's record, whose signatures are good."""
        told = f"{kept.site} signed a head over {kept.head.lines} lines at the end of run {kept.run}, {kept.head.at}"
        if kept.head.lines > self._lines:
            raise self._damaged(f"{told}, and here are {self._lines}: the end was cut off")
        if self._hashes.get(kept.head.lines) != kept.head.last:
            raise self._damaged(
                f"{told}, the last of which is not line {kept.head.lines} here: the ledger was replaced"
            )
        if kept.receipt is not None:
            self._receipts[kept.run, kept.head.lines] = kept.receipt
        if not any((s.run, s.head) == (kept.run, kept.head) for s in self._heads):
            self._heads.append(kept)

    def found(self, compared: int) -> Audited:
        if self._unsigned and not self._heads:
            raise self._damaged(
                f"{self._unsigned} runs were fetched by it and not one line is signed, so that the chain alone shows "
                "nothing to anybody who doubts the one who keeps it (an agent with --insecure has no key to sign with; otherwise "
                "signatures were taken out)"
            )
        heads = [
            SignedHead(s.site, s.run, s.head, s.signature, s.certificate, self._receipts.get((s.run, s.head.lines)))
            for s in sorted(self._heads, key=lambda s: s.head.lines)
        ]
        both = next((s for s in reversed(heads) if s.receipt is not None), None)
        signed = 0 if both is None else both.head.lines
        after = Counter(self._kinds[signed:])
        own = heads[-1] if heads else None
        return Audited(len(self._files), self._lines, tuple(self._torn), tuple(heads), own, both, dict(after), compared)

    def _damaged(self, what: str, line: Line | None = None) -> StorageError:
        where = self._path if line is None else f"{line.path}, line {line.number}"
        return StorageError(f"{where}: {what}. It is not the ledger that was written, or not all of it.")


def read_record(path: Path, site: str | None = None) -> list[SignedHead]:
    """Checkpoints from a file: `coreg-coordinator ledger-checkpoints --json`, `show --json`, or what `ledger --verify
    --json` said once.

    Raises
    ------
    BadData
        it holds none of that site, or something else.
    StorageError
        it cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StorageError(f"{path}: cannot be read ({error}).") from None
    try:
        plain = [json.loads(line) for line in text.splitlines() if line.strip()]
        told = [one for each in plain for one in each.get("checkpoints", each.get("heads", [each]))]
        heads = [_from_plain(one) for one in told]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise BadData(
            f"{path}: not checkpoints as `coreg-coordinator ledger-checkpoints --json` writes them."
        ) from None
    mine = [head for head in heads if site is None or head.site == site]
    if not mine:
        of = "" if site is None else f" of {site}"
        raise BadData(
            f"{path}: no checkpoint{of} in it. Write it with `coreg-coordinator ledger-checkpoints --site NAME --json`."
        )
    if len({head.site for head in mine}) > 1:
        raise BadData(
            f"{path}: checkpoints of several sites. Write it with `coreg-coordinator ledger-checkpoints --site NAME --json`."
        )
    return mine


def _from_plain(told: dict[str, Any]) -> SignedHead:
    receipt = None
    if told["receipt"] is not None:
        receipt = Countersigned(**{**told["receipt"], "head": LedgerHead(**told["receipt"]["head"])})
    run, head = (receipt.run, receipt.head) if receipt is not None else (told["run"], LedgerHead(**told["head"]))
    return SignedHead(told["site"], run, head, told["signature"], told["certificate"], receipt)


def plain(audited: Audited) -> dict[str, Any]:
    return asdict(audited)
