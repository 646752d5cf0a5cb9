"""The coordinator's certificate authority: made once, signs sites' requests, and lists who may join.

Everything stands in one directory: ca.key and coordinator.key (mode 0600, they never travel), ca.pem,
coordinator.pem, NAME.pem for each signed site (its certificate, then ca.pem: the answer that goes back to the site) and
`authorised-sites`, one `NAME FINGERPRINT` a line, `#` begins a comment. A site may join while its certificate's
fingerprint stands there; the file is read at every joining, so that adding or revoking needs no restart.

Must not know gRPC, the federation's plan, or any site's private key. POSIX only (flock).
"""

import os
import re
import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fcntl import LOCK_EX, flock
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization as keys
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coreg_core.errors import BadData, Refused, StorageError, UsageError
from coreg_wire.names import (
    certificate_name,
    check_site_name,
    fingerprint,
    key_fingerprint,
    load_certificates,
    request_name,
    site_uri,
)

ALLOW_LIST = "authorised-sites"
_FILES = ("ca.key", "ca.pem", "coordinator.key", "coordinator.pem")
# A certificate is valid from a little before it was made: clocks at the sites may be slow.
_BACKDATED = timedelta(hours=1)
_ALWAYS_SERVED = ("localhost", "127.0.0.1", "::1")
_HOSTNAME = re.compile(r"(?=.{1,253}$)[a-z0-9_]([a-z0-9_-]{0,62}\.)*[a-z0-9_-]{0,62}")
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class SignedSite:
    """What `sign_request` made; `replaced` says that another certificate of this name has just lost its rights."""

    name: str
    certificate_path: Path
    fingerprint: str
    key_fingerprint: str
    not_after: datetime
    replaced: bool


@dataclass(frozen=True)
class ServerFiles:
    """PEM texts for `coreg_wire.credentials.server_credentials`, in the order of its parameters."""

    key_pem: bytes
    certificate_pem: bytes
    ca_pem: bytes


