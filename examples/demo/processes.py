"""Federations as processes, started by the commands that an operator types: for the demonstration
and the benchmarks.
"""

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

# timeout in seconds of each run of the demonstration; one takes a few seconds on two cores
DEADLINE = 100.0


class DemoFailed(Exception):
    """A step of the demonstration failed; the message names it."""


def command(module: str, *arguments: object) -> list[str]:
    """The command line of a console script, which need not be on the path."""
    return [sys.executable, "-c", f"from {module} import main; main()", *map(str, arguments)]


def run(module: str, *arguments: object, cwd: Path) -> str:
    """Run a command; DemoFailed unless its exit code is 0."""
    done = subprocess.run(
        command(module, *arguments),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    if done.returncode != 0:
        raise DemoFailed(
            f"{module} {' '.join(map(str, arguments))}: exit code {done.returncode}\n{done.stderr}"
        )
    return done.stdout


@contextmanager
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    """A list of processes; those that still run at the end of the block are terminated."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        yield started
    finally:
        for process in started:
            if process.poll() is None:
                process.terminate()
        for process in started:
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def free_port() -> int:
    """A port of which the next one is free too: sites enrol there."""
    while True:
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            port = int(one.getsockname()[1])
            try:
                other.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


def create(work: Path, sites: Sequence[str]) -> None:
    """`coreg-coordinator init fed`: federation.toml, the authority, an invitation for each site."""
    listed = [word for site in sites for word in ("--site", site)]
    run("coordinator.cli.app", "init", "fed", *listed, "--port", free_port(), cwd=work)


def together(
    work: Path,
    name: str,
    serve: Sequence[object],
    agents: Mapping[str, Sequence[object]],
    *,
    shown: bool = False,
    started: Callable[[str, subprocess.Popen[bytes]], None] = lambda *_: None,
) -> float:
    """Run a coordinator's command in ``work`` and every agent's in its site's folder to their ends.

    Returns the seconds.

    A site that has not joined joins first, by its invitation. Output goes to NAME.log and
    NAME-SITE.log; with ``shown`` the coordinator's goes to standard output. ``started`` receives
    each process and its name: "coordinator", or the site.

    Raises
    ------
    DemoFailed
        a process does not start, does not end in time, or fails.
    """
    began = time.monotonic()
    port_file = work / f"{name}.port"
    logs = {site: work / f"{name}-{site}.log" for site in agents}
    with processes() as alive:
        sys.stdout.flush()
        output = work / f"{name}.log"
        with output.open("wb") as log:
            out = None if shown else log
            serving = command("coordinator.cli.app", *serve, "--port-file", port_file)
            coordinator = subprocess.Popen(serving, cwd=work, stdout=out, stderr=out)
        alive.append(coordinator)
        started("coordinator", coordinator)
        while not port_file.exists() or not port_file.read_text():
            if coordinator.poll() is not None or time.monotonic() - began > 30:
                raise DemoFailed(f"the coordinator did not start\n{output.read_text()}")
            time.sleep(0.02)
        joined = {}
        for site, arguments in agents.items():
            folder = _joined(work, site)
            with logs[site].open("wb") as log:
                # Between organisations the operators compare the eight words by telephone.
                dial = command("site_agent.cli.app", *arguments, "--yes", "--accept-words")
                joined[site] = subprocess.Popen(dial, cwd=folder, stdout=log, stderr=log)
            alive.append(joined[site])
            started(site, joined[site])
        everyone = {"the coordinator": coordinator, **joined}
        while running := [who for who, process in everyone.items() if process.poll() is None]:
            _require_success(everyone, name, logs, output)
            if time.monotonic() - began > DEADLINE:
                raise DemoFailed(f"{name}: {', '.join(running)} did not end within {DEADLINE:g} s")
            time.sleep(0.05)
        _require_success(everyone, name, logs, output)
    return time.monotonic() - began


def _joined(work: Path, site: str) -> Path:
    """The site's folder with an identity: a site without one joins by its invitation."""
    folder = work / site
    folder.mkdir(exist_ok=True)
    if not (folder / "identity" / "site.pem").exists():
        run("site_agent.cli.app", "join", work / "fed" / "invitations" / site, cwd=folder)
    return folder


def _require_success(
    processes: Mapping[str, subprocess.Popen[bytes]],
    name: str,
    logs: Mapping[str, Path],
    output: Path,
) -> None:
    for who, process in processes.items():
        if process.poll() not in (None, 0, 3):
            words = logs.get(who, output).read_text()
            raise DemoFailed(f"{name}: {who}: exit code {process.returncode}\n{words}")
