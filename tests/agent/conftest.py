"""Enrolled once a file, with a ledger of its own for each test."""

import pytest
from ledger_home import Home


@pytest.fixture(scope="module")
def enrolled(tmp_path_factory):
    return Home(tmp_path_factory.mktemp("home"))


@pytest.fixture
def home(enrolled):
    for path in enrolled.path.parent.glob("ledger*"):
        path.unlink()
    return enrolled
