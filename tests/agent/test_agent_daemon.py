"""The agent's process, against a coordinator in memory: consent, sessions that break, signals, and what takes long."""

import asyncio
import gc
import json
import re
import shutil
import time
from pathlib import Path

import ledger_home
import pytest
from agent_home import Agent, until
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from test_model_store import plan as plan_of
from test_workers import first_step, twice

from coreg_core.errors import Refused, Unreachable
from coreg_core.protocol.messages import (
    Approval,
    Dismissed,
    Fetched,
    Finished,
    Hello,
    Leaving,
    Offer,
    PlanRefused,
    Proposal,
    Rejected,
)
from coreg_core.protocol.outcomes import Notice, Outcome
from site_agent.ledger import read_ledger
from site_agent.service import daemon as daemons
from site_agent.service.metrics import AgentMetrics
from site_agent.service.state_dir import Decision, StateDir
from site_agent.session.stream import Session


def plan(run):
    return Proposal(run, 0, plan_of(run))


async def hears(line):
    """The next message that is not about the approval."""
    while isinstance(message := await line.hears(), Approval):
        pass
    return message


def test_an_approval_is_acted_on_at_once(tmp_path, monkeypatch):
    """The operator's command wakes the agent. The test would not end if the agent polled for the decision."""
    monkeypatch.setattr(daemons, "DECISION_SECONDS", 10_000.0)
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


def test_a_lost_ring_is_made_up_for(tmp_path, monkeypatch):
    monkeypatch.setattr(daemons, "DECISION_SECONDS", 0.2)
    agent = Agent(tmp_path, ask_first=True)

    async def conversation(coordinator):
        line = await coordinator.session()
        line.says(plan("r1"))
        await until(agent.state.pending)
        agent.state.bell.unlink()
        agent.state.record_decision("r1", Decision(True, ""))
        assert [await line.hears(), await line.hears()] == [Approval("r1", False), Approval("r1", True)]
        assert isinstance(await line.hears(), Offer)

    agent.against(conversation)


def test_a_run_that_waited_is_accepted_without_asking_again_after_a_restart(tmp_path):
    async def ask(coordinator):
        (await coordinator.session()).says(plan("r1"))
        await until(agent.state.pending)
        agent.state.record_decision("r1", Decision(True, ""))
        agent.state.bell.unlink()

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


def test_a_run_is_named_in_every_greeting_until_its_end_arrives(tmp_path):
    agent, greeted = Agent(tmp_path), []

    async def session(coordinator):
        line = await coordinator.session()
        greeted.append(line.hello.runs)
        return line

    async def conversation(coordinator):
        line = await session(coordinator)
        line.says(plan("r1"))
        step = first_step(await line.hears())
        line.says(step)
        while (answer := await line.hears()).words is not None:
            step = twice(answer)
            line.says(step)
        line.breaks()
        line = await session(coordinator)
        line.says(plan("r1"))  # another site has not answered the last step yet
        assert isinstance(await line.hears(), Offer)
        await until(lambda: not agent.daemon.agent.runs["r1"].busy)
        line.breaks()
        line = await session(coordinator)
        line.says(Finished("r1", Outcome.CONVERGED, ""))
        assert isinstance(await line.hears(), Fetched)
        await until(lambda: "run_over" in agent.noticed)
        line.breaks()
        await session(coordinator)

    agent.against(conversation)
    assert greeted == [(), ("r1",), ("r1",), ()]
    [entry] = agent.state.history()
    assert (entry["stop"], len(entry["models"])) == ("CONVERGED", 2)


def test_what_needs_the_operator_is_in_the_status_and_a_reload_tries_again(tmp_path):
    """A run that went on without this site, and a file that is not in force, stay until they are mended."""
    agent = Agent(tmp_path)

    def unresolved():
        return (agent.state.status() or {}).get("unresolved", [])  # the file is written a moment after the start

    async def conversation(coordinator):
        line = await coordinator.session()
        line.says(plan("r1"))
        assert isinstance(await line.hears(), Offer)
        line.says(Dismissed("r1", Outcome.REFUSED, "north and south list other ids"))
        agent.daemon.notify(Notice("not_reloaded", "configuration not reloaded: policy.toml, line 3", "warning"))
        await until(lambda: len(unresolved()) == 2)
        assert any("list other ids" in text for text in unresolved())
        agent.daemon.workers.tables.troubles["patients"] = "no such file"
        agent.daemon.notify(Notice("reloaded"))
        line = (
            await coordinator.session()
        )  # dialled again: the coordinator invites the site to the run that waits for it
        line.says(plan("r1"))
        assert isinstance(await line.hears(), Offer)
        await until(lambda: unresolved() == [])
        assert agent.daemon.workers.tables.troubles == {}

    agent.against(conversation)


def test_a_reload_reads_the_data_again_for_a_run_that_has_not_begun(tmp_path):
    """Its list of shared instances can be the wrong one, although another site was named."""
    agent = Agent(tmp_path)

    async def conversation(coordinator):
        line = await coordinator.session()
        line.says(plan("r1"))
        first = await line.hears()
        table = tmp_path / "local.csv"
        rows = table.read_text().splitlines()
        shared = next(i for i, row in enumerate(rows) if row.endswith(","))
        table.write_text("\n".join(rows[:shared] + rows[shared + 1 :]) + "\n")
        agent.daemon.notify(Notice("reloaded"))
        line = await coordinator.session()
        line.says(plan("r1"))
        again = await line.hears()
        assert again.n_unlabelled == first.n_unlabelled - 1

    agent.against(conversation)
    assert agent.noticed.count("data_read") == 2


