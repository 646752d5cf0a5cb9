"""The authority: what it signs, what it refuses, and who may join."""

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hypothesis import given
from hypothesis import strategies as st

from coordinator.authority import pki
from coordinator.authority.authorised import Authorised, revoke
from coordinator.service.access import DAY, AccessControl
from coreg_core.errors import BadData, CoregError, Refused, StorageError, UsageError
from coreg_wire.identity.names import certificate_name, check_site_name, key_fingerprint
from site_agent.identity.enrolment import enrol
from tests.issued import clock, issued

LATER = datetime.now(UTC) + timedelta(days=1000)


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    pki.create_authority(tmp_path / "ca", ["coordinator.example", "10.1.2.3"])
    return tmp_path / "ca"


def request(directory: Path, name: str) -> Path:
    return enrol(directory / f"identity-{name}", name)


def certificate(path: Path, index: int = 0) -> x509.Certificate:
    return x509.load_pem_x509_certificates(path.read_bytes())[index]


def write_request(
    path: Path,
    common_names: list[str],
    alternative: list[x509.GeneralName] | None = None,
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | None = None,
) -> Path:
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in common_names])
    )
    if alternative is not None:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternative), critical=False)
    made = builder.sign(key or ec.generate_private_key(ec.SECP256R1()), SHA256())
    path.write_bytes(made.public_bytes(Encoding.PEM))
    return path


# --- the authority itself


def test_keys_are_private_and_certificates_belong_together(authority: Path) -> None:
    assert authority.stat().st_mode & 0o777 == 0o700
    ca = certificate(authority / "ca.pem")
    server = certificate(authority / "coordinator.pem")
    server.verify_directly_issued_by(ca)
    ca.verify_directly_issued_by(ca)
    assert ca.extensions.get_extension_for_class(
        x509.BasicConstraints
    ).value == x509.BasicConstraints(True, 0)
    assert ca.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    purposes = server.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(purposes) == [ExtendedKeyUsageOID.SERVER_AUTH]


def test_an_authority_is_never_overwritten_or_half_made(authority: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in authority.iterdir()}
    with pytest.raises(UsageError, match=r"already holds ca\.key.*move these files away"):
        pki.create_authority(authority, [])
    assert before == {path.name: path.read_bytes() for path in authority.iterdir()}
    new = tmp_path / "new"
    for host in ("", "a b", "https://a", "a:443", "ü.example", "-a", "a..b", "a" * 64):
        with pytest.raises(UsageError, match="not a host name or an address"):
            pki.create_authority(new, [host])
        assert not new.exists()
    full = mock.Mock(side_effect=[None, None, StorageError("full")])
    with mock.patch.object(pki, "write_whole", full), pytest.raises(StorageError, match="full"):
        pki.create_authority(new, [])
    assert [path.name for path in new.iterdir()] == ["ca.key.lock"]


