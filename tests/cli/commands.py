"""The three programs in this process, as their console scripts call them."""

import signal

import coordinator.cli.app
import coreg_sim.cli.app
import site_agent.cli.app
from coreg_wire.terminal import command_line

APPS = {
    "coreg-coordinator": coordinator.cli.app.app,
    "coreg-agent": site_agent.cli.app.app,
    "coreg-sim": coreg_sim.cli.app.app,
}


def runner(monkeypatch, capsys):
    """A function that runs a command line: (exit code, standard output, standard error)."""

    def run(program, *words):
        before = signal.getsignal(signal.SIGINT)
        monkeypatch.setattr("sys.argv", [program, *map(str, words)])
        try:
            code = command_line.run(APPS[program], program)
        finally:
            signal.signal(signal.SIGINT, before)
        return code, *capsys.readouterr()

    return run
