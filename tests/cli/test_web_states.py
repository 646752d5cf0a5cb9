"""What the pages derive from a run without a store: lines of the charts, states, progress, durations."""

import pytest

from coordinator.store.summaries import RunSummary
from coordinator.web import states
from coordinator.web.charts import convergence

NOW = "2026-01-01T00:00:00.000+00:00"


def told(gaps, couplings=(0.01, 0.1, 1.0, 10.0)):
    rounds = [
        {"number": i, "verified": bool(gap), "residual": [], "gap": gap, "phase": "", "seconds": 1.0}
        for i, gap in enumerate(gaps)
    ]
    return {"objective": {"name": "agreement", "coupling": couplings}, "iteration": {}}, rounds


def test_a_report_is_drawn_with_one_line_for_each_coupling():
    plan, rounds = told([[], [1e-2, 1e-1, 1.0, 10.0], [], [1e-9, 1e-3, 1.0, 1.0], [-1.0, 1e-6, 1e-2, -1.0]])
    [chart] = convergence(plan, rounds)
    assert [line.name for line in chart.lines] == ["λ = 0.01", "λ = 0.1", "λ = 1", "λ = 10"]
    assert [line.hue for line in chart.lines] == [0, 1, 2, 3]
    assert [stop.values for stop in chart.stops] == [
        ("1e-02", "1e-01", "1e+00", "1e+01"),
        ("1e-09", "1e-03", "1e+00", "1e+00"),
        ("1e-09", "1e-06", "1e-02", "1e+00"),
    ], "a figure that is not known leaves the one before"


@pytest.mark.parametrize(
    ("stop", "text", "parked", "up", "kind", "label"),
    [
        (None, "", False, True, "running", "running"),
        (None, "waiting for a, b to answer", False, True, "running", "running"),
        (None, "waiting for b to connect and for a to answer", False, True, "waiting", "waiting"),
        (None, "waiting for b to connect", True, True, "stalled", "stalled"),
        (
            None,
            "waiting for approval by b",
            False,
            True,
            "approval",
            "approval pending",
        ),
        (None, "waiting for b to connect", False, False, "paused", "not running"),
        ("CONVERGED", "", False, True, "good", "converged"),
        ("MAX_ROUNDS", "", False, True, "warn", "max rounds"),
        ("CANCELLED", "", False, True, "idle", "cancelled"),
        ("SITE_FAULT", "", False, True, "bad", "site fault"),
    ],
)
def test_the_state_of_a_run_is_a_badge_and_a_sentence(stop, text, parked, up, kind, label):
    run = RunSummary("r", "f", NOW, None, stop, None, 0, 0, {})
    state = states.state_of(run, text, parked=parked, up=up)
    assert (state.kind, state.label) == (kind, label)
    if up:
        assert state.text.startswith(text)
    assert state.belongs_to("open") is (stop is None)
    assert state.belongs_to("failed") is (stop not in (None, "CONVERGED"))
    assert state.belongs_to("approval") is (kind == "approval")


def test_progress_follows_the_last_run_of_the_same_plan():
    plan, rounds = told([[], [1.0], [1e-2], [1e-4]], (0.1,))
    run = RunSummary("r", "f", NOW, None, None, None, 4, 3, {"run": "r", **plan})
    before = RunSummary("q", "f", NOW, NOW, "CONVERGED", "", 24, 22, {"run": "q", **plan})
    other = RunSummary("p", "f", NOW, NOW, "CONVERGED", "", 9, 8, {"run": "p"})
    known = states.progress_of(run, rounds, [other, before])
    assert (known.done, known.most, known.seconds_left) == (4, 24, 20.0)
    assert known.text == "step 4 of about 24"
    assert states.progress_of(run, rounds, [other]) == states.Progress(4, None, "step 4")
    exchange = RunSummary("r", "f", NOW, None, None, None, 3, 1, {})
    assert states.progress_of(exchange, [{**rounds[0], "phase": "cross products"}], []).text == "step 3, cross products"
