"""Two authorities that share no key; site `a` has enrolled with the first and `stranger` with the
second.
"""

from pathlib import Path

import pytest

from coordinator.authority.pki import create_authority
from site_agent.identity.enrolment import enrol, install
from tests.issued import issued


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for authority, site in (("ca", "a"), ("other-ca", "stranger")):
        create_authority(tmp_path / authority, [])
        install(tmp_path / site, issued(tmp_path / authority, enrol(tmp_path / site, site)))
    return tmp_path
