"""The end of a run over mutual TLS: a head leaves with `Fetched`, and an agent takes what comes back, and waits for nothing."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from harness import Home
from machine.tiny import make_site

from coordinator.authority.authorised import Authorised
from coordinator.authority.notary import Notary
from coordinator.authority.pki import load_server
from coordinator.machine.events import Event, Received, SiteJoined, SiteLost
from coordinator.machine.records import HeadSigned
from coordinator.transports.grpc_mtls import GrpcServer
from coreg_core.protocol.messages import Fetched, Finished, Leaving
from coreg_core.protocol.outcomes import Outcome
from coreg_wire.identity.credentials import server_credentials
from coreg_wire.identity.names import load_certificates
from site_agent.ledger import HeadSigner, Ledger, read_ledger
from site_agent.ledger.audit import Audited, SignedHead, audit
from site_agent.session import dial
from site_agent.session.dial import Dial, Watcher, take_part

Answer = Callable[[GrpcServer, HeadSigned], Awaitable[None]]


def nothing(_of: Any) -> None:
    """Nobody is told."""


async def to_the_end(home: Home, path: Path, answer: Answer) -> tuple[list[Event], list[str]]:
    """A run that ends without a model: what the coordinator saw from `Fetched` on, and what the agent noted."""
    events: asyncio.Queue[Event] = asyncio.Queue()
    files = load_server(home.authority)
    credentials = server_credentials(files.key_pem, files.certificate_pem, files.ca_pem)
    server = GrpcServer("127.0.0.1:0", credentials, Authorised(home.authority).check, attest=Notary(files).attest)
    await server.start(events.put_nowait)
    notes, ledger = list[str](), Ledger(path, HeadSigner(home.identity("a")))
    dial = Dial(f"127.0.0.1:{server.port}", home.credentials("a"), 5.0)
    agent = asyncio.create_task(take_part(make_site("a"), ledger, dial, Watcher(notes.append, nothing, nothing)))
    seen = list[Event]()
    try:
        assert isinstance(await events.get(), SiteJoined)
        await server.send("a", Finished("run-1", Outcome.CANCELLED, "enough"))
        seen.append(await events.get())
        fetched = seen[0]
        assert isinstance(fetched, Received)
        assert fetched.signed is not None
        await answer(server, fetched.signed)
        result = await agent
        assert result.outcome is Outcome.CANCELLED, "the run is over for it, whatever was countersigned"
    finally:
        agent.cancel()
        await server.close()
        ledger.close()
    while not events.empty():
        seen.append(events.get_nowait())
    return seen, notes


def ended(home: Home, tmp_path: Path, answer: Answer) -> tuple[list[Event], list[str], list[str]]:
    path = tmp_path / "ledger.jsonl"
    seen, notes = asyncio.run(asyncio.wait_for(to_the_end(home, path, answer), 60))
    return seen, notes, [entry["kind"] for entry in read_ledger(path)]


def audited(home: Home, tmp_path: Path, *record: SignedHead) -> Audited:
    authorities = load_certificates((home.authority / "ca.pem").read_bytes(), "ca.pem")
    return audit(tmp_path / "ledger.jsonl", authorities, "a", record)


def test_the_coordinators_signature_stands_in_the_ledger_before_the_agent_leaves(home: Home, tmp_path: Path) -> None:
    async def countersign(server: GrpcServer, signed: HeadSigned) -> None:
        await server.send("a", signed.receipt)

    seen, notes, kinds = ended(home, tmp_path, countersign)
    assert kinds == ["Hello", "Fetched", "Countersigned", "Leaving"]
    assert notes == ["connected"]
    assert seen[-1] == Received("a", Leaving("the run is over")), "it left, and was not lost"
    both = audited(home, tmp_path).both
    assert both is not None
    assert (both.run, both.head.lines) == ("run-1", 1)


@pytest.mark.parametrize("killed", [False, True])
def test_a_coordinator_that_does_not_answer_is_not_waited_for(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    """Its record has the head all the same, and its own signature with it."""
    kept = list[HeadSigned]()
    monkeypatch.setattr(dial, "COUNTERSIGNING", 30.0 if killed else 0.3)

    async def silent(server: GrpcServer, signed: HeadSigned) -> None:
        kept.append(signed)
        if killed:
            await server.close()

    seen, notes, kinds = ended(home, tmp_path, silent)
    assert kinds == ["Hello", "Fetched", "Leaving"]
    assert "did not countersign the head" in notes[-1]
    assert "The next run's head has all lines of this one" in notes[-1]
    assert isinstance(seen[0], Received)
    assert isinstance(seen[0].message, Fetched)
    assert not any(isinstance(event, SiteLost) for event in seen[:1])
    assert audited(home, tmp_path).both is None
    signed = kept[0]
    record = SignedHead("a", "run-1", signed.receipt.head, signed.signature, signed.certificate, signed.receipt)
    found = audited(home, tmp_path, record)
    assert found.both == record


def test_a_head_under_another_key_is_not_countersigned_and_the_site_is_told(home: Home, tmp_path: Path) -> None:
    notary, told = Notary(load_server(home.authority)), list[str]()

    async def refuse(server: GrpcServer, signed: HeadSigned) -> None:
        pem = home.identity("b").certificate_pem
        refused = notary.attest("a", pem, Fetched("run-1", signed.receipt.head, signed.signature))
        told.append(refused.receipt.reason)
        await server.send("a", refused.receipt)

    _, notes, kinds = ended(home, tmp_path, refuse)
    assert kinds == ["Hello", "Fetched", "Leaving"]
    assert told[0] in notes[-1]
