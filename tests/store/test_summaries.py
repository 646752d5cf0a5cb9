"""coordinator/store/summaries.py: runs as people look at them."""

import json

import pytest
from machine.tiny import make_plan
from store.filled import INTERRUPTED, LAP, NOW, RECORDS, begun

from coordinator.machine.records import AttemptBegan, HeadSigned, StepDone
from coordinator.store.summaries import Summaries
from coreg_core.errors import UsageError
from coreg_core.protocol.messages import Countersigned, LedgerHead, Report
from coreg_core.protocol.outcomes import Outcome


def test_a_run_and_its_rounds_show_what_happened(store: Summaries) -> None:
    plan = begun(store, RECORDS)
    summary, rounds = store.show(plan.run)
    assert (summary.run, summary.started, summary.ended) == (plan.run, NOW, NOW)
    assert (summary.stop, summary.federation) == (Outcome.CONVERGED.name, "tiny")
    assert summary.plan == json.loads(json.dumps(plan.to_dict()))
    steps = [record for record in RECORDS if isinstance(record, StepDone)]
    assert summary.steps == len(steps) == len(rounds)
    for row, step in zip(rounds, steps, strict=True):
        assert (row["number"], row["attempt"], row["answered"]) == (step.number, step.attempt, step.answered)
        assert (row["seconds"], row["bytes_sent"], row["bytes_received"], row["at"]) == (0.25, 100, 200, NOW)
        told = {name: tuple(x) if isinstance(x := row[name], list) else x for name in SHOWN}
        assert told == {name: getattr(step.report, name) for name in SHOWN}
    certified = [row for row in rounds if row["verified"]][-1]
    assert summary.rounds == rounds[-1]["round"]
    assert (summary.residual, summary.gap) == (max(certified["residual"]), max(certified["gap"]))


SHOWN = ("round", "phase", "verified", "residual", "gap")


def test_the_worst_column_of_the_last_verified_round_is_shown(store: Summaries) -> None:
    plan = begun(store)
    first = Report(1, verified=True, residual=(-1.0, -1.0), gap=(1.0, -1.0))
    for number, report in enumerate((first, Report(2, gap=(9.0, 9.0)), Report(2))):
        store.write(plan.run, StepDone(number, 0, 3, report), LAP, NOW)
    found = store.find(plan.run)
    assert (found.steps, found.rounds, found.gap) == (3, 2, 1.0)
    assert found.residual is None, "-1 is no number"


def test_rounds_and_figures_are_those_of_the_last_attempt(store: Summaries) -> None:
    plan = begun(store, INTERRUPTED)
    found, rounds = store.show(plan.run)
    assert (found.steps, found.rounds, found.residual) == (12, 3, 1e-3)
    assert [row["attempt"] for row in rounds] == 6 * [0] + 2 * [1] + 4 * [2]
    store.write(plan.run, AttemptBegan(3, ("a", "b")), LAP, NOW)
    found = store.find(plan.run)
    assert (found.steps, found.rounds, found.residual, found.gap) == (12, 0, None, None)


def test_a_run_is_found_by_its_name_or_by_a_unique_beginning(store: Summaries) -> None:
    for run in ("alpha-1", "alpha-12", "beta_%"):
        store.begin(make_plan(run=run), NOW)
    assert store.show("b")[0].run == "beta_%"
    assert store.show("alpha-12")[0].run == "alpha-12"
    assert store.show("alpha-1")[0].run == "alpha-1", "a whole name is no ambiguity"
    for name, count in (("alpha", 2), ("%", "no"), ("gamma", "no"), ("", 3)):
        with pytest.raises(UsageError, match=f"{count} runs begin with"):
            store.show(name)


def test_the_latest_open_run_of_a_plan_and_all_runs_the_latest_first(store: Summaries) -> None:
    for run, started in [("old", "01"), ("new", "03"), ("middle", "02")]:
        store.begin(make_plan(run=run), f"2026-01-{started}")
    store.begin(make_plan(run="other", coupling=(9.0,)), "2026-01-08")
    assert [s.run for s in store.runs()] == ["other", "new", "middle", "old"]
    for run in ("new", "middle", "old"):
        assert store.latest(make_plan().digest).run == run
        store.close_run(make_plan(run=run), Outcome.CANCELLED, "", NOW)
    assert store.latest(make_plan().digest) is None


def test_thousands_of_past_runs_are_read_by_one_statement_without_their_rounds(store: Summaries) -> None:
    """And a service that starts finds what is unfinished by an index, not by reading past runs."""
    plan = json.dumps(make_plan().to_dict())
    past = [(f"run-{i}", "d", plan, f"2026-01-{i:05}", NOW) for i in range(2000)]
    store._db.executemany("insert into runs (run, plan_digest, plan, started, ended) values (?, ?, ?, ?, ?)", past)
    statements = list[str]()
    store._db.set_trace_callback(statements.append)
    assert len(store.runs()) == 2000
    assert store.unfinished() == []
    store._db.set_trace_callback(None)
    assert len(statements) == 2
    assert not any("rounds" in statement for statement in statements)
    steps = [row["detail"] for row in store._db.execute(f"explain query plan {statements[1]}")]
    assert any("INDEX open_runs" in step for step in steps), steps
    assert "SCAN runs" not in steps


def test_signed_heads_are_read_by_run_and_by_site(store: Summaries) -> None:
    for run in ("one", "two"):
        begun(store, run=run)
        for site in ("a", "b"):
            receipt = Countersigned(run, LedgerHead(7, "ab", NOW), NOW, "05", "06")
            store.write(run, HeadSigned(site, "03", "04", receipt), LAP, NOW)
    found = [(c.site, c.receipt.run) for c in store.checkpoints()]
    assert found == [("a", "one"), ("b", "one"), ("a", "two"), ("b", "two")]
    assert [c.receipt.run for c in store.checkpoints(site="b")] == ["one", "two"]
    assert [c.site for c in store.checkpoints(run="two", site="a")] == ["a"]
    last = store.last_checkpoint("a")
    assert last is not None
    assert (last.run, last.head) == ("two", LedgerHead(7, "ab", NOW))
    assert store.last_checkpoint("c") is None
