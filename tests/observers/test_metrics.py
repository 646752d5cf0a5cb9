"""What is counted for Prometheus is what happened; what a terminal and a pipe show of it."""

import re
import shutil
import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from machine.tiny import Pump, make_plan, make_site
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from coordinator.machine import notices as n
from coordinator.machine.events import Finish
from coordinator.machine.notices import NoticeName
from coordinator.machine.records import StepDone, Timing
from coordinator.observers.metrics import Metrics
from coordinator.observers.terminal import Plain, cells
from coreg_core.errors import UsageError
from coreg_core.messages import Report
from coreg_core.outcomes import Notice, Outcome


def read(metrics: Metrics) -> dict[tuple[str, tuple[str, ...]], float]:
    """Every sample by its name and its labels' values, as a scraper has them."""
    text = generate_latest(metrics.registry).decode()
    return {
        (s.name, tuple(s.labels.values())): s.value
        for f in text_string_to_metric_families(text)
        for s in f.samples
    }


def answered(run: str, *step: Any, phase: str = "") -> Notice:
    return n.step_answered(run, StepDone(*step, phase=phase), Timing(0.25, 100, 200))


@pytest.fixture(scope="module")
def steps() -> list[StepDone]:
    """The steps of a run."""
    plan = make_plan()
    sites = {name: make_site(name) for name in plan.sites}
    records = Pump(plan, sites).join().run().records
    return [record for record in records if isinstance(record, StepDone)]


@pytest.fixture
def counted(steps: list[StepDone]) -> Metrics:
    """The metrics of that run, which is one of the study ``waits``."""
    metrics = Metrics()
    plan = make_plan()
    metrics.notice(n.run_began(plan.run, "waits", 0, plan.sites, 600.0))
    for step in steps:
        metrics.notice(n.step_answered(plan.run, step, Timing(0.25, 100, 200)))
    metrics.notice(n.stalled(plan.run, ("b",), "", 600.0))
    alignment = f"{plan.run}-ids-0"
    metrics.notice(n.run_began(alignment, "waits", 0, plan.sites, 600.0))
    metrics.notice(n.run_ended(alignment, Outcome.CONVERGED, ""))
    metrics.notice(n.run_ended(plan.run, Outcome.CONVERGED, ""))
    return metrics


def test_rounds_and_seconds_are_counted_under_the_study(
    counted: Metrics, steps: list[StepDone]
) -> None:
    values = read(counted)
    assert values["coreg_rounds_total", ("waits",)] == steps[-1].report.round
    phases = {step.phase for step in steps}
    seconds = [values["coreg_step_seconds_sum", (phase, "waits")] for phase in phases]
    assert sum(seconds) == pytest.approx(0.25 * len(steps))


def test_bytes_are_counted_by_their_direction(counted: Metrics, steps: list[StepDone]) -> None:
    values = read(counted)
    assert values["coreg_bytes_total", ("sent",)] == 100 * len(steps)
    assert values["coreg_bytes_total", ("received",)] == 200 * len(steps)


def test_an_alignment_of_ids_is_no_run_of_its_study(counted: Metrics) -> None:
    values = read(counted)
    assert values["coreg_runs_finished_total", ("CONVERGED", "waits")] == 1
    assert values["coreg_stalls_total", ("waits",)] == 1


@pytest.fixture
def connected() -> Metrics:
    """Site a is connected, and b was."""
    metrics = Metrics()
    for site in "ab":
        metrics.notice(n.session_opened(site, "0.2.0", "2027-01-01T00:00:00+00:00"))
    metrics.notice(n.notice(NoticeName.SESSION_ENDED, site="b", reason="its stream ended"))
    return metrics


def test_a_site_is_connected_while_its_session_is_open(connected: Metrics) -> None:
    values = read(connected)
    assert values["coreg_site_connected", ("a",)] == 1
    assert values["coreg_site_connected", ("b",)] == 0
    assert values["coreg_site_certificate_not_after_seconds", ("a",)] == 1798761600.0


def test_a_site_that_is_no_longer_listed_has_no_figure(connected: Metrics) -> None:
    """Its alert would never end."""
    connected.listed(("a",))
    connected.notice(n.notice(NoticeName.SESSION_ENDED, site="b", reason="no longer listed"))
    values = read(connected)
    for name in ("coreg_site_connected", "coreg_site_certificate_not_after_seconds"):
        assert (name, ("b",)) not in values


def test_refused_certificates_and_sessions_are_counted_apart() -> None:
    metrics = Metrics()
    metrics.notice(n.access_denied("z", "revoked"))
    values = read(metrics)
    assert values["coreg_refused_total", ("certificate",)] == 1
    assert values["coreg_refused_total", ("session",)] == 0


def test_own_certificates_have_their_ends() -> None:
    metrics = Metrics()
    metrics.certificates({"server": 1.0, "authority": 2.0})
    assert read(metrics)["coreg_certificate_not_after_seconds", ("server",)] == 1.0


def test_the_queue_and_the_free_disk_are_figures(tmp_path: Path) -> None:
    metrics = Metrics()
    metrics.stock(3, 1, tmp_path / "runs.sqlite")
    values = read(metrics)
    free = values["coreg_store_free_bytes", ()]
    assert values["coreg_runs", ("queued",)] == 3
    assert free > 0
    assert free < shutil.disk_usage(tmp_path).total


def test_a_run_that_waits_for_an_operator_is_none_that_stands_still() -> None:
    metrics = Metrics()
    metrics.notice(
        n.notice(NoticeName.APPROVAL_AWAITED, "r", sites=("a",), approved=1, of=2, seconds=60.0)
    )
    assert read(metrics)["coreg_runs", ("awaiting approval",)] == 1
    metrics.notice(n.notice(NoticeName.APPROVED, "r", "a"))
    metrics.notice(n.run_ended("r", Outcome.CANCELLED, ""))
    assert read(metrics)["coreg_runs", ("awaiting approval",)] == 0


