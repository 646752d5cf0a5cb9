"""The three programs in this process, as their console scripts call them."""

import os
import signal

import pytest

import coordinator.cli.app
import coreg_sim.cli.app
import site_agent.cli.app
from coreg_wire.terminal import command_line

APPS = {
    "coreg-coordinator": coordinator.cli.app.app,
    "coreg-agent": site_agent.cli.app.app,
    "coreg-sim": coreg_sim.cli.app.app,
}


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """A function that runs a command line, in a folder of this test, without settings from the
    environment.

    It returns (exit code, standard output, standard error).
    """
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("COREG_")]:
        monkeypatch.delenv(name)

    def run(program, *words):
        before = signal.getsignal(signal.SIGINT)
        monkeypatch.setattr("sys.argv", [program, *map(str, words)])
        try:
            code = command_line.run(APPS[program], program)
        finally:
            signal.signal(signal.SIGINT, before)
        return code, *capsys.readouterr()

    return run
