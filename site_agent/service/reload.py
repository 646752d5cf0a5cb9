"""The site's identity in a running agent: reloaded when its files change, unchanged if the new files have a fault."""

import asyncio
from collections.abc import Callable
from typing import TypeAlias

import grpc

from coreg_core.errors import CoregError
from coreg_core.protocol.outcomes import Notice
from coreg_wire.identity.credentials import client_credentials
from site_agent.identity.identity import AUTHORITY, CERTIFICATE, KEY, Identity, check_identity, install_renewed

DAY = 86_400.0
_Stamp: TypeAlias = tuple[tuple[int, int] | None, ...]


class ReloadingIdentity:
    """See the module's docstring. ``in_use`` receives the identity of each new session, and a renewed one with the same key:
    it signs for the open session."""

    def __init__(self, identity: Identity, notify: Callable[[Notice], None], in_use: Callable[[Identity], None]):
        self.identity, self._notify, self._in_use = identity, notify, in_use
        self._stamp = self._now()

    def credentials(self) -> grpc.ChannelCredentials:
        """The credentials from the current files."""
        self.refresh()
        self._in_use(self.identity)
        return client_credentials(self.identity.key_pem, self.identity.certificate_pem, self.identity.ca_pem)

    def refresh(self) -> None:
        """Read the files again if they changed."""
        stamp = self._now()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            fresh = check_identity(self.identity.directory)
        except CoregError as error:
            self._notify(_not_read(str(error)))
            return
        if fresh.name != self.identity.name:
            self._notify(_not_read(f"it names {fresh.name}, but this agent is {self.identity.name}"))
            return
        same_key, self.identity = fresh.key_pem == self.identity.key_pem, fresh
        if same_key:
            self._in_use(fresh)
        self._notify(Notice("certificate_read", fields={"until": fresh.not_after.isoformat()}))

    def install(self, certificate_pem: bytes) -> None:
        """Install the next certificate that the coordinator sent, for the next connection."""
        try:
            install_renewed(self.identity.directory, certificate_pem)
        except CoregError as error:
            self._notify(_not_read(str(error)))
        else:
            self.refresh()

    async def warn_daily(self) -> None:
        """Warn once a day if the certificate expires within a month."""
        while True:
            if (warning := self.identity.expiry_warning()) is not None:
                self._notify(Notice("certificate", warning, "warning"))
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


def _not_read(reason: str) -> Notice:
    text = f"the new certificate cannot be used; the old one stays in use: {reason}"
    return Notice("certificate_not_read", text, "warning")
