"""Enrolled once a file, with a ledger of its own for each test."""

import pytest
from ledger_home import Home
from trained_sites import trained


@pytest.fixture(scope="session")
def federations(tmp_path_factory):
    """Trained sites by kernel, and with noise on labels: the local model is then another one than
    that among the features.
    """
    rules = {"gaussian": {}, "linear": {"kernel": "linear"}, "noisy": {"label_noise": 0.5}}
    return {
        name: trained(tmp_path_factory.mktemp(name), **changes) for name, changes in rules.items()
    }


@pytest.fixture(scope="module")
def enrolled(tmp_path_factory):
    return Home(tmp_path_factory.mktemp("home"))


@pytest.fixture
def home(enrolled):
    for path in enrolled.path.parent.glob("ledger*"):
        path.unlink()
    return enrolled
