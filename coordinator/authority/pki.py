"""The coordinator's certificate authority: create it, sign sites' requests, renew certificates,
load the server's files.

All files are in one directory: ca.key and coordinator.key (mode 0600, never copied to other
machines), ca.pem, coordinator.pem, NAME.pem for each enrolled site (its certificate, then ca.pem:
the answer to the site), the allow-list (coordinator.authority.authorised) and the invitations
(coordinator.authority.invitations).

All keys are EC P-256, all signatures ECDSA with SHA-256. The authority lives 20 years. Certificates
of sites and of the server live a year, and are renewed a month before their end with the same key,
if ca.key is on the machine that serves.
"""

import os
import re
import secrets
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coordinator.authority.authorised import ALLOW_LIST, HEADER, Authorised, authorise
from coreg_core.errors import BadData, Refused, StorageError, UsageError
from coreg_wire.clock import utc_now
from coreg_wire.files.disk import exclusive, make_private_folder, write_whole
from coreg_wire.files.disk import read as read_file
from coreg_wire.identity.names import (
    MALFORMED,
    certificate_name,
    key_fingerprint,
    load_certificates,
    request_name,
    site_uri,
)
from coreg_wire.identity.signatures import check_private, key_pem, load_key

FILES = ("ca.key", "ca.pem", "coordinator.key", "coordinator.pem", ALLOW_LIST)
AUTHORITY_DAYS = 7305
DAYS = 365
RENEWED_DAYS = 30  # before the end of a certificate
# A certificate is valid from before its creation, since clocks at the sites may be slow.
_BACKDATED = timedelta(hours=1)
_ALWAYS_SERVED = ("localhost", "127.0.0.1", "::1")
_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_HOSTNAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(\.{_LABEL})*")

_NUMBERED = re.compile(r"(^|\.)[0-9]+$")  # the last label, as in an address


# --- files of the authority


def load_certificate(path: Path) -> x509.Certificate:
    return load_certificates(read(path), str(path))[0]


def signed_by(path: Path, ca: x509.Certificate) -> bool:
    """Whether the authority signed the first certificate in a file."""
    try:
        load_certificate(path).verify_directly_issued_by(ca)
    except (UsageError, BadData, ValueError, TypeError, InvalidSignature):
        return False
    return True


def read(path: Path, next_step: str = "") -> bytes:
    """A file's bytes; ``next_step`` is the advice if the file is missing.

    See `coreg_wire.files.disk.read`.
    """
    return read_file(path, next_step or _advice(path))


def _advice(path: Path) -> str:
    """What to do if a file of an authority is missing."""
    folder = path.parent
    if path.name in ("coordinator.key", "coordinator.pem") and (folder / "ca.key").exists():
        names = "" if (folder / "coordinator.pem").exists() else " --host NAME"
        return (
            f"Make it again: `coreg-coordinator init {shlex.quote(str(folder))}"
            f" --renew-server{names}`."
        )
    if any((folder / name).exists() for name in FILES):
        return "Restore it from your backup (docs/how-to/operate-a-coordinator.md)."
    return (
        "Name the federation's folder. If there is none yet, make it: `coreg-coordinator init"
        " FOLDER`."
    )


def _load_private(path: Path) -> ec.EllipticCurvePrivateKey:
    data = read(path)
    check_private(path)
    try:
        return load_key(data, path)
    except BadData as error:
        again = f", or delete it and run `coreg-coordinator init {path.parent} --renew-server`"
        renew = again if path.name == "coordinator.key" else ""
        raise BadData(
            f"{error} `coreg-coordinator init` makes such keys: restore it from a backup{renew}."
        ) from error


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


# --- the authority and the server


@dataclass(frozen=True)
class ServerFiles:
    """PEM texts for `coreg_wire.identity.credentials.RenewableServer`."""

    key_pem: bytes = field(repr=False)
    certificate_pem: bytes
    ca_pem: bytes


