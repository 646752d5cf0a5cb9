"""The coordinator's signatures on the heads of its sites' ledgers. They prove that it received the head, and when.

It signs with the key of the server's certificate, since the authority's key can be on another machine.
"""

from coordinator.authority.pki import ServerFiles
from coordinator.machine.records import HeadSigned
from coreg_core.protocol.messages import Countersigned, Fetched
from coreg_wire.clock import timestamp
from coreg_wire.identity.checkpoints import said_by_coordinator, said_by_site
from coreg_wire.identity.names import load_certificates
from coreg_wire.identity.signatures import is_signed, private_key, sign, to_hex


class Notary:
    """Signs with the server's key in these files."""

    def __init__(self, files: ServerFiles):
        self._private = private_key(files.key_pem)
        self._certificate = to_hex(load_certificates(files.certificate_pem, "coordinator.pem")[0])

    def __repr__(self) -> str:
        return "Notary()"

    def countersign(self, site: str, certificate_pem: bytes, fetched: Fetched) -> HeadSigned:
        """Countersign the head that a site sent, or give the reason for not signing.

        The site's signature must be by the key of its session's certificate. Otherwise only the countersignature is refused:
        the site keeps its models, and both sides receive the reason.
        """
        at = timestamp()
        shown = load_certificates(certificate_pem, f"The certificate of {site!r}")[0]
        receipt = Countersigned(fetched.run, fetched.head, at, "", self._certificate)
        if is_signed(shown.public_key(), fetched.signature, said_by_site(site, fetched.run, fetched.head)):
            signature = sign(self._private, said_by_coordinator(site, fetched.signature, receipt))
            receipt = Countersigned(fetched.run, fetched.head, at, signature, self._certificate)
        else:
            reason = f"not countersigned: the head of the ledger of {site} is not signed by the key of its session"
            receipt = Countersigned(fetched.run, fetched.head, at, "", self._certificate, reason)
        return HeadSigned(site, fetched.signature, to_hex(shown), receipt)
