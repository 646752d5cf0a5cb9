"""The coordinator's certificate authority: made once, signs sites' requests, and lists who may join.

Everything stands in one directory: ca.key and coordinator.key (mode 0600, they never travel), ca.pem,
coordinator.pem, NAME.pem for each signed site (its certificate, then ca.pem: the answer that goes back to the site) and
the list of those that may join (coordinator.authority.authorised).

Must not know gRPC, the federation's plan, or any site's private key.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec

from coordinator.authority.authorised import ALLOW_LIST, HEADER, Authorised, authorise, revoke, write_whole
from coordinator.authority.certificates import (
    authority_certificate,
    served_names,
    server_certificate,
    site_certificate,
)
from coordinator.authority.folder import (
    FILES,
    LINK,
    PREVIOUS_KEY,
    create_all,
    load_authorities,
    load_certificate,
    load_private,
    pem_of,
    read,
    signed_by,
)
from coreg_core.errors import BadData, Refused, UsageError
from coreg_wire.files import files
from coreg_wire.identity.keys import Passphrase, ask, key_pem
from coreg_wire.identity.names import fingerprint, key_fingerprint, load_certificates, request_name
from coreg_wire.identity.renewal_requests import Renewal, read_renewal

__all__ = [
    "Authorised",
    "ServerFiles",
    "SignedSite",
    "create_authority",
    "days_left",
    "encrypt_keys",
    "expiry_warnings",
    "load_server",
    "reissue_server",
    "revoke",
    "server_names",
    "sign_request",
]


@dataclass(frozen=True)
class SignedSite:
    """What `sign_request` made; `replaced`: another certificate had this name; `same_key`: of a renewal, and its key's."""

    name: str
    certificate_path: Path
    fingerprint: str
    key_fingerprint: str
    not_after: datetime
    replaced: bool
    same_key: bool | None = None


@dataclass(frozen=True)
class ServerFiles:
    """PEM texts for `coreg_wire.identity.credentials.server_credentials`, in the order of its parameters, and the
    key's passphrase."""

    key_pem: bytes = field(repr=False)
    certificate_pem: bytes
    ca_pem: bytes
    secret: bytes | None = field(default=None, repr=False)


def create_authority(
    directory: Path | str,
    hostnames: Sequence[str],
    days: int = 3650,
    *,
    server_days: int = 730,
    secret: bytes | None = None,
    now: datetime | None = None,
) -> str:
    """Make the authority and the coordinator's server certificate; the authority's fingerprint, for the sites.

    Parameters
    ----------
    directory : path
        Made with mode 0700 when absent.
    hostnames : sequence of str
        Names and addresses that sites will dial; localhost, 127.0.0.1 and ::1 are always added.
    days, server_days : int
        How long the authority and the server's certificate are valid; `reissue_server` renews the latter.
    secret : bytes, optional
        The passphrase with which both keys are encrypted.

    Raises
    ------
    UsageError
        An authority stands there already (it is never overwritten), or a hostname is none.
    StorageError
        The directory cannot be written; nothing is left half made.
    """
    directory, now = Path(directory), now or datetime.now(UTC)
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
        (directory / "ca.key", key_pem(key, secret), 0o600),
        (directory / "ca.pem", pem_of(ca), 0o644),
        (directory / "coordinator.key", key_pem(server_key, secret), 0o600),
        (directory / "coordinator.pem", pem_of(server), 0o644),
        (directory / ALLOW_LIST, HEADER.encode(), 0o644),
    )
    return fingerprint(ca)


def reissue_server(
    directory: Path | str, hostnames: Sequence[str] | None = None, days: int = 730, *, now: datetime | None = None
) -> datetime:
    """Sign coordinator.pem anew, until a later end (returned); the key stays and no site need act.

    Without `hostnames` it keeps the names that it has; with them it has these instead.
    """
    directory, now = Path(directory), now or datetime.now(UTC)
    ca, ca_key = _authority_of_the_server(directory, now)
    server_key, _ = load_private(directory / "coordinator.key")
    served = served_names(server_names(directory) if hostnames is None else hostnames)
    server = server_certificate(ca, ca_key, server_key.public_key(), served, days, now)
    write_whole(directory / "coordinator.pem", pem_of(server))
    return server.not_valid_after_utc


