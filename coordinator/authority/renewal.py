"""A new authority in the place of one that runs out, or whose key is lost: begun, crossed over to, and finished.

While it is under way ca.pem lists both, the new one first, so that sites of either may join; the server goes on with the
certificate that the old one signed, which every site believes, until `finish_authority`. A link, the new authority's key signed
by the old one's, goes with every answer, so that a site believes the new one without a telephone. Where the old key is lost there
is none, and operators compare fingerprints.

Must not know gRPC, the plan, or any site's private key.
"""

import contextlib
from dataclasses import dataclass
from datetime import UTC, datetime
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
from coreg_wire.files import files
from coreg_wire.identity.keys import ask_twice, is_encrypted, key_pem
from coreg_wire.identity.names import fingerprint


@dataclass(frozen=True)
class Renewed:
    """A new authority: its fingerprint, its end, whether the old one vouches for it, and who needs a new certificate."""

    fingerprint: str
    not_after: datetime
    linked: bool
    sites: tuple[str, ...]


def renew_authority(
    directory: Path | str, days: int = 3650, *, lost: bool = False, now: datetime | None = None
) -> Renewed:
    """Make a new authority, beside which the one so far stays trusted until `finish_authority`.

    Parameters
    ----------
    directory : path
        The authority's.
    days : int
        How long the new one is valid.
    lost : bool
        The old key is lost, or has run out with its certificate: nothing vouches for the new authority but its operator.

    Raises
    ------
    UsageError
        A renewal is under way, or there is no authority.
    Refused, BadData, StorageError
        The old authority is damaged, or has run out (without ``lost``); it cannot be written.
    """
    directory, now = Path(directory), now or datetime.now(UTC)
    old, *others = load_authorities(directory)
    if others:
        raise UsageError(
            f"{directory}: a renewal is under way already. See it to its end with `coreg-coordinator renew-authority "
            f"{directory} --finish`."
        )
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
    # A machine that stops between the two leaves a key that does not belong to ca.pem, and the one that does in previous-ca.key.
    files.write_whole(directory / "ca.key", key_pem(key, secret), mode=0o600)
    write_whole(directory / "ca.pem", b"".join(map(pem_of, [new, *still])))
    if not still or server_end(directory) < now:
        reissue_server(directory, now=now)
    return Renewed(fingerprint(new), new.not_valid_after_utc, link is not None, tuple(Authorised(directory).sites()))


def finish_authority(directory: Path | str, *, force: bool = False, now: datetime | None = None) -> datetime:
    """Trust the new authority alone, and sign the server's certificate with it, until the end that is returned.

    Raises
    ------
    UsageError
        No renewal is under way; or sites on the list have no certificate of the new authority yet (without ``force``).
    """
    directory = Path(directory)
    new, *others = load_authorities(directory)
    if not others and not (directory / LINK).exists() and signed_by(directory / "coordinator.pem", new):
        raise UsageError(f"{directory}: no renewal of the authority is under way.")
    if (missing := not_yet_signed(directory)) and not force:
        raise UsageError(
            f"{directory}: {', '.join(missing)} would be shut out: no certificate of the new authority was signed for them. Have "
            "each run `coreg-agent enroll --renew`, sign its request, and see that it has installed the answer; or give --force."
        )
    write_whole(directory / "ca.pem", pem_of(new))
    for name in (PREVIOUS_KEY, LINK):
        with contextlib.suppress(FileNotFoundError):
            (directory / name).unlink()
    return reissue_server(directory, now=now)


def not_yet_signed(directory: Path | str) -> list[str]:
    """The sites on the list whose answer, NAME.pem, is not of the newest authority."""
    directory = Path(directory)
    new = load_authorities(directory)[0]
    return [site for site in Authorised(directory).sites() if not signed_by(directory / f"{site}.pem", new)]


def _was_encrypted(directory: Path) -> bool:
    """The server's key tells how the authority's was kept."""
    try:
        return is_encrypted((directory / "coordinator.key").read_bytes())
    except OSError:
        return False
