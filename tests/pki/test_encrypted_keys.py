"""Keys at rest under a passphrase: made, used, changed; and what is said where it is missing or wrong."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from coordinator.authority.pki import create_authority, encrypt_keys, load_server, sign_request
from coreg_core.errors import Refused, UsageError
from coreg_wire.identity import keys
from coreg_wire.identity.keys import FILE_VARIABLE, VARIABLE, is_encrypted
from site_agent.identity.identity import check_identity, enrol, install

SECRET = b"correct horse battery"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An authority and a site whose keys are encrypted, and the passphrase in the environment."""
    monkeypatch.setenv(VARIABLE, SECRET.decode())
    create_authority(tmp_path / "ca", [], secret=SECRET)
    enrol(tmp_path / "a", "a", secret=SECRET)
    signed = sign_request(tmp_path / "ca", tmp_path / "a" / "site.csr")
    install(tmp_path / "a", signed.certificate_path)
    return tmp_path


def test_keys_are_unreadable_on_the_disk_and_work_with_their_passphrase(home: Path) -> None:
    for name in ("ca/ca.key", "ca/coordinator.key", "a/site.key"):
        pem = (home / name).read_bytes()
        assert is_encrypted(pem)
        assert (home / name).stat().st_mode & 0o777 == 0o600
        with pytest.raises(TypeError, match="encrypted"):
            load_pem_private_key(pem, None)
    files, identity = load_server(home / "ca"), check_identity(home / "a")
    for key in (files.key_pem, identity.key_pem):
        load_pem_private_key(key, None)  # in memory, for gRPC, as it always was
    assert (files.secret, identity.secret) == (SECRET, SECRET)
    for shown in (repr(files), repr(identity)):
        assert SECRET.decode() not in shown
        assert "PRIVATE" not in shown


def test_a_wrong_passphrase_is_said_and_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "another passphrase")
    with pytest.raises(Refused, match=r"site\.key does not open with this passphrase. Put it into a file that COREG_"):
        check_identity(home / "a")
    with pytest.raises(Refused, match=r"coordinator\.key does not open"):
        load_server(home / "ca")
    with pytest.raises(Refused, match=r"ca\.key does not open"):
        sign_request(home / "ca", home / "a" / "site.csr")
    assert Refused.exit_code == 4


def test_the_file_goes_before_the_variable_and_has_to_be_private(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = home / "passphrase"
    monkeypatch.setenv(FILE_VARIABLE, str(path))
    monkeypatch.setenv(VARIABLE, "not looked at")
    with pytest.raises(
        UsageError, match=r"passphrase, which COREG_PASSPHRASE_FILE names, cannot be read.*: correct the variable"
    ):
        check_identity(home / "a")
    path.write_bytes(SECRET + b"\n")
    path.chmod(0o604)
    with pytest.raises(Refused, match="open to every user of this machine: run `chmod 600"):
        check_identity(home / "a")
    path.chmod(0o440)  # as systemd's LoadCredential leaves it
    assert check_identity(home / "a").name == "a"
    path.chmod(0o600)
    path.write_bytes(b"\n")
    with pytest.raises(UsageError, match="is empty"):
        check_identity(home / "a")


def test_without_a_passphrase_nothing_is_guessed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr(keys.sys, "stdin", None)
    with pytest.raises(UsageError, match=r"site\.key needs a passphrase, and none is given"):
        check_identity(home / "a")


def test_a_person_types_a_new_one_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    good = "long enough, surely"
    typed = iter([good, good.upper(), "short", "short", good, good])
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv(FILE_VARIABLE, raising=False)
    monkeypatch.setattr(keys.sys, "stdin", _Terminal())
    monkeypatch.setattr(keys.getpass, "getpass", lambda _prompt: next(typed))
    with pytest.raises(UsageError, match="differ"):
        keys.ask_twice("x")
    with pytest.raises(UsageError, match="at least 12 characters"):
        keys.ask_twice("x")
    assert keys.ask_twice("x") == b"long enough, surely"


class _Terminal:
    def isatty(self) -> bool:
        return True


def test_keys_in_the_clear_are_encrypted_later_and_nothing_else_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_authority(tmp_path / "ca", [])
    enrol(tmp_path / "a", "a")
    install(tmp_path / "a", sign_request(tmp_path / "ca", tmp_path / "a" / "site.csr").certificate_path)
    before = load_server(tmp_path / "ca"), check_identity(tmp_path / "a")
    monkeypatch.setenv(VARIABLE, SECRET.decode())
    encrypt_keys(tmp_path / "ca", SECRET)
    assert enrol(tmp_path / "a", "a", secret=SECRET).reused_key
    for name in ("ca/ca.key", "ca/coordinator.key", "a/site.key"):
        assert is_encrypted((tmp_path / name).read_bytes())
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    after = load_server(tmp_path / "ca"), check_identity(tmp_path / "a")
    assert [(b.key_pem, b.certificate_pem) for b in before] == [(a.key_pem, a.certificate_pem) for a in after]
