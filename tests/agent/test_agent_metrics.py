"""What an agent tells Prometheus is what it did and what its files hold, and it is read from this machine alone."""

import re
import socket
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from coreg_core.errors import UsageError
from coreg_core.protocol.messages import Hello, PlanAccepted
from coreg_wire.terminal.logs import make_log
from coreg_wire.terminal.metrics_server import listen
from site_agent.data.data_sets import DataSets
from site_agent.ledger import Ledger
from site_agent.models.store import Archive
from site_agent.policy.policy import Policy
from site_agent.service.daemon import Service
from site_agent.service.metrics import Numbers
from site_agent.service.state_dir import Desk


def test_every_number_is_what_happened(tmp_path: Path) -> None:
    desk, ledger = Desk(tmp_path / "service"), Ledger(tmp_path / "ledger.jsonl")
    desk.open()
    archive, log = Archive("north", tmp_path / "models", None), make_log(as_json=True)
    service = Service("north", Policy(), ledger, desk, archive, DataSets({}, b""), log, ask_first=True)
    numbers = Numbers(service, ledger, desk)

    def read() -> dict[tuple[str, ...], float]:
        text = generate_latest(numbers.registry()).decode()
        found = text_string_to_metric_families(text)
        return {(s.name.removeprefix("coreg_agent_"), *s.labels.values()): s.value for f in found for s in f.samples}

    before = read()
    assert (before["connected",], before["approvals_waiting",], before["ledger_bytes",]) == (0, 0, 0)
    assert before["seconds_count", "question"] == 0, "it is there before anything happened: rates begin at nothing"
    assert ("certificate_not_after_seconds",) not in before, "there is none"

    ledger.record(Hello("north", 1))
    ledger.record(PlanAccepted("run-1", "d", 6, "ids", "data", 2.0, 5.0, 1))
    (tmp_path / "ledger-0001.jsonl").write_bytes(bytes(1000))  # as one that was put aside
    (tmp_path / "ledger-notes.jsonl").write_bytes(bytes(1000))
    desk.ask("run-1", {"run": "run-1"})
    service.connected_since, service.certificate_until = "2026-01-01", "2027-01-01T00:00:00+00:00"
    with service.tally.spending("question"):
        pass
    with pytest.raises(OSError, match="full"), service.tally.spending("end"):
        raise OSError("full")
    service.tally.bytes["sent"] += 77
    service.tally.ended["CONVERGED"] += 1
    service.tally.refusals += 1
    service.tally.sessions += 2
    found = read()
    assert (found["connected",], found["approvals_waiting",], found["runs_under_way",]) == (1, 1, 0)
    assert found["ledger_bytes",] == (tmp_path / "ledger.jsonl").stat().st_size + 1000
    assert found["certificate_not_after_seconds",] == 1798761600.0
    assert (found["sessions_total",], found["refusals_total",]) == (2, 1)
    assert (found["seconds_count", "question"], found["seconds_count", "end"]) == (1, 1), "however it ends"
    assert found["seconds_sum", "question"] > 0
    assert (found["bytes_total", "sent"], found["bytes_total", "received"]) == (77, 0)
    assert found["runs_over_total", "CONVERGED"] == 1
    assert (found["messages_total", "Hello"], found["messages_total", "PlanAccepted"]) == (1, 1)
    assert (found["numbers_total", "Hello"], found["numbers_total", "PlanAccepted"]) == (0, 3)

    there = {f"coreg_agent_{name}" for name, *_ in found} | {"coreg_agent_seconds"}
    root = Path(__file__).resolve().parents[2]
    for page in ("deploy/alerts.yml", "docs/operators-guide.md"):
        named = set(re.findall(r"\bcoreg_agent_\w+", (root / page).read_text()))
        assert named, page
        assert named <= there, f"{page}: {sorted(named - there)}"

    with pytest.raises(UsageError, match="on a loopback address only"):
        listen("0.0.0.0:0", numbers.registry())
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    end = listen(f"127.0.0.1:{port}", numbers.registry())
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
            assert b"coreg_agent_approvals_waiting 1.0" in answer.read()
    finally:
        end()
        ledger.close()
