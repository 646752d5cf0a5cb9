"""Access control: the allow-list, the server's certificate, and the key that countersigns the heads
of sites' ledgers.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from coordinator.authority.authorised import ALLOW_LIST, Authorised, unsigned
from coordinator.authority.pki import expiry_warnings, load_server, renew_server, renewed_site
from coordinator.config.federation_toml import TimeoutSection
from coordinator.machine.records import HeadSigned
from coordinator.transports.grpc_mtls import GrpcServer
from coreg_core.errors import CoregError, StorageError
from coreg_core.messages import Countersigned, Fetched
from coreg_core.plan import Plan
from coreg_wire.clock import timestamp
from coreg_wire.identity.credentials import RenewableServer
from coreg_wire.identity.names import load_certificates
from coreg_wire.identity.signatures import (
    is_signed,
    private_key,
    said_by_coordinator,
    said_by_site,
    sign,
    to_hex,
)

DAY = 86_400.0


class AccessControl:
    """The authority's folder of a running coordinator."""

    def __init__(self, identity: Path):
        self.warnings: list[str] = []
        self._identity = identity
        self._looked: float | None = None
        self._stamps = self._stamp()
        files = self._files = load_server(identity)
        self._server = RenewableServer(files.key_pem, files.certificate_pem, files.ca_pem)

    def transport(self, listen: str, timeouts: TimeoutSection) -> GrpcServer:
        return GrpcServer(
            listen, self._server.credentials, Authorised(self._identity).check, idle=timeouts.idle
        )

    def countersign(self, site: str, certificate_pem: bytes, fetched: Fetched) -> HeadSigned:
        """Countersign a site's head, or give the reason: its signature is not by the key of its
        session's certificate.
        """
        server = to_hex(load_certificates(self._files.certificate_pem, "coordinator.pem")[0])
        shown = load_certificates(certificate_pem, f"The certificate of {site!r}")[0]
        receipt = Countersigned(fetched.run, fetched.head, timestamp(), "", server)
        if is_signed(
            shown.public_key(), fetched.signature, said_by_site(site, fetched.run, fetched.head)
        ):
            statement = said_by_coordinator(site, fetched.signature, receipt)
            receipt = replace(receipt, signature=sign(private_key(self._files.key_pem), statement))
        else:
            reason = (
                f"not countersigned: the head of the ledger of {site} is not signed by the key of"
                " its session"
            )
            receipt = replace(receipt, reason=reason)
        return HeadSigned(site, fetched.signature, to_hex(shown), receipt)

    def keys(self, plan: Plan) -> tuple[str, ...]:
        """The fingerprint of each site's key, in site order; "" of a site that has not enrolled.

        Plaintext needs none.
        """
        if not plan.masked:
            return ()
        try:
            listed = Authorised(self._identity).sites()
        except StorageError:
            # The reading of the list at a join reports it. Without keys a site answers nothing.
            return ()
        return tuple(listed.get(site, "") for site in plan.sites)

    def reload(self) -> None:
        """Read the certificates again, for new connections."""
        files = self._files = load_server(self._identity)
        self._server.renew(files.key_pem, files.certificate_pem, files.ca_pem)
        self._looked = None

    def renewed(self, certificate_pem: bytes) -> bytes | None:
        """See `renewed_site`; the reason why it was not renewed is a warning."""
        try:
            return renewed_site(self._identity, certificate_pem)
        except CoregError as error:
            self.warnings = list(dict.fromkeys([*self.warnings, str(error)]))
            return None

    def ends(self) -> dict[str, float]:
        """When the server's and the authority's certificates in use expire, in seconds since
        1970.
        """
        pems = {"server": self._files.certificate_pem, "authority": self._files.ca_pem}
        return {
            what: load_certificates(pem, what)[0].not_valid_after_utc.timestamp()
            for what, pem in pems.items()
        }

    def expiring(self, now: float, sites: Sequence[str] = ()) -> list[str]:
        """Once a day: renew the server's certificate; a sentence for each that expires, and for
        sites without one.
        """
        if self._looked is not None and now - self._looked < DAY:
            return []
        self._looked = now
        try:
            if renew_server(self._identity):
                self.reload()
                self._looked = now
            self.warnings = [
                *expiry_warnings(self._identity),
                *filter(None, [unsigned(self._identity, sites)]),
            ]
        except CoregError as error:
            self.warnings = [str(error)]
        return self.warnings

    def changed(self) -> bool:
        """Whether the allow-list or ca.key has changed since the last call."""
        before = self._stamps
        self._stamps = self._stamp()
        if self._stamps != before:
            self._looked = None  # a warning about them may be over
        return self._stamps != before

    def _stamp(self) -> list[tuple[str, int, int]]:
        stamps = []
        for name in (ALLOW_LIST, "ca.key"):
            with suppress(OSError):
                status = (self._identity / name).stat()
                stamps.append((name, status.st_ino, status.st_mtime_ns))
        return stamps
