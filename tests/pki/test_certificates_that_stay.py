"""Both ends while they stay: certificates read again when they change, kept when they are not right, and warned of in time."""

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from coordinator.authority.pki import create_authority, load_server, reissue_server, server_names, sign_request
from coordinator.authority.renewal import renew_authority
from coordinator.cli.service import _soon
from coordinator.service.access import DAY, AccessControl
from coreg_core.errors import Refused, UsageError
from site_agent.identity.identity import Identity, check_identity, enrol, install, renew
from site_agent.machine.notices import Notice
from site_agent.service.reload import ReloadingIdentity


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
    install(home / "a", sign_request(home / "ca", renew(home / "a").request_path, renewal=True).certificate_path)
    stays.credentials()
    assert dialled[1].certificate_pem != first.certificate_pem
    assert stays.identity is dialled[1]
    assert events(log) == ["certificate_read"]


@pytest.mark.parametrize("new_key", [False, True])
def test_a_renewed_certificate_of_the_same_key_signs_in_the_open_session(home: Path, new_key: bool) -> None:
    """It knows a new authority, which issued the coordinator's certificate. With another key it is of the next session."""
    log, used = list[Notice](), list[Identity]()
    stays = ReloadingIdentity(check_identity(home / "a"), log.append, used.append)
    stays.credentials()
    request = renew(home / "a", new_key=new_key).request_path
    install(home / "a", sign_request(home / "ca", request, renewal=True).certificate_path)
    stays.refresh()
    assert (used[-1] is stays.identity) != new_key
    stays.credentials()
    assert used[-1] is stays.identity


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


def test_a_coordinator_keeps_what_it_has_where_the_files_are_not_right(home: Path) -> None:
    access = AccessControl(home / "ca", insecure=False)
    reissue_server(home / "ca")
    access.reload()
    (home / "ca" / "coordinator.key").chmod(0o644)
    with pytest.raises(Refused, match="open to other users"):
        access.reload()


def test_what_expires_is_said_a_month_ahead_and_once_a_day(home: Path) -> None:
    reissue_server(home / "ca", days=20)
    access = AccessControl(home / "ca", insecure=False)
    [warning] = access.expiring(1000.0)
    assert "coordinator.pem expires in 20 days" in warning
    assert access.expiring(1000.0 + DAY - 1) == []
    assert access.warnings == [warning], "for `status`"
    assert access.expiring(1000.0 + DAY) == [warning]
    assert access.expiring(1000.0 + 2 * DAY, ("a", "zz"))[1].startswith("zz cannot connect: no certificate in ")
    reissue_server(home / "ca")
    assert access.expiring(1000.0 + 4 * DAY) == []


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
    for begin in (renew_authority, reissue_server):
        with pytest.raises(UsageError, match=r"--host"):
            begin(authority)
    assert {path.name: path.read_bytes() for path in authority.iterdir()} == kept, "nothing was begun"
    reissue_server(authority, ["coordinator.example.org"])
    assert "coordinator.example.org" in server_names(authority)
    (authority / "ca.pem").unlink()
    with pytest.raises(UsageError, match="Restore it from your backup"):
        load_server(authority)


def test_sites_says_which_certificates_are_to_be_renewed() -> None:
    now = datetime.now(UTC)
    assert _soon((now + timedelta(days=12, hours=1)).isoformat()) == (
        " (expires in 12 days; the site's operator has to renew it. A renewed one is shown from its next connection on)"
    )
    assert _soon((now - timedelta(days=2)).isoformat()).startswith(" (EXPIRED; the site's operator has to renew it")
    assert _soon((now + timedelta(days=31)).isoformat()) == ""


def test_an_agents_warning_names_the_command(home: Path) -> None:
    soon = check_identity(home / "a").expiry_warning(now=datetime.now(UTC) + timedelta(days=340))
    assert soon is not None
    assert soon.endswith(
        "Run `coreg-agent enroll --renew`, send site.csr to the coordinator's operator, and install the answer."
    )
