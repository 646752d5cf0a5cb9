"""The agent's process, against a coordinator in memory: consent, sessions that break, signals, bad
will, and dialling.
"""

import asyncio
import socket
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import replace

import grpc
import numpy as np
import pytest
from agent_files import write
from agent_home import Agent, until
from test_data_sets import TABLE
from test_model_store import plan as plan_of
from test_workers import first_step

from coreg_core.errors import BadData, LeftBehind, Refused, Unreachable
from coreg_core.messages import (
    Answer,
    Approval,
    Dismissed,
    Fetched,
    Finished,
    Leaving,
    Offer,
    PlanRefused,
    Proposal,
    Rejected,
    Step,
    Words,
)
from coreg_core.outcomes import Outcome
from coreg_wire.identity.credentials import client_credentials
from coreg_wire.transport.codec import PIECE_BYTES
from coreg_wire.v1 import federation_pb2 as pb
from site_agent.identity.identity import check_identity
from site_agent.ledger import HeadSigner, read_ledger
from site_agent.ledger.audit import SignedHead, audit
from site_agent.machine.session_events import Exit
from site_agent.service import approvals
from site_agent.service import daemon as daemons
from site_agent.service.state_store import Decision, StateStore
from site_agent.session import stream
from tests.issued import enrolled


def plan(run):
    return Proposal(run, 0, plan_of(run))


async def hears(line):
    """The next message that is not about the approval."""
    while isinstance(message := await line.hears(), Approval):
        pass
    return message


def test_a_decision_is_acted_on(tmp_path, monkeypatch):
    monkeypatch.setattr(approvals, "DECISION_SECONDS", 0.1)
    agent = Agent(tmp_path, mode="ask first")

    async def conversation(coordinator):
        line = await coordinator.session()
        for run, approved, answer in (("r1", True, Offer), ("r2", False, PlanRefused)):
            line.says(plan(run))
            await until(lambda run=run: [e["plan"]["run"] for e in agent.state.pending()] == [run])
            agent.state.record_decision(
                *agent.state.pending_run(run), Decision(approved, "not this one")
            )
            assert isinstance(await hears(line), answer)
        line.says(plan("r3"))
        await until(agent.state.pending)
        write(tmp_path, TABLE + "q3,1,1,\n", "local.csv")
        agent.state.record_decision(*agent.state.pending_run("r3"), Decision(True, ""))
        await until(lambda: "asked_again" in agent.noticed and agent.state.pending())
        agent.state.record_decision(*agent.state.pending_run("r3"), Decision(True, ""))
        assert isinstance(await hears(line), Offer), (
            "what its operator approved is that of the new table"
        )

    agent.against(conversation)
    assert agent.noticed.count("waiting_for_approval") == 4


@pytest.mark.parametrize("approved", [True, False])
def test_the_ledger_has_who_decided_and_what_was_shown(tmp_path, monkeypatch, approved):
    monkeypatch.setattr(approvals, "DECISION_SECONDS", 0.1)
    agent = Agent(tmp_path, mode="ask first")
    shown = {}

    async def conversation(coordinator):
        line = await coordinator.session()
        line.says(plan("r1"))
        await until(agent.state.pending)
        name, request = agent.state.pending_run("r1")
        shown.update(request["about"])
        decision = Decision(approved, "not this one", by="anna")
        agent.state.record_decision(name, request, decision)
        assert isinstance(await hears(line), Offer if approved else PlanRefused)

    agent.against(conversation)
    [line] = [entry for entry in read_ledger(agent.ledger.path) if entry["kind"] == "Decided"]
    assert (line["run"], line["plan"]) == ("r1", plan("r1").plan.digest)
    assert (line["by"], line["approved"], line["shown"]) == ("anna", approved, shown)
    assert "leaves this machine" in shown


