"""The coordinator's signature under the heads of its sites' ledgers: that it has seen them, and when.

With the key of its server's certificate, which is here whenever it serves; the authority's may be elsewhere.
"""

import datetime as dt

from coordinator.authority.pki import ServerFiles
from coordinator.machine.records import HeadSigned
from coreg_core.protocol.messages import Countersigned, Fetched
from coreg_wire.identity.checkpoints import said_by_coordinator, said_by_site
from coreg_wire.identity.names import load_certificates
from coreg_wire.identity.signatures import is_signed, private_key, sign, to_hex


class Notary:
    """Of a coordinator that serves with these files."""

    def __init__(self, files: ServerFiles):
        self._private = private_key(files.key_pem)
        self._certificate = to_hex(load_certificates(files.certificate_pem, "coordinator.pem")[0])

    def __repr__(self) -> str:
        return "Notary()"

    def countersign(self, site: str, certificate_pem: bytes, fetched: Fetched) -> HeadSigned:
        """The head that a site sent under the certificate of its session, countersigned; or why it is not.

        A site whose signature is not of that certificate's key has its models all the same: what is refused is the
        countersignature, and both sides are told.
        """
        at = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")
        shown = load_certificates(certificate_pem, f"The certificate of {site!r}")[0]
        receipt = Countersigned(fetched.run, fetched.head, at, "", self._certificate)
        if is_signed(shown.public_key(), fetched.signature, said_by_site(site, fetched.run, fetched.head)):
            signature = sign(self._private, said_by_coordinator(site, fetched.signature, receipt))
            receipt = Countersigned(fetched.run, fetched.head, at, signature, self._certificate)
        else:
            reason = (
                f"not countersigned: the head of the ledger of {site} is not signed by the key of the certificate that it "
                "connected with"
            )
            receipt = Countersigned(fetched.run, fetched.head, at, "", self._certificate, reason)
        return HeadSigned(site, fetched.signature, to_hex(shown), receipt)
