"""The agent's process against a coordinator's sessions: the races of a slow site, the end of a run, a coordinator of bad will."""

import asyncio
import threading
import tracemalloc
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from contract.harness import Events, Frames, Home, RunningAgent, Scripted, Workers, dialler_of, step
from machine.tiny import make_plan, offer_of

from coordinator.machine.events import SiteJoined
from coordinator.machine.records import HeadSigned
from coordinator.service.access import AccessControl
from coreg_core import messages as m
from coreg_core.errors import BadData, CoregError, LeftBehind, Refused
from coreg_core.outcomes import Outcome
from coreg_wire.identity.names import load_certificates
from coreg_wire.transport.codec import PIECE_BYTES, Assembler
from coreg_wire.v1 import federation_pb2 as pb
from site_agent.ledger import HeadSigner
from site_agent.ledger.audit import SignedHead, audit
from site_agent.machine.agent import Exit
from site_agent.machine.job import SiteResult
from site_agent.service import daemon

# --- a coordinator that speaks while a site prepares --------------------------------------------------------------


class SlowWorkers(Workers):
    """Begins to work on a plan, and goes on when it is told to."""

    began, may_go_on = threading.Event(), threading.Event()

    def work(self, message: Any, **given: Any) -> Any:
        if isinstance(message, m.Proposal):
            self.began.set()
            assert self.may_go_on.wait(20)
        return super().work(message, **given)


def while_it_prepares(path: Path, then: Callable[[Frames], Awaitable[None]]) -> RunningAgent:
    """An agent that lived until its end; ``then`` happens while it works on the plan."""
    agent = RunningAgent(path / "ledger.jsonl", workers=SlowWorkers)
    SlowWorkers.began, SlowWorkers.may_go_on = threading.Event(), threading.Event()

    async def live() -> None:
        sessions, events = Frames(), Events()
        await sessions.start(events.emit)
        dialler = dialler_of(sessions)
        living = asyncio.create_task(agent.live(dialler, timeout=1.0))
        assert isinstance(await events.next(), SiteJoined)
        await sessions.send("a", m.Proposal("run-1", 0, make_plan()))
        await asyncio.to_thread(SlowWorkers.began.wait, 20)
        acting = asyncio.create_task(then(sessions))
        await asyncio.sleep(0.1)
        dialler.up = bool(sessions._sessions)
        SlowWorkers.may_go_on.set()
        try:
            await living
        finally:
            await acting
            await sessions.close()

    asyncio.run(asyncio.wait_for(live(), 40))
    return agent


@pytest.mark.parametrize(
    ("outcome", "error"), [(None, Refused), (Outcome.SITE_FAULT, BadData), (Outcome.STALLED, LeftBehind)]
)
def test_a_site_that_is_rejected_or_dismissed_while_it_prepares_hears_why(
    tmp_path: Path, outcome: Outcome | None, error: type[CoregError]
) -> None:
    async def ended(sessions: Frames) -> None:
        if outcome is None:
            await sessions.reject("a", "it has other instances")
        else:
            await sessions.send("a", m.Dismissed("run-1", outcome, "it has other instances"))

    with pytest.raises(error, match="it has other instances") as caught:
        while_it_prepares(tmp_path, ended)
    assert outcome is None or "this site does not take part in run run-1: " in str(caught.value)


# --- the head of the ledger is countersigned ----------------------------------------------------------------------

Answer = Callable[[Frames, HeadSigned], Awaitable[None]]


def countersigned(home: Home, path: Path, answer: Answer) -> RunningAgent:
    """A run that ends without a model; ``answer`` is given what the coordinator made of the head that came with `Fetched`."""
    identity = home.identity("a")
    agent, notary = RunningAgent(path, signer=HeadSigner(identity)), AccessControl(home.authority, insecure=False)

    async def live() -> Exit:
        sessions, events = Frames(), Events()
        await sessions.start(events.emit)
        living = asyncio.create_task(agent.live(dialler_of(sessions, ("a", identity.certificate_pem))))
        await events.next()
        await sessions.send("a", m.Finished("run-1", Outcome.CANCELLED, "enough"))
        fetched = (await events.next()).message
        await answer(sessions, notary.countersign("a", sessions.certificate("a"), fetched))
        end = await living
        await sessions.close()
        return end

    end = asyncio.run(asyncio.wait_for(live(), 40))
    assert end.outcome is Outcome.CANCELLED, "the run is over for it, whatever was countersigned"
    return agent


