"""Certificates once a worker; the contract runs on every transport."""

from pathlib import Path

import pytest
from contract.harness import SITES, TRANSPORTS, Home, Wire

from coordinator.authority.pki import create_authority
from site_agent.identity.enrolment import enrol, install
from tests.issued import issued


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    path: Path = tmp_path_factory.mktemp("federation")
    create_authority(path / "ca", [])
    create_authority(path / "other-ca", [])
    for directory, name, authority in [
        *((s, s, "ca") for s in SITES),
        ("stranger", "a", "other-ca"),
    ]:
        enrol(path / directory, name)
        signed = issued(path / authority, path / directory / "site.csr")
        install(path / directory, signed)
    return Home(path)


@pytest.fixture(params=TRANSPORTS, ids=lambda f: f.__name__)
def wire(request: pytest.FixtureRequest, home: Home) -> Wire:
    made: Wire = request.param(home)
    return made
