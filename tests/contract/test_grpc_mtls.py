"""coordinator/transports/grpc_mtls.py: what only TLS and sockets can do wrong. What a session is: test_sessions.py."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

import grpc
import pytest
from contract.harness import Client, Events, Home, Watching, hello, within
from machine.tiny import TIMEOUTS, make_plan

from coordinator.authority.authorised import authorise, revoke
from coordinator.driver import NullSink, drive
from coordinator.machine import notices as n
from coordinator.machine.events import AccessRefused, Interrupted, SiteJoined, SiteLost
from coordinator.machine.federation import begin
from coordinator.transports.grpc_mtls import GrpcServer
from coreg_core.errors import UsageError
from coreg_wire.transport.service import check_free
from site_agent.session.grpc_mtls import GrpcDialler
from site_agent.session.stream import NoAnswer


@contextlib.asynccontextmanager
async def serving(home: Home, **options: float) -> AsyncIterator[tuple[GrpcServer, Events]]:
    server, events = home.server(**options), Events()
    await server.start(events.emit)
    try:
        yield server, events
    finally:
        await server.close()


async def rejected(home: Home, port: int, certificate: str, said: str) -> str:
    async with home.dial(port, certificate) as client:
        await client.send(hello(said))
        return await client.rejection()


@pytest.mark.parametrize("how", ["no certificate", "another authority's", "no TLS"])
@within(30)
async def test_without_a_certificate_of_this_authority_there_is_no_connection(home: Home, how: str) -> None:
    ours, stranger = home.identity("a"), home.identity("stranger")
    credentials = {
        "no certificate": lambda: grpc.ssl_channel_credentials(ours.ca_pem),
        "another authority's": lambda: grpc.ssl_channel_credentials(
            ours.ca_pem, stranger.key_pem, stranger.certificate_pem
        ),
        "no TLS": None,
    }[how]
    async with serving(home) as (server, events):

        async def open_a_session() -> None:
            async with GrpcDialler(f"127.0.0.1:{server.port}", credentials).connect(10.0) as connection:
                client = Client(connection)
                await client.send(hello())
                await client.receive()

        with pytest.raises((NoAnswer, ConnectionError)):  # gRPC tells at the first write or the first read
            await open_a_session()
        assert events.seen == []


@within(30)
async def test_the_allow_list_is_asked_at_every_join(home: Home) -> None:
    path = home.authority / "authorised-sites"
    listed = path.read_text()
    mark = next(line.split()[1] for line in listed.splitlines() if line.startswith("c "))
    try:
        async with serving(home) as (server, events):
            revoke(home.authority, "c")
            reason = await rejected(home, server.port, "c", "c")
            assert "never signed here, or was revoked" in reason
            assert await events.next() == AccessRefused("c", reason), "the coordinator's operator receives it too"
            authorise(home.authority, "c", 64 * "0")
            assert "the key was replaced" in await rejected(home, server.port, "c", "c")
            await events.next()
            authorise(home.authority, "c", mark)
            async with home.dial(server.port, "c") as client:
                await client.send(hello("c"))
                assert await events.next() == SiteJoined(hello("c"))
                assert server.certificate("c") == home.identity("c").certificate_pem
            assert await events.next() == SiteLost("c", "its stream ended")
    finally:
        path.write_text(listed)


@within(30)
async def test_a_site_may_not_use_another_name_and_the_operator_sees_who_tried(home: Home) -> None:
    server, watching, listening = home.server(), Watching(), asyncio.Event()
    begun = begin(make_plan(), replace(TIMEOUTS, join=30.0))
    run = asyncio.create_task(drive(begun, server, NullSink(), watching.notice, on_start=lambda emit: listening.set()))
    await listening.wait()
    reason = await rejected(home, server.port, "b", "a")
    assert "says it is 'a', but its certificate is 'b''s" in reason
    while n.access_denied("a", reason) not in watching.notices:
        await asyncio.sleep(0.01)
    server.emit(Interrupted())
    await run


@within(30)
async def test_an_address_that_is_taken_is_a_usage_error_and_grpc_says_nothing(
    home: Home, capfd: pytest.CaptureFixture[str]
) -> None:
    async with serving(home) as (server, _):
        other = GrpcServer(f"127.0.0.1:{server.port}", None, lambda name, pem: None)
        with pytest.raises(UsageError, match=r"cannot listen.*another program listens"):
            await other.start(lambda event, handled=None: None)
        with pytest.raises(UsageError, match=r"::1:7713: write an IPv6 address in brackets, as in \[::1\]:7713\."):
            check_free("::1:7713")
    assert capfd.readouterr() == ("", "")
