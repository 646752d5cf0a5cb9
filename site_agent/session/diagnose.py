"""One TLS handshake with the coordinator over plain sockets, to find the cause of gRPC's "Socket closed".

It sends no application data.
"""

import socket
import ssl
import time

from cryptography import x509

from coreg_core.errors import Refused, StorageError, Unreachable
from coreg_wire.identity.names import load_certificates
from site_agent.identity.identity import AUTHORITY, CERTIFICATE, KEY, Identity
from site_agent.session.outgoing_proxy import proxy_for

_HOSTNAME_MISMATCH, _ADDRESS_MISMATCH = 62, 64  # X509_V_ERR_HOSTNAME_MISMATCH, ..._IP_ADDRESS_MISMATCH
_NOT_YET_VALID, _EXPIRED = 9, 10


def probe_server(host: str, port: int, identity: Identity, timeout: float = 5.0) -> str:
    """Connect, complete the handshake with the site's certificate, wait for the server's verdict, and describe it.

    Parameters
    ----------
    host, port : str, int
        Address of the coordinator.
    identity : Identity
        From `check_identity`; its directory is read again (ssl reads a key from a file only).
    timeout : float
        Seconds for connection and handshake together, without name resolution.

    Raises
    ------
    Unreachable
        No TLS server there: the name does not resolve, the port is closed, the server does not answer in time, or
        it does not speak TLS.
    Refused
        The server's certificate is not our authority's, not for this host or not valid today; or the server
        rejected ours.
    """
    address, deadline = _show(host, port), time.monotonic() + timeout
    context = _context(identity)
    # TLS 1.3 lets the client finish before the server has checked its certificate. A rejection arrives at the first
    # read, as an alert or (gRPC) as a closed connection. A gRPC server that accepts sends first: HTTP/2 SETTINGS.
    try:
        with _connect(host, port, deadline) as plain, context.wrap_socket(plain, server_hostname=host) as tls:
            version, server = tls.version(), tls.getpeercert(binary_form=True)
            accepted = _verdict(tls, address, identity, deadline)
    except ssl.SSLCertVerificationError as error:
        raise Refused(_why_not_trusted(error, host, port, identity, timeout)) from error
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionError) as error:
        raise Unreachable(_cut(address, error)) from error
    except ssl.SSLError as error:
        if "ALERT" in (error.reason or ""):
            raise Refused(_rejected(address, identity, error)) from error
        raise Unreachable(
            f"{address} answers, but not in TLS ({error.reason}): another service, a proxy, or a coordinator run with "
            "--insecure. Check the port."
        ) from error
    except TimeoutError as error:
        raise Unreachable(
            f"{address} accepts connections, but the TLS handshake took longer than {timeout:g} s: overloaded, or not a "
            "coordinator. Check the port, then try again."
        ) from error
    except OSError as error:
        raise Unreachable(_cut(address, error)) from error
    names = _served(server)
    return f"{address} speaks {version}; its certificate is our authority's, for {names}; {accepted}."


def _context(identity: Identity) -> ssl.SSLContext:
    """A context with only our authority, our certificate, and HTTP/2."""
    context = _client()
    context.load_verify_locations(cadata=identity.ca_pem.decode("ascii"))
    try:
        context.load_cert_chain(
            identity.directory / CERTIFICATE, identity.directory / KEY, password=identity.secret or b""
        )
    except OSError as error:
        raise StorageError(f"{identity.directory} changed since it was checked ({error}): check it again.") from error
    return context


def _client() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    return context


def _connect(host: str, port: int, deadline: float) -> socket.socket:
    """A connection to the coordinator, through the proxy that gRPC would use."""
    proxy = proxy_for(host)
    if proxy is None:
        return _direct(host, port, deadline)
    try:
        plain = _direct(proxy.host, proxy.port, deadline)
    except Unreachable as error:
        raise Unreachable(f"{proxy}: {error}") from error
    try:
        proxy.tunnel(plain, _show(host, port))
    except OSError as error:
        plain.close()
        raise Unreachable(f"{proxy} does not answer ({error}).") from error
    except Unreachable:
        plain.close()
        raise
    return plain