def test_a_run_that_waited_is_accepted_without_asking_again_after_a_restart(tmp_path):
    async def ask(coordinator):
        (await coordinator.session()).says(plan("r1"))
        await until(agent.state.pending)
        agent.state.record_decision(*agent.state.pending_run("r1"), Decision(True, "", by="anna"))

    async def answers(coordinator):
        line = await coordinator.session()
        line.says(plan("r1"))
        line.says(first_step(await hears(line)))
        assert isinstance(await hears(line), Answer), "which the next question would count"

    async def again(coordinator):
        line = await coordinator.session()
        line.says(plan("r1"))
        assert isinstance(await hears(line), Offer)
        line.says(Finished("r1", Outcome.REFUSED, "south refused"))
        assert isinstance(await hears(line), Fetched)
        await until(lambda: agent.state.decision("r1") is None)

    agent = Agent(tmp_path, mode="ask first")
    agent.against(ask)
    for conversation in (answers, again):
        agent = Agent(tmp_path, mode="ask first")
        agent.against(conversation)
    assert [entry["stop"] for entry in agent.state.history()] == ["REFUSED"]
    assert agent.recorded.count("Decided") == 1, "one decision"
    assert "waiting_for_approval" not in agent.noticed, "nobody is asked again"


def test_a_request_does_not_outlive_its_run(tmp_path, monkeypatch):
    """The run ends while its request is being written, or while the agent is away."""
    begun = threading.Event()
    write = StateStore.request_approval

    def slowly(state, *request):
        begun.set()
        time.sleep(0.3)
        return write(state, *request)

    async def conversation(coordinator):
        line = await coordinator.session()
        line.says(plan("r1"))
        await asyncio.to_thread(begun.wait)
        line.says(Finished("r1", Outcome.REFUSED, "south refused"))
        assert isinstance(await hears(line), Fetched)
        await asyncio.sleep(0.5)
        assert agent.state.pending() == []
        line.says(plan("r2"))
        await until(agent.state.pending)

    monkeypatch.setattr(StateStore, "request_approval", slowly)
    agent = Agent(tmp_path, mode="ask first")
    agent.against(conversation)
    assert [entry["plan"]["run"] for entry in agent.state.pending()] == ["r2"]
    agent.state.open()
    assert agent.state.pending() == [], "the coordinator proposes it again, if it is not over"


def test_a_broken_session_is_dialled_again_and_runs_go_on(tmp_path):
    agent = Agent(tmp_path)

    async def conversation(coordinator):
        for _ in range(2):
            line = await coordinator.session()
            line.says(plan("r1"))
            assert isinstance(await line.hears(), Offer)
            line.breaks()
        (await coordinator.session()).says(Rejected("not listed yet"))
        (await coordinator.session()).says(Rejected("renamed", final=True))
        await coordinator.session()

    assert agent.against(conversation) == Exit(), "its operator ends it"
    status = agent.state.status()
    assert status["ended"] is None, "no message ends a service"
    assert status["waiting"] == "stopped", "no message ends a service"
    assert agent.noticed.count("connected") == 2
    assert agent.noticed.count("not_connected") == 4
    assert agent.noticed.count("data_read") == 1, "nothing is read or factored again"


def test_a_run_that_goes_on_without_this_site_is_in_the_status_until_it_comes_again(tmp_path):
    agent = Agent(tmp_path)

    def unresolved():
        return (agent.state.status() or {}).get(
            "unresolved", []
        )  # the file is written a moment after the start

    async def conversation(coordinator):
        line = await coordinator.session()
        line.says(plan("r1"))
        assert isinstance(await line.hears(), Offer)
        line.says(Dismissed("r1", Outcome.REFUSED, "north and south list other ids"))
        await until(lambda: "list other ids" in "".join(unresolved()))
        line.says(plan("r1"))
        assert isinstance(await line.hears(), Offer)
        await until(lambda: unresolved() == [])

    agent.against(conversation)


@pytest.mark.parametrize("moment", ["connected", "not_connected"])
def test_a_stopped_agent_leaves_its_session_in_order_or_stops_dialling(tmp_path, moment):
    agent = Agent(tmp_path)
    heard = []

    def stop_at_the_moment(notice):
        if notice.name == moment:
            agent.daemon.stop()

    agent.on_notice = stop_at_the_moment

    async def conversation(coordinator):
        line = await coordinator.session()
        if moment == "not_connected":
            coordinator.answers = False
            line.breaks()
        else:
            heard.append(await line.hears())
        await asyncio.sleep(10_000)

    assert agent.against(conversation).error is None
    assert [type(message) for message in heard] == [Leaving] * (moment == "connected")


