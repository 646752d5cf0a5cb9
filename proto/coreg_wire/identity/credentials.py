"""Mutual TLS for gRPC: credentials of server and client, the name of the peer, and loopback
addresses.

Takes PEM text, never a path: coordinator.authority.pki and site_agent.identity.identity read and
check the files. TLS proves that our authority signed the peer's certificate. The coordinator's
allow-list decides whether it may still join.
"""

from ipaddress import ip_address
from typing import Any

import grpc

from coreg_core.errors import Refused
from coreg_wire.identity.names import certificate_name, load_certificates


class RenewableServer:
    """Mutual TLS with certificates that `renew` replaces; open sessions go on.

    Peers need a certificate of ``ca_pem``.
    """

    def __init__(self, key_pem: bytes, certificate_pem: bytes, ca_pem: bytes):
        self._following: grpc.ServerCertificateConfiguration | None = None
        first = _configuration(key_pem, certificate_pem, ca_pem)
        self.credentials: grpc.ServerCredentials = grpc.dynamic_ssl_server_credentials(
            first, self._next, require_client_authentication=True
        )

    def renew(self, key_pem: bytes, certificate_pem: bytes, ca_pem: bytes) -> None:
        self._following = _configuration(key_pem, certificate_pem, ca_pem)

    def _next(self) -> Any:
        """Called by gRPC at each handshake, on another thread; None keeps the present
        configuration.
        """
        following = self._following
        self._following = None
        return following


def _configuration(
    key_pem: bytes, certificate_pem: bytes, ca_pem: bytes
) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(key_pem, certificate_pem)], root_certificates=ca_pem
    )


def client_credentials(
    key_pem: bytes, certificate_pem: bytes, ca_pem: bytes
) -> grpc.ChannelCredentials:
    """The site's side of mutual TLS: trusts only `ca_pem`, not the machine's list of public
    authorities.
    """
    return grpc.ssl_channel_credentials(
        root_certificates=ca_pem, private_key=key_pem, certificate_chain=certificate_pem
    )


def peer_certificate(context: "grpc.aio.ServicerContext[Any, Any]") -> tuple[str, bytes]:
    """Name and certificate (PEM) of the peer, which TLS has verified; the caller checks both
    against the allow-list.
    """
    pems = list(context.auth_context().get("x509_pem_cert", ()))
    if len(pems) != 1:
        raise Refused(
            f"The connection carries {len(pems)} client certificates, expected one: it is not"
            " mutual TLS."
        )
    certificate = load_certificates(pems[0], "The peer's certificate")[0]
    return certificate_name(certificate, "The peer's certificate"), pems[0]


def is_loopback(host_port: str) -> bool:
    """Whether an address is 127.0.0.0/8, ::1 or `localhost`, with or without a port.

    No name is resolved.
    """
    host = _host(host_port)
    if host is None:
        return False
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _host(host_port: str) -> str | None:
    """HOST of `HOST`, `HOST:PORT`, `[HOST]` or `[HOST]:PORT`; None for other texts."""
    if host_port.startswith("["):
        host, bracket, rest = host_port[1:].partition("]")
        if not bracket or ":" not in host:
            return None
        if rest == "" or (rest[0] == ":" and _is_port(rest[1:])):
            return host
        return None
    if host_port.count(":") != 1:
        return host_port
    host, _, port = host_port.partition(":")
    if _is_port(port):
        return host
    return None


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 5