def test_the_rounds_of_every_attempt_count() -> None:
    metrics = Metrics()
    for number, (attempt, done) in enumerate(((0, 0), (0, 1), (0, 2), (1, 0), (1, 1))):
        metrics.notice(answered("r", number, attempt, 3, Report(round=done, verified=True)))
    assert read(metrics)["coreg_rounds_total", ("",)] == 3


def test_the_certificate_of_a_site_that_is_away_is_known_from_the_store() -> None:
    metrics = Metrics()
    metrics.listed(
        ("a", "b"), {"a": "2027-01-01T00:00:00+00:00", "gone": "2027-01-01T00:00:00+00:00"}
    )
    found = read(metrics)
    assert found["coreg_site_certificate_not_after_seconds", ("a",)] == 1798761600
    assert ("coreg_site_certificate_not_after_seconds", ("gone",)) not in found
    metrics.problems(2)
    assert read(metrics)["coreg_problems", ()] == 2


def test_it_is_read_over_http_and_from_this_machine_alone() -> None:
    metrics = Metrics()
    with pytest.raises(UsageError, match="on a loopback address only"):
        metrics.listen("0.0.0.0:0")
    with pytest.raises(UsageError, match="expected HOST:PORT"):
        metrics.listen("127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            UsageError, match=rf"another program listens on port {port}.*with --metrics"
        ):
            metrics.listen(f"127.0.0.1:{port}")
    end = metrics.listen(f"127.0.0.1:{port}")
    try:
        foreign = urllib.request.Request(
            f"http://127.0.0.1:{port}/metrics", headers={"Host": "evil.example"}
        )
        with pytest.raises(urllib.error.HTTPError, match="421"):
            urllib.request.urlopen(foreign, timeout=200)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=200) as answer:
            assert b'coreg_runs{state="awaiting approval"} 0.0' in answer.read()
    finally:
        end()


def test_alerts_and_guide_name_metrics_that_there_are() -> None:
    there = {name for name, _ in read(Metrics())} | {f.name for f in Metrics().registry.collect()}
    there |= {f"{name}_{kind}" for name in there for kind in ("total", "count", "sum", "bucket")}
    root = Path(__file__).resolve().parents[2]
    for page in (
        "deploy/alerts.yml",
        "deploy/grafana-dashboard.json",
        "docs/how-to/operate-a-coordinator.md",
    ):
        names = re.findall(
            r"\bcoreg_(?!core|sim|wire|federation|agent_)\w+", (root / page).read_text()
        )
        named = set(names)
        assert len(named) >= 6
        assert named <= there, f"{page}: {sorted(named - there)}"


# --- coordinator/observers/terminal.py: plain lines in a pipe, one progress bar on a terminal -----


def test_a_heading_stands_over_its_own_rounds_alone(capsys):
    """Those of an agreement have no phase after the preliminary ones."""
    plain = Plain()
    for number, phase in enumerate(("preliminary", "preliminary", "", "")):
        plain.notice(answered("r1", number, 0, 2, Report(), phase=phase))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.endswith(":")]
    assert lines == ["preliminary:", "training:"]
    plain = Plain()
    plain.notice(answered("r1", 3, 0, 2, Report()))
    assert "training:" not in capsys.readouterr().out, "nothing went before"


def test_a_column_of_figures_begins_with_the_first_step_that_has_one(capsys):
    plain = Plain()
    for number in (1, 2):
        plain.notice(answered("r1", number, 0, 2, Report()))
    without = capsys.readouterr().out
    assert without.splitlines()[0].split() == ["step", "round", "sites", "seconds", "bytes"]
    assert " - " not in without
    plain.notice(answered("r1", 3, 0, 2, Report("", "", 1, True, (0.1,))))
    plain.notice(answered("r1", 4, 0, 2, Report("", "", 2)))
    heading, _, last = capsys.readouterr().out.splitlines()
    assert heading.split() == ["step", "round", "sites", "residual", "seconds", "bytes"]
    assert last.split()[3] == "-", "a column that has begun stays"


def test_the_end_has_its_certificate_and_the_next_command(capsys):
    plain = Plain()
    plain.notice(n.notice(NoticeName.JOINED, "r1", "a", here=1, of=2))
    plain.notice(
        answered("r1", 4, 0, 2, Report(round=4, verified=True, residual=(1e-5,), gap=(1e-5,)))
    )
    plain.finished(Finish("r1", Outcome.CONVERGED, ""), "coreg-coordinator show r1")
    shown = capsys.readouterr().out
    assert "a joined (1 of 2)" in shown
    assert "certified: residual 1e-05, gap 1e-05 (to a power of ten), after 4 rounds" in shown
    assert shown.endswith("show this run again: coreg-coordinator show r1\n")


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (Report("", "", 4, True, (0.1, 1.0), (1e-3, 1e-2)), ["4", "2", "1e+00", "1e-02"]),
        (Report("", "", 4, False, (0.1,), (1e-3,)), ["4", "2", "1e-01", "~1e-03"]),
        (Report("", "", 4, True, (-1.0,), (-1.0,)), ["4", "2", "-", "-"]),
        (Report(), ["0", "2", "-", "-"]),
    ],
    ids=["verified", "an estimate", "none", "nothing yet"],
)
def test_a_row_says_what_the_sites_told_and_no_more(report, words):
    texts = cells(answered("r1", 3, 0, 2, report).fields)
    assert [texts[name] for name in ("round", "sites", "residual", "gap")] == words
