"""The site's identity: which of key, certificate and authority is wrong, and what to do."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

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
from coreg_core.errors import BadData, CoregError, Refused, StorageError, UsageError
from coreg_core.outcomes import Notice
from coreg_wire.files.disk import exclusive
from coreg_wire.identity.names import key_fingerprint
from site_agent.identity.enrolment import enrol, install, install_renewed
from site_agent.identity.identity import Identity, check_identity
from site_agent.service.identity_in_use import ReloadingIdentity
from tests.issued import issued

DAY = timedelta(days=1)


@contextmanager
def at(moment: datetime) -> Iterator[None]:
    """The clock of this site at another time."""
    with mock.patch("site_agent.identity.identity.utc_now", return_value=moment):
        yield


def pems(path: Path) -> list[bytes]:
    return [
        each.public_bytes(Encoding.PEM)
        for each in x509.load_pem_x509_certificates(path.read_bytes())
    ]


def test_enrolling_makes_a_private_key_and_a_request_in_the_name_and_again_keeps_the_key(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "deep" / "id"
    result = enrol(directory, "north")
    assert directory.stat().st_mode & 0o777 == 0o700
    assert (directory / "site.key").stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in directory.iterdir()) == ["site.csr", "site.key"]
    request = x509.load_pem_x509_csr(result.read_bytes())
    assert request.is_signature_valid
    assert request.subject.rfc4514_string() == "CN=north"
    key = (directory / "site.key").read_bytes()
    assert key_fingerprint(request.public_key()) == key_fingerprint(
        load_pem_private_key(key, None).public_key()
    )  # type: ignore[arg-type]
    enrol(directory, "b")
    assert (directory / "site.key").read_bytes() == key


def test_a_good_identity_is_returned_whole_and_hides_its_key(home: Path) -> None:
    identity = check_identity(home / "a")
    assert identity.name == "a"
    assert (identity.certificate_pem, identity.ca_pem) == tuple(pems(home / "ca" / "a.pem"))
    load_pem_private_key(identity.key_pem, None)
    assert identity.days_left() == pytest.approx(365, abs=0.01)
    assert identity.expiry_warning() is None
    with at(identity.not_after - 20 * DAY):
        assert "expires in 20 days" in (identity.expiry_warning() or "")
    assert "PRIVATE" not in repr(identity)


@pytest.mark.parametrize("name", ["site.key", "site.pem", "ca.pem"])
def test_a_missing_file_names_itself_and_the_command(home: Path, name: str) -> None:
    (home / "a" / name).unlink()
    with pytest.raises(UsageError, match=rf"{name} does not exist.*`coreg-agent join`"):
        check_identity(home / "a")


@pytest.mark.parametrize("mode", [0o604, 0o660, 0o700, 0o644, 0o620])
def test_a_key_open_to_others_is_refused(
    home: Path, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = home / "a" / "site.key"
    key.chmod(mode)
    for use in (lambda: check_identity(home / "a"), lambda: enrol(home / "a", "a")):
        with pytest.raises(Refused, match=rf"mode {mode:04o}.*[Rr]un `chmod 600 {key}`") as refused:
            use()
    assert ("fsGroupChangePolicy: OnRootMismatch" in str(refused.value)) is bool(mode & 0o020)
    key.chmod(0o444)
    with pytest.raises(
        Refused, match=r"mode 0444.*A secret of Docker has this mode: mount its folder"
    ):
        check_identity(home / "a")
    for allowed in (0o400, 0o600, 0o440, 0o640):
        key.chmod(allowed)
        check_identity(home / "a")
    monkeypatch.setattr(os, "getegid", lambda: key.stat().st_gid + 1)
    monkeypatch.setattr(os, "getgroups", list)
    with pytest.raises(Refused, match="mode 0640"):
        check_identity(home / "a")


def copied(*pairs: tuple[str, str]) -> Callable[[Path], None]:
    """Files of the site in whose place others are put."""

    def spoil(home: Path) -> None:
        for file, source in pairs:
            (home / "a" / file).write_bytes((home / source).read_bytes())

    return spoil


def altered_certificate(home: Path) -> None:
    path = home / "a" / "site.pem"
    der = bytearray(x509.load_pem_x509_certificate(path.read_bytes()).public_bytes(Encoding.DER))
    der[der.index(b"coreg:site:a") + len(b"coreg:site:")] = ord("b")
    path.write_bytes(x509.load_der_x509_certificate(bytes(der)).public_bytes(Encoding.PEM))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (
            copied(("site.key", "stranger/site.key")),
            r"site\.pem was issued for another key than site\.key",
        ),
        (
            copied(("ca.pem", "other-ca/ca.pem")),
            r"site\.pem was signed by 'coreg authority \w+', but .*ca\.pem is 'c",
        ),
        (copied(("ca.pem", "a/site.pem")), r"ca\.pem is not a certificate authority"),
        (
            copied(("site.pem", "ca/coordinator.pem"), ("site.key", "ca/coordinator.key")),
            r"site\.pem is not a client's certificate",
        ),
        (altered_certificate, r"site\.pem names .* but has no valid signature of it"),
    ],
)
def test_the_message_says_which_file_is_wrong(
    home: Path, spoil: Callable[[Path], None], words: str
) -> None:
    spoil(home)
    with pytest.raises(Refused, match=words) as caught:
        check_identity(home / "a")
    assert caught.value.exit_code == 4


def test_time_is_checked_and_told(home: Path) -> None:
    now = datetime.now(UTC)
    with (
        pytest.raises(Refused, match=r"ca\.pem expired on .* join a new one"),
        at(now + 7306 * DAY),
    ):
        check_identity(home / "a")
    with pytest.raises(Refused, match=r"not valid before .* check the clock"), at(now - DAY):
        check_identity(home / "a")


def test_an_encrypted_or_foreign_key_is_said_so(home: Path) -> None:
    path = home / "a" / "site.key"
    key = load_pem_private_key(path.read_bytes(), None)
    path.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x"))
    )
    with pytest.raises(BadData, match="not a private key in PEM"):
        check_identity(home / "a")
    other = rsa.generate_private_key(65537, 2048)
    path.write_bytes(other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(BadData, match="not an elliptic-curve key"):
        check_identity(home / "a")


# --- install


def test_another_authority_is_never_adopted_silently_nor_an_answer_for_another_site(
    home: Path,
) -> None:
    enrol(home / "b", "b")
    with pytest.raises(Refused, match=r"b\.pem: the site's certificate was issued for another key"):
        install(home / "a", issued(home / "ca", home / "b" / "site.csr"))
    assert check_identity(home / "a").name == "a"
    signed = issued(home / "other-ca", home / "a" / "site.csr")
    with pytest.raises(
        Refused, match=r"is not the one that this site trusts .* join in another folder"
    ):
        install(home / "a", signed)
    (home / "a" / "ca.pem").unlink()
    install(home / "a", signed)


def test_an_answer_must_be_whole(home: Path) -> None:
    certificate, authority = pems(home / "ca" / "a.pem")
    bundle = home / "bundle.pem"
    for content, error, words in (
        (certificate, BadData, "holds 1 certificates, expected two"),
        (authority + certificate, Refused, "does not name a site"),
        (b"nonsense", BadData, "no readable PEM certificate"),
    ):
        bundle.write_bytes(content)
        with pytest.raises(error, match=words):
            install(home / "a", bundle)
    with pytest.raises(UsageError, match="does not exist"):
        install(home / "a", home / "none.pem")
    with pytest.raises(BadData, match=r"is a request \(.csr\). Give the certificate \(.pem\)"):
        install(home / "a", home / "a" / "site.csr")


def test_a_failed_signature_leaves_the_listed_certificate(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After one enrolment as root the lock belongs to root: the next one must not write a
    certificate that is not listed.
    """
    path = issued(home / "ca", home / "a" / "site.csr")
    before = path.read_bytes()
    monkeypatch.setattr(
        authorised, "exclusive", lambda path, holder, _seconds: exclusive(path, holder, 0.05)
    )
    with exclusive(home / "ca" / ALLOW_LIST, "busy"), pytest.raises(StorageError):
        issued(home / "ca", home / "a" / "site.csr")
    assert path.read_bytes() == before


