"""A request for a new certificate, signed with the old one: the request, the certificate in use, and its key's signature.

It is one text in PEM. The site sends it to the coordinator's operator, who checks it against the allow-list. If its key is new,
the site also sends it to its peers, who check it against the key that they pinned.
"""

import base64
import re
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from coreg_core.errors import BadData, Refused
from coreg_wire.identity.names import certificate_name, load_certificates, request_name

_BEGIN, _END = "-----BEGIN COREG RENEWAL-----", "-----END COREG RENEWAL-----"
_BLOCK = re.compile(f"{_BEGIN}\\s+([A-Za-z0-9+/=\\s]+){_END}")
_CONTEXT = b"coreg renewal of a site's certificate\0"


@dataclass(frozen=True)
class Renewal:
    """A renewal with a valid signature: the site's name, its certificate in use, and the requested key."""

    name: str
    current: x509.Certificate
    key: ec.EllipticCurvePublicKey

    @property
    def same_key(self) -> bool:
        """Whether the key stays, so that peers need not pin another one."""
        return self.current.public_key() == self.key


def renewal_text(
    request: x509.CertificateSigningRequest, current: x509.Certificate, current_key: ec.EllipticCurvePrivateKey
) -> bytes:
    signature = current_key.sign(_signed(request), ec.ECDSA(SHA256()))
    block = f"{_BEGIN}\n{base64.encodebytes(signature).decode()}{_END}\n"
    return request.public_bytes(Encoding.PEM) + current.public_bytes(Encoding.PEM) + block.encode()


def read_renewal(data: bytes, where: str) -> Renewal | None:
    """The renewal in a text; None for a plain request. The caller must check that its certificate is trusted.

    Raises
    ------
    BadData
        it is not a request, or an incomplete renewal.
    Refused
        a signature is invalid, or the two names differ.
    """
    found = _BLOCK.search(data.decode("latin-1"))
    if found is None:
        return None
    try:
        request = x509.load_pem_x509_csr(data)
        signature, new = base64.b64decode(found[1]), request.public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise BadData(f"{where} is not a readable renewal ({error}). Ask the site for its site.csr again.") from error
    [current, *_] = load_certificates(data, where)
    old = current.public_key()
    if not (isinstance(old, ec.EllipticCurvePublicKey) and isinstance(new, ec.EllipticCurvePublicKey)):
        raise Refused(f"{where}: a site's keys are elliptic-curve keys. Make it with `coreg-agent enroll --renew`.")
    try:
        old.verify(signature, _signed(request), ec.ECDSA(SHA256()))
    except InvalidSignature as error:
        raise Refused(
            f"{where} is not signed by the key of the certificate in it: damaged or forged. Ask the site for its site.csr again."
        ) from error
    if not request.is_signature_valid:
        raise Refused(f"{where} is not signed by its own key: damaged or forged. Ask the site for its site.csr again.")
    name = request_name(request, where)
    if certificate_name(current, f"{where}: its certificate") != name:
        raise Refused(f"{where} asks for {name!r} with the certificate of another site. A renewal keeps its name.")
    return Renewal(name, current, new)


def _signed(request: x509.CertificateSigningRequest) -> bytes:
    return _CONTEXT + request.public_bytes(Encoding.DER)
