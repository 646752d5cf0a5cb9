"""The authorities that a site trusts after an answer from another authority than before.

A new authority is accepted if the old one signed it (a link in the answer), or if its operator read out its fingerprint.
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
    """The self-signed authorities of an answer, and the links: certificates of one authority for another."""
    own = [c for c in answer if c.issuer == c.subject]
    return own, [c for c in answer if c.issuer != c.subject]


def issued(certificate: x509.Certificate, ca: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def in_force(certificate: x509.Certificate, now: datetime) -> bool:
    """Whether the certificate is valid at that time."""
    return certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc


def issuer_of(certificate: x509.Certificate, trusted: Sequence[x509.Certificate]) -> x509.Certificate:
    """The trusted authority that signed the certificate; the first one if none did."""
    return next((ca for ca in trusted if issued(certificate, ca)), trusted[0])


def trusted_after(
    answer: Sequence[x509.Certificate],
    trusted: Sequence[x509.Certificate],
    confirmed: str | None,
    where: str,
    now: datetime,
) -> list[x509.Certificate]:
    """The trusted authorities after an answer: its authority, and earlier ones that the answer still lists.

    Parameters
    ----------
    answer
        the answer's certificates after the site's own; its authority first.
    trusted
        the authorities so far; empty before the first answer, which is accepted without a check.
    confirmed
        a new authority's fingerprint, as its operator read it out.

    Raises
    ------
    Refused
        no trusted authority signed the new one, and the operators did not confirm it.
    """
    authorities, links = authorities_and_links(answer)
    ca = authorities[0]
    mark = fingerprint(ca)
    if trusted and ca not in trusted:
        if confirmed is not None and confirmed.replace(":", "").lower() != mark:
            raise Refused(
                f"{where} comes from the authority {mark}, but {confirmed} was given. Nothing was installed. Compare again."
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
    """Whether a trusted and valid authority signed the name and key of this one."""
    return any(
        link.subject == ca.subject
        and link.public_key() == ca.public_key()
        and in_force(link, now)
        and issued(link, old)
        for link in links
        for old in trusted
        if in_force(old, now)
    )
