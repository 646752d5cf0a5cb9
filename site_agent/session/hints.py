"""What to do about a failed connection, by the text that gRPC reports."""

import os

# The first match counts. gRPC has one status, UNAVAILABLE, for all of these.
HINTS = (
    ("proxy returned", "the proxy refuses. It must allow CONNECT to the coordinator's port"),
    ("Connection refused", "nothing listens there. Check the port, or ask the coordinator's operator whether it runs"),
    ("not found", "the name does not resolve. Check its spelling, and this machine's DNS"),
    ("timed out", "no answer in time. A firewall drops the packets, or the machine is down or overloaded"),
    ("expired", "the server's certificate has expired. Check this clock; its operator runs `init --renew-server`"),
    ("not yet valid", "the server's certificate is not valid yet. Check the clocks of both machines"),
    ("Hostname", "the server's certificate is for another name. Dial that name, or ask its operator to sign this one"),
    (
        "VERIFY_FAILED",
        "the server's certificate is not from the authority in ca.pem. Check the address, or enrol again",
    ),
    ("WRONG_VERSION", "the server does not speak TLS: another service, or a coordinator run with --insecure"),
    (
        "reset",
        "the server closed the connection. It is no coordinator, or a firewall cut the connection. Check the port",
    ),
    ("HTTP/2", "the server does not speak gRPC. Check the port"),
    (
        "Socket closed",
        "the server closed the connection. It rejected this site's certificate (ask its operator to sign site.csr "
        "again), or is not a coordinator",
    ),
)
PROXY_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")  # gRPC reads the first that is set


def explained(details: str) -> str:
    """The hint for gRPC's `details`, with its last error and the proxy variable that is set."""
    hint = next((hint for text, hint in HINTS if text in details), "no connection")
    proxy = next((f"; proxy from {name}" for name in PROXY_VARIABLES if os.environ.get(name)), "")
    return f"{hint} (gRPC: {details.rpartition('last error: ')[2] or 'no answer'}{proxy})"