def test_an_agent_of_one_run_ends_with_it_and_gives_up_when_no_coordinator_answers(tmp_path):
    async def conversation(coordinator):
        line = await coordinator.session()
        line.says(plan("r1"))
        assert isinstance(await line.hears(), Offer)
        line.says(Finished("r1", Outcome.STALLED, "south is gone"))
        await asyncio.sleep(10_000)

    async def silence(coordinator):
        coordinator.answers = False
        await asyncio.sleep(10_000)

    agent = Agent(tmp_path, mode="once")
    assert agent.against(conversation).outcome is Outcome.STALLED
    assert agent.recorded[-2:] == ["Fetched", "Leaving"]
    with pytest.raises(
        Unreachable, match=r"coordinator:1: no answer \(tried for 0 s\)\. Start the agent again"
    ):
        Agent(tmp_path, mode="once").against(silence, timeout=0.2)


def test_an_outage_is_one_notice_a_reason_and_its_end_is_another(tmp_path):
    agent = Agent(tmp_path)

    async def conversation(coordinator):
        line = await coordinator.session()
        line.says(plan("r1"))
        await line.hears()
        coordinator.answers = False
        line.breaks()
        dialled = coordinator.dialled
        await until(lambda: coordinator.dialled >= dialled + 50)
        await until(lambda: "no answer" in agent.state.status()["waiting"])
        coordinator.answers = True
        (await coordinator.session()).says(plan("r1"))
        await until(lambda: agent.noticed.count("connected") == 2)

    agent.against(conversation)
    texts = [n.text for n in agent.notices if n.name in ("connected", "not_connected")]
    assert [text.partition("; ")[0] for text in texts] == [
        "connected",
        "not connected to coordinator:1: the stream broke (cut)",
        "not connected to coordinator:1: no answer",
        "connected again",
    ]


def test_long_silence_is_reported(tmp_path, monkeypatch):
    for name, seconds in (("SILENCE", 0.02), ("SETTLED", 0.01)):
        monkeypatch.setattr(daemons, name, seconds)
    agent = Agent(tmp_path)

    async def conversation(coordinator):
        line = await coordinator.session()
        await until(lambda: "connected" in agent.noticed)
        assert "waiting" not in agent.noticed, "a serving agent without runs is silent"
        line.says(plan("r1"))
        await line.hears()
        await until(lambda: "waiting" in agent.noticed)
        await until(lambda: doing() == "waiting for the coordinator or other sites")

    doing = lambda: agent.state.status()["runs"].get("r1", {}).get("doing")  # noqa: E731
    agent.against(conversation)


# --- a coordinator that speaks while a site prepares, and the head of the ledger ------------------

WHY = "it has other instances"


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (Rejected(WHY), Refused),
        (Dismissed("r1", Outcome.SITE_FAULT, WHY), BadData),
        (Dismissed("r1", Outcome.STALLED, WHY), LeftBehind),
    ],
)
def test_a_site_that_is_rejected_or_dismissed_while_it_prepares_hears_why(tmp_path, said, error):
    agent = Agent(tmp_path, mode="once")
    began = threading.Event()
    may_go_on = threading.Event()
    work = agent.workers.work

    def slowly(message, **given):
        began.set()
        assert may_go_on.wait(20)
        return work(message, **given)

    agent.workers.work = slowly

    async def conversation(coordinator):
        line = await coordinator.session()
        coordinator.answers = False
        line.says(plan("r1"))
        await asyncio.to_thread(began.wait, 20)
        line.says(said)
        await asyncio.sleep(0.1)
        may_go_on.set()
        await asyncio.sleep(10_000)

    with pytest.raises(error, match=WHY) as caught:
        agent.against(conversation, timeout=1.0)
    if not isinstance(said, Rejected):
        assert "this site does not take part in run r1: " in str(caught.value)


def countersigned(home, folder, answer):
    """An agent of a run that ends without a model; ``answer`` is given what the notary made of the
    head in `Fetched`.
    """
    agent = Agent(folder, mode="once", signer=HeadSigner(home.identity()))
    identity = home.identity()

    async def conversation(coordinator):
        line = await coordinator.session()
        line.says(Finished("r1", Outcome.CANCELLED, "enough"))
        line.says(
            answer(home.notary.countersign("north", identity.certificate_pem, await line.hears()))
        )
        await asyncio.sleep(10_000)

    assert agent.against(conversation).outcome is Outcome.CANCELLED, (
        "the run is over, whatever was countersigned"
    )
    return agent


