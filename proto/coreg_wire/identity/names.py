"""Names of sites in text, certificate requests and certificates; and the fingerprints that
operators compare.

Both sides read names through this module, so that they always agree. A site's certificate has its
name twice, as the common name and as the URI `coreg:site:NAME`. The name is never a DNS name, so a
site's certificate cannot serve as a server's.
"""

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.hazmat.primitives.hashes import SHA256, Hash
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from coreg_core.errors import BadData, Refused, UsageError
from coreg_core.names import check_site_name

SITE_URI = "coreg:site:"
# Exceptions of cryptography for X.509 data that parses but has invalid parts.
MALFORMED = (
    ValueError,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
    UnsupportedAlgorithm,
)


def site_uri(name: str) -> x509.UniformResourceIdentifier:
    """The URI of the site in a request and in a certificate: `coreg:site:NAME`."""
    return x509.UniformResourceIdentifier(SITE_URI + check_site_name(name))


def certificate_name(certificate: x509.Certificate, where: str = "The certificate") -> str:
    """The common name, which the only URI must repeat.

    The caller establishes trust; ``where`` begins messages.
    """
    name, identities = _names(certificate, where)
    if identities != [site_uri(name)]:
        raise Refused(
            f"{where} has the common name {name!r}, but not the URI {SITE_URI}{name} as its only"
            " other name: it is not a site's certificate. Join by an invitation."
        )
    return name


def request_name(request: x509.CertificateSigningRequest, where: str = "The request") -> str:
    """The site's name in a request: its common name. A URI is optional and must repeat it."""
    name, identities = _names(request, where)
    if identities not in ([], [site_uri(name)]):
        raise Refused(
            f"{where} has the name {name!r} and other names too"
            f" ({', '.join(repr(other.value) for other in identities)}). A site has one name: make"
            " the request again with `coreg-agent join`."
        )
    return name


def load_certificates(pem: bytes, where: str) -> list[x509.Certificate]:
    """All certificates in a PEM text, at least one, in order."""
    if b"BEGIN CERTIFICATE REQUEST" in pem and b"BEGIN CERTIFICATE-----" not in pem:
        raise BadData(
            f"{where} is a request (.csr). Give the certificate (.pem) that the coordinator's"
            " operator made of it."
        )
    try:
        return [_whole(certificate) for certificate in x509.load_pem_x509_certificates(pem)]
    except MALFORMED as error:
        raise BadData(
            f"{where} has no readable PEM certificate. Copy it again from its source."
        ) from error


def certificate_of(der: bytes, where: str) -> x509.Certificate:
    """The certificate in these bytes, which come from ``where``."""
    try:
        return _whole(x509.load_der_x509_certificate(der))
    except MALFORMED:
        raise BadData(f"{where} is not a certificate.") from None


def _whole(certificate: x509.Certificate) -> x509.Certificate:
    """The certificate, after a read of all that is asked of one later.

    The library parses these parts when they are read, and each has its own exceptions.
    """
    certificate.public_key()
    certificate.extensions  # noqa: B018 - parsed here
    certificate.subject  # noqa: B018
    certificate.not_valid_before_utc  # noqa: B018
    certificate.not_valid_after_utc  # noqa: B018
    certificate.signature_hash_algorithm  # noqa: B018
    return certificate


def fingerprint(certificate: x509.Certificate) -> str:
    """SHA-256 of the whole certificate in lower-case hexadecimal.

    It changes with every new certificate.
    """
    return certificate.fingerprint(SHA256()).hex()


def key_fingerprint(key: CertificatePublicKeyTypes) -> str:
    """SHA-256 (hexadecimal) of the public key (SubjectPublicKeyInfo, DER): the eight words stand
    for it.
    """
    digest = Hash(SHA256())
    digest.update(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))
    return digest.finalize().hex()


def _names(
    document: x509.Certificate | x509.CertificateSigningRequest, where: str
) -> tuple[str, list[x509.GeneralName]]:
    """The only common name, checked, and the alternative names, if any."""
    try:
        common = [
            attribute.value
            for attribute in document.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        ]
        try:
            alternative = document.extensions.get_extension_for_class(
                x509.SubjectAlternativeName
            ).value
        except x509.ExtensionNotFound:
            alternative = x509.SubjectAlternativeName([])
    except MALFORMED as error:
        raise BadData(
            f"{where} cannot be read as X.509 ({error}). Make it again with `coreg-agent join`."
        ) from error
    if len(common) != 1 or not isinstance(common[0], str):
        raise Refused(f"{where} has {len(common)} common names, expected one: the site's name.")
    try:
        return check_site_name(common[0]), list(alternative)
    except UsageError as error:
        raise Refused(f"{where} does not name a site. {error}") from error
