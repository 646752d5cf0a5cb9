"""Invitations of sites: made by the operator, kept in a file each, and redeemed once, for a certificate.

FOLDER/invitations/SITE (mode 0600) has the line, then `valid until TIME`, and after its use `used TIME by KEY-FINGERPRINT`. The
key that used it can ask again, since an answer can get lost; it gets the same certificate, unless the site was revoked.

If ca.key is not in the folder, the authority is kept offline: the request is stored in FOLDER/requests/SITE.csr, and the site is
listed when it asks again after the operator copied SITE.pem into the folder.
"""

import hmac
import secrets
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from coordinator.authority.authorised import Authorised, authorise, revoke
from coordinator.authority.pki import check_request, issue, load_certificate, server_names, signed_by
from coreg_core.errors import CoregError, Refused, StorageError, UsageError
from coreg_wire.clock import utc_now
from coreg_wire.files.disk import exclusive, write_whole
from coreg_wire.identity.invitation import Invitation, parse_invitation, proof
from coreg_wire.identity.names import fingerprint, key_fingerprint, request_name

VALID = timedelta(days=7)
_LOCAL = ("localhost", "127.0.0.1", "::1")
UNABLE = "The coordinator cannot issue the certificate now. Its operator finds the reason in the log."
_NEW = "Ask the coordinator's operator for a new invitation."


@dataclass(frozen=True)
class Issued:
    """The certificates for a site: its own and the authority's (PEM). ``first``: it was not listed with this key before."""

    answer: bytes
    first: bool


@dataclass(frozen=True)
class Waiting:
    """The authority is offline, and the operator has to sign the ``request``. ``first``: it was not stored before."""

    request: Path
    first: bool


@dataclass(frozen=True)
class Denied:
    """A holder of the secret cannot have a certificate. ``reason`` is for the site, ``log`` for the coordinator's operator."""

    reason: str
    log: str


def invite(folder: Path, site: str, listen: str) -> Invitation:
    """A new invitation, which replaces the site's open one. ``listen``: HOST:PORT of the coordinator; only PORT is used."""
    port = int(listen.rpartition(":")[2])
    if not 0 < port < 65535:
        raise UsageError(
            f"[service] listen = {listen!r}: invitations need a port of 1 to 65534. Sites enrol at the next port."
        )
    authority = fingerprint(load_certificate(folder / "ca.pem"))
    host = next((name for name in server_names(folder) if name not in _LOCAL), "127.0.0.1")
    made = Invitation(host, port, site, authority, secrets.token_hex(16))
    with _locked(folder):
        _write(_path(folder, site), f"{made}\nvalid until {utc_now() + VALID:%Y-%m-%dT%H:%M:%SZ}\n".encode())
        _request(folder, site).unlink(missing_ok=True)
    return made


def withdraw(folder: Path, site: str) -> bool:
    """Remove a site's invitation, its request and its line in the allow-list; False if there was none of them."""
    with _locked(folder):
        files = [path for path in (_path(folder, site), _request(folder, site)) if path.exists()]
        for path in files:
            path.unlink()
        return revoke(folder, site) or bool(files)


def redeem(folder: Path, site: str, request_pem: bytes, given: str) -> Issued | Waiting | Denied:
    """Give a site its certificate. ``given`` is the proof of the invitation for this request.

    An exception can be caused by anybody: `Refused` (for the site), or `StorageError` (for the coordinator's operator).
    """
    with _locked(folder):
        invitation, until, used = _read(_path(folder, site))
        secret = secrets.token_hex(16) if invitation is None else invitation.secret
        if not hmac.compare_digest(proof(secret, site, request_pem.decode("ascii")), given) or invitation is None:
            raise Refused(
                f"This invitation for {site} is not valid: it was replaced or revoked, or is incomplete. {_NEW}"
            )
        try:
            request, key = check_request(request_pem, "the request")
            name, mark = request_name(request, "the request"), key_fingerprint(key)
        except CoregError as error:
            return Denied(str(error), str(error))
        try:
            if name != site:
                raise Refused(f"The invitation is for {site}, but the request for {name}.")
            if used not in ("", mark):
                raise Refused(
                    f"This invitation for {site} was used by another key. If that was not your organisation, tell the "
                    f"coordinator's operator at once. {_NEW}"
                )
            return _given(folder, site, request_pem, mark, until=until, used=bool(used))
        except Refused as error:
            return Denied(str(error), str(error))
        except (StorageError, ValueError, OSError) as error:
            return Denied(UNABLE, f"{site} has asked for a certificate, but it could not be issued: {error}")


def _given(folder: Path, site: str, request_pem: bytes, mark: str, *, until: datetime, used: bool) -> Issued | Waiting:
    answer, request = folder / f"{site}.pem", _request(folder, site)
    listed = Authorised(folder).sites().get(site) == mark
    ready = _is_answer(folder, answer, mark)
    if used and listed and ready:
        return Issued(answer.read_bytes(), first=False)
    if used and request.exists():  # the authority is offline
        if not ready:
            return Waiting(request, first=False)
        authorise(folder, site, mark)
        request.unlink()
        return Issued(answer.read_bytes(), first=True)
    if used:
        raise Refused(f"The certificate of {site} was revoked or has expired. {_NEW}")
    if until < utc_now():
        raise Refused(f"This invitation for {site} expired on {until:%Y-%m-%d %H:%M} UTC. {_NEW}")
    if not (folder / "ca.key").exists():
        _write(request, request_pem)
        _bind(folder, site, mark)
        return Waiting(request, first=True)
    # Bound before the site is listed: after a crash in between, no other key can use the invitation.
    try:
        signed = issue(folder, request_pem, "the request", answer, first=lambda: _bind(folder, site, mark))
    except Refused as error:  # of the authority's own files
        raise StorageError(str(error)) from error
    return Issued(signed.certificate_path.read_bytes(), first=True)


def _is_answer(folder: Path, path: Path, mark: str) -> bool:
    """Whether the file has a certificate of this authority for this key that is valid now."""
    if not signed_by(path, load_certificate(folder / "ca.pem")):
        return False
    certificate = load_certificate(path)
    return key_fingerprint(certificate.public_key()) == mark and certificate.not_valid_after_utc > utc_now()


def _bind(folder: Path, site: str, mark: str) -> None:
    path = _path(folder, site)
    _write(path, path.read_bytes() + f"used {utc_now():%Y-%m-%dT%H:%M:%SZ} by {mark}\n".encode())


def _read(path: Path) -> tuple[Invitation | None, datetime, str]:
    """The invitation, its end, and the fingerprint of the key that used it; None and "" if there is none."""
    if not path.exists():
        return None, utc_now(), ""
    try:
        line, until, *used = path.read_text(encoding="ascii").splitlines()
        return parse_invitation(line), datetime.fromisoformat(until.split()[-1]), used[0].split()[-1] if used else ""
    except (OSError, ValueError, IndexError):
        again = f"`coreg-coordinator invite {path.parent.parent} {path.name}`"
        raise StorageError(f"{path} cannot be read. Replace it: {again}.") from None


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    write_whole(path, data, mode=0o600)


def _locked(folder: Path) -> AbstractContextManager[None]:
    return exclusive(folder / "invitations", "another command changes them. Try again.", 10.0)


def _path(folder: Path, site: str) -> Path:
    return folder / "invitations" / site


def _request(folder: Path, site: str) -> Path:
    return folder / "requests" / f"{site}.csr"