def test_a_renewed_server_keeps_the_names_that_sites_dial_and_a_lost_key_is_made_again(
    authority: Path,
) -> None:
    names = certificate(authority / "coordinator.pem").extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    before = pki.server_names(authority)
    assert before == ["coordinator.example", "10.1.2.3", "localhost", "127.0.0.1", "::1"]
    assert [str(name.value) for name in names.value] == before
    end = pki.reissue_server(authority)
    assert certificate(authority / "coordinator.pem").not_valid_after_utc == end
    (authority / "coordinator.key").unlink()
    with pytest.raises(
        UsageError, match=r"coordinator.key does not exist. Make it again: .* --renew-server`"
    ):
        pki.load_server(authority)
    pki.reissue_server(authority)
    pki.load_server(authority)
    assert pki.server_names(authority) == before
    assert (authority / "coordinator.key").stat().st_mode & 0o777 == 0o600
    (authority / "coordinator.pem").unlink()
    kept = {path.name: path.read_bytes() for path in authority.iterdir()}
    with pytest.raises(UsageError, match=r"coordinator\.pem does not exist.*--host"):
        pki.reissue_server(authority)
    assert {path.name: path.read_bytes() for path in authority.iterdir()} == kept, (
        "nothing was begun"
    )
    pki.reissue_server(authority, ["new.example"])
    assert pki.server_names(authority)[0] == "new.example"
    (authority / "ca.pem").unlink()
    with pytest.raises(UsageError, match="Restore it from your backup"):
        pki.load_server(authority)


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("0.0.0.0", "sites cannot dial it"),
        ("[::]", "sites cannot dial it"),
        ("10.0.0.300", "no host name ends with a number"),
        ("10.0.0", "no host name ends with a number"),
    ],
)
def test_a_host_that_no_site_can_dial_is_refused(tmp_path: Path, host: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        pki.create_authority(tmp_path / "fed", [host])
    assert not (tmp_path / "fed").exists()
    pki.create_authority(tmp_path / "fed", ["10.0.0.30", "node7", "n.7x"])
    with pytest.raises(UsageError, match=words):
        pki.reissue_server(tmp_path / "fed", [host])


def test_what_serves_is_checked_first(authority: Path, tmp_path: Path) -> None:
    with (
        clock(LATER),
        pytest.raises(Refused, match=r"coordinator\.pem expired on .* --renew-server"),
    ):
        pki.load_server(authority)
    with (
        clock(datetime.now(UTC) - timedelta(days=1)),
        pytest.raises(Refused, match="check the clock"),
    ):
        pki.load_server(authority)
    pki.create_authority(tmp_path / "other", [])
    with pytest.raises(UsageError, match=r"ca\.key does not exist.*coreg-coordinator init"):
        issued(tmp_path / "none", request(tmp_path, "x"))
    (authority / "ca.pem").write_bytes((tmp_path / "other" / "ca.pem").read_bytes())
    with pytest.raises(Refused, match=r"not signed by ca\.pem"):
        pki.load_server(authority)
    (authority / "coordinator.key").write_bytes(
        (tmp_path / "other" / "coordinator.key").read_bytes()
    )
    with pytest.raises(Refused, match="another key"):
        pki.load_server(authority)
    for key in ("ca.key", "coordinator.key"):
        (authority / key).chmod(0o644)
        with pytest.raises(Refused, match=rf"chmod 600 .*{key}"):
            pki.load_server(authority)
        (authority / key).chmod(0o600)


# --- signing


def test_nothing_is_signed_through_a_link(authority: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (authority / "north.pem").symlink_to(victim)
    answer = issued(authority, request(tmp_path, "north"))
    assert victim.read_text() == "mine"
    assert not answer.is_symlink()


def test_a_signed_site_is_a_client_with_one_name_and_no_dns_name(
    authority: Path, tmp_path: Path
) -> None:
    signed = issued(authority, request(tmp_path, "north"))
    site, ca = x509.load_pem_x509_certificates(signed.read_bytes())
    site.verify_directly_issued_by(ca)
    assert ca == certificate(authority / "ca.pem")
    assert certificate_name(site) == "north"
    purposes = site.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(purposes) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    names = site.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(names) == [x509.UniformResourceIdentifier("coreg:site:north")]
    assert Authorised(authority).sites() == {"north": key_fingerprint(site.public_key())}


def test_a_certificate_does_not_outlive_its_authority(tmp_path: Path) -> None:
    with mock.patch.object(pki, "AUTHORITY_DAYS", 30):
        pki.create_authority(tmp_path, [])
    ends = {
        certificate(path).not_valid_after_utc
        for path in (issued(tmp_path, request(tmp_path, "a")), tmp_path / "ca.pem")
    }
    assert len(ends) == 1


def test_a_damaged_signature_is_refused(authority: Path, tmp_path: Path) -> None:
    path = request(tmp_path, "north")
    der = bytearray(x509.load_pem_x509_csr(path.read_bytes()).public_bytes(Encoding.DER))
    der[der.index(b"coreg:site:north") + len("coreg:site:")] = ord(
        "f"
    )  # ..., forth: the signature no longer fits
    path.write_bytes(x509.load_der_x509_csr(bytes(der)).public_bytes(Encoding.PEM))
    with pytest.raises(Refused, match="not signed by its own key"):
        issued(authority, path)


def test_requests_for_more_than_a_site_name_are_refused(authority: Path, tmp_path: Path) -> None:
    uri = x509.UniformResourceIdentifier
    cases: list[tuple[list[str], list[x509.GeneralName] | None, str]] = [
        (["a"], [x509.DNSName("coordinator.example")], "and other names too"),
        (["a"], [uri("coreg:site:a"), uri("coreg:site:b")], "and other names too"),
        (["a"], [uri("coreg:site:b")], "and other names too"),
        (["a", "b"], None, "2 common names"),
        ([], None, "0 common names"),
        *(([name], None, "does not name a site") for name in ("A", "ca", "../ca")),
    ]
    for common, alternative, words in cases:
        with pytest.raises(Refused, match=words):
            issued(authority, write_request(tmp_path / "x.csr", common, alternative))
    assert Authorised(authority).sites() == {}


def test_other_kinds_of_key_and_of_file_are_refused(authority: Path, tmp_path: Path) -> None:
    for key in (rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP384R1())):
        with pytest.raises(Refused, match="P-256"):
            issued(authority, write_request(tmp_path / "x.csr", ["a"], key=key))
    (tmp_path / "x.csr").write_text("hello")
    with pytest.raises(BadData, match="not a PEM certificate request"):
        issued(authority, tmp_path / "x.csr")
    request(tmp_path, "a")
    with pytest.raises(Refused, match="must never leave its site"):
        issued(authority, tmp_path / "identity-a" / "site.key")


# --- the allow-list


def test_another_key_replaces_the_first_and_revoking_needs_no_restart(
    authority: Path, tmp_path: Path
) -> None:
    path = request(tmp_path, "a")
    allowed = Authorised(authority)
    old, new = (issued(authority, path).read_bytes() for _ in range(2))
    for pem in (old, new):
        allowed.check("a", pem)
    another = issued(authority, enrol(tmp_path / "another", "a")).read_bytes()
    allowed.check("a", another)
    with pytest.raises(Refused, match="the key was replaced"):
        allowed.check("a", new)
    other = issued(authority, request(tmp_path, "b")).read_bytes()
    with pytest.raises(Refused, match="name 'a' has the certificate of 'b'"):
        allowed.check("a", other)
    with pytest.raises(CoregError, match="does not name a site"):
        allowed.check("coordinator", (authority / "coordinator.pem").read_bytes())
    assert revoke(authority, "a")
    assert not revoke(authority, "a")
    with pytest.raises(
        UsageError, match=r"authorised-sites does not exist: no site is listed there"
    ):
        revoke(tmp_path / "elsewhere", "a")
    with pytest.raises(Refused, match="never signed here, or was revoked"):
        allowed.check("a", another)


def test_the_list_is_edited_by_hand_without_harm(authority: Path, tmp_path: Path) -> None:
    path = authority / "authorised-sites"
    allowed = Authorised(authority)
    pem = issued(authority, request(tmp_path, "a")).read_bytes()
    mark = allowed.sites()["a"].upper()
    with_colons = ":".join(mark[i : i + 2] for i in range(0, 64, 2))
    path.write_text(f"# ours\n\n  a   {with_colons}  # Anna\nbroken line here\nc 12\n")
    allowed.check("a", pem)
    issued(authority, request(tmp_path, "b"))
    assert path.read_text() == (
        f"# ours\n\n  a   {with_colons}  # Anna\nbroken line here\nc 12\nb {allowed.sites()['b']}\n"
    )
    assert revoke(authority, "a")
    with pytest.raises(Refused, match=r"authorised-sites, lines 3, 4: not NAME FINGERPRINT"):
        allowed.check("a", pem)
    path.write_text(f"a {mark}\na {mark}\n")
    with pytest.raises(Refused, match="is listed 2 times"):
        allowed.check("a", pem)
    path.unlink()
    with pytest.raises(StorageError, match="no site can join"):
        allowed.check("a", pem)
    path.write_bytes(b"\xff")
    with pytest.raises(StorageError, match="no site can join"):
        allowed.check("a", pem)


def test_sites_signed_at_the_same_time_are_all_listed(authority: Path, tmp_path: Path) -> None:
    paths = [request(tmp_path, f"s{i}") for i in range(16)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda path: issued(authority, path), paths))
    assert sorted(Authorised(authority).sites()) == sorted(f"s{i}" for i in range(16))


