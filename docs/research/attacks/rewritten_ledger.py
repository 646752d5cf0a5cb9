"""A person who can write a ledger's file removes every answer from it, and recomputes the chain of
hashes.

The chain alone is valid again. But site and coordinator signed heads at the end of each run, and
these sign other lines. The fraud is found if the heads are left in, and also if the attacker adds
heads of their own. If all heads are removed, the coordinator's record reveals it. The site's own
operator has the key for new heads, but neither the countersignatures nor the record.
"""

import dataclasses
import hashlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from federation import reported

from coordinator.authority.pki import check_request, create_authority, issue
from coordinator.service.access import AccessControl
from coreg_core.errors import CoregError
from coreg_core.messages import Answer, Fetched, Hello, LedgerHead, Report, Words
from coreg_wire.identity.names import load_certificates
from coreg_wire.identity.signatures import private_key, said_by_site, sign, to_hex
from site_agent.identity.enrolment import enrol, install
from site_agent.identity.identity import Identity
from site_agent.ledger import GENESIS, HeadSigner, Ledger, read_ledger
from site_agent.ledger.audit import SignedHead, audit

Entry = dict[str, Any]


def enrolled(folder: Path, authority: str) -> Identity:
    """A site called north, under an authority."""
    create_authority(folder / authority, [])
    request = enrol(folder / f"north of {authority}", "north")
    return install(
        folder / f"north of {authority}",
        issue(folder / authority, *check_request(request.read_bytes())),
    )


def two_runs(path: Path, identity: Identity, notary: AccessControl) -> list[SignedHead]:
    """An honest site's ledger of two runs, and the coordinator's record of it."""
    ledger = Ledger(path, HeadSigner(identity))
    record = list[SignedHead]()
    ledger.record(Hello("north", 3, ""))
    for run in ("one", "two"):
        for question in range(5):
            words = Words(np.full(3, question, dtype="<u8"))
            ledger.record(Answer(run, 0, question, Report(question="respond affine"), words))
        fetched = ledger.record(Fetched(run))
        assert isinstance(fetched, Fetched)
        signed = notary.countersign("north", identity.certificate_pem, fetched)
        ledger.countersigned(signed.receipt)
        record.append(
            SignedHead(
                "north", run, fetched.head, signed.signature, signed.certificate, signed.receipt
            )
        )
    ledger.close()
    return record


def rewrite(path: Path, made: Callable[[Entry, LedgerHead], Entry | None]) -> None:
    """Rewrite the file entry by entry, each with the head of the lines before it.

    The chain stays valid.
    """
    previous = GENESIS
    lines = list[bytes]()
    for entry in map(json.loads, path.read_bytes().splitlines()):
        if (kept := made(entry, LedgerHead(len(lines), previous, entry["at"]))) is not None:
            lines.append(json.dumps({**kept, "previous": previous}, sort_keys=True).encode())
            previous = hashlib.sha256(lines[-1]).hexdigest()
    path.write_bytes(b"".join(line + b"\n" for line in lines))


def without_answers(entry: Entry, _head: LedgerHead) -> Entry | None:
    """Remove every answer."""
    return None if entry["kind"] == "Answer" else entry


def without_signatures(entry: Entry, head: LedgerHead) -> Entry | None:
    """Remove every answer and every head."""
    return None if entry["kind"] in ("Fetched", "Countersigned") else without_answers(entry, head)


def signed_by(identity: Identity) -> Callable[[Entry, LedgerHead], Entry | None]:
    """Replace the heads by heads signed with that key, without countersignatures."""
    private = private_key(identity.key_pem)
    certificate = to_hex(load_certificates(identity.certificate_pem, "site.pem")[0])

    def made(entry: Entry, head: LedgerHead) -> Entry | None:
        if entry["kind"] == "Fetched":
            signature = sign(private, said_by_site("north", entry["run"], head))
            return {
                **entry,
                "head": dataclasses.asdict(head),
                "signature": signature,
                "certificate": certificate,
            }
        return None if entry["kind"] == "Countersigned" else without_answers(entry, head)

    return made


@reported
def attack() -> dict[str, Any]:
    """For each way to rewrite the file: the verdict of the chain, of the signatures, and of both
    with the record.
    """
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        north = enrolled(folder, "ca")
        stranger = enrolled(folder, "other-ca")
        notary = AccessControl(folder / "ca")
        authorities = load_certificates(north.ca_pem, "ca.pem")
        path = folder / "ledger.jsonl"
        record = two_runs(path, north, notary)
        whole = path.read_bytes()

        def told(record: list[SignedHead]) -> str:
            try:
                both = audit(path, authorities, "north", record).both
            except CoregError as error:
                return str(error)
            return (
                "nothing is signed by both"
                if both is None
                else f"signed by both up to line {both.head.lines}"
            )

        for how, made in {
            "as it was": lambda entry, _head: entry,
            "answers out": without_answers,
            "heads out too": without_signatures,
            "heads of a stranger's key": signed_by(stranger),
            "heads of the operator's own key": signed_by(north),
        }.items():
            path.write_bytes(whole)
            rewrite(path, made)
            chain = sum(entry["kind"] == "Answer" for entry in read_ledger(path))
            found[how] = {
                "answers in the chain": chain,
                "verified": told([]),
                "with the record": told(record),
            }
    return found
