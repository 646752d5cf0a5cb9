"""What is counted for Prometheus is what happened: a run from its first question to its last, read over HTTP."""

import re
import socket
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from machine.tiny import make_plan, undisturbed
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from coordinator.driver import Timing
from coordinator.machine import notices as n
from coordinator.machine.records import Closed, StepTaken
from coordinator.machine.state import resume
from coordinator.observers.metrics import Metrics
from coordinator.store.summaries import Summaries
from coreg_core.errors import UsageError
from coreg_core.protocol.outcomes import Outcome


def read(metrics: Metrics) -> dict[tuple[str, tuple[str, ...]], float]:
    """Every sample by its name and its labels' values, as a scraper has them."""
    text = generate_latest(metrics.registry).decode()
    return {
        (s.name, tuple(s.labels.values())): s.value for f in text_string_to_metric_families(text) for s in f.samples
    }


def test_a_run_is_counted_under_its_study(tmp_path: Path) -> None:
    metrics, plan = Metrics(), make_plan()
    metrics.began(plan.run, "waits")
    records = undisturbed(plan).records
    steps = [number for number, record in enumerate(records) if isinstance(record, StepTaken)]
    gaps = []
    for number in steps:
        progress = resume(plan, records[: number + 1]).progress
        if progress.verified:
            gaps.append(float(np.max(progress.gap)))
        metrics.notice(n.QuestionAnswered(plan.run, number, 0, 3, progress), Timing(0.25, 100, 200))
    metrics.notice(n.SessionOpened("a", "0.2.0", "2027-01-01T00:00:00+00:00"), Timing())
    metrics.notice(n.SessionOpened("b", "0.2.0", ""), Timing())
    metrics.notice(n.SessionEnded("b", "its stream ended"), Timing())
    metrics.notice(n.AccessDenied("z", "revoked"), Timing())
    metrics.notice(n.Stalled(plan.run, ("b",), 600.0), Timing())
    store = tmp_path / "runs.sqlite"
    store.write_bytes(bytes(1000))
    (tmp_path / "runs.sqlite-wal").write_bytes(bytes(24))
    metrics.stock(3, 1, store)
    metrics.notice(n.RunEnded(plan.run, Outcome.CONVERGED, ""), Timing())
    found = read(metrics)
    assert found["coreg_questions_total", ("waits",)] == len(steps)
    assert found["coreg_rounds_total", ("waits",)] == progress.round
    assert found["coreg_question_seconds_sum", ("", "waits")] == pytest.approx(0.25 * len(steps))
    assert (found["coreg_bytes_total", ("sent",)], found["coreg_bytes_total", ("received",)]) == (
        100 * len(steps), 200 * len(steps)
    )  # fmt: skip
    assert found["coreg_gap", ("waits",)] == gaps[-1]
    assert found["coreg_runs_finished_total", ("CONVERGED", "waits")] == 1
    assert found["coreg_stalls_total", ("waits",)] == 1
    assert (found["coreg_site_connected", ("a",)], found["coreg_site_connected", ("b",)]) == (1, 0)
    assert found["coreg_refused_total", ("certificate",)] == 1
    assert found["coreg_refused_total", ("session",)] == 0
    assert found["coreg_site_certificate_not_after_seconds", ("a",)] == 1798761600.0
    assert found["coreg_queue_length", ()] == 3
    assert found["coreg_store_bytes", ()] == 1024


def test_a_site_that_was_never_here_is_away_and_one_that_is_not_listed_is_nothing() -> None:
    metrics = Metrics()
    metrics.listed(("a", "b"))
    metrics.notice(n.SessionOpened("a", "0.2.0", ""), Timing())
    found = read(metrics)
    assert (found["coreg_site_connected", ("a",)], found["coreg_site_connected", ("b",)]) == (1, 0)
    metrics.listed(("a",))
    assert read(metrics)["coreg_site_connected", ("a",)] == 1
    assert ("coreg_site_connected", ("b",)) not in read(metrics)


def test_writing_is_measured_and_done(tmp_path: Path) -> None:
    metrics, plan, store = Metrics(), make_plan(), Summaries(tmp_path / "runs.sqlite")
    store.begin(plan, "2026-01-01")
    metrics.timed(store).write(plan.run, Closed(), None, Timing(), "2026-01-02")
    assert store.find(plan.run).closed == "2026-01-02"
    store.close()
    assert read(metrics)["coreg_store_seconds_count", ()] == 1


def test_it_is_read_over_http_and_from_this_machine_alone() -> None:
    metrics = Metrics()
    with pytest.raises(UsageError, match="on a loopback address only"):
        metrics.listen("0.0.0.0:0")
    with pytest.raises(UsageError, match="expected HOST:PORT"):
        metrics.listen("127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            UsageError, match=rf"cannot listen there: another program listens on port {port}.*with --metrics"
        ):
            metrics.listen(f"127.0.0.1:{port}")
    end = metrics.listen(f"127.0.0.1:{port}")
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            assert b"coreg_queue_length 0.0" in answer.read()
    finally:
        end()


def test_alerts_and_guide_name_metrics_that_there_are() -> None:
    there = {name for name, _ in read(Metrics())} | {f.name for f in Metrics().registry.collect()}
    there |= {f"{name}_total" for name in there}
    root = Path(__file__).resolve().parents[2]
    for page in ("deploy/alerts.yml", "docs/operators-guide.md"):
        named = set(re.findall(r"\bcoreg_(?!core|sim|wire|agent_)\w+", (root / page).read_text()))
        assert len(named) >= 6
        assert named <= there, f"{page}: {sorted(named - there)}"