def create_authority(
    directory: Path | str,
    hostnames: Sequence[str],
    days: int = 3650,
    *,
    server_days: int = 730,
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

    Raises
    ------
    UsageError
        An authority stands there already (it is never overwritten), or a hostname is none.
    StorageError
        The directory cannot be written; nothing is left half made.
    """
    directory, now = Path(directory), now or datetime.now(UTC)
    served = _served(hostnames)
    key, server_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    # A name of its own, so that a message can tell two authorities apart.
    subject = _common_name(f"coreg authority {secrets.token_hex(4)}")
    ca = (
        _builder(subject, subject, key.public_key(), key.public_key(), now, _lifetime(days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(ca=True), critical=True)
        .sign(key, SHA256())
    )
    server = _server_certificate(ca, key, server_key.public_key(), served, server_days, now)
    with _storage(directory):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        present = [name for name in (*_FILES, ALLOW_LIST) if (directory / name).exists()]
    if present:
        raise UsageError(
            f"{directory} already holds {', '.join(present)}, and sites may trust it: nothing was changed. "
            "Choose another directory, or move these files away to begin a new federation."
        )
    _create_all(
        (directory / "ca.key", _key_pem(key), 0o600),
        (directory / "ca.pem", _pem(ca), 0o644),
        (directory / "coordinator.key", _key_pem(server_key), 0o600),
        (directory / "coordinator.pem", _pem(server), 0o644),
        (directory / ALLOW_LIST, b"# Sites that may join: NAME SHA-256-OF-CERTIFICATE. Delete a line to revoke.\n", 0o644),
    )
    return fingerprint(ca)


def reissue_server(
    directory: Path | str, hostnames: Sequence[str], days: int = 730, *, now: datetime | None = None
) -> datetime:
    """Sign coordinator.pem anew, for other hostnames or a later end (returned); the key stays and no site need act."""
    directory, now = Path(directory), now or datetime.now(UTC)
    ca, ca_key = _authority(directory, now)
    server_key = _load_key(directory / "coordinator.key")
    server = _server_certificate(ca, ca_key, server_key.public_key(), _served(hostnames), days, now)
    _replace(directory / "coordinator.pem", _pem(server))
    return server.not_valid_after_utc


def load_server(directory: Path | str, *, now: datetime | None = None) -> ServerFiles:
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
    key = _load_key(directory / "coordinator.key")
    ca, server = (_load_certificate(directory / name) for name in ("ca.pem", "coordinator.pem"))
    renew = "Sign it anew with `coreg-coordinator init --renew-server`."
    if server.public_key() != key.public_key():
        raise Refused(f"{directory}: coordinator.pem was issued for another key than coordinator.key. {renew}")
    _check_issued(server, ca, f"{directory}: coordinator.pem was not signed by ca.pem. {renew}")
    for path, certificate in ((directory / "ca.pem", ca), (directory / "coordinator.pem", server)):
        _check_period(certificate, path, now)
    return ServerFiles(_key_pem(key), _pem(server), _pem(ca))


def sign_request(
    directory: Path | str,
    request_path: Path | str,
    out_path: Path | str | None = None,
    days: int = 365,
    name: str | None = None,
    *,
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
    lifetime = _lifetime(days)
    ca, ca_key = _authority(directory, now)
    request, key = _load_request(request_path)
    site = request_name(request, f"The request {request_path}")
    if name is not None and name != site:
        raise Refused(
            f"{request_path} asks for the name {site!r}, not {name!r}; a request is never renamed. "
            f"Sign it as {site!r}, or have the site run `coreg-agent enroll` with --name {name}."
        )
    certificate = _leaf(ca, ca_key, key, site, [site_uri(site)], ExtendedKeyUsageOID.CLIENT_AUTH, lifetime, now)
    out_path = directory / f"{site}.pem" if out_path is None else Path(out_path)
    taken = [*(directory / file for file in (*_FILES, ALLOW_LIST)), request_path]
    if out_path.resolve() in {path.resolve() for path in taken}:
        raise UsageError(f"{out_path} must keep what it holds: give the certificate another path.")
    # The answer first: a site that is listed but never got its certificate would lose the one it has.
    _replace(out_path, _pem(certificate) + _pem(ca))
    mark = fingerprint(certificate)
    before = _edit_list(directory, site, mark)
    return SignedSite(site, out_path, mark, key_fingerprint(key), certificate.not_valid_after_utc, before is not None)


def revoke(directory: Path | str, name: str) -> bool:
    """Take a site off the list, at once and without a restart; False when it was not there."""
    return _edit_list(Path(directory), check_site_name(name), None) is not None


class Authorised:
    """The sites that may join: `authorised-sites`, read again at every question."""

    def __init__(self, directory: Path | str) -> None:
        self._path = Path(directory) / ALLOW_LIST

    def sites(self) -> dict[str, str]:
        """Fingerprint of each listed site, by name, in the file's order; unreadable lines are left out."""
        return dict(entry for line in _lines(self._path) if (entry := _parse(line)) is not None)

    def check(self, name: str, certificate_pem: bytes) -> None:
        """Return when the certificate is `name`'s and the one that is listed.

        Raises
        ------
        Refused
            It is another site's, the name is not listed or listed twice, or with another certificate.
        StorageError
            The list cannot be read: nobody joins.
        """
        certificate = load_certificates(certificate_pem, f"The certificate of {name!r}")[0]
        owner = certificate_name(certificate, "The peer's certificate")
        if owner != name:
            raise Refused(
                f"A peer that calls itself {name!r} holds the certificate of {owner!r}; a name speaks only with its "
                "own. Correct the agent's --name, or its identity directory."
            )
        entries = [_parse(line) for line in _lines(self._path)]
        listed = [entry[1] for entry in entries if entry is not None and entry[0] == name]
        if not listed:
            unreadable = [
                str(number)
                for number, (line, entry) in enumerate(zip(_lines(self._path), entries, strict=False), 1)
                if entry is None and line.partition("#")[0].strip()
            ]
            hint = f" Lines that could not be read: {', '.join(unreadable)}." if unreadable else ""
            raise Refused(
                f"{name} is not in {self._path}: it was never signed here, or was revoked.{hint} The coordinator's "
                f"operator lets it in with `coreg-coordinator sign {name}.csr`."
            )
        if len(listed) > 1:
            raise Refused(f"{name} stands {len(listed)} times in {self._path}: the operator must leave one line.")
        if listed[0] != (mark := fingerprint(certificate)):
            raise Refused(
                f"{name} showed certificate {mark[:16]}…, but {self._path} lists {listed[0][:16]}…: the one shown was "
                "revoked or replaced. Install the newest answer with `coreg-agent enroll --install`, or sign again."
            )


def days_left(certificate_pem: bytes, *, now: datetime | None = None) -> float:
    """Days until the first certificate in the text runs out; negative when it has."""
    end = load_certificates(certificate_pem, "The certificate")[0].not_valid_after_utc
    return (end - (now or datetime.now(UTC))) / timedelta(days=1)
