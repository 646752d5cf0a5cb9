"""Our programs on a shell's path, for pages that a test types.

Each is a small process that asks a server to fork, which has imported the programs: importing takes
seconds each time. The fork has the shell's folder, environment and files. Signals go to it, its
exit code comes back, and it ends with the small process.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from processes import PACKAGES, PRELOADED, run_program

ADDRESS = "TYPED_PROGRAMS"  # the variable that names the server's socket
SMALL = f"""#!{sys.executable} -SE
import json, os, signal, socket, sys
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.connect(os.environ["{ADDRESS}"])
for number in (signal.SIGTERM, signal.SIGINT):
    if signal.getsignal(number) is not signal.SIG_IGN:
        signal.signal(number, lambda number, _: server.send(bytes([number])))
argv = [os.path.basename(sys.argv[0]), *sys.argv[1:]]
asked = json.dumps([argv, os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(server, [asked], [0, 1, 2])
sys.exit(server.recv(1)[0])
"""
LONGEST = 1 << 17  # bytes of a request


@contextmanager
def typed_programs(folder):
    """Variables of a shell that finds the programs, while the server runs."""
    path = folder / "bin"
    path.mkdir(parents=True)
    for program in PACKAGES:
        (path / program).write_text(SMALL)
        (path / program).chmod(0o700)
    address = str(folder / "socket")
    command = [sys.executable, __file__, address]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout.readline() == "ready\n"
        python = Path(sys.executable).parent
        search = os.pathsep.join([str(path), str(python), os.environ["PATH"]])
        yield {"PATH": search, ADDRESS: address}
    finally:
        server.kill()
        server.communicate()


def _serve(address):
    for module in (*PRELOADED, "coreg_sim.cli.app"):
        import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the guards
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(address)
        server.listen()
        os.write(1, b"ready\n")
        while True:
            asking, _ = server.accept()
            if os.fork() == 0:
                server.close()
                _guard(asking)
                os._exit(0)
            asking.close()


def _guard(asking):
    """Fork the program, and stand between it and the small process until one of them ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    asked, files, _, _ = socket.recv_fds(asking, LONGEST, 3)
    argv, folder, environment = json.loads(asked)
    program = os.fork()
    if program == 0:
        asking.close()
        for number, file in enumerate(files):
            os.dup2(file, number)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        run_program(argv)
    for file in (0, 1, 2, *files):  # readers of a pipe wait until nobody has it open
        os.close(file)
    ended = os.pidfd_open(program)
    while True:
        ready, _, _ = select.select([asking, ended], [], [])
        if ended in ready:
            _, status = os.waitpid(program, 0)
            code = os.waitstatus_to_exitcode(status)
            asking.send(bytes([code if code >= 0 else 128 - code]))
            return
        number = asking.recv(1)
        os.kill(program, number[0] if number else signal.SIGKILL)


if __name__ == "__main__":
    _serve(sys.argv[1])