def create_authority(directory: Path, hostnames: Sequence[str]) -> None:
    """Create the authority and the server's certificate, for names that sites dial."""
    _check_dialled(hostnames)
    served = _served_names(hostnames)
    key = ec.generate_private_key(ec.SECP256R1())
    server_key = ec.generate_private_key(ec.SECP256R1())
    ca = _authority_certificate(key)
    server = _server_certificate((ca, key), server_key, served)
    files = {"ca.key": key_pem(key), "ca.pem": _pem(ca), "coordinator.key": key_pem(server_key)}
    files |= {"coordinator.pem": _pem(server), ALLOW_LIST: HEADER.encode()}
    make_private_folder(directory)
    with exclusive(directory / "ca.key", "another command makes this authority."):
        if present := [name for name in FILES if os.path.lexists(directory / name)]:
            raise UsageError(
                f"{directory} already holds {', '.join(present)}, and sites may trust it: nothing"
                " was changed. Choose another directory, or move these files away to begin a new"
                " federation."
            )
        try:
            for name, data in files.items():
                write_whole(directory / name, data, mode=0o600 if name.endswith(".key") else 0o644)
        except StorageError:
            for name in files:
                (directory / name).unlink(missing_ok=True)
            raise


def reissue_server(directory: Path, hostnames: Sequence[str] | None = None) -> datetime:
    """Renew coordinator.pem, for ``hostnames`` if given; its new expiry.

    The key stays, or is made again if lost.
    """
    _check_dialled(hostnames or ())
    pair = authority_pair(directory)
    served = _served_names(server_names(directory) if hostnames is None else hostnames)
    if os.path.lexists(path := directory / "coordinator.key"):
        server_key = _load_private(path)
    else:
        server_key = ec.generate_private_key(ec.SECP256R1())
        write_whole(path, key_pem(server_key), mode=0o600)
    server = _server_certificate(pair, server_key, served)
    write_whole((directory / "coordinator.pem").resolve(), _pem(server), mode=0o644)
    return server.not_valid_after_utc


def renew_server(directory: Path) -> bool:
    """Renew coordinator.pem if it ends within a month and ca.key is here. True if it was
    renewed.
    """
    path = directory / "coordinator.pem"
    if not (directory / "ca.key").exists() or days_left(read(path)) >= RENEWED_DAYS:
        return False
    reissue_server(directory)
    return True


def server_names(directory: Path) -> list[str]:
    """The names and addresses in coordinator.pem."""
    path = directory / "coordinator.pem"
    again = "Name every --host that sites dial."
    certificate = load_certificates(read(path, again), str(path))[0]
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError) as error:
        raise BadData(f"{path} has no names to keep ({error}). {again}") from error
    return [str(name.value) for name in names]


def _check_dialled(hostnames: Sequence[str]) -> None:
    """Refuse what no site can dial. The names of an earlier certificate are not checked again."""
    for text in hostnames:
        host = text.strip().removeprefix("[").removesuffix("]").removesuffix(".")
        try:
            address = ip_address(host)
        except ValueError:
            if _NUMBERED.search(host):
                raise UsageError(
                    f"--host {text}: no host name ends with a number, and this is no address (four"
                    " numbers from 0 to 255). Correct it."
                ) from None
            continue
        if address.is_unspecified:
            raise UsageError(
                f"--host {text}: sites cannot dial it, since it stands for all addresses of a"
                " machine. Give the name or the address that sites dial; the coordinator listens on"
                " all addresses anyway."
            )


def _served_names(hostnames: Sequence[str]) -> list[x509.GeneralName]:
    """The names and addresses of a server's certificate, each once; localhost, 127.0.0.1 and ::1
    always.
    """
    names: dict[x509.GeneralName, None] = {}
    for text in (*hostnames, *_ALWAYS_SERVED):
        host = text.strip().lower().removeprefix("[").removesuffix("]").removesuffix(".")
        try:
            names[x509.IPAddress(ip_address(host))] = None
        except ValueError:
            if _HOSTNAME.fullmatch(host) is None:
                raise UsageError(
                    f"{text!r} is not a host name or an address: give the name that sites dial,"
                    " without port or scheme (a name with other letters in its xn-- form)."
                ) from None
            names[x509.DNSName(host)] = None
    return list(names)


