"""Certificates without the wire, and the coordinator's clock at another time."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from unittest import mock

from coordinator.authority import pki
from site_agent.identity.enrolment import enrol, install


def issued(authority: Path, request: Path, *, days: int = pki.DAYS) -> Path:
    """The answer to a request, as the coordinator gives it to an invitation: the site is listed
    with this key.
    """
    site, key = pki.check_request(request.read_bytes())
    with mock.patch.object(pki, "DAYS", days):
        pki.issue(authority, site, key)
    return authority / f"{site}.pem"


def enrolled(identity: Path, name: str = "north") -> Path:
    """A folder with the identity of a site, and beside it that of its authority."""
    pki.create_authority(identity.with_name("authority"), [])
    install(identity, issued(identity.with_name("authority"), enrol(identity, name)))
    return identity


@contextmanager
def clock(now: datetime | None) -> Iterator[None]:
    """The wall clock of both programs at ``now``; None: the true one."""
    source = time.time
    if now is not None:
        source = now.timestamp
    with mock.patch("coreg_wire.clock.source", source):
        yield
