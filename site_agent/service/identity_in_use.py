"""The identity of a running agent: read again when its files change.

If the new files have a fault, the identity stays as it is. The coordinator sends the next
certificate in time, and an operator can install one. A new certificate signs from the next
connection on, since the session in progress is of the old one.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import grpc

from coreg_core.errors import CoregError, Refused
from coreg_core.outcomes import Notice
from coreg_wire.identity.credentials import client_credentials
from site_agent.identity.enrolment import install_renewed
from site_agent.identity.identity import Identity, check_identity
from site_agent.identity.members import Members
from site_agent.machine.seal import Keys

DAY = 86_400.0


@dataclass
class KeysInUse:
    """What an agent signs with, and whose keys it trusts, for the parts that use them."""

    keys: Keys | None = None
    members: Members | None = None
    certificate_until: str | None = None

    @property
    def compared(self) -> bool:
        """Whether the operators compared the words of all members; an agent without keys has
        none.
        """
        return self.members is None or not self.members.unseen


class ReloadingIdentity:
    """See the module's docstring. ``in_use`` receives what signs from now on."""

    def __init__(
        self,
        identity: Identity,
        notify: Callable[[Notice], None],
        in_use: Callable[[Identity], None],
    ):
        self.identity = identity
        self._notify = notify
        self._in_use = in_use
        self._fault = ""  # of the files now

    def credentials(self) -> grpc.ChannelCredentials:
        """The credentials from the current files."""
        self.refresh()
        identity = self.identity
        self._in_use(identity)
        return client_credentials(identity.key_pem, identity.certificate_pem, identity.ca_pem)

    def refresh(self) -> None:
        before = self.identity
        earlier_fault = self._fault
        try:
            fresh = check_identity(before.directory)
            if fresh.name != before.name:
                raise Refused(f"it names {fresh.name}, but this agent is {before.name}")
        except CoregError as error:
            self._fault = str(error)
            if self._fault != earlier_fault:
                self._not_used(self._fault)
            return
        self._fault = ""
        if earlier_fault or fresh != before:
            self.identity = fresh
            if fresh.key_pem == before.key_pem:
                self._in_use(fresh)
            self._notify(Notice("certificate_read", fields={"until": fresh.not_after.isoformat()}))

    def install(self, certificate_pem: bytes) -> None:
        """Install the next certificate that the coordinator sent, for the next connection."""
        try:
            install_renewed(self.identity.directory, certificate_pem)
        except CoregError as error:
            self._not_used(str(error))
        else:
            self.refresh()

    def _not_used(self, reason: str) -> None:
        text = f"the new certificate cannot be used; the old one stays in use: {reason}"
        self._notify(Notice("certificate_not_read", text, "warning"))

    async def warn_daily(self) -> None:
        """Warn once a day if the certificate expires within a month."""
        while True:
            if (warning := self.identity.expiry_warning()) is not None:
                self._notify(Notice("certificate", f"warning: {warning}", "warning"))
            await asyncio.sleep(DAY)