def test_certificates_that_run_out_soon_are_announced_once_a_day(
    authority: Path, tmp_path: Path
) -> None:
    signed = issued(authority, request(tmp_path, "a"), days=20)
    assert pki.days_left(signed.read_bytes()) == pytest.approx(20, abs=0.01)
    access = AccessControl(authority)
    [warning] = access.expiring(1000.0)
    assert "a.pem expires in 20 days: if a does not connect before, invite it again" in warning
    assert access.expiring(1000.0 + DAY - 1) == []
    assert access.warnings == [warning], "for `status`"
    assert access.expiring(1000.0 + DAY, ("a", "zz"))[1].startswith(
        "waiting for `coreg-agent join` of zz, "
    )
    with clock(LATER):
        late = pki.expiry_warnings(authority)
    end = certificate(authority / "coordinator.pem").not_valid_after_utc
    assert any(
        f"coordinator.pem EXPIRED on {end:%Y-%m-%d}" in text and "--renew-server" in text
        for text in late
    )


def test_a_site_and_the_server_are_renewed_a_month_before_their_end_with_the_same_key(
    tmp_path: Path,
) -> None:
    authority = tmp_path / "ca"
    with mock.patch.object(pki, "DAYS", 29):
        pki.create_authority(authority, ["coordinator.example"])
    old = issued(authority, request(tmp_path, "a"), days=29).read_bytes()
    new = pki.renewed_site(authority, old)
    assert pki.days_left(new) == pytest.approx(365, abs=0.01)
    before, after = (x509.load_pem_x509_certificate(pem) for pem in (old, new))
    assert certificate_name(after) == "a"
    assert after.public_key() == before.public_key()
    assert certificate(authority / "a.pem") == after
    for pem in (old, new):
        Authorised(authority).check("a", pem)
    assert pki.renewed_site(authority, new) is None, "not before its last month"
    key = (authority / "coordinator.key").read_bytes()
    names = pki.server_names(authority)
    access = AccessControl(authority)
    assert access.expiring(1000.0) == [], "the server's is renewed"
    assert access.ends()["server"] > time.time() + 300 * DAY
    assert not pki.renew_server(authority)
    assert (authority / "coordinator.key").read_bytes() == key
    assert pki.server_names(authority) == names
    pki.load_server(authority)
    (authority / "ca.key").unlink()
    assert pki.renewed_site(authority, old) is None, "the authority's key is elsewhere"
    assert access.changed()
    assert (
        "ca.key is missing: no site can enrol, and no certificate is renewed"
        in access.expiring(1001.0)[0]
    )


@given(st.text(max_size=70))
def test_a_site_name_is_a_plain_file_name(name: str) -> None:
    for bad in ("", "A", "-a", "a-", ".", "..", "a b", "a\n", "ä", "a/b", "a" * 64, "ca"):
        with pytest.raises(UsageError):
            check_site_name(bad)
    try:
        check_site_name(name)
    except UsageError:
        return
    assert Path(name).name == name == name.lower()
    assert name.isascii()
