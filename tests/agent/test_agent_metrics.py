"""What an agent tells Prometheus is what it did and what its files hold."""

import re
import shutil
from pathlib import Path

import ledger_home
import pytest
from agent_home import Agent
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from coreg_core.protocol.messages import Hello
from site_agent.service.metrics import AgentMetrics

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
