"""Private keys in files, and signatures by the keys of certificates.

A key is PEM (PKCS#8), with mode 0600 or, for the own group, 0640. At the end of a run a site signs
the head of its ledger, and the coordinator countersigns it. A head fixes every line before it, also
against a person who can write the file.
"""

import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID

from coreg_core.errors import BadData, CoregError, Refused
from coreg_core.messages import Countersigned, LedgerHead, Offer
from coreg_wire.identity.names import certificate_name, certificate_of

_ECDSA = ec.ECDSA(SHA256())


def load_key(pem: bytes, where: object) -> ec.EllipticCurvePrivateKey:
    """The key in a PEM text, which comes from ``where``."""
    try:
        key = load_pem_private_key(pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BadData(f"{where} is not a private key in PEM ({error}).") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise BadData(f"{where} is not an elliptic-curve key.")
    return key


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def check_private(path: Path, if_read: str = "") -> None:
    """Refuse a key or token that others can read (the own group can: 0640)."""
    status = path.stat()
    beyond = status.st_mode & 0o777 & ~0o600
    if not beyond or (beyond == 0o040 and status.st_gid in (os.getegid(), *os.getgroups())):
        return
    why = f"{path} has mode {status.st_mode & 0o777:04o}, so other users of this machine can"
    todo = f"Run `chmod 600 {path}`."
    if beyond & 0o020:
        kubernetes = (
            "If Kubernetes set it (fsGroup), set fsGroupChangePolicy: OnRootMismatch in the"
            " securityContext too."
        )
        raise Refused(f"{why} change it. {todo} {kubernetes}{if_read}")
    if not status.st_mode & 0o222:  # a secret of Docker
        docker = (
            "A secret of Docker has this mode: mount its folder instead, or give the secret mode"
            " 0400."
        )
        raise Refused(f"{why} read it. {docker}{if_read}")
    raise Refused(f"{why} read it. {todo}{if_read}")


def private_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """The key in the PEM text of a checked identity."""
    return load_key(pem, "the key")


# --- signatures -----------------------------------------------------------------------------------


def statement(context: str, *about: Any) -> bytes:
    """The bytes to sign.

    The context is the kind of statement and separates it from every other kind.
    """
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


def to_hex(certificate: x509.Certificate) -> str:
    """The certificate in DER and hexadecimal, as in messages and ledgers."""
    return certificate.public_bytes(Encoding.DER).hex()


def from_hex(text: str, where: str) -> x509.Certificate:
    """The inverse of `to_hex`."""
    try:
        der = bytes.fromhex(text)
    except ValueError:
        raise BadData(f"{where} is not a certificate.") from None
    return certificate_of(der, where)


def is_issued(certificate: x509.Certificate, authorities: Iterable[x509.Certificate]) -> bool:
    """Whether one of these authorities signed it."""
    for authority in authorities:
        try:
            certificate.verify_directly_issued_by(authority)
        except (InvalidSignature, ValueError, TypeError):
            continue
        return True
    return False


def offer_statement(offer: Offer) -> bytes:
    """The signed bytes of an offer: all of its fields."""
    return statement("coreg offer 1", asdict(replace(offer, signature="")))


def offer_fault(offer: Offer, certificate: x509.Certificate) -> str | None:
    """Why the other members would refuse an offer of the certificate's site, with its keys; or
    None.
    """
    public = certificate.public_key()
    own = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo).hex()
    if offer.identity.lower() != own:
        return "its offer names another key than that of its certificate."
    if not is_signed(public, offer.signature, offer_statement(offer)):
        return "its offer is not signed by the key of its certificate."
    try:
        X25519PrivateKey.generate().exchange(
            X25519PublicKey.from_public_bytes(bytes.fromhex(offer.key))
        )
    except ValueError:  # no 32 bytes, or a point of low order
        return "its offer has no valid key for the run."
    return None


def said_by_site(site: str, run: str, head: LedgerHead) -> bytes:
    """The statement that a site signs."""
    return statement("coreg ledger head 1", site, run, head.lines, head.last, head.at)


def said_by_coordinator(site: str, signature: str, receipt: Countersigned) -> bytes:
    """The statement that the coordinator signs: the site's statement, its signature, and the time
    of receipt.
    """
    head = receipt.head
    about = (site, receipt.run, head.lines, head.last, head.at, signature, receipt.at)
    return statement("coreg ledger countersigned 1", *about)


def site_fault(
    site: str,
    run: str,
    head: LedgerHead,
    signature: str,
    certificate: str,
    authorities: Sequence[x509.Certificate],
) -> str | None:
    """Why this is not that site's signature on that head; None if it is."""
    return _fault(
        certificate,
        authorities,
        signature,
        said_by_site(site, run, head),
        lambda shown: is_of(shown, site),
    )


def coordinator_fault(
    site: str, signature: str, receipt: Countersigned, authorities: Sequence[x509.Certificate]
) -> str | None:
    """Why this is not the coordinator's signature on that head of that site; None if it is."""
    said = said_by_coordinator(site, signature, receipt)
    return _fault(receipt.certificate, authorities, receipt.signature, said, serves)


def _fault(
    certificate: str,
    authorities: Sequence[x509.Certificate],
    signature: str,
    said: bytes,
    wrong: Callable[[x509.Certificate], str | None],
) -> str | None:
    """Why this is not a signature by the key of that certificate, of one of these authorities;
    ``wrong``: of another party.
    """
    try:
        shown = from_hex(certificate, "the value beside it")
        if not is_issued(shown, authorities):
            return "the certificate beside it is not of this federation's authority"
        if (reason := wrong(shown)) is not None:
            return reason
    except CoregError as error:
        return str(error).rstrip(".")
    if not is_signed(shown.public_key(), signature, said):
        return "the signature does not match that certificate's key and that head"
    return None


def is_of(certificate: x509.Certificate, site: str) -> str | None:
    owner = certificate_name(certificate, "the certificate beside it")
    if owner == site:
        return None
    return f"the certificate beside it is of {owner!r}, not of {site!r}"


def serves(certificate: x509.Certificate) -> str | None:
    """A site's certificate has the same authority, but is for clients only."""
    try:
        purposes = list(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    except (x509.ExtensionNotFound, ValueError):
        purposes = []
    if purposes == [ExtendedKeyUsageOID.SERVER_AUTH]:
        return None
    return "the certificate beside it is not a coordinator's"
