"""A site's ledger with the parties that sign it: an authority, its notary, two enrolled sites, and
runs without a network.
"""

import dataclasses
import hashlib
import json

import numpy as np

from coordinator.authority.pki import create_authority
from coordinator.service.access import AccessControl
from coreg_core.messages import Answer, Fetched, Hello, Leaving, Offer, Report, Words
from coreg_wire.identity.names import load_certificates
from site_agent.disclosure import Disclosure
from site_agent.identity.enrolment import enrol, install
from site_agent.identity.identity import check_identity
from site_agent.ledger import GENESIS, HeadSigner, Ledger
from site_agent.ledger.audit import audit, read_record
from tests.issued import issued


def told(sites=("a", "b"), *, part="affine", rows=3, sealed=True, may_change=False):
    """What an answer with words discloses: a site's predictions for the shared instances."""
    return Disclosure(f"respond {part}", tuple(sites), rows, sealed, may_change)


def offer(run="r", plan="plan", ids="ids", rows="data"):
    plain = {f.name: "" for f in dataclasses.fields(Offer)}
    about = {
        "run": run,
        "attempt": 0,
        "plan_digest": plan,
        "site": "north",
        "n_unlabelled": 3,
        "ids_digest": ids,
    }
    return Offer(**plain | about | {"data_digest": rows})


def answer(run="r", step=0, words=(1, 2, 3)):
    """With these words; None: with keys or proofs, or at the end."""
    carried = None
    if words is not None:
        carried = Words(np.array(words, dtype="<u8"))
    return Answer(run, 0, step, Report(), summed=carried)


def chained(entries, previous=GENESIS):
    """The file of these entries, with a whole chain."""
    whole = b""
    for entry in entries:
        line = json.dumps({**entry, "previous": previous}, sort_keys=True).encode()
        previous = hashlib.sha256(line).hexdigest()
        whole = whole + line + b"\n"
    return whole


class Home:
    """An authority, its notary, and two enrolled sites; another authority that nobody asked."""

    def __init__(self, folder):
        self.folder = folder
        for authority, sites in (("ca", ("north", "south")), ("other-ca", ("stranger",))):
            create_authority(folder / authority, [])
            for site in sites:
                name = site
                if site == "stranger":
                    name = "north"
                enrol(folder / site, name)
                request = folder / site / "site.csr"
                install(folder / site, issued(folder / authority, request))
        self.notary = AccessControl(folder / "ca")
        self.authorities = load_certificates((folder / "ca" / "ca.pem").read_bytes(), "ca.pem")
        self.path = folder / "north" / "ledger.jsonl"

    def identity(self, site="north"):
        return check_identity(self.folder / site)

    def serve(self, *runs, countersign=True, **options):
        """An agent's process that takes part in these runs; what the coordinator keeps of them."""
        identity = self.identity()
        kept = []
        ledger = Ledger(self.path, HeadSigner(identity), **options)
        try:
            ledger.record(Hello("north", 3, "0.2.0"))
            kept.extend(self.one(ledger, identity, run, countersign=countersign) for run in runs)
            ledger.record(Leaving("over"))
        finally:
            ledger.close()
        return kept

    def one(self, ledger, identity, run, *, countersign=True, answers=3):
        ledger.record(offer(run))
        for step in range(answers):
            ledger.record(answer(run, step), told())
        fetched = ledger.record(Fetched(run))
        signed = self.notary.countersign("north", identity.certificate_pem, fetched)
        if countersign:
            assert ledger.countersigned(signed.receipt) is None
        return signed

    def audit(self, record=(), site="north"):
        return audit(self.path, self.authorities, site, record)

    def record(self, kept):
        path = self.folder / "checkpoints.json"
        path.write_text(
            json.dumps({"checkpoints": [dataclasses.asdict(signed) for signed in kept]})
        )
        return read_record(path, "north")

    @property
    def lines(self):
        return [json.loads(line) for line in self.path.read_bytes().splitlines()]

    def rewrite(self, entries):
        """The file anew, with a chain that is whole: by itself it shows nothing."""
        self.path.write_bytes(chained(entries))
