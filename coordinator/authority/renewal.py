"""Renewal of the authority if it expires or its key is lost: `renew_authority` begins it, `finish_authority` ends it.

During the renewal, ca.pem has both authorities, the new one first, so that sites of either can join. The server keeps the
certificate of the old one, which every site trusts, until `finish_authority`. Every answer to a site contains a link: the new
authority's key, signed by the old one. With it, a site trusts the new authority without a telephone call. If the old key is
lost, there is no link, and operators compare fingerprints.

Must not know gRPC, the plan, or any site's private key.
"""

import contextlib
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from coordinator.authority.authorised import Authorised, write_whole
from coordinator.authority.certificates import authority_certificate, authority_link
from coordinator.authority.folder import (
    LINK,
    PREVIOUS_KEY,
    load_authorities,
    load_private,
    pem_of,
    server_end,
    signed_by,
)
from coordinator.authority.pki import authority_pair, reissue_server
from coreg_core.errors import UsageError
from coreg_wire.clock import utc_now
from coreg_wire.files import files
from coreg_wire.identity.keys import ask_twice, is_encrypted, key_pem
from coreg_wire.identity.names import fingerprint


@dataclass(frozen=True)
class Renewed:
    """A new authority: its fingerprint, its expiry, whether the old one signed it, and the sites that need a certificate."""

    fingerprint: str
    not_after: datetime
    linked: bool
    sites: tuple[str, ...]


def renew_authority(
    directory: Path | str, days: int = 3650, *, lost: bool = False, now: datetime | None = None
) -> Renewed:
    """Create a new authority. The old one stays trusted until `finish_authority`.

    Parameters
    ----------
    directory : path
        The authority's.
    days : int
        Validity of the new one.
    lost : bool
        The old key is lost, or its certificate has expired: only the operator vouches for the new authority.

    Raises
    ------
    UsageError
        A renewal is in progress, or a file of the authority is missing.
    Refused, BadData, StorageError
        The old authority is damaged, or has expired (without ``lost``); the folder cannot be written.
    """
    directory, now = Path(directory), now or utc_now()
    old, *others = load_authorities(directory)
    if others:
        raise UsageError(
            f"{directory}: a renewal is already in progress. Finish it with `coreg-coordinator renew-authority "
            f"{directory} --finish`."
        )
    expires = server_end(directory)  # before anything is written: a missing file ends the renewal here
    key = ec.generate_private_key(ec.SECP256R1())
    new = authority_certificate(key, days, now)
    link, secret = None, None
    if not lost:
        old, old_key = authority_pair(directory, now)
        secret = load_private(directory / "ca.key")[1]
        link = authority_link(old, old_key, new, now)
        files.write_whole(directory / PREVIOUS_KEY, key_pem(old_key, secret), mode=0o600)
        write_whole(directory / LINK, pem_of(link))
    elif _was_encrypted(directory):
        secret = ask_twice(f"the new {directory / 'ca.key'}")
    still = [old] if now <= old.not_valid_after_utc else []
    # A crash between the two writes leaves a key that does not match ca.pem. The matching one is in previous-ca.key.
    files.write_whole(directory / "ca.key", key_pem(key, secret), mode=0o600)
    write_whole(directory / "ca.pem", b"".join(map(pem_of, [new, *still])))
    if not still or expires < now:
        reissue_server(directory, now=now)
    return Renewed(fingerprint(new), new.not_valid_after_utc, link is not None, tuple(Authorised(directory).sites()))


def finish_authority(directory: Path | str, *, force: bool = False, now: datetime | None = None) -> datetime:
    """Trust the new authority only, and sign the server's certificate with it; return the certificate's expiry.

    Raises
    ------
    UsageError
        No renewal is in progress, or listed sites have no certificate of the new authority (without ``force``).
    """
    directory = Path(directory)
    new, *others = load_authorities(directory)
    if not others and not (directory / LINK).exists() and signed_by(directory / "coordinator.pem", new):
        raise UsageError(f"{directory}: no renewal of the authority is in progress.")
    if (missing := not_yet_signed(directory)) and not force:
        raise UsageError(
            f"{directory}: {', '.join(missing)} could no longer join, without a certificate of the new authority. Have each run "
            "`coreg-agent enroll --renew`, sign its request, and verify that it has installed the answer. Revoke a site that "
            "will not join (`coreg-coordinator revoke NAME`), or give --force."
        )
    write_whole(directory / "ca.pem", pem_of(new))
    for name in (PREVIOUS_KEY, LINK):
        with contextlib.suppress(FileNotFoundError):
            (directory / name).unlink()
    return reissue_server(directory, now=now)


def not_yet_signed(directory: Path | str) -> list[str]:
    """The listed sites whose certificate, NAME.pem, is not signed by the newest authority."""
    directory = Path(directory)
    new = load_authorities(directory)[0]
    return [site for site in Authorised(directory).sites() if not signed_by(directory / f"{site}.pem", new)]


def _was_encrypted(directory: Path) -> bool:
    """Whether the server's key is encrypted, which `create_authority` does for both keys or for none."""
    try:
        return is_encrypted((directory / "coordinator.key").read_bytes())
    except OSError:
        return False