def load_server(directory: Path) -> ServerFiles:
    """The key and certificates of the server, after checks that they match and are valid today."""
    key = _load_private(directory / "coordinator.key")
    if (directory / "ca.key").exists():  # it need not be on this machine
        check_private(directory / "ca.key")
    ca = load_certificate(directory / "ca.pem")
    try:
        server = load_certificate(directory / "coordinator.pem")
    except BadData as error:
        raise BadData(
            f"{error} Or make it again: `coreg-coordinator init {directory} --renew-server --host"
            " NAME`."
        ) from None
    if server.public_key() != key.public_key():
        raise Refused(
            f"{directory}: coordinator.pem was issued for another key than coordinator.key:"
            f" {_renew(directory)}."
        )
    if not signed_by(directory / "coordinator.pem", ca):
        raise Refused(
            f"{directory}: coordinator.pem was not signed by ca.pem: {_renew(directory)}."
        )
    _check_period(ca, directory / "ca.pem")
    _check_period(server, directory / "coordinator.pem")
    return ServerFiles(key_pem(key), _pem(server), _pem(ca))


# --- sites


def check_request(data: bytes) -> tuple[str, ec.EllipticCurvePublicKey]:
    """The site's name and its EC P-256 key, of a request (PEM) that is signed by this key."""
    where = "the request"
    if b"PRIVATE KEY" in data:
        raise Refused(
            f"{where} holds a private key, which must never leave its site and can no longer be"
            " trusted. Delete this copy. The site deletes its site.key and joins with a new"
            " invitation."
        )
    try:
        request = x509.load_pem_x509_csr(data)
        valid = request.is_signature_valid
        key = request.public_key()
        request.extensions  # noqa: B018 - parsed here
        request.subject  # noqa: B018
    except MALFORMED as error:
        raise BadData(f"{where} is not a PEM certificate request ({error}).") from error
    if not valid:
        raise Refused(f"{where} is not signed by its own key: damaged or forged.")
    if not (isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)):
        raise Refused(
            f"{where} is not for an EC P-256 key. `coreg-agent join` makes the right one."
        )
    return request_name(request, where), key


def issue(
    directory: Path,
    site: str,
    key: ec.EllipticCurvePublicKey,
    first: Callable[[], None] = lambda: None,
) -> bytes:
    """Issue a client certificate (also kept as NAME.pem), call ``first``, and list the site with
    this key.
    """
    pair = authority_pair(directory)
    answer = _pem(_site_certificate(pair, site, key)) + _pem(pair[0])

    def before_listing() -> None:
        write_whole(directory / f"{site}.pem", answer, mode=0o644)
        first()

    # The answer before the list, and under its lock: an answer that is not listed must not replace
    # the listed one.
    authorise(directory, site, key_fingerprint(key), first=before_listing)
    return answer


def renewed_site(directory: Path, certificate_pem: bytes) -> bytes | None:
    """The next certificate (PEM) of a listed site, for the same key, if this one ends soon and
    ca.key is here.
    """
    if not (directory / "ca.key").exists() or days_left(certificate_pem) >= RENEWED_DAYS:
        return None
    pair = authority_pair(directory)
    before = load_certificates(certificate_pem, "The site's certificate")[0]
    site = certificate_name(before)
    key = before.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    certificate = _site_certificate(pair, site, key)
    write_whole(directory / f"{site}.pem", _pem(certificate) + _pem(pair[0]), mode=0o644)
    return _pem(certificate)


# --- validity


def days_left(certificate_pem: bytes) -> float:
    """Days until the first certificate in the text expires; negative after that."""
    end = load_certificates(certificate_pem, "The certificate")[0].not_valid_after_utc
    return (end - utc_now()) / timedelta(days=1)


