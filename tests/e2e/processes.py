"""Processes that start at once: forked from one that has imported the programs.

Importing takes a second or two each time.

The forked process runs the console script's function with arguments, folder, environment and files
of its own; it is a child of this process, so that its exit code and signals are those of any
process.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path

CHILD_SUBREAPER = 36  # prctl: children of a process that has ended become ours
PATIENCE = 600.0
PRELOADED = (
    "coordinator.cli.app", "coordinator.service.daemon", "site_agent.service.app",
    "sklearn.ensemble",
)  # fmt: skip


@cache
def _forkserver():
    ctypes.CDLL(None).prctl(CHILD_SUBREAPER, 1, 0, 0, 0)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("COREG_")}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, __file__], env=clean, **pipes)


@dataclass(frozen=True)
class Job:
    """A command of ours; ``out`` and ``err`` are files."""

    argv: list[str]
    cwd: str | Path
    out: str | Path
    err: str | Path
    env: dict[str, str] = field(default_factory=dict)
    first: str = ""  # executed before the command


class Process:
    """As `subprocess.Popen`, so far as tests need it."""

    def __init__(self, job):
        server = _forkserver()
        self.returncode = None
        server.stdin.write(json.dumps(asdict(job), default=str) + "\n")
        server.stdin.flush()
        self.pid = int(server.stdout.readline())

    def poll(self):
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout=PATIENCE):
        end = time.monotonic() + timeout
        while self.poll() is None:
            assert time.monotonic() < end, f"process {self.pid} goes on"
            time.sleep(0.005)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)
        self.wait()


def _serve():
    """Fork a process for every line of standard input, and print its number."""
    for module in PRELOADED:
        import_module(module)
    import_module("site_agent.session.stream").LONGEST_PAUSE = 0.5  # nobody is far away here
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for line in sys.stdin:
        reading, writing = os.pipe()
        if (first := os.fork()) == 0:
            if (pid := os.fork()) == 0:
                _become(Job(**json.loads(line)))
            os.write(writing, str(pid).encode())
            os._exit(0)
        os.waitpid(first, 0)
        os.write(1, os.read(reading, 20) + b"\n")
        os.close(reading)
        os.close(writing)


PACKAGES = {
    "coreg-coordinator": "coordinator",
    "coreg-agent": "site_agent",
    "coreg-sim": "coreg_sim",
}


def _become(job):
    try:
        os.chdir(job.cwd)
        os.environ.update(job.env)
        for number, path in enumerate(("/dev/null", job.out, job.err)):
            os.dup2(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600), number)
    except BaseException:  # noqa: BLE001 - of the process that this one has become
        traceback.print_exc()
        os._exit(1)
    run_program(job.argv, job.first)


def run_program(argv, first=""):
    """This forked process is the program, and ends."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv = argv
        exec(first, {})
        package = PACKAGES[argv[0]]
        import_module(f"{package}.cli.app").main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - of the process that this one has become
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve()
