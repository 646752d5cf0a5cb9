"""Both ends while they stay: certificates read again when they change, kept when they are not right, and warned of in time."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from coordinator.authority.pki import create_authority, reissue_server, sign_request
from coordinator.cli.service import _soon
from coordinator.service import certificates
from coordinator.service.certificates import Certificates
from coreg_core.errors import Refused
from site_agent.identity.identity import Identity, check_identity, enrol, install, renew
from site_agent.service.reload import Enrolled


class Heard:
    """A log that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def warning(self, event: str, **fields: Any) -> None:
        self.lines.append((event, fields))

    info = error = warning

    @property
    def events(self) -> list[str]:
        return [event for event, _ in self.lines]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    create_authority(tmp_path / "ca", [])
    enrol(tmp_path / "a", "a")
    install(tmp_path / "a", sign_request(tmp_path / "ca", tmp_path / "a" / "site.csr").certificate_path)
    return tmp_path


def test_an_agent_shows_at_its_next_dialling_what_was_installed_meanwhile(home: Path) -> None:
    log, dialled = Heard(), list[Identity]()
    first = check_identity(home / "a")
    stays = Enrolled(first, log, dialled.append)
    stays.credentials()
    assert dialled == [first]
    assert log.events == [], "nothing changed, and nothing is read"
    install(home / "a", sign_request(home / "ca", renew(home / "a").request_path, renewal=True).certificate_path)
    stays.credentials()
    assert dialled[1].certificate_pem != first.certificate_pem
    assert stays.identity is dialled[1]
    assert log.events == ["certificate_read"]


@pytest.mark.parametrize("file", ["site.pem", "site.key", "ca.pem"])
def test_an_agent_keeps_what_it_has_where_the_files_are_not_right(home: Path, file: str) -> None:
    log, first = Heard(), check_identity(home / "a")
    stays = Enrolled(first, log, lambda _identity: None)
    good = (home / "a" / file).read_bytes()
    (home / "a" / file).write_bytes(b"rubbish")
    stays.refresh()
    stays.refresh()
    assert stays.identity is first
    assert log.events == ["certificate_not_read"], "said once"
    assert file in log.lines[0][1]["text"]
    (home / "a" / file).write_bytes(good)
    stays.refresh()
    assert log.events == ["certificate_not_read", "certificate_read"]


def test_an_agent_does_not_become_another_site(home: Path) -> None:
    log, first = Heard(), check_identity(home / "a")
    stays = Enrolled(first, log, lambda _identity: None)
    enrol(home / "b", "b")
    install(home / "b", sign_request(home / "ca", home / "b" / "site.csr").certificate_path)
    for file in ("site.key", "site.pem"):
        (home / "b" / file).replace(home / "a" / file)
    stays.refresh()
    assert stays.identity is first
    assert log.lines == [("certificate_not_read", {"text": "it is b's, and this agent is a"})]


def test_a_coordinator_that_serves_keeps_what_it_has_where_the_files_are_not_right(home: Path) -> None:
    stays = Certificates(home / "ca", Heard())
    reissue_server(home / "ca")
    stays.reload()
    (home / "ca" / "coordinator.key").chmod(0o644)
    with pytest.raises(Refused, match="open to other users"):
        stays.reload()


def test_what_runs_out_is_said_a_month_ahead_and_once_a_day(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, log = 1000.0, Heard()
    monkeypatch.setattr(certificates.time, "monotonic", lambda: now)
    reissue_server(home / "ca", days=20)
    stays = Certificates(home / "ca", log)
    for later in (0.0, 1.0, certificates.DAY - 1):
        now = 1000.0 + later
        stays.look()
    assert log.events == ["certificate"]
    assert "coordinator.pem runs out in 20 days" in log.lines[0][1]["text"]
    assert stays.warnings == [log.lines[0][1]["text"]], "for `status`"
    now = 1000.0 + certificates.DAY
    stays.look()
    assert log.events == ["certificate", "certificate"]
    reissue_server(home / "ca")
    stays.reload()
    stays.look()
    assert stays.warnings == []
    assert len(log.lines) == 2


def test_sites_says_which_certificates_are_to_be_renewed() -> None:
    now = datetime.now(UTC)
    assert _soon((now + timedelta(days=12, hours=1)).isoformat()) == " (in 12 days: have it renewed)"
    assert _soon((now + timedelta(days=31)).isoformat()) == ""


def test_an_agents_warning_names_the_command(home: Path) -> None:
    soon = check_identity(home / "a").expiry_warning(now=datetime.now(UTC) + timedelta(days=340))
    assert soon is not None
    assert soon.endswith(
        "Run `coreg-agent enroll --renew`, send site.csr to the coordinator's operator, and install the answer."
    )