def both_signed(home, agent, *record):
    return audit(agent.ledger.path, home.authorities, "north", record).both


def test_the_coordinators_signature_stands_in_the_ledger_before_the_agent_leaves(home, tmp_path):
    agent = countersigned(home, tmp_path, lambda signed: signed.receipt)
    assert agent.recorded == ["Hello", "Fetched", "Countersigned", "Leaving"]
    assert both_signed(home, agent).head.lines == 1


def test_a_coordinator_that_does_not_countersign_is_not_waited_for(home, tmp_path, monkeypatch):
    """Its record has the head all the same, and its own signature with it."""
    monkeypatch.setattr(daemons, "COUNTERSIGNING", 0.3)
    kept = []
    agent = countersigned(
        home, tmp_path, lambda signed: kept.append(signed) or replace(signed.receipt, run="r2")
    )
    assert agent.recorded == ["Hello", "Fetched", "Leaving"]
    assert any("is not countersigned" in notice.text for notice in agent.notices)
    assert both_signed(home, agent) is None
    [signed] = kept
    record = SignedHead(
        "north", "r1", signed.receipt.head, signed.signature, signed.certificate, signed.receipt
    )
    assert both_signed(home, agent, record) == record


# --- a coordinator of bad will --------------------------------------------------------------------


def refused(folder, *said, proposed=True):
    """Why an agent of one run ended that received this, messages or frames, and what stands in its
    ledger.
    """
    agent = Agent(folder, mode="once")

    async def conversation(coordinator):
        line = await coordinator.session()
        if proposed:
            line.says(plan("r1"))
            offer = await line.hears()
        for each in said:
            if isinstance(each, pb.CoordinatorFrame):
                line.sends(each.SerializeToString())
            elif isinstance(each, Step) and each.summed is None:
                line.says(replace(each, roster=(offer, replace(offer, site="south"))))
                await line.hears()
            else:
                line.says(each)
        await asyncio.sleep(10_000)

    with pytest.raises(Refused) as error:
        agent.against(conversation)
    assert agent.workers.written == (), "no model"
    return str(error.value), agent.recorded


def test_words_before_a_plan_end_the_session_before_memory_is_taken(tmp_path):
    words = pb.Payload(size=8 * 20_000 * 4096)
    chunk = pb.CoordinatorFrame(chunk=pb.Chunk(run="r1", data=bytes(PIECE_BYTES)))
    announced = pb.CoordinatorFrame(message=pb.ToSite(step=pb.Step(run="r1", summed=words)))
    tracemalloc.start()
    try:
        reason, recorded = refused(tmp_path, announced, chunk, chunk, chunk, proposed=False)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20, "655 MB were announced"
    finally:
        tracemalloc.stop()
    assert "broke the protocol: 655360000 bytes for run 'r1', where 0 fit" in reason
    assert recorded == ["Hello"], "and nothing was answered"


def words_of(count, run="r1"):
    return Step(run, 0, 0, summed=Words(np.zeros(count, dtype="<u8")))


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (words_of(3, "r2"), "24 bytes for run 'r2', where 0 fit"),
        (words_of(1_000_000), "8000000 bytes for run 'r1', where 0 fit"),
        (pb.CoordinatorFrame(), "the coordinator broke the protocol: "),
    ],
    ids=["of another run", "of more words than the plan has", "no content"],
)
def test_what_no_plan_allows_ends_the_session(tmp_path, said, words):
    reason, recorded = refused(tmp_path, said)
    assert words in reason
    assert recorded == ["Hello", "Offer"]


def test_an_end_that_the_site_did_not_see_ends_an_agent_of_one_run_without_a_model(tmp_path):
    reason, recorded = refused(tmp_path, Step("r1", 0, 0), Finished("r1", Outcome.CONVERGED, ""))
    assert "ended run r1 with a result before this site had received its last step" in reason
    assert recorded == ["Hello", "Offer", "Answer", "Fetched"]


# --- dialling -------------------------------------------------------------------------------------


async def greet(connection, heard):
    """A conversation that goes on until the stream ends."""
    await connection.write(b"hello")
    while await connection.read() is not None:
        heard()
    raise ConnectionError("closed")


