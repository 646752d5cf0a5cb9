"""The one door of a coordinator: its certificate, who may come in, and the key that sites' heads are countersigned
with.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc

from coordinator.authority.authorised import Authorised
from coordinator.authority.notary import Notary
from coordinator.authority.pki import load_server
from coordinator.config.federation_toml import TimeoutSection
from coordinator.machine.records import HeadSigned
from coordinator.transports.grpc_mtls import GrpcServer
from coreg_core.protocol.messages import Fetched
from coreg_wire.identity.credentials import server_credentials


@dataclass(frozen=True)
class Door:
    """Who is let in, and what sites' heads are countersigned with; nobody is asked under --insecure."""

    credentials: grpc.ServerCredentials | None
    authorise: Callable[[str, bytes], None]
    attest: Callable[[str, bytes, Fetched], HeadSigned] | None

    @classmethod
    def of(cls, identity: Path, *, insecure: bool) -> "Door":
        """Of the authority's directory.

        Raises
        ------
        CoregError
            see `load_server`.
        """
        if insecure:
            return cls(None, _anybody, None)
        files = load_server(identity)
        credentials = server_credentials(files.key_pem, files.certificate_pem, files.ca_pem)
        return cls(credentials, Authorised(identity).check, Notary(files).attest)

    def transport(self, listen: str, timeouts: TimeoutSection) -> GrpcServer:
        return GrpcServer(
            listen,
            self.credentials,
            self.authorise,
            keepalive=timeouts.keepalive,
            least_bandwidth=timeouts.least_bandwidth,
            attest=self.attest,
        )


def _anybody(_name: str, _certificate_pem: bytes) -> None:
    """--insecure: on loopback, every name is believed."""
