"""A run goes on from its sites' logs: killed anywhere, it ends on the same bits; and nothing is answered twice or otherwise.

site_agent/machine/replica.py and run_log.py; site_agent/service/run_logs.py, the log on a disk.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from machine.tiny import (
    OnDisk,
    Pump,
    make_plan,
    make_sites,
    private_data,
    restarted,
    sealed,
    site_with,
    undisturbed,
)

from coordinator.machine.records import AttemptBegan
from coreg_core.protocol import messages as m
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan
from site_agent.machine.rosters import common_position
from site_agent.machine.run_log import REACHABLE, Kept, Memory, Sum
from site_agent.machine.site import Site
from site_agent.service.run_logs import RunLogs

SHORT = make_plan(min_sites=3, coupling=(0.3,), tolerance=1e-4, prediction_tolerance=0.03)
BOTH = pytest.mark.parametrize("plan", [SHORT, sealed(SHORT)], ids=["plaintext", "sealed"])


def positions(pump: Pump) -> list[int]:
    """From which sum each attempt went on."""
    steps = [s.message for s in pump.sent if isinstance(s.message, m.Step) and s.message.step == 0 and s.site == "a"]
    return [(common_position(step.roster) or (0, ""))[0] for step in steps]


@BOTH
def test_an_agent_that_is_killed_at_any_step_changes_no_bit(plan: Plan) -> None:
    expected = undisturbed(plan)
    n_steps, first = len([r for r in expected.records if hasattr(r, "number")]), 1 if plan.masked else 0
    assert n_steps > first + 5
    for after in range(1, n_steps):
        pump = Pump(plan, make_sites("abc")).join().steps(after).kill("b").run()
        assert pump.bits == expected.bits, after
        assert [r.attempt for r in pump.records if isinstance(r, AttemptBegan)] == [0, 1]
        assert positions(pump) == [0, max(0, after - first)], "it goes on from the last sum that all of them have"


@BOTH
def test_the_coordinator_killed_after_any_record_and_its_sites_with_it_or_not(plan: Plan) -> None:
    expected = undisturbed(plan)
    for kept in range(1, len(expected.records)):
        first = Pump(plan, make_sites("abc"), kill_after=kept).join().run()
        sites = {n: restarted(s) for n, s in first.sites.items()} if kept % 2 else first.sites
        again = first.resumed(sites).join().run()
        assert again.outcome is Outcome.CONVERGED, kept
        assert again.bits == expected.bits, kept


@BOTH
def test_records_of_one_attempt_less_than_the_sites_have_lead_to_a_later_one(plan: Plan) -> None:
    first = Pump(plan, make_sites("abc")).join().steps(6)
    again = Pump(plan, first.sites, []).join().run()
    assert again.outcome is Outcome.CONVERGED
    assert again.bits == undisturbed(plan).bits


@pytest.mark.parametrize("steps", range(5))
@BOTH
def test_older_records_and_a_site_in_another_process_lead_to_a_later_attempt(plan: Plan, steps: int) -> None:
    """Step 0 comes again with another roster: the answer to the first one would be of another log (storm, seed 64)."""
    first = Pump(plan, make_sites("abc")).join().steps(steps)
    again = Pump(plan, first.sites | {"b": restarted(first.sites["b"])}, []).join().run()
    assert again.outcome is Outcome.CONVERGED
    assert again.bits == undisturbed(plan).bits


def test_killed_again_and_again_it_still_ends_on_the_same_bits() -> None:
    plan, sites, records, lives = sealed(SHORT), make_sites("abc"), list[Any](), 0
    while True:
        pump = Pump(plan, sites, records, kill_after=6).join().run()
        records, lives = [*records, *pump.records], lives + 1
        if pump.end is not None:
            break
        sites = {n: restarted(s) for n, s in pump.sites.items()}
    assert lives > 2
    assert pump.bits.items() <= undisturbed(plan).bits.items()


def test_a_site_that_is_lost_and_is_the_same_process_keeps_its_keys_its_view_and_its_answers() -> None:
    pump = Pump(sealed(SHORT), make_sites("abc")).join().steps(5)
    asked, view = pump.sites["b"]._answered, pump.sites["b"].view
    pump.lose("b").join("b").run()
    assert pump.outcome is Outcome.CONVERGED
    assert pump.sites["b"].view is view
    assert pump.sites["b"]._answered == undisturbed(sealed(SHORT)).sites["b"]._answered >= asked
    assert positions(pump) == [0], "no other attempt"


def test_a_stalled_run_is_resumed_where_it_was() -> None:
    plan = sealed(SHORT)
    pump = Pump(plan, make_sites("abc")).join().steps(6).lose("b")
    pump.out_of_time().out_of_time().out_of_time()
    assert pump.outcome is Outcome.STALLED
    again = pump.resumed().join().run()
    assert again.bits == undisturbed(plan).bits
    assert positions(again) == [5]


# --- what a step is answered with ---------------------------------------------------------------------------------


def under_way(plan: Plan, steps: int) -> tuple[Pump, Site, list[m.Step]]:
    """A run whose site a has answered step ``steps``, and its steps so far."""
    pump = Pump(plan, make_sites("abc")).join().steps(steps)
    return pump, pump.sites["a"], [s.message for s in pump.sent if s.site == "a" and isinstance(s.message, m.Step)]


@BOTH
def test_a_step_that_is_sent_again_has_the_very_answer_and_is_never_answered_anew(plan: Plan) -> None:
    """Whatever comes under its number: one mask would hide two numbers, and their difference would be in the clear."""
    _, site, sent = under_way(plan, 6)
    count, job = site._answered, site._job
    job.answer = None  # type: ignore[method-assign, assignment, union-attr] - nothing is computed
    for step in sent[-2:]:
        first = site.handle(step)
        others = [step, replace(step, words=None), replace(step, words=sent[-3].words), replace(step, heads=())]
        assert all(site.handle(other)[0] is first[0] for other in others)
    assert site._answered == count


@BOTH
def test_older_newer_and_foreign_steps_have_no_answer(plan: Plan) -> None:
    _, site, sent = under_way(plan, 6)
    last = sent[-1]
    for wrong in (sent[1], sent[2], replace(last, step=last.step + 2), replace(last, attempt=1)):
        [said] = site.handle(wrong)
        assert isinstance(said, m.PlanRefused)
        assert "expected step" in said.reason
    [offer] = site.handle(m.Proposal(plan.run, 1, plan))
    assert offer.attempt == 1
    assert all(site.handle(step) == [] for step in sent), "an attempt that is over is not gone back to"
    [later] = site.handle(m.Proposal(plan.run, 0, plan))
    assert later == offer, "records that are older than its keys hear of the later attempt"


def test_nothing_is_answered_without_a_plan() -> None:
    site = make_sites("a")["a"]
    assert site.handle(m.Step("run-1", 0, 0)) == []
    assert site.breach == "sent a step of run run-1, whose plan this site did not accept."


def test_a_coordinator_with_older_records_begins_after_the_sites_last_attempt() -> None:
    plan = sealed(SHORT)
    pump = Pump(plan, make_sites("abc")).join().steps(3).kill("b").steps(6).kill("c").steps(9)
    again = Pump(plan, pump.sites, pump.records[:3]).join().run()
    assert again.bits == undisturbed(plan).bits
    assert [r.attempt for r in again.records if isinstance(r, AttemptBegan)] == [3]


# --- logs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("back", [0, 1, 2, 3, None])
@BOTH
def test_a_log_that_was_rolled_back_goes_on_from_the_last_state_that_all_have(plan: Plan, back: int | None) -> None:
    """Or from the first, where it is older than what the others offer, or gone."""
    expected, pump = undisturbed(plan), Pump(plan, make_sites("abc")).join().steps(6)
    log = pump.sites["b"]._log
    assert isinstance(log, OnDisk)
    assert log.kept is not None
    had = len(log.kept.sums)
    log.kept = None if back is None else log.kept.upto(had - back)
    pump.kill("b").run()
    assert pump.bits == expected.bits
    goes_on = back is not None and back < REACHABLE
    assert positions(pump)[-1] == (had - back if goes_on else 0)


def test_rows_that_changed_do_not_go_on_and_the_run_waits_for_those_that_it_began_with() -> None:
    plan = sealed(SHORT)
    pump = Pump(plan, make_sites("abc")).join().steps(6)
    before = pump.sites["b"]
    pump.sites["b"] = site_with("b", private_data("b", seed=1), before._log)
    pump.lose("b").join("b").run()
    told = [s.message for s in pump.sent if s.site == "b" and isinstance(s.message, m.Dismissed)]
    assert "reconnected with different data or preprocessing" in told[0].reason
    [offer] = site_with("b", private_data("b", seed=1), before._log).handle(m.Proposal(plan.run, 9, plan))
    assert offer.resume == ()
    pump.sites["b"] = restarted(before)
    assert pump.join("b").run().bits == undisturbed(plan).bits


def test_equal_sums_of_other_sites_are_another_state() -> None:
    """Σ n_v of four labels each is 8 for any two sites: without their names a log of a, b would go on as one of a, c."""
    total = Sum(None, (8.0,))
    one, other = (Kept(sites, "data", b"").with_sum(total) for sites in (("a", "b"), ("a", "c")))
    assert one.digests[-1] != other.digests[-1]


def test_a_state_is_named_by_a_digest_that_only_members_can_make() -> None:
    sums = Sum(np.ones((2, 1)), (1.0,))
    assert Kept(("a",), "d", b"one").with_sum(sums).resume != Kept(("a",), "d", b"two").with_sum(sums).resume
    pumps = [Pump(sealed(SHORT), make_sites("abc")).join().steps(6) for _ in range(2)]
    kept = [pump.sites["a"].kept for pump in pumps]
    assert kept[0].sums[-1].digest == kept[1].sums[-1].digest
    assert kept[0].digests[-1] != kept[1].digests[-1], "the same sum under another key"


@pytest.mark.parametrize("after", [3, 5, 8])
def test_a_run_over_files_ends_on_the_same_bits(tmp_path: Path, after: int) -> None:
    plan, logs = sealed(SHORT), {n: RunLogs(tmp_path / n) for n in "abc"}
    sites = {n: site_with(n, private_data(n), logs[n].of(plan.run)) for n in "abc"}  # type: ignore[arg-type]
    pump = Pump(plan, sites).join().steps(after).kill("b").kill("c").run()
    assert pump.bits == undisturbed(plan).bits
    ended = {n: restarted(pump.sites[n]) for n in "abc"}
    late = Pump(plan, ended, [r for r in pump.records if type(r).__name__ not in ("Delivered", "Closed")]).join().run()
    assert late.bits == pump.bits, "killed before the models were written, each makes them again of its log"


def test_a_simulation_of_many_processes_goes_on_from_any_of_their_logs() -> None:
    """All have the same sums: whoever lost its memory takes another's."""
    plan = SHORT
    pump = Pump(plan, {n: Site(n, private_data(n), log=Memory()) for n in "abc"}).join().steps(6)
    kept = pump.sites["a"].kept
    sites = {n: Site(n, private_data(n), log=Memory(kept)) for n in "abc"}
    again = pump.resumed(sites).join().run()
    assert again.bits == undisturbed(plan).bits
    assert positions(again) == [len(kept.sums)]
