"""The site's own identity: one directory with its key, its certificate and the authority that it
trusts.

site.key (mode 0600) never leaves the site. site.csr is the request that `join` sends, with an
invitation. `install` splits the answer into site.pem and ca.pem. `check_identity` finds a fault
before the agent connects.

`join` opens two connections over TLS. On the first, nothing is verified and nothing is sent but the
question for the authority's certificate. Its SHA-256 must be that of the invitation. The second is
verified against that authority and the host's name. It carries the request and a proof of the
secret, never the secret or the key.
"""

import json
import socket
import ssl
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization as keys
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coreg_core.errors import BadData, Refused, StorageError, Unreachable, UsageError
from coreg_core.names import check_site_name
from coreg_wire.clock import utc_now
from coreg_wire.files.disk import make_private_folder, read, write_whole
from coreg_wire.identity.invitation import Invitation, proof
from coreg_wire.identity.names import (
    certificate_name,
    fingerprint,
    key_fingerprint,
    load_certificates,
    site_uri,
)
from coreg_wire.identity.signatures import check_private, key_pem, load_key

WARN_DAYS = 25  # before its end, a certificate that no coordinator has renewed is reported
KEY = "site.key"
REQUEST = "site.csr"
CERTIFICATE = "site.pem"
AUTHORITY = "ca.pem"
_STEPS = (
    "Run `coreg-agent join` with the coordinator's invitation, or name the folder where this site"
    " has joined (--identity)."
)
_JOIN_AGAIN = (
    "Ask the coordinator's operator for a new invitation, and run `coreg-agent join` with it."
)


@dataclass(frozen=True)
class Identity:
    """A site's checked identity, with the PEM texts for
    `coreg_wire.identity.credentials.client_credentials`.
    """

    name: str
    key_pem: bytes = field(repr=False)  # the text can get into a log
    certificate_pem: bytes
    ca_pem: bytes
    not_after: datetime
    directory: Path

    def days_left(self) -> float:
        """Days until the certificate or its authority expires."""
        return (self.not_after - utc_now()) / timedelta(days=1)

    def expiry_warning(self) -> str | None:
        """A sentence if the certificate expires soon, else None."""
        if (days := self.days_left()) >= WARN_DAYS:
            return None
        return (
            f"{self.directory / CERTIFICATE} expires in {days:.0f} days, and no coordinator has"
            f" renewed it. {_JOIN_AGAIN}"
        )


def enrol(directory: Path | str, name: str) -> Path:
    """Create the site's key, unless it exists, and a request for a certificate in `name`; the file
    of the request.
    """
    directory = Path(directory)
    name = check_site_name(name)
    path = directory / KEY
    known_as = directory / CERTIFICATE
    if known_as.exists():
        other = certificate_name(
            load_certificates(_read(known_as), str(known_as))[0], str(known_as)
        )
        if other != name:
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
        .sign(_load_key(path), SHA256())
    )
    write_whole(directory / REQUEST, request.public_bytes(keys.Encoding.PEM), mode=0o644)
    return directory / REQUEST


def install(directory: Path | str, answer: Path | bytes) -> Identity:
    """Check and install the answer: the site's certificate, then its authority's, which this site
    trusts from now on.
    """
    directory = Path(directory)
    what, pem = (
        ("the answer", answer) if isinstance(answer, bytes) else (str(answer), _read(answer))
    )
    bundle = load_certificates(pem, what)
    if len(bundle) != 2:
        raise BadData(
            f"{what} holds {len(bundle)} certificates, expected two: the site's, then the"
            " authority's."
        )
    certificate, ca = bundle
    where = f"{what}: the site's certificate", f"{what}: the authority's certificate"
    _check_chain(certificate, ca, _load_key(directory / KEY), *where)
    check_authority(directory, fingerprint(ca))
    installed = certificate_in(directory)
    if installed is not None and certificate.not_valid_before_utc < installed.not_valid_before_utc:
        begins = certificate.not_valid_before_utc
        before = installed.not_valid_before_utc
        raise Refused(
            f"{what}: an older answer. Its certificate begins {begins:%Y-%m-%d %H:%M}, the"
            f" installed one {before:%Y-%m-%d %H:%M} (UTC). Nothing was installed. {_JOIN_AGAIN}"
        )
    write_whole(directory / AUTHORITY, ca.public_bytes(keys.Encoding.PEM), mode=0o644)
    write_whole(directory / CERTIFICATE, certificate.public_bytes(keys.Encoding.PEM), mode=0o644)
    return check_identity(directory)


