"""The agent's process, against a coordinator in memory: consent, sessions that break, signals, what takes long, and dialling."""

import asyncio
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, contextmanager

import grpc
import pytest
from agent_home import Agent, until
from test_model_store import plan as plan_of

from coreg_core.errors import Refused, Unreachable
from coreg_core.messages import (
    Approval,
    Dismissed,
    Fetched,
    Finished,
    Leaving,
    Offer,
    PlanRefused,
    Proposal,
    Rejected,
)
from coreg_core.outcomes import Outcome
from site_agent.ledger import read_ledger
from site_agent.service import daemon as daemons
from site_agent.service.state_dir import Decision
from site_agent.session.stream import (
    PAUSE_WHEN_REFUSED,
    Dial,
    GrpcDialler,
    LostSession,
    NoAnswer,
    SessionRefused,
    keep_dialling,
)


def plan(run):
    return Proposal(run, 0, plan_of(run))


async def hears(line):
    """The next message that is not about the approval."""
    while isinstance(message := await line.hears(), Approval):
        pass
    return message


def test_a_decision_is_acted_on(tmp_path, monkeypatch):
    monkeypatch.setattr(daemons, "DECISION_SECONDS", 0.1)
    agent = Agent(tmp_path, ask_first=True)

    async def conversation(coordinator):
        line = await coordinator.session()
        for run, approved, answer in (("r1", True, Offer), ("r2", False, PlanRefused)):
            line.says(plan(run))
            await until(lambda run=run: [e["plan"]["run"] for e in agent.state.pending()] == [run])
            agent.state.record_decision(run, Decision(approved, "not this one"))
            assert isinstance(await hears(line), answer)

    agent.against(conversation)
    assert agent.noticed.count("waiting_for_approval") == 2


def test_a_run_that_waited_is_accepted_without_asking_again_after_a_restart(tmp_path):
    async def ask(coordinator):
        (await coordinator.session()).says(plan("r1"))
        await until(agent.state.pending)
        agent.state.record_decision("r1", Decision(True, ""))

    async def again(coordinator):
        line = await coordinator.session()
        line.says(plan("r1"))
        assert isinstance(await hears(line), Offer)
        line.says(Finished("r1", Outcome.REFUSED, "south refused"))
        assert isinstance(await hears(line), Fetched)
        await until(lambda: agent.state.decision("r1") is None)

    agent = Agent(tmp_path, ask_first=True)
    agent.against(ask)
    agent = Agent(tmp_path, ask_first=True)
    agent.against(again)
    assert [entry["stop"] for entry in agent.state.history()] == ["REFUSED"]
    assert "waiting_for_approval" not in agent.noticed, "nobody is asked again"


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
        await asyncio.sleep(10_000)

    with pytest.raises(Refused, match="the coordinator refused this session: renamed"):
        agent.against(conversation)
    ended = json.loads((tmp_path / "service" / "status.json").read_text())["ended"]
    assert (ended["exit_code"], ended["reason"]) == (4, "the coordinator refused this session: renamed")
    assert (agent.noticed.count("connected"), agent.noticed.count("not_connected")) == (2, 3)
    assert json.loads((tmp_path / "service" / "status.json").read_text())["waiting"] == "stopped"
    assert agent.noticed.count("data_read") == 1, "nothing is read or factored again"


def test_a_run_that_goes_on_without_this_site_is_in_the_status_until_it_comes_again(tmp_path):
    agent = Agent(tmp_path)

    def unresolved():
        return (agent.state.status() or {}).get("unresolved", [])  # the file is written a moment after the start

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
    agent, heard = Agent(tmp_path), []
    agent.on_notice = lambda notice: agent.daemon.stop() if notice.name == moment else None

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

    assert Agent(tmp_path, once=True).against(conversation).outcome is Outcome.STALLED
    assert [e["kind"] for e in read_ledger(tmp_path / "ledger.jsonl")][-2:] == ["Fetched", "Leaving"]
    with pytest.raises(Unreachable, match=r"coordinator:1: no answer \(tried for 0 s\)\. Start the agent again"):
        Agent(tmp_path, once=True).against(silence, timeout=0.2)


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


# --- dialling ---------------------------------------------------------------------------------------------------------


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
def another_service():
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield port
        finally:
            server.stop(None).wait(5)


@pytest.mark.parametrize("other", [nobody, another_service], ids=lambda f: f.__name__)
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
    """A dialler that fails with the given errors, one a call. Then one conversation runs to its end."""

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
