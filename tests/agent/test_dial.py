"""Dialling ends when it was said to end, whatever answers at the address; pauses and reasons follow what happened."""

import asyncio
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, contextmanager

import grpc
import pytest

from coreg_core.errors import Unreachable
from site_agent.session.grpc_mtls import GrpcDialler
from site_agent.session.stream import PAUSE_WHEN_REFUSED, Dial, LostSession, NoAnswer, SessionRefused, keep_dialling


async def greet(connection, heard):
    """A conversation that goes on until the stream ends."""
    await connection.write(b"hello")
    while await connection.read() is not None:
        heard()
    raise ConnectionError("closed")


@contextmanager
def nobody():
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))  # bound and not listening: nobody else can take the port meanwhile
        yield free.getsockname()[1]


@contextmanager
def somebody_silent():
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@contextmanager
def another_service():
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield port
        finally:
            server.stop(None).wait(5)


@pytest.mark.parametrize("other", [nobody, somebody_silent, another_service], ids=lambda f: f.__name__)
def test_the_timeout_holds_whatever_answers(other):
    notes, since = [], time.monotonic()
    with other() as port:
        dial = Dial(GrpcDialler(f"127.0.0.1:{port}", None), 1.0)
        with pytest.raises(
            Unreachable, match=rf"127\.0\.0\.1:{port}.*Start the agent again when the coordinator is up"
        ):
            asyncio.run(asyncio.wait_for(keep_dialling(greet, dial, notes.append), timeout=400))
    assert 0.9 <= time.monotonic() - since < 300, notes


class Script:
    """A dialler that fails as it is told to, time after time; then a conversation comes to its end."""

    address = "c:1"

    def __init__(self, *failures):
        self.failures, self.pauses = list(failures), []

    @asynccontextmanager
    async def connect(self, timeout):
        if self.failures and isinstance(self.failures[0], NoAnswer):
            raise self.failures.pop(0)
        yield None

    def jitter(self, low, high):
        self.pauses.append((low + high) / 2)
        return 0.0

    async def converse(self, _connection, heard):
        if self.failures:
            heard()
            raise self.failures.pop(0)
        return "over"

    def dial(self):
        notes = []
        dial = Dial(self, float("inf"), jitter=self.jitter)
        assert asyncio.run(keep_dialling(self.converse, dial, notes.append)) == "over"
        return notes


def test_pauses_double_up_to_ten_seconds_and_begin_again_after_a_session():
    script = Script(
        *(NoAnswer("the port is closed") for _ in range(8)), LostSession("cut"), NoAnswer("the port is closed")
    )
    notes = script.dial()
    assert script.pauses == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 0.2, 0.4])
    assert notes[0].startswith("not connected to c:1: the port is closed; trying again (no timeout)")
    assert "cut" in notes[8], "a session that broke has its own reason"


def test_a_refused_session_is_dialled_again_after_a_longer_pause():
    script = Script(SessionRefused("not listed"))
    [note] = script.dial()
    assert (script.pauses, "not listed" in note) == ([PAUSE_WHEN_REFUSED], True)
