"""The site's identity: which of key, certificate and authority is wrong, and what to do."""

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from coordinator.authority import authorised
from coordinator.authority.authorised import ALLOW_LIST
from coordinator.authority.pki import create_authority, sign_request
from coreg_core.errors import BadData, CoregError, Refused, StorageError, UsageError
from coreg_wire.files.disk import exclusive
from coreg_wire.identity.names import key_fingerprint
from site_agent.identity.identity import check_identity, enrol, install, install_renewed

DAY = timedelta(days=1)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Two authorities that share no key, and one site, `a`, enrolled with the first."""
    for name in ("ca", "other-ca"):
        create_authority(tmp_path / name, [])
    enrol(tmp_path / "a", "a")
    install(tmp_path / "a", sign_request(tmp_path / "ca", tmp_path / "a" / "site.csr").certificate_path)
    return tmp_path


def pems(path: Path) -> list[bytes]:
    return [each.public_bytes(Encoding.PEM) for each in x509.load_pem_x509_certificates(path.read_bytes())]


def test_enrolling_makes_a_private_key_and_a_request_in_the_name(tmp_path: Path) -> None:
    result = enrol(tmp_path / "deep" / "id", "north")
    directory = tmp_path / "deep" / "id"
    assert directory.stat().st_mode & 0o777 == 0o700
    assert (directory / "site.key").stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in directory.iterdir()) == ["site.csr", "site.key"]
    request = x509.load_pem_x509_csr(result.request_path.read_bytes())
    assert request.is_signature_valid
    assert request.subject.rfc4514_string() == "CN=north"
    assert key_fingerprint(request.public_key()) == result.key_fingerprint  # type: ignore[arg-type]
    assert not result.reused_key


def test_enrolling_again_keeps_the_key(tmp_path: Path) -> None:
    first, key = enrol(tmp_path, "a"), (tmp_path / "site.key").read_bytes()
    second = enrol(tmp_path, "b")
    assert (tmp_path / "site.key").read_bytes() == key
    assert second.reused_key
    assert first.key_fingerprint == second.key_fingerprint
    assert x509.load_pem_x509_csr(second.request_path.read_bytes()).subject.rfc4514_string() == "CN=b"


def test_a_good_identity_is_returned_whole_and_hides_its_key(home: Path) -> None:
    identity = check_identity(home / "a")
    assert identity.name == "a"
    assert (identity.certificate_pem, identity.ca_pem) == tuple(pems(home / "ca" / "a.pem"))
    load_pem_private_key(identity.key_pem, None)
    assert identity.days_left() == pytest.approx(365, abs=0.01)
    assert identity.expiry_warning() is None
    assert "expires in 365 days" in (identity.expiry_warning(within_days=400) or "")
    assert "PRIVATE" not in repr(identity)


@pytest.mark.parametrize("name", ["site.key", "site.pem", "ca.pem"])
def test_a_missing_file_names_itself_and_the_command(home: Path, name: str) -> None:
    (home / "a" / name).unlink()
    with pytest.raises(UsageError, match=rf"{name} does not exist.*`coreg-agent join`"):
        check_identity(home / "a")


@pytest.mark.parametrize("mode", [0o604, 0o660, 0o700, 0o644, 0o620])
def test_a_key_open_to_others_is_refused_with_the_command_that_mends_it(home: Path, mode: int) -> None:
    key = home / "a" / "site.key"
    key.chmod(mode)
    for use in (lambda: check_identity(home / "a"), lambda: enrol(home / "a", "a")):
        with pytest.raises(Refused, match=rf"mode {mode:04o}.*[Rr]un `chmod 600 {key}`"):
            use()
    for allowed in (0o400, 0o600, 0o440, 0o640):
        key.chmod(allowed)
        check_identity(home / "a")


def test_the_mode_that_kubernetes_or_docker_gave_a_key_names_its_mend(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = home / "a" / "site.key"
    key.chmod(0o660)
    with pytest.raises(Refused, match="fsGroupChangePolicy: OnRootMismatch"):
        check_identity(home / "a")
    key.chmod(0o444)
    with pytest.raises(Refused, match=r"mode 0444.*A secret of Docker has this mode: mount the folder"):
        check_identity(home / "a")
    key.chmod(0o640)
    monkeypatch.setattr(os, "getegid", lambda: key.stat().st_gid + 1)
    monkeypatch.setattr(os, "getgroups", list)
    with pytest.raises(Refused, match="mode 0640"):
        check_identity(home / "a")


def wrong_key(home: Path) -> None:
    enrol(home / "b", "b")
    (home / "a" / "site.key").write_bytes((home / "b" / "site.key").read_bytes())


def wrong_authority(home: Path) -> None:
    (home / "a" / "ca.pem").write_bytes((home / "other-ca" / "ca.pem").read_bytes())


def authority_is_a_leaf(home: Path) -> None:
    (home / "a" / "ca.pem").write_bytes((home / "a" / "site.pem").read_bytes())


def servers_certificate(home: Path) -> None:
    (home / "a" / "site.pem").write_bytes((home / "ca" / "coordinator.pem").read_bytes())
    (home / "a" / "site.key").write_bytes((home / "ca" / "coordinator.key").read_bytes())


def altered_certificate(home: Path) -> None:
    path = home / "a" / "site.pem"
    der = bytearray(x509.load_pem_x509_certificate(path.read_bytes()).public_bytes(Encoding.DER))
    place = der.index(b"coreg:site:a") + len(b"coreg:site:")
    der[place] = ord("b")
    altered = x509.load_der_x509_certificate(bytes(der))
    path.write_bytes(altered.public_bytes(Encoding.PEM))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (wrong_key, r"site\.pem was issued for another key than site\.key"),
        (wrong_authority, r"site\.pem was signed by 'coreg authority \w+', but .*ca\.pem is 'coreg authority \w+'"),
        (authority_is_a_leaf, r"ca\.pem is not a certificate authority"),
        (servers_certificate, r"site\.pem is not a client's certificate"),
        (altered_certificate, r"site\.pem names .* but has no valid signature of it"),
    ],
)
def test_the_message_says_which_file_is_wrong(home: Path, spoil: Callable[[Path], None], words: str) -> None:
    spoil(home)
    with pytest.raises(Refused, match=words) as caught:
        check_identity(home / "a")
    assert caught.value.exit_code == 4


def test_time_is_checked_and_told(home: Path) -> None:
    now = datetime.now(UTC)
    with pytest.raises(Refused, match=r"site\.pem expired on \d{4}-\d\d-\d\d .*`coreg-agent join`"):
        check_identity(home / "a", now=now + 366 * DAY)
    with pytest.raises(Refused, match=r"ca\.pem expired on .* join a new one"):
        check_identity(home / "a", now=now + 7306 * DAY)
    with pytest.raises(Refused, match=r"not valid before .* check the clock"):
        check_identity(home / "a", now=now - DAY)


def test_an_encrypted_or_foreign_key_is_said_so(home: Path) -> None:
    path = home / "a" / "site.key"
    key = load_pem_private_key(path.read_bytes(), None)
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x")))
    with pytest.raises(BadData, match="not a private key in PEM"):
        check_identity(home / "a")
    other = rsa.generate_private_key(65537, 2048)
    path.write_bytes(other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(BadData, match="not an elliptic-curve key"):
        check_identity(home / "a")


# --- install


def test_an_answer_for_another_site_changes_nothing(home: Path) -> None:
    enrol(home / "b", "b")
    signed = sign_request(home / "ca", home / "b" / "site.csr")
    with pytest.raises(Refused, match=r"b\.pem: the site's certificate was issued for another key"):
        install(home / "a", signed.certificate_path)
    assert check_identity(home / "a").name == "a"


def test_an_answer_must_be_whole(home: Path) -> None:
    certificate, authority = pems(home / "ca" / "a.pem")
    bundle = home / "bundle.pem"
    bundle.write_bytes(certificate)
    with pytest.raises(BadData, match="holds 1 certificates, expected two"):
        install(home / "a", bundle)
    bundle.write_bytes(authority + certificate)
    with pytest.raises(Refused, match="does not name a site"):
        install(home / "a", bundle)
    with pytest.raises(UsageError, match="does not exist"):
        install(home / "a", home / "none.pem")
    with pytest.raises(BadData, match=r"is a request \(.csr\). Give the certificate \(.pem\)"):
        install(home / "a", home / "a" / "site.csr")
    bundle.write_bytes(b"nonsense")
    with pytest.raises(BadData, match="no readable PEM certificate"):
        install(home / "a", bundle)


def test_another_authority_is_never_adopted_silently(home: Path) -> None:
    signed = sign_request(home / "other-ca", home / "a" / "site.csr")
    with pytest.raises(Refused, match=r"is not the one that this site trusts .* join in another folder"):
        install(home / "a", signed.certificate_path)
    (home / "a" / "ca.pem").unlink()
    install(home / "a", signed.certificate_path)


def test_a_failed_signature_leaves_the_listed_certificate_in_its_file(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After one `sign` as root the lock belongs to root: the next `sign` must not write a certificate that is not listed."""
    path = sign_request(home / "ca", home / "a" / "site.csr").certificate_path
    before = path.read_bytes()
    monkeypatch.setattr(authorised, "exclusive", lambda path, holder, _seconds: exclusive(path, holder, 0.05))
    with exclusive(home / "ca" / ALLOW_LIST, "busy"), pytest.raises(StorageError):
        sign_request(home / "ca", home / "a" / "site.csr")
    assert path.read_bytes() == before


def test_the_next_certificate_from_the_coordinator_is_installed_if_it_is_this_sites(home: Path) -> None:
    path = home / "a" / "site.pem"
    before = path.read_bytes()
    enrol(home / "b", "b")
    foreign = sign_request(home / "ca", home / "b" / "site.csr").certificate_path.read_bytes()
    other = sign_request(home / "other-ca", home / "a" / "site.csr", home / "x.pem").certificate_path.read_bytes()
    for pem, words in (
        (foreign, "another key"),
        (other, "signed by"),
        (before, "not the next one"),
        (b"x", "no readable"),
    ):
        with pytest.raises(CoregError, match=words):
            install_renewed(home / "a", pem)
    assert path.read_bytes() == before
    later = sign_request(home / "ca", home / "a" / "site.csr", days=700).certificate_path.read_bytes()
    install_renewed(home / "a", later)
    assert check_identity(home / "a").days_left() == pytest.approx(700, abs=0.01)