@contextmanager
def nobody(_authority):
    with closing(socket.socket()) as free:
        free.bind(
            ("127.0.0.1", 0)
        )  # bound and not listening: nobody else can take the port meanwhile
        yield free.getsockname()[1]


@contextmanager
def another_service(authority):
    with ThreadPoolExecutor(2) as pool:
        key, certificate = (
            (authority / f"coordinator.{end}").read_bytes() for end in ("key", "pem")
        )
        server = grpc.server(pool)
        port = server.add_secure_port(
            "127.0.0.1:0", grpc.ssl_server_credentials([(key, certificate)])
        )
        server.start()
        try:
            yield port
        finally:
            server.stop(None).wait(5)


@pytest.mark.parametrize("other", [nobody, another_service], ids=lambda f: f.__name__)
def test_the_timeout_holds_whatever_answers(tmp_path, other):
    identity = check_identity(enrolled(tmp_path / "identity"))
    credentials = client_credentials(identity.key_pem, identity.certificate_pem, identity.ca_pem)
    notes = []
    since = time.monotonic()
    with other(tmp_path / "authority") as port:
        dial = stream.Dial(stream.GrpcDialler(f"127.0.0.1:{port}", lambda: credentials), 1.0)
        with pytest.raises(Unreachable, match=rf"127\.0\.0\.1:{port}.*Start the agent again"):
            asyncio.run(
                asyncio.wait_for(stream.keep_dialling(greet, dial, notes.append), timeout=400)
            )
    assert 0.9 <= time.monotonic() - since < 300, notes


class Script:
    """A dialler that fails with the given errors, one a call.

    Then one conversation runs to its end.
    """

    address = "c:1"

    def __init__(self, *failures):
        self.failures = list(failures)
        self.pauses = []

    @asynccontextmanager
    async def connect(self, timeout):
        if self.failures and isinstance(self.failures[0], stream.NoAnswer):
            raise self.failures.pop(0)
        yield None

    def jitter(self, low, high):
        assert low < high
        self.pauses.append(high)
        return 0.0

    async def converse(self, _connection, heard):
        if self.failures:
            heard()
            raise self.failures.pop(0)
        return "over"

    def dial(self):
        notes = []
        dial = stream.Dial(self, float("inf"), jitter=self.jitter)
        assert asyncio.run(stream.keep_dialling(self.converse, dial, notes.append)) == "over"
        return notes


def test_pauses_double_up_to_a_minute_and_begin_again_after_a_session():
    closed = stream.NoAnswer("the port is closed (from 127.0.0.1:40812)")
    script = Script(*(11 * [closed]), stream.LostSession("cut"), closed)
    notes = script.dial()
    doubled = [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 60.0, 60.0]
    assert script.pauses == pytest.approx([*doubled, 0.2, 0.4])
    assert notes[0].state == "the port is closed", "without details that differ from try to try"
    assert notes[0].text == (
        "not connected to c:1: the port is closed (from 127.0.0.1:40812); trying again (no timeout)"
    )
    assert notes[11].text.startswith("not connected to c:1: the stream broke (cut)")


def test_a_refused_session_is_dialled_again_after_a_longer_pause_which_grows_after_breaches():
    refused = stream.SessionRefused("not listed", 30.0, 30.0)
    broken = stream.SessionRefused("a step without a plan", 30.0, 600.0)
    script = Script(refused, refused, *(6 * [broken]), refused)
    notes = script.dial()
    assert "not listed" in notes[0].text
    assert script.pauses == [30.0, 30.0, 60.0, 120.0, 240.0, 480.0, 600.0, 600.0, 30.0]


def test_a_status_keeps_the_newest_reasons_cut_short(tmp_path):
    """A coordinator chooses their number and their texts."""
    agent = Agent(tmp_path)

    async def conversation(coordinator):
        line = await coordinator.session()
        for number in range(30):
            line.says(Dismissed(f"r{number}", Outcome.REFUSED, f"{number} " + "x" * 5000))
        await until(lambda: agent.noticed.count("dismissed") == 30)

    agent.against(conversation)
    reasons = agent.daemon.status()["unresolved"]
    assert len(reasons) == 20
    assert max(map(len, reasons)) <= 300
    assert "run r29: 29 " in reasons[-1]