def both_signed(home: Home, path: Path, *record: SignedHead) -> SignedHead | None:
    authorities = load_certificates((home.authority / "ca.pem").read_bytes(), "ca.pem")
    return audit(path, authorities, "a", record).both


def test_the_coordinators_signature_stands_in_the_ledger_before_the_agent_leaves(home: Home, tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    agent = countersigned(home, path, lambda sessions, signed: sessions.send("a", signed.receipt))
    assert agent.kinds == ["Hello", "Fetched", "Countersigned", "Leaving"]
    both = both_signed(home, path)
    assert (both.run, both.head.lines) == ("run-1", 1)


def test_a_coordinator_that_does_not_countersign_is_not_waited_for(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record has the head all the same, and its own signature with it."""
    path, kept = tmp_path / "ledger.jsonl", list[HeadSigned]()
    monkeypatch.setattr(daemon, "COUNTERSIGNING", 0.3)

    async def silent(sessions: Frames, signed: HeadSigned) -> None:
        kept.append(signed)
        await sessions.send("a", replace(signed.receipt, run="run-2"))  # of another run

    agent = countersigned(home, path, silent)
    assert agent.kinds == ["Hello", "Fetched", "Leaving"]
    assert any("did not countersign the head" in note for note in agent.notes)
    assert both_signed(home, path) is None
    [signed] = kept
    record = SignedHead("a", "run-1", signed.receipt.head, signed.signature, signed.certificate, signed.receipt)
    assert both_signed(home, path, record) == record


# --- a coordinator of bad will ------------------------------------------------------------------------------------


def refused(script: Callable[[Scripted], Any], path: Path, **agent: Any) -> tuple[str, list[str]]:
    """Why the agent ended, and what stands in its ledger; it is not the agent that hangs, so it ends soon."""
    running = RunningAgent(path / "ledger.jsonl", **agent)

    async def live() -> None:
        await running.live(Scripted(script).dialler)

    with pytest.raises(Refused) as error:
        asyncio.run(asyncio.wait_for(live(), 30))
    return str(error.value), running.kinds


PROPOSED = m.Proposal("run-1", 0, make_plan())


def test_words_before_a_plan_end_the_session_before_memory_is_taken(tmp_path: Path) -> None:
    words = pb.Words(count=20_000 * 4096, data=bytes(PIECE_BYTES))

    async def script(coordinator: Scripted) -> None:
        body = pb.ToSite(step=pb.Step(run="run-1", words=words))
        await coordinator.says(pb.CoordinatorFrame(message=body))
        for _ in range(3):
            await coordinator.says(pb.CoordinatorFrame(chunk=pb.Chunk(run="run-1", data=bytes(PIECE_BYTES))))

    tracemalloc.start()
    try:
        reason, kinds = refused(script, tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20, "655 MB were announced"
    finally:
        tracemalloc.stop()
    assert "broke the protocol: words for run 'run-1', whose plan was not accepted here" in reason
    assert kinds == ["Hello"], "and nothing was answered"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (step(3, run="run-2"), "whose plan was not accepted here"),
        (step(10_000_000), "words announced; at most"),
        (pb.CoordinatorFrame(), "the coordinator broke the protocol: "),
    ],
    ids=["of another run", "of more words than the plan has", "no content"],
)
def test_what_no_plan_allows_ends_the_session(tmp_path: Path, said: Any, words: str) -> None:
    async def script(coordinator: Scripted) -> None:
        await coordinator.says(PROPOSED)
        await coordinator.pipe.read()
        await coordinator.says(said)

    reason, kinds = refused(script, tmp_path)
    assert words in reason
    assert kinds == ["Hello", "Offer"]


def test_an_end_that_the_site_did_not_see_ends_the_session_without_a_model(tmp_path: Path) -> None:
    delivered = list[SiteResult]()

    async def script(coordinator: Scripted) -> None:
        await coordinator.says(PROPOSED)
        offer = Assembler().feed_site(await coordinator.pipe.read())
        roster = (offer, offer_of("b", PROPOSED.plan))
        await coordinator.says(m.Step("run-1", 0, 0, roster))
        await coordinator.pipe.read()
        await coordinator.says(m.Finished("run-1", Outcome.CONVERGED, ""))

    reason, kinds = refused(script, tmp_path, deliver=delivered.append)
    assert "ended run run-1 with a result before this site received the last step" in reason
    assert delivered == []
    assert kinds == ["Hello", "Offer", "Answer"], "and no Fetched"