def _authority_of_the_server(directory: Path, now: datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """While a new authority takes over the old one signs for the server, whom every site believes until then."""
    previous = directory / PREVIOUS_KEY
    if previous.exists():
        key, _ = load_private(previous)
        for ca in load_authorities(directory)[1:]:
            if ca.public_key() == key.public_key() and now <= ca.not_valid_after_utc:
                return ca, key
    return authority_pair(directory, now)


def encrypt_keys(directory: Path | str, secret: bytes) -> list[Path]:
    """Write the authority's key and the server's anew, encrypted with this passphrase; the files.

    Raises
    ------
    UsageError, BadData, StorageError, Refused
        One of them is not there, is no key, cannot be written, or is encrypted already and its passphrase was not given.
    """
    paths = [Path(directory) / name for name in ("ca.key", "coordinator.key")]
    paths += [path for path in (Path(directory) / PREVIOUS_KEY,) if path.exists()]
    loaded = [load_private(path)[0] for path in paths]  # both, before either is written
    for path, key in zip(paths, loaded, strict=True):
        files.write_whole(path, key_pem(key, secret), mode=0o600)
    return paths


def server_names(directory: Path | str) -> list[str]:
    """The names and addresses under which coordinator.pem serves.

    Raises
    ------
    UsageError, BadData, StorageError
        It is not there, is no certificate with names, or cannot be read.
    """
    path = Path(directory) / "coordinator.pem"
    again = "Name every --host that sites dial."
    certificate = load_certificates(read(path, again), str(path))[0]
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError) as error:
        raise BadData(f"{path} has no names that could be kept ({error}). {again}") from error
    return [str(name.value) for name in names]


def load_server(directory: Path | str, *, passphrase: Passphrase = ask, now: datetime | None = None) -> ServerFiles:
    """What the coordinator serves with, checked: the three belong together and are valid today.

    Raises
    ------
    UsageError, BadData, StorageError
        A file is missing, is not what its name says, or cannot be read.
    Refused
        The key is open to others, or belongs to another certificate; the certificate is not the authority's or has
        run out.
    """
    directory, now = Path(directory), now or datetime.now(UTC)
    key, secret = load_private(directory / "coordinator.key", passphrase)
    authorities, server = load_authorities(directory), load_certificate(directory / "coordinator.pem")
    if server.public_key() != key.public_key():
        raise Refused(
            f"{directory}: coordinator.pem was issued for another key than coordinator.key: {_renew(directory)}."
        )
    if not any(signed_by(directory / "coordinator.pem", ca) for ca in authorities):
        raise Refused(f"{directory}: coordinator.pem was not signed by ca.pem: {_renew(directory)}.")
    for path, certificate in ((directory / "ca.pem", authorities[0]), (directory / "coordinator.pem", server)):
        _check_period(certificate, path, now)
    in_force = [ca for ca in authorities if now <= ca.not_valid_after_utc]
    return ServerFiles(key_pem(key), pem_of(server), b"".join(map(pem_of, in_force)), secret)


def sign_request(
    directory: Path | str,
    request_path: Path | str,
    out_path: Path | str | None = None,
    days: int = 365,
    name: str | None = None,
    *,
    renewal: bool = False,
    now: datetime | None = None,
) -> SignedSite:
    """Issue a client certificate for a site's request, and let it join: a line in `authorised-sites`.

    Nothing in a request proves who sent it: compare `key_fingerprint` with the site's operator over another channel.

    Parameters
    ----------
    directory : path
        The authority's.
    request_path : path
        The site's site.csr, in PEM.
    out_path : path, optional
        Where the answer goes, NAME.pem in `directory` unless given: the site's certificate, then the authority's, one
        file for `coreg-agent enroll --install`.
    days : int
        Validity; never beyond the authority's.
    name : str, optional
        The name expected by the operator; a request under another one is refused, never renamed.
    renewal : bool
        Take it only when the site's listed certificate vouches for it (`coreg-agent enroll --renew`); then nothing need be
        compared, and that certificate counts beside the new one until it runs out.

    Raises
    ------
    UsageError
        No such request or authority, or an unusable option.
    BadData
        The file is no certificate request.
    Refused
        The request is not signed by its own key, has another name or key than allowed, or contains a private key.
    """
    directory, request_path, now = Path(directory), Path(request_path), now or datetime.now(UTC)
    ca, ca_key = authority_pair(directory, now)
    request, key = _load_request(request_path)
    site = request_name(request, f"The request {request_path}")
    if name is not None and name != site:
        raise Refused(
            f"{request_path} asks for the name {site!r}, not {name!r}; a request is never renamed. "
            f"Sign it as {site!r}, or have the site run `coreg-agent enroll` with --name {name}."
        )
    current = _vouching(directory, request_path, site) if renewal else None
    certificate = site_certificate(ca, ca_key, key, site, days, now)
    out_path = directory / f"{site}.pem" if out_path is None else Path(out_path)
    taken = [*(directory / file for file in (*FILES, PREVIOUS_KEY, LINK, ALLOW_LIST)), request_path]
    if out_path.resolve() in {path.resolve() for path in taken}:
        raise UsageError(f"{out_path} must keep what it holds: give the certificate another path.")
    if out_path.is_symlink():  # it may have been laid there, in a folder that others write to
        raise UsageError(
            f"{out_path} is a link to {out_path.readlink()}, and nothing is written through a link. Remove it, or give the "
            "certificate another path (--output)."
        )
    # The answer first: a site that is listed but never got its certificate would lose the one it has.
    link = [load_certificate(directory / LINK)] if (directory / LINK).exists() else []
    write_whole(out_path, b"".join(map(pem_of, [certificate, *load_authorities(directory), *link])))
    mark = fingerprint(certificate)
    beside = None if current is None else fingerprint(current.current)
    replaced = authorise(directory, site, mark, beside=beside)
    same_key = None if current is None else current.same_key
    return SignedSite(site, out_path, mark, key_fingerprint(key), certificate.not_valid_after_utc, replaced, same_key)


