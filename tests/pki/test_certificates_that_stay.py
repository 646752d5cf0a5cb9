"""Both ends while they stay: certificates read again when they change, kept when they are not right, and warned of in time."""

import stat
import time
from pathlib import Path

import pytest

from coordinator.authority.pki import create_authority, load_server, reissue_server, server_names, sign_request
from coordinator.service.access import DAY, AccessControl
from coreg_core.errors import UsageError
from coreg_core.protocol.outcomes import Notice
from site_agent.identity.identity import Identity, check_identity, enrol, install
from site_agent.service.app import ReloadingIdentity


def events(log: list[Notice]) -> list[str]:
    return [notice.name for notice in log]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    create_authority(tmp_path / "ca", [])
    enrol(tmp_path / "a", "a")
    install(tmp_path / "a", sign_request(tmp_path / "ca", tmp_path / "a" / "site.csr").certificate_path)
    return tmp_path


def test_an_agent_shows_at_its_next_dialling_what_was_installed_meanwhile(home: Path) -> None:
    log, dialled = list[Notice](), list[Identity]()
    first = check_identity(home / "a")
    stays = ReloadingIdentity(first, log.append, dialled.append)
    stays.credentials()
    assert dialled == [first]
    assert events(log) == [], "nothing changed, and nothing is read"
    stays.install(sign_request(home / "ca", home / "a" / "site.csr", days=700).certificate_path.read_bytes())
    assert dialled[-1].certificate_pem != first.certificate_pem, "it signs for the open session too"
    stays.credentials()
    assert stays.identity is dialled[-1]
    assert events(log) == ["certificate_read"]
    stays.install(first.certificate_pem)
    assert events(log) == ["certificate_read", "certificate_not_read"]


@pytest.mark.parametrize("file", ["site.pem", "site.key", "ca.pem"])
def test_an_agent_keeps_what_it_has_where_the_files_are_not_right(home: Path, file: str) -> None:
    log, first = list[Notice](), check_identity(home / "a")
    stays = ReloadingIdentity(first, log.append, lambda _identity: None)
    good = (home / "a" / file).read_bytes()
    (home / "a" / file).write_bytes(b"rubbish")
    stays.refresh()
    stays.refresh()
    assert stays.identity is first
    assert events(log) == ["certificate_not_read"], "said once"
    assert file in log[0].text
    (home / "a" / file).write_bytes(good)
    stays.refresh()
    assert events(log) == ["certificate_not_read", "certificate_read"]


def test_an_agent_does_not_become_another_site(home: Path) -> None:
    log, first = list[Notice](), check_identity(home / "a")
    stays = ReloadingIdentity(first, log.append, lambda _identity: None)
    enrol(home / "b", "b")
    install(home / "b", sign_request(home / "ca", home / "b" / "site.csr").certificate_path)
    for file in ("site.key", "site.pem"):
        (home / "b" / file).replace(home / "a" / file)
    stays.refresh()
    assert stays.identity is first
    assert [notice.name for notice in log] == ["certificate_not_read"]
    assert "it names b, but this agent is a" in log[0].text


def test_what_expires_is_said_a_month_ahead_and_once_a_day(home: Path) -> None:
    reissue_server(home / "ca", days=20)
    (home / "ca" / "ca.key").rename(home / "ca.key")
    access = AccessControl(home / "ca", insecure=False)
    [warning] = access.expiring(1000.0)
    assert "coordinator.pem expires in 20 days" in warning
    assert access.expiring(1000.0 + DAY - 1) == []
    assert access.warnings == [warning], "for `status`"
    assert access.expiring(1000.0 + DAY) == [warning]
    assert access.expiring(1000.0 + 2 * DAY, ("a", "zz"))[1].startswith("zz cannot connect: no certificate in ")
    (home / "ca.key").rename(home / "ca" / "ca.key")
    assert access.expiring(1000.0 + 4 * DAY) == [], "it was renewed"
    assert access.ends()["server"] > time.time() + 300 * DAY


def test_a_lost_key_of_the_server_is_made_again(home: Path) -> None:
    authority = home / "ca"
    before = server_names(authority)
    (authority / "coordinator.key").unlink()
    with pytest.raises(UsageError, match=r"coordinator.key does not exist. Make it again: .* --renew-server`"):
        load_server(authority)
    reissue_server(authority)
    load_server(authority)
    assert server_names(authority) == before
    assert stat.S_IMODE((authority / "coordinator.key").stat().st_mode) == 0o600
    (authority / "coordinator.pem").unlink()
    kept = {path.name: path.read_bytes() for path in authority.iterdir()}
    with pytest.raises(UsageError, match=r"--host"):
        reissue_server(authority)
    assert {path.name: path.read_bytes() for path in authority.iterdir()} == kept, "nothing was begun"
    reissue_server(authority, ["coordinator.example.org"])
    assert "coordinator.example.org" in server_names(authority)
    (authority / "ca.pem").unlink()
    with pytest.raises(UsageError, match="Restore it from your backup"):
        load_server(authority)
