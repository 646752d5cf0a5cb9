"""The site's identity while an agent stays: read again when its files change, and kept as it was where they are not
right.
"""

import asyncio
from collections.abc import Callable
from typing import TypeAlias

import grpc

from coreg_core.errors import CoregError
from coreg_wire.identity.credentials import client_credentials
from coreg_wire.terminal.logs import Log
from site_agent.identity.identity import AUTHORITY, CERTIFICATE, KEY, Identity, check_identity

DAY = 86_400.0
_Stamp: TypeAlias = tuple[tuple[int, int] | None, ...]


class Enrolled:
    """See the module's docstring."""

    def __init__(self, identity: Identity, log: Log, on_dial: Callable[[Identity], None]):
        self.identity, self._log, self._on_dial = identity, log, on_dial
        self._stamp = self._now()

    def credentials(self) -> grpc.ChannelCredentials:
        """Asked at each dialling: a certificate that was installed meanwhile is shown, and who signs in the session is told."""
        self.refresh()
        self._on_dial(self.identity)
        return client_credentials(self.identity.key_pem, self.identity.certificate_pem, self.identity.ca_pem)

    def refresh(self) -> None:
        """Read the files again, where they changed."""
        stamp = self._now()
        if stamp == self._stamp:
            return
        self._stamp, secret = stamp, self.identity.secret
        try:
            fresh = check_identity(self.identity.directory, passphrase=lambda _what: secret or b"")
        except CoregError as error:
            self._log.error("certificate_not_read", text=str(error))
            return
        if fresh.name != self.identity.name:
            self._log.error(
                "certificate_not_read", text=f"it is {fresh.name}'s, and this agent is {self.identity.name}"
            )
            return
        self.identity = fresh
        self._log.info("certificate_read", until=fresh.not_after.isoformat())

    async def warn_daily(self) -> None:
        """Say once a day what runs out within a month, for as long as the agent stays."""
        while True:
            if (warning := self.identity.expiry_warning()) is not None:
                self._log.warning("certificate", text=warning)
            await asyncio.sleep(DAY)

    def _now(self) -> _Stamp:
        found = list[tuple[int, int] | None]()
        for name in (KEY, CERTIFICATE, AUTHORITY):
            try:
                stat = (self.identity.directory / name).stat()
            except OSError:
                found.append(None)
            else:
                found.append((stat.st_ino, stat.st_mtime_ns))
        return tuple(found)