def _vouching(directory: Path, request_path: Path, site: str) -> Renewal:
    """The renewal in a request, once the certificate that vouches for it is one that may join."""
    found = read_renewal(read(request_path), str(request_path))
    if found is None:
        raise Refused(
            f"{request_path} is no renewal: nothing in it is signed by {site}'s certificate. Have the site run `coreg-agent "
            "enroll --renew`, or sign it without --renew and compare the key's fingerprint by telephone."
        )
    Authorised(directory).check(found.name, pem_of(found.current))
    return found


def days_left(certificate_pem: bytes, *, now: datetime | None = None) -> float:
    """Days until the first certificate in the text runs out; negative when it has."""
    end = load_certificates(certificate_pem, "The certificate")[0].not_valid_after_utc
    return (end - (now or datetime.now(UTC))) / timedelta(days=1)


def expiry_warnings(directory: Path | str, *, within_days: int = 30, now: datetime | None = None) -> list[str]:
    """A sentence for each certificate that runs out soon: the authority's, the server's, the listed sites'."""
    directory = Path(directory)
    advice = {
        "ca.pem": f"put a new authority in its place with `coreg-coordinator renew-authority {shlex.quote(str(directory))}`",
        "coordinator.pem": _renew(directory),
    }
    advice |= {
        f"{site}.pem": f"have {site} run `coreg-agent enroll --renew`, sign its request with --renew, send it the answer"
        for site in Authorised(directory).sites()
    }
    warnings = []
    for file, what_to_do in advice.items():
        path = directory / file
        if path.exists() and (days := days_left(read(path), now=now)) < within_days:
            when = f"expires in {days:.0f} days" if days > 0 else f"expired {-days:.0f} days ago"
            warnings.append(f"{path} {when}: {what_to_do}.")
    return warnings


def _renew(directory: Path) -> str:
    return f"sign it anew with `coreg-coordinator init {shlex.quote(str(directory))} --renew-server`"


def authority_pair(directory: Path, now: datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """The authority, able to sign today."""
    (key, _), ca = load_private(directory / "ca.key"), load_certificate(directory / "ca.pem")
    if ca.public_key() != key.public_key():
        raise Refused(f"{directory}: ca.key and ca.pem do not belong together. Restore both from one backup.")
    _check_period(ca, directory / "ca.pem", now)
    return ca, key


def _check_period(certificate: x509.Certificate, path: Path, now: datetime) -> None:
    if now < certificate.not_valid_before_utc:
        raise Refused(
            f"{path} is valid from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC, and this machine's "
            f"clock says {now:%Y-%m-%d %H:%M}: check the clock."
        )
    if now > certificate.not_valid_after_utc:
        new = f"put a new one in its place with `coreg-coordinator renew-authority {shlex.quote(str(path.parent))} --lost`"
        next_step = new if path.name == "ca.pem" else _renew(path.parent)
        raise Refused(f"{path} ran out on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC: {next_step}.")


def _load_request(path: Path) -> tuple[x509.CertificateSigningRequest, ec.EllipticCurvePublicKey]:
    """A request signed by its own key, which is of the kind that everybody here uses."""
    data = read(path, "Ask the site for its site.csr (`coreg-agent enroll` makes it).")
    if b"PRIVATE KEY" in data:
        raise Refused(
            f"{path} holds a private key, which must never leave its site and can no longer be trusted. Delete this "
            "copy; the site deletes its site.key, runs `coreg-agent enroll` and sends the new site.csr alone."
        )
    try:
        request = x509.load_pem_x509_csr(data)
        valid, key = request.is_signature_valid, request.public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise BadData(f"{path} is no certificate request in PEM ({error}). Ask the site for its site.csr.") from error
    if not valid:
        raise Refused(f"{path} is not signed by its own key: damaged or forged. Ask the site for its site.csr again.")
    if not (isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)):
        raise Refused(f"{path} is for another kind of key than EC P-256. Make it with `coreg-agent enroll`.")
    return request, key
