"""Signatures by the keys of certificates. Each is on one statement, whose context separates it from all other kinds.

Both sides, and a later audit, use this module for statements.
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
    """The bytes to sign. The context is the kind of statement and separates it from every other kind."""
    return json.dumps([context, *about], separators=(",", ":")).encode()


def sign(private: ec.EllipticCurvePrivateKey, said: bytes) -> str:
    return private.sign(said, _ECDSA).hex()


def is_signed(public: object, signature: str, said: bytes) -> bool:
    """Whether the holder of the key signed this statement."""
    if not isinstance(public, ec.EllipticCurvePublicKey):
        return False
    try:
        public.verify(bytes.fromhex(signature), said, _ECDSA)
    except (InvalidSignature, ValueError):
        return False
    return True


def private_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """The key in the PEM text of a checked identity."""
    private = load_pem_private_key(pem, None)
    assert isinstance(private, ec.EllipticCurvePrivateKey), "other kinds are rejected when the file is read"
    return private


def to_hex(certificate: x509.Certificate) -> str:
    """The certificate in DER and hexadecimal, as in messages and ledgers."""
    return certificate.public_bytes(Encoding.DER).hex()


def from_hex(text: str, where: str) -> x509.Certificate:
    """The inverse of `to_hex`."""
    try:
        return x509.load_der_x509_certificate(bytes.fromhex(text))
    except ValueError:
        raise BadData(f"{where} is not a certificate.") from None


def is_issued(certificate: x509.Certificate, authorities: Iterable[x509.Certificate]) -> bool:
    """Whether one of these authorities signed it."""
    for authority in authorities:
        try:
            certificate.verify_directly_issued_by(authority)
        except (InvalidSignature, ValueError, TypeError):
            continue
        return True
    return False