def test_a_reload_does_not_change_the_data_that_an_operator_approved(tmp_path):
    agent = Agent(tmp_path, ask_first=True)

    async def conversation(coordinator):
        line = await coordinator.session()
        line.says(plan("r1"))
        await until(agent.state.pending)
        agent.state.record_decision("r1", Decision(True, ""))
        assert isinstance(await hears(line), Offer)
        await until(lambda: "approved" in agent.noticed)
        agent.daemon.notify(Notice("reloaded"))
        line.says(plan("r1"))
        assert isinstance(await hears(line), Offer), "in the same session"

    agent.against(conversation)
    assert (agent.noticed.count("data_read"), agent.noticed.count("connected")) == (1, 1)


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


def test_long_work_and_long_silence_are_reported(tmp_path, monkeypatch):
    for name, seconds in (("LONG_WORK", 0.02), ("SILENCE", 0.02), ("SETTLED", 0.01)):
        monkeypatch.setattr(daemons, name, seconds)
    agent = Agent(tmp_path)
    work = agent.workers.work
    monkeypatch.setattr(agent.workers, "work", lambda *a, **k: time.sleep(0.3) or work(*a, **k))

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
    working = [notice.text for notice in agent.notices if notice.name == "working"]
    assert working == ["checking the plan and factoring the data: 0 s so far"], "once"


def test_the_last_status_is_that_it_stopped_however_slow_the_disk_was_before(tmp_path, monkeypatch):
    agent, write = Agent(tmp_path), StateDir.write_status
    slow = lambda state, status: (status["waiting"] == "stopped" or time.sleep(0.2), write(state, status))  # noqa: E731
    monkeypatch.setattr(StateDir, "write_status", slow)
    agent.on_notice = lambda notice: agent.daemon.stop() if notice.name == "connected" else None

    async def conversation(coordinator):
        await coordinator.session()
        await asyncio.sleep(10_000)

    agent.against(conversation)
    assert json.loads((tmp_path / "service" / "status.json").read_text())["waiting"] == "stopped"


def test_a_stream_that_breaks_while_its_session_ends_leaves_no_traceback(tmp_path):
    """asyncio logs the error of a task that nobody asked (storm)."""

    class Broken:
        async def read(self):
            raise ConnectionError("the connection broke")

    async def ends():
        heard = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context))
        session = Session(Broken(), None, None)
        session.reading()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        del session  # as after an error: nothing reads from it any more
        gc.collect()
        return heard

    assert asyncio.run(ends()) == []


# --- metrics ----------------------------------------------------------------------------------------------------------

ROOT = Path(__file__).resolve().parents[2]


def test_every_number_is_what_happened(tmp_path):
    agent = Agent(tmp_path)
    counters, registry = agent.daemon.counters, AgentMetrics(agent.daemon, agent.ledger, agent.state).registry()

    def read():
        found = text_string_to_metric_families(generate_latest(registry).decode())
        return {(s.name.removeprefix("coreg_agent_"), *s.labels.values()): s.value for f in found for s in f.samples}

    before = read()
    assert (before["connected",], before["approvals_waiting",], before["ledger_bytes",]) == (0, 0, 0)
    assert before["seconds_count", "question"] == 0, "it is there before anything happened: rates begin at nothing"
    assert ("certificate_not_after_seconds",) not in before, "there is none"

    agent.ledger.record(Hello("north", 3))
    agent.ledger.record(ledger_home.answer(), ledger_home.told())
    agent.state.request_approval("run-1", {"run": "run-1"})
    agent.daemon.connected_since, agent.daemon.certificate_until = "2026-01-01", "2027-01-01T00:00:00+00:00"
    with counters.timed("question"):
        pass
    with pytest.raises(OSError, match="full"), counters.timed("end"):
        raise OSError("full")
    counters.bytes["sent"] += 77
    counters.ended["CONVERGED"] += 1
    counters.refusals, counters.sessions = 1, 2
    agent.daemon.unresolved["r1"] = "this run goes on without this site"
    agent.daemon.workers.tables.troubles["patients"] = "no such file"
    found = read()
    assert found["seconds_sum", "question"] > 0
    assert found["problems",] == 2
    expected = {
        ("connected",): 1, ("approvals_waiting",): 1, ("runs_under_way",): 0, ("certificate_not_after_seconds",): 1798761600,
        ("ledger_bytes",): (tmp_path / "ledger.jsonl").stat().st_size, ("sessions_total",): 2, ("refusals_total",): 1,
        ("seconds_count", "question"): 1, ("seconds_count", "end"): 1, ("bytes_total", "sent"): 77,
        ("bytes_total", "received"): 0, ("runs_over_total", "CONVERGED"): 1, ("messages_total", "Hello"): 1,
        ("messages_total", "Answer"): 1, ("numbers_total", "Hello"): 0, ("numbers_total", "Answer"): 3,
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected
    assert 0 < found["ledger_free_bytes",] < shutil.disk_usage(tmp_path).total

    there = {f"coreg_agent_{name}" for name, *_ in found} | {"coreg_agent_seconds"}
    for page in ("deploy/alerts.yml", "docs/how-to/operate-a-coordinator.md"):
        named = set(re.findall(r"\bcoreg_agent_\w+", (ROOT / page).read_text()))
        assert named, page
        assert named <= there, f"{page}: {sorted(named - there)}"
    agent.ledger.close()