def check_authority(directory: Path, mark: str) -> None:
    """Refuse an authority other than the one in the folder, if there is one.

    ``mark``: the fingerprint of its certificate.
    """
    path = directory / AUTHORITY
    if (
        path.exists()
        and (trusted := fingerprint(load_certificates(_read(path), str(path))[0])) != mark
    ):
        raise Refused(
            f"The authority {mark[:16]}… is not the one that this site trusts ({path}:"
            f" {trusted[:16]}…). For another federation, join in another folder (--folder)."
        )


def install_renewed(directory: Path, certificate_pem: bytes) -> None:
    """Check and install the next certificate that the coordinator sent: for this site's key and
    name, by its authority.
    """
    where = "the certificate that the coordinator sent"
    path = directory / AUTHORITY
    certificate = load_certificates(certificate_pem, where)[0]
    ca = load_certificates(_read(path), str(path))[0]
    name = _check_chain(certificate, ca, _load_key(directory / KEY), where, str(path))
    installed = load_certificates(_read(directory / CERTIFICATE), str(directory / CERTIFICATE))[0]
    if (
        name != certificate_name(installed)
        or certificate.not_valid_after_utc <= installed.not_valid_after_utc
    ):
        raise Refused(
            f"{where} is of {name}, until {certificate.not_valid_after_utc:%Y-%m-%d}: not the next"
            " one of this site."
        )
    write_whole(directory / CERTIFICATE, certificate.public_bytes(keys.Encoding.PEM), mode=0o644)


def certificate_in(directory: Path) -> x509.Certificate | None:
    """The certificate in use; None if there is none, or it is damaged: the next answer then
    replaces it.
    """
    path = directory / CERTIFICATE
    with suppress(BadData):
        return load_certificates(_read(path), str(path))[0] if path.exists() else None
    return None


def check_identity(directory: Path | str) -> Identity:
    """Read the identity and check it, as far as possible without the coordinator."""
    directory = Path(directory)
    key = _load_key(directory / KEY)
    certificate, ca = (
        load_certificates(_read(directory / name), str(directory / name))[0]
        for name in (CERTIFICATE, AUTHORITY)
    )
    name = _check_chain(
        certificate, ca, key, str(directory / CERTIFICATE), str(directory / AUTHORITY)
    )
    return Identity(
        name=name,
        key_pem=key_pem(key),
        certificate_pem=certificate.public_bytes(keys.Encoding.PEM),
        ca_pem=ca.public_bytes(keys.Encoding.PEM),
        not_after=min(certificate.not_valid_after_utc, ca.not_valid_after_utc),
        directory=directory,
    )


def _check_chain(
    certificate: x509.Certificate,
    ca: x509.Certificate,
    key: ec.EllipticCurvePrivateKey,
    where: str,
    where_ca: str,
) -> str:
    """Check that key, certificate and authority belong together and are valid now.

    Returns the site's name.
    """
    if certificate.public_key() != key.public_key():
        raise Refused(
            f"{where} was issued for another key than {KEY}"
            f" ({key_fingerprint(key.public_key())[:16]}…). It is the certificate of"
            f" {certificate_name(certificate, where)}. If that is another site, ask for the"
            f" certificate of this site. If it is this site, put the old key back. {_JOIN_AGAIN}"
        )
    if not _extension(
        ca, x509.BasicConstraints, x509.BasicConstraints(ca=False, path_length=None)
    ).ca:
        raise Refused(f"{where_ca} is not a certificate authority. {_JOIN_AGAIN}")
    try:
        certificate.verify_directly_issued_by(ca)
    except InvalidSignature as error:
        raise Refused(
            f"{where} names {_who(ca)} but has no valid signature of it: {where_ca} is another"
            f" authority's, or the certificate was changed. {_JOIN_AGAIN}"
        ) from error
    except (ValueError, TypeError) as error:
        raise Refused(
            f"{where} was signed by {_who(certificate, issuer=True)}, but {where_ca} is {_who(ca)}."
            f" {_JOIN_AGAIN}"
        ) from error
    _check_period(ca, where_ca, "Its federation is over: join a new one.")
    _check_period(certificate, where, _JOIN_AGAIN)
    if ExtendedKeyUsageOID.CLIENT_AUTH not in _extension(certificate, x509.ExtendedKeyUsage, ()):
        raise Refused(
            f"{where} is not a client's certificate, but perhaps the coordinator's own."
            f" {_JOIN_AGAIN}"
        )
    return certificate_name(certificate, where)


