"""A site redeems its invitation: it makes a key, asks the coordinator for a certificate, and installs the answer.

Two connections over TLS. On the first, nothing is verified and nothing is sent but the question for the authority's certificate.
Its SHA-256 must be that of the invitation. The second is verified against that authority and the host's name. It carries the
request and a proof of the secret, never the secret or the key.
"""

import json
import socket
import ssl
import time
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding

from coreg_core.errors import Refused, Unreachable
from coreg_wire.identity.invitation import Invitation, proof
from coreg_wire.identity.names import fingerprint, load_certificates
from site_agent.identity.identity import REQUEST, Identity, check_authority, enrol, install

# A coordinator delays refusals by 5 s and ends each connection after 10 s.
SECONDS, MOST_BYTES = 15.0, 64 << 10
STARTING = 10.0  # seconds for a coordinator that does not listen yet or drops connections


def join(invitation: Invitation, directory: Path) -> Identity | str:
    """The identity of the site in ``directory``; or why its certificate is not ready: ask again later with the same invitation.

    An existing key of the same site is kept.
    """
    check_authority(directory, invitation.authority)
    request = enrol(directory, invitation.site).request_path
    unverified = _context()
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    shown = _text(invitation, _ask(invitation, unverified, {"ask": "authority"}), "authority")
    authority = load_certificates(shown.encode(), "The coordinator's authority")[0]
    if (found := fingerprint(authority)) != invitation.authority:
        raise Refused(
            f"{invitation.address} shows the authority {found[:16]}…, but the invitation names {invitation.authority[:16]}…. "
            "Another service answers there, or somebody intercepts the connection. Nothing was sent. Call the coordinator's "
            "operator."
        )
    pem = authority.public_bytes(Encoding.PEM)  # this certificate alone: more can follow it in the text
    verified, csr = _context(), request.read_text(encoding="ascii")
    verified.load_verify_locations(cadata=pem.decode())
    given = proof(invitation.secret, invitation.site, csr)
    asked = {"ask": "certificate", "site": invitation.site, "request": csr, "proof": given}
    answer = _ask(invitation, verified, asked)
    if "refused" in answer:
        raise Refused(f"The coordinator refused: {_text(invitation, answer, 'refused')}")
    if "waiting" in answer:
        return _text(invitation, answer, "waiting")
    identity = install(directory, _text(invitation, answer, "certificate").encode() + pem)
    (directory / REQUEST).unlink(missing_ok=True)
    return identity


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def _ask(invitation: Invitation, context: ssl.SSLContext, question: dict[str, str]) -> dict[str, object]:
    """One question on a new connection, and its answer."""
    host, port = invitation.host, invitation.enrolment_port
    try:
        line = _answered(host, port, context, json.dumps(question).encode() + b"\n")
    except ssl.SSLCertVerificationError as error:
        raise Refused(
            f"{host}:{port}: its certificate is not valid for the invitation ({error.verify_message}). The operator "
            f"can renew it: `coreg-coordinator init FOLDER --renew-server --host {host}`."
        ) from None
    except (OSError, UnicodeError) as error:
        raise Unreachable(
            f"{host}:{port} does not answer ({error}). The coordinator must run (`coreg-coordinator run` or `serve`), and the "
            f"firewall must let port {port} through, beside port {invitation.port}."
        ) from None
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise Unreachable(f"{host}:{port} gave no answer of a coordinator. Check the port, or try again in a minute.")
    return answer


def _answered(host: str, port: int, context: ssl.SSLContext, line: bytes) -> bytes:
    """A line for a line. A coordinator that does not listen yet, or has too many connections, is asked again for a while."""
    until = time.monotonic() + STARTING
    while True:
        try:
            with (
                socket.create_connection((host, port), SECONDS) as raw,
                context.wrap_socket(raw, server_hostname=host) as channel,
                channel.makefile("rwb") as file,
            ):
                file.write(line)
                file.flush()
                if (answer := file.readline(MOST_BYTES)) or time.monotonic() >= until:
                    return answer
        except (ConnectionError, ssl.SSLEOFError):
            if time.monotonic() >= until:
                raise
        time.sleep(0.2)


def _text(invitation: Invitation, answer: dict[str, object], key: str) -> str:
    """A text of the answer, printable and in ASCII: it goes to a terminal or into a file."""
    text = answer.get(key)
    if not (isinstance(text, str) and text.isascii() and text.replace("\n", "").isprintable()):
        raise Unreachable(f"{invitation.host}:{invitation.enrolment_port} gave no answer of a coordinator ({key}).")
    return text
