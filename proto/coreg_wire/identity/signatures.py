"""Signatures by the keys of certificates: each is on one statement, and no statement can be taken for another kind's.

Both sides, and whoever judges between them later, read statements through this module.
"""

import json
from collections.abc import Iterable
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from coreg_core.errors import BadData

_ECDSA = ec.ECDSA(SHA256())


def statement(context: str, *about: Any) -> bytes:
    """What is signed: the context says what kind of statement it is, and keeps it apart from every other kind."""
    return json.dumps([context, *about], separators=(",", ":")).encode()


def sign(private: ec.EllipticCurvePrivateKey, said: bytes) -> str:
    return private.sign(said, _ECDSA).hex()


def is_signed(public: object, signature: str, said: bytes) -> bool:
    """Whether the holder of that key said so."""
    if not isinstance(public, ec.EllipticCurvePublicKey):
        return False
    try:
        public.verify(bytes.fromhex(signature), said, _ECDSA)
    except (InvalidSignature, ValueError):
        return False
    return True


def private_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """Of a checked identity's PEM text."""
    private = load_pem_private_key(pem, None)
    assert isinstance(private, ec.EllipticCurvePrivateKey), "whoever read the file accepts no other"
    return private


def to_hex(certificate: x509.Certificate) -> str:
    """The certificate's DER, as messages and ledgers carry it."""
    return certificate.public_bytes(Encoding.DER).hex()


def from_hex(text: str, where: str) -> x509.Certificate:
    """The inverse of `to_hex`.

    Raises
    ------
    BadData
        it is none.
    """
    try:
        return x509.load_der_x509_certificate(bytes.fromhex(text))
    except ValueError:
        raise BadData(f"{where} is no certificate.") from None


def is_issued(certificate: x509.Certificate, authorities: Iterable[x509.Certificate]) -> bool:
    """Whether one of these authorities signed it."""
    for authority in authorities:
        try:
            certificate.verify_directly_issued_by(authority)
        except (InvalidSignature, ValueError, TypeError):
            continue
        return True
    return False
