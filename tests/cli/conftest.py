import os

import pytest
from commands import runner


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """`commands.runner`, in a folder of this test and without settings from the environment."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("COREG_")]:
        monkeypatch.delenv(name)
    return runner(monkeypatch, capsys)
