"""Joining as people do it: two machines' folders that share nothing but the line of an invitation."""

import asyncio
import json
import signal
import socket
from pathlib import Path

import pytest
from federation import until, well
from processes import Process

from coreg_wire.identity.signatures import key_pem, load_key
from site_agent.identity.identity import check_identity
from site_agent.session.stream import check_connection

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(0)]


def two_free_ports():
    """The first of two."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first:
            port = first.getsockname()[1]
            try:
                socket.create_server(("127.0.0.1", port + 1)).close()
            except (OSError, OverflowError):
                continue
        return port


class Machine:
    """A folder of its own, with processes whose output is in files there."""

    def __init__(self, folder):
        folder.mkdir()
        self.folder, self.processes = folder, []

    def start(self, program, *arguments):
        out = [self.folder / f"{len(self.processes)}.{kind}" for kind in ("out", "err")]
        for file in out:
            file.touch()
        entry, argv = program.removeprefix("coreg-"), [program, *map(str, arguments)]
        self.processes.append(Process(entry, argv, cwd=self.folder, env={}, out=out[0], err=out[1]))
        return self.processes[-1]

    def said(self, number=-1):
        number %= len(self.processes)
        return "".join((self.folder / f"{number}.{kind}").read_text() for kind in ("out", "err"))


def test_a_site_joins_by_one_line_while_the_coordinator_serves_and_is_revoked_by_one_word(tmp_path):
    operator, site, thief = Machine(tmp_path / "operator"), Machine(tmp_path / "site"), Machine(tmp_path / "thief")
    try:
        port = two_free_ports()
        well("coreg-coordinator", "init", "fed", "--site", "clinic", "--site", "lab-1", cwd=operator.folder)
        file = operator.folder / "fed" / "federation.toml"
        file.write_text(file.read_text().replace(":7600", f":{port}"))
        serving = operator.start("coreg-coordinator", "serve", "fed", "--json")
        until(lambda: serving.poll() is not None or '"listening"' in operator.said())
        invited = well("coreg-coordinator", "invite", "fed", "clinic", cwd=operator.folder)
        line = next(word for word in invited.split() if word.startswith("coreg://"))
        (site.folder / "line.txt").write_text(invited)

        assert site.start("coreg-agent", "join", "line.txt").wait() == 0, site.said()
        told = site.said()
        assert "clinic: joined, certificate valid until" in told
        assert told.splitlines()[-1] == "next: coreg-agent --data local.csv"
        assert f'coordinator = "127.0.0.1:{port}"' in (site.folder / "agent.toml").read_text()
        until(lambda: "clinic has enrolled" in operator.said(0))
        identity = check_identity(site.folder / "identity")
        assert "accepts this site's certificate" in asyncio.run(check_connection(f"127.0.0.1:{port}", identity))

        (site.folder / "agent.toml").write_text('coordinator = "elsewhere:1"\n')
        assert site.start("coreg-agent", "join", line).wait() == 0, site.said()
        assert "agent.toml: exists, unchanged" in site.said()
        assert "has coordinator = 'elsewhere:1', and the invitation is from" in site.said()
        assert thief.start("coreg-agent", "join", line).wait() == 4
        assert "was used by another key" in thief.said()

        well("coreg-coordinator", "revoke", "fed", "clinic", cwd=operator.folder)
        assert site.start("coreg-agent", "join", line).wait() == 4, "revoked"
        serving.send_signal(signal.SIGTERM)
        assert serving.wait() == 0
        assert site.start("coreg-agent", "join", line).wait() == 7
        # The key and the secret are where they belong, and nowhere else.
        key = key_pem(load_key((site.folder / "identity" / "site.key").read_bytes(), Path("site.key"))).split(b"\n")[1]
        secret = line.rpartition(".")[2].encode()
        holds = {path for path in tmp_path.rglob("*") if path.is_file() and key in path.read_bytes()}
        assert holds == {site.folder / "identity" / "site.key"}
        assert [path for path in tmp_path.rglob("*") if path.is_file() and secret in path.read_bytes()] == [
            site.folder / "line.txt"
        ]
        events = [json.loads(text)["event"] for text in operator.said(0).splitlines() if text.startswith("{")]
        assert events.count("enrolled") == 1
        assert (site.folder / "identity" / "site.key").stat().st_mode & 0o777 == 0o600
    finally:
        for machine in (operator, site, thief):
            for process in machine.processes:
                process.kill()
