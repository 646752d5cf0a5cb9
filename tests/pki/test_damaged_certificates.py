"""A certificate or a request from a peer, damaged in any byte, is refused or read: nothing else
happens.
"""

import base64
import random
from collections import Counter
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from coordinator.authority.pki import check_request, create_authority
from coreg_core.errors import CoregError
from coreg_wire.identity.names import certificate_name, load_certificates
from coreg_wire.identity.signatures import from_hex, is_issued, is_of, serves
from site_agent.identity.enrolment import enrol
from tests.issued import issued

DAMAGED = 1_500
# The library reads some invalid certificates, and says so.
pytestmark = pytest.mark.filterwarnings("ignore::cryptography.utils.CryptographyDeprecationWarning")


def as_pem(der: bytes, what: str) -> bytes:
    text = base64.encodebytes(der).decode()
    return f"-----BEGIN {what}-----\n{text}-----END {what}-----\n".encode()


def damaged(der: bytes, seed: int) -> list[bytes]:
    """One to three bytes are others; in some, the version too."""
    rng = random.Random(seed)
    found = []
    for _ in range(DAMAGED):
        data = bytearray(der)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        found.append(bytes(data))
    version = der.find(b"\xa0\x03\x02\x01\x02")
    if version >= 0:
        found += [der[: version + 4] + bytes([v]) + der[version + 5 :] for v in range(256)]
    return found


@pytest.fixture(scope="module")
def enrolled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes, x509.Certificate]:
    folder = tmp_path_factory.mktemp("ca")
    create_authority(folder / "fed", [])
    request = enrol(folder / "clinic", "clinic")
    answer = issued(folder / "fed", request)
    [certificate, *_] = x509.load_pem_x509_certificates(answer.read_bytes())
    return folder, request.read_bytes(), certificate


def test_a_damaged_certificate_is_refused_or_read(
    enrolled: tuple[Path, bytes, x509.Certificate],
) -> None:
    folder, _, certificate = enrolled
    authority = load_certificates((folder / "fed" / "ca.pem").read_bytes(), "ca.pem")
    readers = {
        "of a session": lambda der: certificate_name(
            load_certificates(as_pem(der, "CERTIFICATE"), "it")[0]
        ),
        "its end": lambda der: load_certificates(as_pem(der, "CERTIFICATE"), "it")[
            0
        ].not_valid_after_utc.isoformat(),
        "beside a signature": lambda der: is_issued(from_hex(der.hex(), "it"), authority),
        "of a coordinator": lambda der: serves(from_hex(der.hex(), "it")),
        "of a site": lambda der: is_of(from_hex(der.hex(), "it"), "clinic"),
    }
    outcomes = Counter[str]()
    for der in damaged(certificate.public_bytes(Encoding.DER), 7):
        for name, reads in readers.items():
            try:
                reads(der)
                outcomes[name, "read"] += 1
            except CoregError:
                outcomes[name, "refused"] += 1
    assert {name for name, _ in outcomes} == set(readers)
    assert min(outcomes.values()) > 50, outcomes


def test_a_damaged_request_is_refused_or_read(
    enrolled: tuple[Path, bytes, x509.Certificate],
) -> None:
    der = x509.load_pem_x509_csr(enrolled[1]).public_bytes(Encoding.DER)
    refused = 0
    for data in damaged(der, 8):
        try:
            check_request(as_pem(data, "CERTIFICATE REQUEST"))
        except CoregError:
            refused += 1
    assert refused > DAMAGED - 5, "its own signature covers it"
