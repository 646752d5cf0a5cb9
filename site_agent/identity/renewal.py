"""Which authority a site goes on to trust when an answer comes from another one than before.

A new authority is believed where the old one signed it (a link in the answer), or where its operator read out its fingerprint.
Pure: certificates in, certificates out; knows no file.
"""

from collections.abc import Sequence
from datetime import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from coreg_core.errors import Refused
from coreg_wire.identity.names import fingerprint


def authorities_and_links(
    answer: Sequence[x509.Certificate],
) -> tuple[list[x509.Certificate], list[x509.Certificate]]:
    """Of an answer's certificates after the site's own: those that authorities signed for themselves, and for each other."""
    own = [c for c in answer if c.issuer == c.subject]
    return own, [c for c in answer if c.issuer != c.subject]


def issued(certificate: x509.Certificate, ca: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def in_force(certificate: x509.Certificate, now: datetime) -> bool:
    """Whether it is valid at that moment."""
    return certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc


def issuer_of(certificate: x509.Certificate, trusted: Sequence[x509.Certificate]) -> x509.Certificate:
    """Of those that are trusted the one that signed it; the first, where none did."""
    return next((ca for ca in trusted if issued(certificate, ca)), trusted[0])


def trusted_after(
    answer: Sequence[x509.Certificate],
    trusted: Sequence[x509.Certificate],
    confirmed: str | None,
    where: str,
    now: datetime,
) -> list[x509.Certificate]:
    """Whom the site trusts once it has taken an answer: its authority, and earlier ones that the answer still lists.

    Parameters
    ----------
    answer
        the answer's certificates after the site's own; its authority first.
    trusted
        the authorities so far; none before the first answer, which is believed.
    confirmed
        a new authority's fingerprint, as its operator read it out.

    Raises
    ------
    Refused
        a new authority that neither a trusted one signed nor the operators confirmed.
    """
    authorities, links = authorities_and_links(answer)
    ca = authorities[0]
    mark = fingerprint(ca)
    if trusted and ca not in trusted:
        if confirmed is not None and confirmed.replace(":", "").lower() != mark:
            raise Refused(
                f"{where} comes from the authority {mark}, and {confirmed} was given. Nothing was installed: compare again."
            )
        if confirmed is None and not _linked(ca, links, trusted, now):
            old = trusted[0]
            raise Refused(
                f"{where} comes from {ca.subject.rfc4514_string()!r} ({mark[:16]}…), but this site trusts "
                f"{old.subject.rfc4514_string()!r} ({fingerprint(old)[:16]}…), which did not sign it. Ask the coordinator's "
                "operator, by telephone, for the new authority's fingerprint, and install again with --authority FINGERPRINT."
            )
    return [ca, *(c for c in authorities[1:] if c in trusted or not trusted)]


def _linked(
    ca: x509.Certificate, links: Sequence[x509.Certificate], trusted: Sequence[x509.Certificate], now: datetime
) -> bool:
    """Whether an authority that is trusted, and in force, signed this one's name and key."""
    return any(
        link.subject == ca.subject
        and link.public_key() == ca.public_key()
        and in_force(link, now)
        and issued(link, old)
        for link in links
        for old in trusted
        if in_force(old, now)
    )
