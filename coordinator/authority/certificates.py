"""The certificates of the authority, the server and the sites: EC P-256 and SHA-256.

Pure functions: keys, names and a time in, a certificate out. Must not read files or decide on access.
"""

import re
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coreg_core.errors import UsageError
from coreg_wire.identity.names import site_uri

# A certificate is valid from before its creation, since clocks at the sites may be slow.
_BACKDATED = timedelta(hours=1)
_ALWAYS_SERVED = ("localhost", "127.0.0.1", "::1")
_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_HOSTNAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(\.{_LABEL})*")


def authority_certificate(key: ec.EllipticCurvePrivateKey, days: int, now: datetime) -> x509.Certificate:
    """A self-signed authority that signs leaves only (path length 0)."""
    # A unique name, so that messages can distinguish two authorities.
    subject = _common_name(f"coreg authority {secrets.token_hex(4)}")
    return (
        _builder(subject, subject, key.public_key(), key.public_key(), now, now + lifetime(days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(ca=True), critical=True)
        .sign(key, SHA256())
    )


def server_certificate(
    ca: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
    key: ec.EllipticCurvePublicKey,
    served: Sequence[x509.GeneralName],
    days: int,
    now: datetime,
) -> x509.Certificate:
    """The coordinator's certificate: for servers only, with the names that sites dial."""
    purpose = ExtendedKeyUsageOID.SERVER_AUTH
    return _leaf(ca, ca_key, key, "coreg coordinator", served, purpose, lifetime(days), now)


def site_certificate(
    ca: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
    key: ec.EllipticCurvePublicKey,
    name: str,
    days: int,
    now: datetime,
) -> x509.Certificate:
    """A site's certificate: for clients only, its name as common name and URI, and no DNS name."""
    purpose = ExtendedKeyUsageOID.CLIENT_AUTH
    return _leaf(ca, ca_key, key, name, [site_uri(name)], purpose, lifetime(days), now)


def served_names(hostnames: Sequence[str]) -> list[x509.GeneralName]:
    """The names and addresses of a server's certificate, each once; localhost, 127.0.0.1 and ::1 always."""
    names: dict[x509.GeneralName, None] = {}
    for text in (*hostnames, *_ALWAYS_SERVED):
        host = text.strip().lower().removeprefix("[").removesuffix("]").removesuffix(".")
        try:
            names[x509.IPAddress(ip_address(host))] = None
        except ValueError:
            if _HOSTNAME.fullmatch(host) is None:
                raise UsageError(
                    f"{text!r} is not a host name or an address: give the name that sites dial, without port or scheme "
                    "(a name with other letters in its xn-- form)."
                ) from None
            names[x509.DNSName(host)] = None
    return list(names)


def lifetime(days: int) -> timedelta:
    """`days` as a duration."""
    if not 1 <= days <= 36500:
        raise UsageError(f"A certificate cannot be valid for {days} days: choose between 1 and 36500.")
    return timedelta(days=days)


def _leaf(
    ca: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
    key: ec.EllipticCurvePublicKey,
    name: str,
    identities: Sequence[x509.GeneralName],
    purpose: x509.ObjectIdentifier,
    duration: timedelta,
    now: datetime,
) -> x509.Certificate:
    """A certificate for one purpose, which cannot sign others and does not outlive the authority."""
    end = min(now + duration, ca.not_valid_after_utc)
    return (
        _builder(_common_name(name), ca.subject, key, ca_key.public_key(), now, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(ca=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(x509.SubjectAlternativeName(identities), critical=False)
        .sign(ca_key, SHA256())
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issuer_key: ec.EllipticCurvePublicKey,
    now: datetime,
    end: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False)
    )


def _common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _key_usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=ca,
        crl_sign=ca,
        encipher_only=False,
        decipher_only=False,
    )
