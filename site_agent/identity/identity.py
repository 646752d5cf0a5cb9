"""The site's own identity: one directory with its key, its certificate and the authority that it
trusts.

site.key (mode 0600) never leaves the site. `enrolment` writes site.pem and ca.pem. `check_identity`
finds a fault before the agent connects.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from coreg_core.errors import BadData, Refused
from coreg_wire.clock import utc_now
from coreg_wire.files.disk import read
from coreg_wire.identity.names import certificate_name, key_fingerprint, load_certificates
from coreg_wire.identity.signatures import check_private, key_pem, load_key

WARN_DAYS = 25  # before its end, a certificate that no coordinator has renewed is reported
KEY = "site.key"
CERTIFICATE = "site.pem"
AUTHORITY = "ca.pem"
JOIN_AGAIN = (
    "Ask the coordinator's operator for a new invitation, and run `coreg-agent join` with it."
)


@dataclass(frozen=True)
class Identity:
    """A site's checked identity, with the PEM texts for
    `coreg_wire.identity.credentials.client_credentials`.
    """

    name: str
    key_pem: bytes = field(repr=False)  # the text can get into a log
    certificate_pem: bytes
    ca_pem: bytes
    not_after: datetime
    directory: Path

    def days_left(self) -> float:
        """Days until the certificate or its authority expires."""
        return (self.not_after - utc_now()) / timedelta(days=1)

    def expiry_warning(self) -> str | None:
        """A sentence if the certificate expires soon, else None."""
        days = self.days_left()
        if days >= WARN_DAYS:
            return None
        return (
            f"{self.directory / CERTIFICATE} expires in {days:.0f} days, and no coordinator has"
            f" renewed it. {JOIN_AGAIN}"
        )


def check_identity(directory: Path) -> Identity:
    """Read the identity and check it, as far as possible without the coordinator."""
    key = read_key(directory)
    path = directory / CERTIFICATE
    authority = directory / AUTHORITY
    certificate = read_certificate(path)
    ca = read_certificate(authority)
    return Identity(
        name=check_chain(certificate, ca, key, str(path), str(authority)),
        key_pem=key_pem(key),
        certificate_pem=certificate.public_bytes(Encoding.PEM),
        ca_pem=ca.public_bytes(Encoding.PEM),
        not_after=min(certificate.not_valid_after_utc, ca.not_valid_after_utc),
        directory=directory,
    )


def check_chain(
    certificate: x509.Certificate,
    ca: x509.Certificate,
    key: ec.EllipticCurvePrivateKey,
    where: str,
    where_ca: str,
) -> str:
    """Check that key, certificate and authority belong together and are valid now.

    Returns the site's name.
    """
    if certificate.public_key() != key.public_key():
        raise Refused(
            f"{where} was issued for another key than {KEY}"
            f" ({key_fingerprint(key.public_key())[:16]}…). It is the certificate of"
            f" {certificate_name(certificate, where)}. If that is another site, ask for the"
            f" certificate of this site. If it is this site, put the old key back. {JOIN_AGAIN}"
        )
    no_authority = x509.BasicConstraints(ca=False, path_length=None)
    if not _extension(ca, x509.BasicConstraints, no_authority).ca:
        raise Refused(f"{where_ca} is not a certificate authority. {JOIN_AGAIN}")
    try:
        certificate.verify_directly_issued_by(ca)
    except InvalidSignature as error:
        raise Refused(
            f"{where} names {_who(ca.subject)} but has no valid signature of it: {where_ca} is"
            f" another authority's, or the certificate was changed. {JOIN_AGAIN}"
        ) from error
    except (ValueError, TypeError) as error:
        raise Refused(
            f"{where} was signed by {_who(certificate.issuer)}, but {where_ca} is"
            f" {_who(ca.subject)}."
            f" {JOIN_AGAIN}"
        ) from error
    _check_period(ca, where_ca, "Its federation is over: join a new one.")
    _check_period(certificate, where, JOIN_AGAIN)
    if ExtendedKeyUsageOID.CLIENT_AUTH not in _extension(certificate, x509.ExtendedKeyUsage, ()):
        raise Refused(
            f"{where} is not a client's certificate, but perhaps the coordinator's own."
            f" {JOIN_AGAIN}"
        )
    return certificate_name(certificate, where)


def _check_period(certificate: x509.Certificate, where: str, next_step: str) -> None:
    start = certificate.not_valid_before_utc
    end = certificate.not_valid_after_utc
    now = utc_now()
    if now < start:
        raise Refused(
            f"{where} is not valid before {start:%Y-%m-%d %H:%M} UTC, but this machine's clock"
            f" shows {now:%Y-%m-%d %H:%M} UTC: check the clock, and the coordinator's."
        )
    if now > end:
        raise Refused(
            f"{where} expired on {end:%Y-%m-%d %H:%M} UTC (now {now:%Y-%m-%d %H:%M} UTC)."
            f" {next_step}"
        )


def _extension(certificate: x509.Certificate, kind: type[Any], default: Any) -> Any:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except (x509.ExtensionNotFound, ValueError):
        return default


def _who(name: x509.Name) -> str:
    return repr(name.rfc4514_string().removeprefix("CN="))


def read_key(directory: Path) -> ec.EllipticCurvePrivateKey:
    path = directory / KEY
    data = read_file(path)
    check_private(path, " If someone has read it, delete it and join again.")
    try:
        return load_key(data, path)
    except BadData as error:
        raise BadData(
            f"{error} Restore it, or delete it and join with a new invitation."
        ) from error


def read_certificate(path: Path) -> x509.Certificate:
    return load_certificates(read_file(path), str(path))[0]


def read_file(path: Path) -> bytes:
    return read(
        path,
        "Run `coreg-agent join` with the coordinator's invitation, or name the folder where this"
        " site has joined (--identity).",
    )
