"""Join a federation: a key, a request for a certificate, and the answer.

`join` opens two connections over TLS. On the first, nothing is verified and nothing is sent but the
question for the authority's certificate. Its SHA-256 must be that of the invitation. The second is
verified against that authority and the host's name. It carries the request (site.csr) and a proof
of the secret, never the secret or the key. `install` splits the answer into site.pem and ca.pem.
`install_renewed` replaces site.pem by the next certificate.
"""

import json
import socket
import ssl
import time
from contextlib import suppress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from coreg_core.errors import BadData, Refused, StorageError, Unreachable, UsageError
from coreg_core.names import check_site_name
from coreg_wire.clock import utc_now
from coreg_wire.files.disk import make_private_folder, write_whole
from coreg_wire.identity.invitation import Invitation, proof
from coreg_wire.identity.names import certificate_name, fingerprint, load_certificates, site_uri
from coreg_wire.identity.signatures import key_pem
from site_agent.identity.identity import (
    AUTHORITY,
    CERTIFICATE,
    JOIN_AGAIN,
    KEY,
    Identity,
    check_chain,
    check_identity,
    read_certificate,
    read_file,
    read_key,
)

REQUEST = "site.csr"


def enrol(directory: Path, name: str) -> Path:
    """Create the site's key, unless it exists, and a request for a certificate in `name`; the file
    of the request.
    """
    name = check_site_name(name)
    path = directory / KEY
    own = directory / CERTIFICATE
    if own.exists() and (other := certificate_name(read_certificate(own), str(own))) != name:
        raise UsageError(
            f"{directory} holds the certificate of {other}. Join as {name} in another folder"
            " (--folder)."
        )
    try:
        make_private_folder(directory)
    except OSError as error:
        raise StorageError(
            f"{directory} cannot be created ({error.strerror}): give another --identity."
        ) from error
    if not path.exists():
        write_whole(path, key_pem(ec.generate_private_key(ec.SECP256R1())), mode=0o600)
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .add_extension(x509.SubjectAlternativeName([site_uri(name)]), critical=False)
        .sign(read_key(directory), SHA256())
    )
    write_whole(directory / REQUEST, request.public_bytes(Encoding.PEM), mode=0o644)
    return directory / REQUEST


def install(directory: Path, answer: Path | bytes) -> Identity:
    """Check and install the answer: the site's certificate, then its authority's, which this site
    trusts from now on.
    """
    what = "the answer" if isinstance(answer, bytes) else str(answer)
    bundle = load_certificates(answer if isinstance(answer, bytes) else read_file(answer), what)
    if len(bundle) != 2:
        raise BadData(
            f"{what} holds {len(bundle)} certificates, expected two: the site's, then the"
            " authority's."
        )
    certificate, ca = bundle
    where = f"{what}: the site's certificate", f"{what}: the authority's certificate"
    check_chain(certificate, ca, read_key(directory), *where)
    check_authority(directory, fingerprint(ca))
    _check_newer(directory, certificate, what)
    _write(directory / AUTHORITY, ca)
    _write(directory / CERTIFICATE, certificate)
    return check_identity(directory)


def _check_newer(directory: Path, certificate: x509.Certificate, what: str) -> None:
    """Refuse an older answer; one that is installed and damaged is replaced."""
    path = directory / CERTIFICATE
    begins = certificate.not_valid_before_utc
    before = begins
    with suppress(BadData):
        before = read_certificate(path).not_valid_before_utc if path.exists() else begins
    if begins < before:
        raise Refused(
            f"{what}: an older answer. Its certificate begins {begins:%Y-%m-%d %H:%M}, the"
            f" installed one {before:%Y-%m-%d %H:%M} (UTC). Nothing was installed. {JOIN_AGAIN}"
        )


def check_authority(directory: Path, mark: str) -> None:
    """Refuse an authority other than the one in the folder, if there is one.

    ``mark``: the fingerprint of its certificate.
    """
    path = directory / AUTHORITY
    if path.exists() and (trusted := fingerprint(read_certificate(path))) != mark:
        raise Refused(
            f"The authority {mark[:16]}… is not the one that this site trusts ({path}:"
            f" {trusted[:16]}…). For another federation, join in another folder (--folder)."
        )


