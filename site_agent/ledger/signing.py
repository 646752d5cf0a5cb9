"""Sign the heads of the ledger with the key of the site's certificate, and check the coordinator's countersignatures.

Each signature is stored with its certificate, because certificates are renewed over the years.
"""

from coreg_core.protocol.messages import Countersigned, LedgerHead
from coreg_wire.identity.checkpoints import coordinator_fault, said_by_site
from coreg_wire.identity.names import load_certificates
from coreg_wire.identity.signatures import private_key, sign, to_hex
from site_agent.identity.identity import Identity


class HeadSigner:
    """The signer of an enrolled site."""

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
