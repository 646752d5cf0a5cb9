"""The coordinator's certificate authority: create it, sign sites' requests, renew certificates, load the server's files.

All files are in one directory: ca.key and coordinator.key (mode 0600, never copied to other machines), ca.pem,
coordinator.pem, NAME.pem for each enrolled site (its certificate, then ca.pem: the answer to the site), the allow-list
(coordinator.authority.authorised) and the invitations (coordinator.authority.invitations). An authority that is kept offline has
ca.key and ca.pem in a folder of its own.

The authority lives 20 years. Certificates of sites and of the server live a year, and are renewed a month before their end with
the same key, if ca.key is on the machine that serves.

Must not know gRPC, the federation's plan, or any site's private key.
"""

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization as keys
from cryptography.hazmat.primitives.asymmetric import ec

from coordinator.authority.authorised import ALLOW_LIST, HEADER, Authorised, authorise, write_whole
from coordinator.authority.certificates import (
    authority_certificate,
    served_names,
    server_certificate,
    site_certificate,
)
from coreg_core.errors import BadData, Refused, StorageError, UsageError
from coreg_wire.clock import utc_now
from coreg_wire.files.disk import read as read_file
from coreg_wire.identity.keys import check_private, key_pem, load_key
from coreg_wire.identity.names import certificate_name, fingerprint, key_fingerprint, load_certificates, request_name

FILES = ("ca.key", "ca.pem", "coordinator.key", "coordinator.pem")


def load_private(path: Path) -> ec.EllipticCurvePrivateKey:
    """A key of the authority's folder."""
    data = read(path)
    check_private(path)
    try:
        return load_key(data, path)
    except BadData as error:
        renew = f", or delete it and run `coreg-coordinator init {path.parent} --renew-server`" * (
            path.name == "coordinator.key"
        )
        raise BadData(f"{error} `coreg-coordinator init` makes such keys: restore it from a backup{renew}.") from error


def load_certificate(path: Path) -> x509.Certificate:
    return load_certificates(read(path), str(path))[0]


def signed_by(path: Path, ca: x509.Certificate) -> bool:
    """Whether the authority signed the first certificate in a file."""
    try:
        load_certificate(path).verify_directly_issued_by(ca)
    except (UsageError, BadData, ValueError, TypeError, InvalidSignature):
        return False
    return True


