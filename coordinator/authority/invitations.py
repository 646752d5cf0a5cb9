"""Invitations of sites: made by the operator, kept in a file each, and redeemed once, for a
certificate.

FOLDER/invitations/SITE (mode 0600) has the line, then `valid until TIME`, and after its use `used
TIME by KEY-FINGERPRINT`. The key that used it can ask again, since an answer can get lost; it gets
the same certificate, unless the site was revoked.
"""

import hmac
import secrets
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

from coordinator.authority.authorised import Authorised, revoke
from coordinator.authority.pki import (
    authority_pair,
    check_request,
    issue,
    load_certificate,
    server_names,
    signed_by,
)
from coreg_core.errors import CoregError, Refused, StorageError, UsageError
from coreg_wire.clock import utc_now
from coreg_wire.files.disk import exclusive, make_private_folder, write_whole
from coreg_wire.identity.invitation import Invitation, parse_invitation, proof
from coreg_wire.identity.names import fingerprint, key_fingerprint
from coreg_wire.terminal.command_line import other_owner

VALID = timedelta(days=7)
_LOCAL = ("localhost", "127.0.0.1", "::1")
UNABLE = (
    "The coordinator cannot issue the certificate now. Its operator finds the reason in the log."
)
_NEW = "Ask the coordinator's operator for a new invitation."


@dataclass(frozen=True)
class Issued:
    """The certificates for a site: its own and the authority's (PEM).

    ``first``: it was not listed with this key before.
    """

    answer: bytes
    first: bool


@dataclass(frozen=True)
class Denied:
    """A holder of the secret cannot have a certificate.

    ``reason`` is for the site, ``log`` for the coordinator's operator.
    """

    reason: str
    log: str


def invite(folder: Path, site: str, listen: str) -> Invitation:
    """A new invitation, which replaces the site's open one.

    ``listen``: HOST:PORT of the coordinator; only PORT is used.
    """
    port = int(listen.rpartition(":")[2])
    if not 0 < port < 65535:
        raise UsageError(
            f"[service] listen = {listen!r}: invitations need a port of 1 to 65534. Sites enrol at"
            " the next port."
        )
    authority = fingerprint(authority_pair(folder)[0])
    host = next((name for name in server_names(folder) if name not in _LOCAL), "127.0.0.1")
    invitation = Invitation(host, port, site, authority, secrets.token_hex(16))
    with _locked(folder):
        _write(
            _path(folder, site),
            f"{invitation}\nvalid until {utc_now() + VALID:%Y-%m-%dT%H:%M:%SZ}\n".encode(),
        )
    return invitation


def withdraw(folder: Path, site: str) -> bool:
    """Remove a site's invitation and its line in the allow-list; False if there was neither."""
    with _locked(folder):
        invited = _path(folder, site).exists()
        _path(folder, site).unlink(missing_ok=True)
        return revoke(folder, site) or invited


def redeem(
    folder: Path, site: str, request_pem: bytes, given: str, *, listed: bool = True
) -> Issued | Denied:
    """A site's certificate for ``given``, the proof of its invitation, if the federation lists it
    now.

    `Refused` is for the site to read.
    """
    with _locked(folder):
        invitation, until, used = _read(_path(folder, site))
        secret = secrets.token_hex(16) if invitation is None else invitation.secret
        if (
            not hmac.compare_digest(proof(secret, site, request_pem.decode("ascii")), given)
            or invitation is None
        ):
            raise Refused(
                f"This invitation for {site} is not valid: it was replaced or revoked, or is"
                f" incomplete. {_NEW}"
            )
        if not listed:
            return Denied(
                f"{site} is not in this federation's list of sites now. Ask the coordinator's "
                "operator.",
                f"{site} has a valid invitation, and is not in the list of sites. Add it to "
                f"[federation] sites and reload, or `coreg-coordinator revoke {folder} {site}`",
            )
        try:
            name, key = check_request(request_pem)
            if name != site:
                raise Refused(f"The invitation is for {site}, but the request for {name}.")
        except CoregError as error:
            return Denied(str(error), str(error))
        mark = key_fingerprint(key)
        if used not in ("", mark):
            return Denied(
                f"This invitation for {site} was used by another key. If that was not your"
                f" organisation, tell the coordinator's operator at once. {_NEW}",
                f"two keys have used the invitation of {site}: {used[:16]}… has the certificate,"
                f" and {mark[:16]}… asks for one. Ask {site}. If the first key is not its own:"
                f" `coreg-coordinator revoke {folder} {site}`, then `coreg-coordinator invite"
                f" {folder} {site}`",
            )
        try:
            return _given(folder, site, key, until=until, used=bool(used))
        except Refused as error:
            return Denied(str(error), str(error))
        except (StorageError, ValueError, OSError) as error:
            return Denied(
                UNABLE, f"{site} has asked for a certificate, but it could not be issued: {error}"
            )


def _given(
    folder: Path, site: str, key: EllipticCurvePublicKey, *, until: datetime, used: bool
) -> Issued:
    answer = folder / f"{site}.pem"
    mark = key_fingerprint(key)
    if used and Authorised(folder).sites().get(site) == mark and _is_answer(folder, answer, mark):
        return Issued(answer.read_bytes(), first=False)
    if used:
        raise Refused(f"The certificate of {site} was revoked or has expired. {_NEW}")
    if until < utc_now():
        raise Refused(f"This invitation for {site} expired on {until:%Y-%m-%d %H:%M} UTC. {_NEW}")
    # Bound before the site is listed: after a crash in between, no other key can use the
    # invitation.
    try:
        return Issued(issue(folder, site, key, first=lambda: _bind(folder, site, mark)), first=True)
    except Refused as error:  # of the authority's own files
        raise StorageError(str(error)) from error


def _is_answer(folder: Path, path: Path, mark: str) -> bool:
    """Whether the file has a certificate of this authority for this key that is valid now."""
    if not signed_by(path, load_certificate(folder / "ca.pem")):
        return False
    certificate = load_certificate(path)
    return (
        key_fingerprint(certificate.public_key()) == mark
        and certificate.not_valid_after_utc > utc_now()
    )


def _bind(folder: Path, site: str, mark: str) -> None:
    path = _path(folder, site)
    _write(path, path.read_bytes() + f"used {utc_now():%Y-%m-%dT%H:%M:%SZ} by {mark}\n".encode())


def _read(path: Path) -> tuple[Invitation | None, datetime, str]:
    """The invitation, its end, and the fingerprint of the key that used it; None and "" if there is
    none.
    """
    if not path.exists():
        return None, utc_now(), ""
    try:
        line, until, *used = path.read_text(encoding="ascii").splitlines()
        return (
            parse_invitation(line),
            datetime.fromisoformat(until.split()[-1]),
            used[0].split()[-1] if used else "",
        )
    except (OSError, ValueError, IndexError):
        again = f"coreg-coordinator invite {path.parent.parent} {path.name}"
        whose = ""
        if users := other_owner(path):
            again = f"sudo -u {users[1]} {again}"
            whose = f" belongs to {users[0]}, and"
        raise StorageError(f"{path}{whose} cannot be read. Replace it: `{again}`.") from None


def _write(path: Path, data: bytes) -> None:
    make_private_folder(path.parent)
    write_whole(path, data, mode=0o600)


def _locked(folder: Path) -> AbstractContextManager[None]:
    return exclusive(folder / "invitations", "another command changes them. Try again.", 10.0)


def _path(folder: Path, site: str) -> Path:
    return folder / "invitations" / site