def expiry_warnings(directory: Path) -> list[str]:
    """A sentence for a missing ca.key, and for each certificate that expires soon: the authority's,
    the server's, the sites'.
    """
    advice = {
        "ca.pem": "begin a new federation: every site joins again",
        "coordinator.pem": _renew(directory),
    }
    advice |= {
        f"{site}.pem": (
            f"if {site} does not connect before, invite it again (`coreg-coordinator invite FOLDER"
            f" {site}`)"
        )
        for site in Authorised(directory).sites()
    }
    warnings = []
    if not (key := directory / "ca.key").exists():
        warnings.append(
            f"{key} is missing: no site can enrol, and no certificate is renewed. Restore it,"
            " unless you keep it elsewhere."
        )
    for file, what_to_do in advice.items():
        path = directory / file
        if path.exists() and (days := days_left(read(path))) < RENEWED_DAYS:
            end = utc_now() + timedelta(days=days)
            when = f"expires in {days:.0f} days" if days > 0 else f"EXPIRED on {end:%Y-%m-%d}"
            warnings.append(f"{path} {when}: {what_to_do}.")
    return warnings


def _renew(directory: Path) -> str:
    return f"renew it with `coreg-coordinator init {shlex.quote(str(directory))} --renew-server`"


def _check_period(certificate: x509.Certificate, path: Path) -> None:
    now = utc_now()
    if now < certificate.not_valid_before_utc:
        raise Refused(
            f"{path} is valid from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC, and this"
            f" machine's clock says {now:%Y-%m-%d %H:%M}: check the clock."
        )
    if now > certificate.not_valid_after_utc:
        next_step = "begin a new federation" if path.name == "ca.pem" else _renew(path.parent)
        raise Refused(
            f"{path} expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC: {next_step}."
        )


# --- certificates

_Pair = tuple[x509.Certificate, ec.EllipticCurvePrivateKey]


def authority_pair(directory: Path) -> _Pair:
    """The authority's certificate and key, after checks that they match and are valid today."""
    key = _load_private(directory / "ca.key")
    ca = load_certificate(directory / "ca.pem")
    if ca.public_key() != key.public_key():
        raise Refused(
            f"{directory}: ca.key and ca.pem do not match. Restore both from the same backup."
        )
    _check_period(ca, directory / "ca.pem")
    return ca, key


def _authority_certificate(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    """A self-signed authority that signs leaves only (path length 0)."""
    # A unique name, so that messages can distinguish two authorities.
    subject = _common_name(f"coreg authority {secrets.token_hex(4)}")
    end = utc_now() + timedelta(days=AUTHORITY_DAYS)
    return (
        _builder(subject, subject, key.public_key(), key.public_key(), end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(ca=True), critical=True)
        .sign(key, SHA256())
    )


def _server_certificate(
    pair: _Pair, key: ec.EllipticCurvePrivateKey, served: Sequence[x509.GeneralName]
) -> x509.Certificate:
    """The coordinator's certificate: for servers only, with the names that sites dial."""
    return _leaf(
        pair, key.public_key(), "coreg coordinator", served, ExtendedKeyUsageOID.SERVER_AUTH
    )


def _site_certificate(pair: _Pair, site: str, key: ec.EllipticCurvePublicKey) -> x509.Certificate:
    """A site's certificate: for clients only, its name as common name and URI, and no DNS name."""
    return _leaf(pair, key, site, [site_uri(site)], ExtendedKeyUsageOID.CLIENT_AUTH)


def _leaf(
    pair: _Pair,
    key: ec.EllipticCurvePublicKey,
    name: str,
    identities: Sequence[x509.GeneralName],
    purpose: x509.ObjectIdentifier,
) -> x509.Certificate:
    """A certificate for one purpose, which cannot sign others and does not outlive the
    authority.
    """
    ca, ca_key = pair
    end = min(utc_now() + timedelta(days=DAYS), ca.not_valid_after_utc)
    return (
        _builder(_common_name(name), ca.subject, key, ca_key.public_key(), end)
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
    end: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(utc_now() - _BACKDATED)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False
        )
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
