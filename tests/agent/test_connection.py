"""The agent's patience: dialling ends when it was said to end, whatever answers at the address, or nothing."""

import asyncio
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import grpc
import numpy as np
import pytest

from coreg_core.errors import Unreachable
from site_agent.ledger import Ledger, read_ledger
from site_agent.machine.site import Site
from site_agent.machine.site_data import PrivateData
from site_agent.session.dial import Dial, Watcher, take_part


def dial(folder, address, patience):
    """(seconds until it gave up, why, notes)."""
    rng = np.random.default_rng(0)
    data = PrivateData(rng.normal(size=(4, 2)), rng.normal(size=4), rng.normal(size=(5, 2)), "d")
    notes, ledger = [], Ledger(folder / "ledger.jsonl")
    watcher = Watcher(notes.append, lambda message: None, lambda result: None)
    since = time.monotonic()
    try:
        with pytest.raises(Unreachable) as gave_up:
            asyncio.run(
                asyncio.wait_for(
                    take_part(Site("north", data), ledger, Dial(address, None, patience), watcher), timeout=40
                )
            )
    finally:
        ledger.close()
    return time.monotonic() - since, str(gave_up.value), notes


@contextmanager
def nobody():
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))  # bound and not listening: nobody else can take the port meanwhile
        yield f"127.0.0.1:{free.getsockname()[1]}"


@contextmanager
def somebody_silent():
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def another_service():
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait(5)


@pytest.mark.parametrize("other", [nobody, somebody_silent, another_service], ids=lambda f: f.__name__)
def test_patience_is_kept_to_whatever_answers(tmp_path, other):
    with other() as address:
        seconds, why, notes = dial(tmp_path, address, 1.0)
    assert 0.9 <= seconds < 8, notes  # the last attempt may begin just before the end
    assert address in why
    assert "Start the agent again when it is up." in why
    # What another service was told is the greeting, and the ledger has it.
    assert {e["kind"] for e in read_ledger(tmp_path / "ledger.jsonl")} <= {"Hello"}
