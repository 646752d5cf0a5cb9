"""What a site is called: in text, in a certificate request and in a certificate; and the fingerprints people compare.

Both sides read names through this module, so that they cannot disagree about who somebody is. A site's name stands
twice in its certificate, as the common name and as the URI `coreg:site:NAME`; it is never a DNS name, so a site's
certificate cannot pass for a server's.
"""

import re

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256, Hash
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from coreg_core.errors import BadData, Refused, UsageError

SITE_URI = "coreg:site:"
# What cryptography raises on X.509 text that parses as a whole and is wrong inside.
_MALFORMED = (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType, UnsupportedAlgorithm)
_SITE_NAME = re.compile(r"[a-z0-9]([a-z0-9_.-]{0,61}[a-z0-9])?")
# A site's certificate is NAME.pem next to the authority's own files: these two would overwrite them.
_RESERVED = frozenset({"ca", "coordinator"})


def check_site_name(name: str) -> str:
    """`name` itself when a site may be called so.

    Raises
    ------
    UsageError
        The name is empty, too long, reserved, or holds a character that file systems and people confuse.
    """
    if name in _RESERVED:
        raise UsageError(
            f"A site cannot be called {name!r}: the coordinator's own files bear that name. Choose another."
        )
    if _SITE_NAME.fullmatch(name) is None:
        raise UsageError(
            f"{name!r} is no site name: use 1 to 63 of a-z, 0-9, '-', '_' and '.', "
            "beginning and ending with a letter or a digit."
        )
    return name


def check_study_name(name: str, what: str) -> str:
    """`name` itself when a study, or a data set, may be called so: it becomes the name of a folder at every site.

    Raises
    ------
    UsageError
        The name is empty, too long, or holds a character that file systems and people confuse.
    """
    if _SITE_NAME.fullmatch(name) is None:
        raise UsageError(
            f"{name!r} is no name for a {what}: use 1 to 63 of a-z, 0-9, '-', '_' and '.', "
            "beginning and ending with a letter or a digit."
        )
    return name


def site_uri(name: str) -> x509.UniformResourceIdentifier:
    """The URI that stands for the site in a request and in a certificate: `coreg:site:NAME`."""
    return x509.UniformResourceIdentifier(SITE_URI + check_site_name(name))


def certificate_name(certificate: x509.Certificate, where: str = "The certificate") -> str:
    """The site that `certificate` speaks for: its common name, which its one URI must repeat.

    Trust is the caller's to establish (signature, validity, allow-list); `where` begins the messages.

    Raises
    ------
    Refused
        The two names are missing, differ, or are accompanied by a third.
    """
    name, identities = _names(certificate, where)
    if identities != [site_uri(name)]:
        raise Refused(
            f"{where} says {name!r} but not, as its only other name, the URI {SITE_URI}{name}: "
            "no coreg coordinator signed it for a site. Have the site's request signed with `coreg-coordinator sign`."
        )
    return name


def request_name(request: x509.CertificateSigningRequest, where: str = "The request") -> str:
    """The site that asks: its common name, and no other identity than the URI that repeats it (or none).

    Raises
    ------
    Refused
        The name is missing or no site name, or the request asks for further names.
    """
    name, identities = _names(request, where)
    if identities not in ([], [site_uri(name)]):
        raise Refused(
            f"{where} calls itself {name!r} and asks for other names too ({', '.join(map(_text, identities))}). "
            "A site has one name: make the request again with `coreg-agent enroll`."
        )
    return name


def load_certificates(pem: bytes, where: str) -> list[x509.Certificate]:
    """Every certificate in a PEM text, at least one, in its order.

    Raises
    ------
    BadData
        The text holds none, or one that cannot be read.
    """
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise BadData(f"{where} holds no readable PEM certificate ({error}). Copy it again from its source.") from error


def fingerprint(certificate: x509.Certificate) -> str:
    """SHA-256 of the whole certificate in lower-case hexadecimal: changes with every re-issue."""
    return certificate.fingerprint(SHA256()).hex()


def key_fingerprint(key: ec.EllipticCurvePublicKey) -> str:
    """SHA-256 of the public key (SubjectPublicKeyInfo, DER) in hexadecimal: survives a re-issue with the same key.

    What two organisations read to each other over the telephone, before signing and when pinning peers.
    """
    digest = Hash(SHA256())
    digest.update(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))
    return digest.finalize().hex()


def _names(
    document: x509.Certificate | x509.CertificateSigningRequest, where: str
) -> tuple[str, list[x509.GeneralName]]:
    """The one common name, checked, and the alternative names (possibly none)."""
    try:
        common = [attribute.value for attribute in document.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        try:
            alternative = document.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            alternative = x509.SubjectAlternativeName([])
    except _MALFORMED as error:
        raise BadData(f"{where} cannot be read as X.509 ({error}). Make it again with `coreg-agent enroll`.") from error
    if len(common) != 1 or not isinstance(common[0], str):
        raise Refused(f"{where} has {len(common)} common names, expected one: the site's name.")
    try:
        return check_site_name(common[0]), list(alternative)
    except UsageError as error:
        raise Refused(f"{where} does not name a site. {error}") from error


def _text(name: x509.GeneralName) -> str:
    return repr(name.value)  # quoted: a stranger wrote it, and it goes to a terminal
