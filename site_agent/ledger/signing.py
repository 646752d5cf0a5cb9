"""This site's signature under the heads of its ledger, and the coordinator's that comes back, checked.

With the key of the site's certificate. The certificate stands beside each signature, since it is renewed over the years. Knows
keys and messages; no file.
"""

from coreg_core.protocol.messages import Countersigned, LedgerHead
from coreg_wire.identity.checkpoints import coordinator_fault, said_by_site
from coreg_wire.identity.names import load_certificates
from coreg_wire.identity.signatures import private_key, sign, to_hex
from site_agent.identity.identity import Identity


class HeadSigner:
    """Of an enrolled site."""

    def __init__(self, identity: Identity):
        self.site = identity.name
        self.certificate = to_hex(load_certificates(identity.certificate_pem, "site.pem")[0])
        self._private = private_key(identity.key_pem)
        self._authorities = load_certificates(identity.ca_pem, "ca.pem")

    def __repr__(self) -> str:
        return f"HeadSigner({self.site!r})"

    def sign(self, run: str, head: LedgerHead) -> str:
        """The site's signature on it, in hexadecimal."""
        return sign(self._private, said_by_site(self.site, run, head))

    def fault(self, signature: str, receipt: Countersigned) -> str | None:
        """Why that is not the coordinator's signature on what this site signed so; None where it is."""
        return coordinator_fault(self.site, signature, receipt, self._authorities)