def _check_period(certificate: x509.Certificate, where: str, next_step: str) -> None:
    start = certificate.not_valid_before_utc
    end = certificate.not_valid_after_utc
    now = utc_now()
    if now < start:
        raise Refused(
            f"{where} is not valid before {start:%Y-%m-%d %H:%M} UTC, but this machine's clock"
            f" shows {now:%Y-%m-%d %H:%M} UTC: check the clock, and the coordinator's."
        )
    if now > end:
        raise Refused(
            f"{where} expired on {end:%Y-%m-%d %H:%M} UTC (now {now:%Y-%m-%d %H:%M} UTC)."
            f" {next_step}"
        )


def _extension(certificate: x509.Certificate, kind: type[Any], default: Any) -> Any:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except (x509.ExtensionNotFound, ValueError):
        return default


def _who(certificate: x509.Certificate, *, issuer: bool = False) -> str:
    name = certificate.issuer if issuer else certificate.subject
    return repr(name.rfc4514_string().removeprefix("CN="))


def _load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    data = _read(path)
    check_private(path, " If someone has read it, delete it and join again.")
    try:
        return load_key(data, path)
    except BadData as error:
        raise BadData(
            f"{error} Restore it, or delete it and join with a new invitation."
        ) from error


def _read(path: Path) -> bytes:
    return read(path, _STEPS)


# --- joining by an invitation ---------------------------------------------------------------------

# A coordinator delays refusals by 5 s and ends each connection after 10 s.
SECONDS = 15.0
MOST_BYTES = 64 << 10
STARTING = 10.0  # seconds for a coordinator that does not listen yet or drops connections


def join(invitation: Invitation, directory: Path) -> Identity:
    """The identity of the site in ``directory``. An existing key of the same site is kept."""
    check_authority(directory, invitation.authority)
    request = enrol(directory, invitation.site)
    unverified = _context()
    unverified.check_hostname = False
    unverified.verify_mode = ssl.CERT_NONE
    shown = _text(invitation, _ask(invitation, unverified, {"ask": "authority"}), "authority")
    authority = load_certificates(shown.encode(), "The coordinator's authority")[0]
    if (found := fingerprint(authority)) != invitation.authority:
        raise Refused(
            f"{invitation.address} shows the authority {found[:16]}…, but the invitation names"
            f" {invitation.authority[:16]}…. Another service answers there, or somebody intercepts"
            " the connection. Nothing was sent. Call the coordinator's operator."
        )
    pem = authority.public_bytes(
        Encoding.PEM
    )  # this certificate alone: more can follow it in the text
    verified = _context()
    csr = request.read_text(encoding="ascii")
    verified.load_verify_locations(cadata=pem.decode())
    given = proof(invitation.secret, invitation.site, csr)
    asked = {"ask": "certificate", "site": invitation.site, "request": csr, "proof": given}
    answer = _ask(invitation, verified, asked)
    if "refused" in answer:
        raise Refused(f"The coordinator refused: {_text(invitation, answer, 'refused')}")
    identity = install(directory, _text(invitation, answer, "certificate").encode() + pem)
    (directory / REQUEST).unlink(missing_ok=True)
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