def install_renewed(directory: Path, certificate_pem: bytes) -> None:
    """Check and install the next certificate that the coordinator sent: for this site's key and
    name, by its authority.
    """
    where = "the certificate that the coordinator sent"
    authority = directory / AUTHORITY
    path = directory / CERTIFICATE
    certificate = load_certificates(certificate_pem, where)[0]
    ca = read_certificate(authority)
    name = check_chain(certificate, ca, read_key(directory), where, str(authority))
    installed = read_certificate(path)
    until = certificate.not_valid_after_utc
    if name != certificate_name(installed) or until <= installed.not_valid_after_utc:
        raise Refused(
            f"{where} is of {name}, until {until:%Y-%m-%d}: not the next one of this site."
        )
    _write(path, certificate)


def _write(path: Path, certificate: x509.Certificate) -> None:
    write_whole(path, certificate.public_bytes(Encoding.PEM), mode=0o644)


# --- joining by an invitation ---------------------------------------------------------------------

# A coordinator delays refusals by 5 s and ends each connection after 10 s.
SECONDS = 15.0
MOST_BYTES = 64 << 10
STARTING = 10.0  # seconds for a coordinator that does not listen yet or drops connections


def join(invitation: Invitation, directory: Path) -> Identity:
    """The identity of the site in ``directory``. An existing key of the same site is kept."""
    check_authority(directory, invitation.authority)
    request = enrol(directory, invitation.site)
    # (1) the authority, which the invitation names
    unverified = _context()
    unverified.check_hostname = False
    unverified.verify_mode = ssl.CERT_NONE
    text = _text(invitation, _ask(invitation, unverified, {"ask": "authority"}), "authority")
    authority = load_certificates(text.encode(), "The coordinator's authority")[0]
    mark = fingerprint(authority)
    if mark != invitation.authority:
        raise Refused(
            f"{invitation.address} shows the authority {mark[:16]}…, but the invitation names"
            f" {invitation.authority[:16]}…. Another service answers there, or somebody intercepts"
            " the connection. Nothing was sent. Call the coordinator's operator."
        )
    # (2) the certificate; this authority alone is trusted: more can follow it in the text
    pem = authority.public_bytes(Encoding.PEM)
    csr = request.read_text(encoding="ascii")
    verified = _context()
    verified.load_verify_locations(cadata=pem.decode())
    shown = proof(invitation.secret, invitation.site, csr)
    question = {"ask": "certificate", "site": invitation.site, "request": csr, "proof": shown}
    answer = _ask(invitation, verified, question)
    if "refused" in answer:
        raise Refused(f"The coordinator refused: {_text(invitation, answer, 'refused')}")
    identity = install(directory, _text(invitation, answer, "certificate").encode() + pem)
    request.unlink(missing_ok=True)
    return identity


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def _ask(
    invitation: Invitation, context: ssl.SSLContext, question: dict[str, str]
) -> dict[str, object]:
    """One question on a new connection, and its answer."""
    host = invitation.host
    port = invitation.enrolment_port
    try:
        line = _answered(host, port, context, json.dumps(question).encode() + b"\n")
    except ssl.SSLCertVerificationError as error:
        if "not yet valid" in error.verify_message:
            raise Refused(
                f"{host}:{port}: its certificate is not valid yet, and this machine's clock shows"
                f" {utc_now():%Y-%m-%d %H:%M} UTC. Correct this clock. If it is right, the"
                " coordinator's clock was ahead: its operator corrects it and runs"
                f" `coreg-coordinator init FOLDER --renew-server --host {host}`."
            ) from None
        raise Refused(
            f"{host}:{port}: its certificate is not valid for the invitation"
            f" ({error.verify_message}). The operator can renew it: `coreg-coordinator init FOLDER"
            f" --renew-server --host {host}`."
        ) from None
    except (socket.gaierror, UnicodeError) as error:
        raise Unreachable(
            f"{host}: no such name here ({error}). Ask the coordinator's operator for the right"
            " one."
        ) from None
    except OSError as error:
        raise Unreachable(
            f"{host}:{port} does not answer ({error}). The coordinator must run (`coreg-coordinator"
            f" run` or `serve`), and the firewall must let port {port} through, beside port"
            f" {invitation.port}."
        ) from None
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise Unreachable(
            f"{host}:{port} gave no answer of a coordinator. Check the port, or try again in a"
            " minute."
        )
    return answer


def _answered(host: str, port: int, context: ssl.SSLContext, line: bytes) -> bytes:
    """A line for a line.

    A coordinator that does not listen yet, or has too many connections, is asked again for a while.
    """
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
        raise Unreachable(
            f"{invitation.host}:{invitation.enrolment_port} gave no answer of a coordinator"
            f" ({key})."
        )
    return text