def _direct(host: str, port: int, deadline: float) -> socket.socket:
    """A connection to the first address of `host` that accepts one."""
    address = _show(host, port)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        raise Unreachable(
            f"The name {host!r} does not resolve ({error}). Check its spelling, and this machine's DNS."
        ) from error
    failures: list[OSError] = []
    for tried, (family, kind, protocol, _, where) in enumerate(found):
        plain = socket.socket(family, kind, protocol)
        try:
            plain.settimeout(_left(deadline) / (len(found) - tried))  # a silent first address leaves time for a second
            plain.connect(where)
        except OSError as error:
            plain.close()
            failures.append(error)
        else:
            plain.settimeout(_left(deadline))
            return plain
    # Report the most specific failure: a closed port is certain, a timeout is not.
    for failure in failures:
        if isinstance(failure, ConnectionRefusedError):
            raise Unreachable(
                f"nothing listens on {address}. Check the port, or ask the coordinator's operator whether it runs."
            ) from failure
    if any(isinstance(failure, TimeoutError) for failure in failures):
        raise Unreachable(
            f"{address} did not answer in time: a firewall drops the packets, or the machine is down."
        ) from failures[0]
    raise Unreachable(
        f"{address} cannot be reached: {failures[0].strerror}. Check this machine's network."
    ) from failures[0]


def _verdict(tls: ssl.SSLSocket, address: str, identity: Identity, deadline: float) -> str:
    """The server's verdict on our certificate, as a phrase; raises `Refused` if it rejected it."""
    try:
        tls.settimeout(_left(deadline))
        first = tls.recv(1)
    except TimeoutError:
        return "it did not reject ours (no data received)"
    except OSError as error:
        raise Refused(_rejected(address, identity, error)) from error
    if not first:
        raise Refused(_rejected(address, identity, None))
    return "TLS accepted ours (the coordinator decides on joining whether this site is admitted)"


def _why_not_trusted(
    error: ssl.SSLCertVerificationError, host: str, port: int, identity: Identity, timeout: float
) -> str:
    """The reason why the server's certificate is not trusted, with details of that certificate."""
    address = _show(host, port)
    shown = _shown_certificate(host, port, timeout)
    if error.verify_code in (_HOSTNAME_MISMATCH, _ADDRESS_MISMATCH):
        return (
            f"{address} is our authority's coordinator, but its certificate is for {_served(shown)}, not {host}. Use "
            "one of these names as the address, or ask the operator to sign coordinator.pem again with this name."
        )
    if error.verify_code == _EXPIRED:
        return f"{address}: the server's certificate has expired. Its operator must sign coordinator.pem again."
    if error.verify_code == _NOT_YET_VALID:
        return f"{address}: the server's certificate is not valid yet. Check the clocks of both machines."
    ours = load_certificates(identity.ca_pem, AUTHORITY)[0].subject.rfc4514_string()
    theirs = "an unknown authority" if shown is None else repr(_parse(shown).issuer.rfc4514_string())
    return (
        f"{address}: the server's certificate was signed by {theirs}, not by our ca.pem ({ours!r}): "
        f"{error.verify_message}. Check the address; if the coordinator has a new authority, enrol again."
    )


def _shown_certificate(host: str, port: int, timeout: float) -> bytes | None:
    """The certificate that a server presents, in DER and unverified: for error messages only."""
    context = _client()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        deadline = time.monotonic() + timeout
        with _connect(host, port, deadline) as plain, context.wrap_socket(plain, server_hostname=host) as tls:
            return tls.getpeercert(binary_form=True)
    except (OSError, Unreachable):
        return None


def _cut(address: str, error: OSError) -> str:
    return (
        f"{address} closed the connection during the TLS handshake ({error}): a proxy or firewall in between, "
        "or not a coordinator. Check the address."
    )


def _rejected(address: str, identity: Identity, error: OSError | None) -> str:
    """The server's reason for rejecting us: TLS has an alert for each reason, but gRPC's servers only close."""
    alert = isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError)
    reason = str(getattr(error, "reason", None) or "") if alert else ""
    said = reason.lower().replace("_", " ") or "it closed the connection without a reason"
    path = identity.directory / CERTIFICATE
    if reason and not any(word in reason for word in ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED")):
        return f"{address} aborted the TLS handshake ({said}): it can be another service. Check the port."
    return (
        f"{address} rejected {path} of {identity.name} ({said}): it was signed by another authority, has "
        "expired by the coordinator's clock, or is not a client's. Ask the operator to sign site.csr again and "
        "install the answer."
    )


def _served(der: bytes | None) -> str:
    """The names in a server's certificate."""
    if der is None:
        return "other names"
    try:
        names = _parse(der).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return "no name"
    return ", ".join(str(name.value) for name in names)


def _parse(der: bytes) -> x509.Certificate:
    return x509.load_der_x509_certificate(der)


def _show(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.001)