def test_the_next_certificate_from_the_coordinator_is_installed_if_it_is_this_sites(
    home: Path,
) -> None:
    path = home / "a" / "site.pem"
    before = path.read_bytes()
    enrol(home / "b", "b")
    foreign = issued(home / "ca", home / "b" / "site.csr").read_bytes()
    other = issued(home / "other-ca", home / "a" / "site.csr").read_bytes()
    for pem, words in (
        (foreign, "another key"),
        (other, "signed by"),
        (before, "not the next one"),
        (b"x", "no readable"),
    ):
        with pytest.raises(CoregError, match=words):
            install_renewed(home / "a", pem)
    assert path.read_bytes() == before
    later = issued(home / "ca", home / "a" / "site.csr", days=700).read_bytes()
    install_renewed(home / "a", later)
    assert check_identity(home / "a").days_left() == pytest.approx(700, abs=0.01)


# --- an agent that stays


def events(log: list[Notice]) -> list[str]:
    return [notice.name for notice in log]


def test_an_agent_shows_at_its_next_dialling_what_was_installed_meanwhile(home: Path) -> None:
    log = list[Notice]()
    dialled = list[Identity]()
    first = check_identity(home / "a")
    stays = ReloadingIdentity(first, log.append, dialled.append)
    stays.credentials()
    assert dialled == [first]
    assert events(log) == [], "nothing changed, and nothing is read"
    stays.install(issued(home / "ca", home / "a" / "site.csr", days=700).read_bytes())
    assert dialled[-1].certificate_pem != first.certificate_pem, "it signs for the open session too"
    stays.credentials()
    assert stays.identity is dialled[-1]
    assert events(log) == ["certificate_read"]
    stays.install(first.certificate_pem)
    assert events(log) == ["certificate_read", "certificate_not_read"]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (["site.pem"], "site.pem"),
        (["site.key"], "site.key"),
        (["ca.pem"], "ca.pem"),
        (["site.key", "site.pem", "ca.pem"], "it names stranger, but this agent is a"),
    ],
)
def test_an_agent_keeps_what_it_has_where_the_files_are_not_right(
    home: Path, files: list[str], words: str
) -> None:
    log = list[Notice]()
    first = check_identity(home / "a")
    stays = ReloadingIdentity(first, log.append, lambda _identity: None)
    good = {file: (home / "a" / file).read_bytes() for file in files}
    for file in files:
        content = b"rubbish"
        if len(files) > 1:
            content = (home / "stranger" / file).read_bytes()
        (home / "a" / file).write_bytes(content)
    stays.refresh()
    stays.refresh()
    assert stays.identity is first
    assert events(log) == ["certificate_not_read"], "said once"
    assert words in log[0].text
    for file, content in good.items():
        (home / "a" / file).write_bytes(content)
    stays.refresh()
    assert events(log) == ["certificate_not_read", "certificate_read"]
