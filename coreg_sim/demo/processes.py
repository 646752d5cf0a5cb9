"""Federations as processes, started by the commands that an operator types, and ended by their ids: for the
demonstration.
"""

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

DEADLINE = 100.0  # seconds for any run of the demonstration; each takes a few on two cores


class DemoFailed(Exception):
    """A step of the demonstration went wrong; the message says which."""


def command(module: str, *arguments: object) -> list[str]:
    """A console script of this very environment, whether or not it is on the path."""
    return [sys.executable, "-c", f"from {module} import main; main()", *map(str, arguments)]


def run(module: str, *arguments: object, cwd: Path) -> str:
    """A command that has to end well."""
    done = subprocess.run(  # noqa: S603 - our own commands
        command(module, *arguments), cwd=cwd, capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    if done.returncode != 0:
        raise DemoFailed(f"{module} {' '.join(map(str, arguments))}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


@contextmanager
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Started processes, ended by their ids whatever happens."""
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


def enrol(work: Path, sites: Sequence[str]) -> None:
    """An authority in `federation`, and every site with an identity of its own."""
    run("coordinator.cli.app", "init", "federation", cwd=work)
    for site in sites:
        run("site_agent.cli.app", "enroll", "--name", site, "--identity", site, cwd=work)
        run("coordinator.cli.app", "sign", "--identity", "federation", f"{site}/site.csr", cwd=work)
        run("site_agent.cli.app", "enroll", "--identity", site, "--install", f"federation/{site}.pem", cwd=work)
    # Here from certificates; between organisations each operator hears the others' words by telephone (`coreg-agent peers`).
    certificates = [f"federation/{site}.pem" for site in sites]
    pinned = run("site_agent.cli.app", "peers", "--pin", "--identity", sites[0], *certificates, cwd=work)
    (work / "peers.toml").write_text(pinned, encoding="utf-8")


def together(
    work: Path, name: str, serve: Sequence[object], agents: Mapping[str, Sequence[object]], *, shown: bool = False
) -> float:
    """A coordinator's command and every agent's, to their ends; the seconds that it took.

    Parameters
    ----------
    work
        the folder that all run in; NAME.log and NAME-SITE.log are written there.
    name
        of this federation.
    serve
        the coordinator's arguments, less the port file.
    agents
        each site's arguments, less the address.
    shown
        the coordinator's table goes to standard output.

    Raises
    ------
    DemoFailed
        one did not start, did not end in time, or ended badly.
    """
    started, port_file = time.monotonic(), work / f"{name}.port"
    logs = {site: work / f"{name}-{site}.log" for site in agents}
    with processes() as alive:
        sys.stdout.flush()
        said = work / f"{name}.log"
        with said.open("wb") as log:
            out = None if shown else log
            serving = command("coordinator.cli.app", *serve, "--port-file", port_file)
            coordinator = subprocess.Popen(serving, cwd=work, stdout=out, stderr=out)  # noqa: S603
        alive.append(coordinator)
        while not port_file.exists() or not port_file.read_text():
            if coordinator.poll() is not None or time.monotonic() - started > 30:
                raise DemoFailed(f"the coordinator did not start\n{said.read_text()}")
            time.sleep(0.02)
        address = f"127.0.0.1:{port_file.read_text().strip()}"
        joined = {}
        for site, arguments in agents.items():
            with logs[site].open("wb") as log:
                dial = command("site_agent.cli.app", *arguments, "--coordinator", address, "--identity", site)
                joined[site] = subprocess.Popen(dial, cwd=work, stdout=log, stderr=log)  # noqa: S603
            alive.append(joined[site])
        for who, process in {"the coordinator": coordinator, **joined}.items():
            try:
                code = process.wait(timeout=max(1.0, DEADLINE - (time.monotonic() - started)))
            except subprocess.TimeoutExpired:
                raise DemoFailed(f"{name}: {who} did not end within {DEADLINE:g} s") from None
            if code not in (0, 3):
                words = logs[who].read_text() if who in logs else said.read_text()
                raise DemoFailed(f"{name}: {who}: exit code {code}\n{words}")
    return time.monotonic() - started