def pem_of(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(keys.Encoding.PEM)


def read(path: Path, next_step: str = "") -> bytes:
    """A file's bytes; ``next_step`` is the advice if the file is missing. See `coreg_wire.files.disk.read`."""
    return read_file(path, next_step or _advice(path))


def _advice(path: Path) -> str:
    """What to do if a file of an authority is missing."""
    folder = path.parent
    if path.name in ("coordinator.key", "coordinator.pem") and (folder / "ca.key").exists():
        names = "" if (folder / "coordinator.pem").exists() else " --host NAME"
        return f"Make it again: `coreg-coordinator init {shlex.quote(str(folder))} --renew-server{names}`."
    if path.name == "ca.key" and (folder / "ca.pem").exists():
        return "If the authority is offline, copy ca.key here for this command, or name its folder. Or restore your backup."
    if any((folder / name).exists() for name in ("ca.key", "ca.pem", "coordinator.pem")):
        return "Restore it from your backup (docs/how-to/operate-a-coordinator.md)."
    return "Name the federation's folder. If there is none yet, make it: `coreg-coordinator init FOLDER`."


def create_all(*files: tuple[Path, bytes, int]) -> None:
    """Create all files with their modes; none may exist. If one fails, remove the others."""
    made: list[Path] = []
    try:
        for path, data, mode in files:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            made.append(path)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(descriptor)
    except OSError as error:
        for path in made:
            path.unlink(missing_ok=True)
        raise StorageError(f"{error.filename or files[0][0].parent} cannot be created ({error.strerror}).") from error


AUTHORITY_DAYS, DAYS = 7305, 365
RENEWED_DAYS = 30  # before the end of a certificate


@dataclass(frozen=True)
class SignedSite:
    """The result of `sign_request`. ``replaced``: the name was listed with another key before."""

    name: str
    certificate_path: Path
    key_fingerprint: str
    not_after: datetime
    replaced: bool


@dataclass(frozen=True)
class ServerFiles:
    """PEM texts for `coreg_wire.identity.credentials.RenewableServer`."""

    key_pem: bytes = field(repr=False)
    certificate_pem: bytes
    ca_pem: bytes


def create_authority(
    directory: Path,
    hostnames: Sequence[str],
    days: int = AUTHORITY_DAYS,
    *,
    server_days: int = DAYS,
    offline: Path | None = None,
    now: datetime | None = None,
) -> str:
    """Create the authority and the server's certificate, for names that sites dial; return the authority's fingerprint.

    ``offline``: another folder for ca.key, with a copy of ca.pem.
    """
    now = now or utc_now()
    served = served_names(hostnames)
    key, server_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca = authority_certificate(key, days, now)
    server = server_certificate(ca, key, server_key.public_key(), served, server_days, now)
    if present := [name for name in (*FILES, ALLOW_LIST) if (directory / name).exists()]:
        raise UsageError(
            f"{directory} already holds {', '.join(present)}, and sites may trust it: nothing was changed. "
            "Choose another directory, or move these files away to begin a new federation."
        )
    create_all(
        ((offline or directory) / "ca.key", key_pem(key), 0o600),
        *(() if offline is None else [(offline / "ca.pem", pem_of(ca), 0o644)]),
        (directory / "ca.pem", pem_of(ca), 0o644),
        (directory / "coordinator.key", key_pem(server_key), 0o600),
        (directory / "coordinator.pem", pem_of(server), 0o644),
        (directory / ALLOW_LIST, HEADER.encode(), 0o644),
    )
    return fingerprint(ca)


def reissue_server(
    directory: Path, hostnames: Sequence[str] | None = None, days: int = DAYS, *, now: datetime | None = None
) -> datetime:
    """Renew coordinator.pem, and return its new expiry. The key stays, or is made again if it is lost. Sites need no change.

    `hostnames` replace the names of the certificate; None keeps them.
    """
    now = now or utc_now()
    ca, ca_key = authority_pair(directory, now)
    served = served_names(server_names(directory) if hostnames is None else hostnames)
    if (path := directory / "coordinator.key").exists():
        server_key = load_private(path)
    else:
        server_key = ec.generate_private_key(ec.SECP256R1())
        create_all((path, key_pem(server_key), 0o600))
    server = server_certificate(ca, ca_key, server_key.public_key(), served, days, now)
    write_whole(directory / "coordinator.pem", pem_of(server))
    return server.not_valid_after_utc


def renew_server(directory: Path) -> bool:
    """Renew coordinator.pem if it ends within a month and ca.key is here. True if it was renewed."""
    path = directory / "coordinator.pem"
    if not (directory / "ca.key").exists() or days_left(read(path)) >= RENEWED_DAYS:
        return False
    reissue_server(directory)
    return True


def renewed_site(directory: Path, certificate_pem: bytes, *, within_days: float = RENEWED_DAYS) -> bytes | None:
    """The next certificate (PEM) of a listed site, for the same key, if this one ends soon and ca.key is here."""
    if not (directory / "ca.key").exists() or days_left(certificate_pem) >= within_days:
        return None
    now = utc_now()
    ca, ca_key = authority_pair(directory, now)
    before = load_certificates(certificate_pem, "The site's certificate")[0]
    site, key = certificate_name(before), before.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    certificate = site_certificate(ca, ca_key, key, site, DAYS, now)
    write_whole(directory / f"{site}.pem", pem_of(certificate) + pem_of(ca))
    return pem_of(certificate)


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


def load_server(directory: Path, *, now: datetime | None = None) -> ServerFiles:
    """The key and certificates of the server, after checks that they match and are valid today."""
    now = now or utc_now()
    key = load_private(directory / "coordinator.key")
    ca, server = load_certificate(directory / "ca.pem"), load_certificate(directory / "coordinator.pem")
    if server.public_key() != key.public_key():
        raise Refused(
            f"{directory}: coordinator.pem was issued for another key than coordinator.key: {_renew(directory)}."
        )
    if not signed_by(directory / "coordinator.pem", ca):
        raise Refused(f"{directory}: coordinator.pem was not signed by ca.pem: {_renew(directory)}.")
    for path, certificate in ((directory / "ca.pem", ca), (directory / "coordinator.pem", server)):
        _check_period(certificate, path, now)
    return ServerFiles(key_pem(key), pem_of(server), pem_of(ca))


def sign_request(
    directory: Path,
    path: Path,
    out: Path | None = None,
    days: int = DAYS,
    *,
    now: datetime | None = None,
) -> SignedSite:
    """See `issue`. A request does not prove its sender: compare `key_fingerprint` with the site's operator."""
    authority_pair(directory, now or utc_now())  # the first fault to report
    data = read(path, "Name the request: requests/SITE.csr of the coordinator's folder.")
    if out is not None and out.resolve() == path.resolve():
        raise UsageError(f"{out} would be overwritten: give the certificate another path.")
    return issue(directory, data, str(path), out, days, now=now)


def issue(
    directory: Path,
    request_pem: bytes,
    where: str,
    out_path: Path | None = None,
    days: int = DAYS,
    *,
    now: datetime | None = None,
    first: Callable[[], None] = lambda: None,
) -> SignedSite:
    """Issue a client certificate for a site's request, and add the site to `authorised-sites`.

    The answer is by default NAME.pem in `directory`: the site's certificate, then the authority's. ``first`` is called before the
    site is listed; ``where`` begins the messages about the request.
    """
    now = now or utc_now()
    ca, ca_key = authority_pair(directory, now)
    request, key = check_request(request_pem, where)
    site = request_name(request, where)
    certificate = site_certificate(ca, ca_key, key, site, days, now)
    out_path = out_path or directory / f"{site}.pem"
    if out_path.resolve() in {(directory / file).resolve() for file in (*FILES, ALLOW_LIST)}:
        raise UsageError(f"{out_path} would be overwritten: give the certificate another path.")
    if out_path.is_symlink():  # other users can create a link in a folder that they can write to
        raise UsageError(
            f"{out_path} is a link to {out_path.readlink()}, and nothing is written through a link. Remove it, or give the "
            "certificate another path (--output)."
        )
    # The answer before the list, and under its lock: an answer that is not listed must not replace the listed one.
    answer, mark = pem_of(certificate) + pem_of(ca), key_fingerprint(key)

    def before_listing() -> None:
        write_whole(out_path, answer)
        first()

    replaced = authorise(directory, site, mark, first=before_listing)
    return SignedSite(site, out_path, mark, certificate.not_valid_after_utc, replaced)


def days_left(certificate_pem: bytes, *, now: datetime | None = None) -> float:
    """Days until the first certificate in the text expires; negative after that."""
    end = load_certificates(certificate_pem, "The certificate")[0].not_valid_after_utc
    return (end - (now or utc_now())) / timedelta(days=1)


def expiry_warnings(directory: Path, *, within_days: int = 30, now: datetime | None = None) -> list[str]:
    """A sentence for each certificate that expires soon: the authority's, the server's, the listed sites'."""
    now = now or utc_now()
    advice = {"ca.pem": "begin a new federation: every site joins again", "coordinator.pem": _renew(directory)}
    advice |= {
        f"{site}.pem": f"if {site} does not connect before, invite it again (`coreg-coordinator invite FOLDER {site}`)"
        for site in Authorised(directory).sites()
    }
    warnings = []
    for file, what_to_do in advice.items():
        path = directory / file
        if path.exists() and (days := days_left(read(path), now=now)) < within_days:
            when = f"expires in {days:.0f} days" if days > 0 else f"EXPIRED on {now + timedelta(days=days):%Y-%m-%d}"
            warnings.append(f"{path} {when}: {what_to_do}.")
    return warnings


def _renew(directory: Path) -> str:
    return f"renew it with `coreg-coordinator init {shlex.quote(str(directory))} --renew-server`"


def authority_pair(directory: Path, now: datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """The authority's certificate and key, after checks that they match and are valid today."""
    key, ca = load_private(directory / "ca.key"), load_certificate(directory / "ca.pem")
    if ca.public_key() != key.public_key():
        raise Refused(f"{directory}: ca.key and ca.pem do not match. Restore both from the same backup.")
    _check_period(ca, directory / "ca.pem", now)
    return ca, key


def _check_period(certificate: x509.Certificate, path: Path, now: datetime) -> None:
    if now < certificate.not_valid_before_utc:
        raise Refused(
            f"{path} is valid from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC, and this machine's "
            f"clock says {now:%Y-%m-%d %H:%M}: check the clock."
        )
    if now > certificate.not_valid_after_utc:
        next_step = "begin a new federation" if path.name == "ca.pem" else _renew(path.parent)
        raise Refused(f"{path} expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC: {next_step}.")


def check_request(data: bytes, where: str) -> tuple[x509.CertificateSigningRequest, ec.EllipticCurvePublicKey]:
    """A request (PEM) that is signed by its own key, an EC P-256 key."""
    if b"PRIVATE KEY" in data:
        raise Refused(
            f"{where} holds a private key, which must never leave its site and can no longer be trusted. Delete this copy. "
            "The site deletes its site.key and joins with a new invitation."
        )
    try:
        request = x509.load_pem_x509_csr(data)
        valid, key = request.is_signature_valid, request.public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise BadData(f"{where} is not a PEM certificate request ({error}).") from error
    if not valid:
        raise Refused(f"{where} is not signed by its own key: damaged or forged.")
    if not (isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)):
        raise Refused(f"{where} is not for an EC P-256 key. `coreg-agent join` makes the right one.")
    return request, key
