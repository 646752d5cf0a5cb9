"""What the machine of release 0.1 got wrong in its rounds: one section for each defect, and the test that it is gone."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from stepwise import (
    RUN,
    accepts,
    joins,
    members,
    progress_of,
    sends,
    without,
)
from tiny import (
    SCHEDULES,
    UNLABELLED,
    Machine,
    Pump,
    Watched,
    all_restarted,
    make_plan,
    make_sites,
    restarted,
    undisturbed,
    watched,
)

from coordinator.driver import Lap
from coordinator.machine.events import Action, Event, Received, Send, SiteLost
from coordinator.machine.phases import Phase
from coordinator.machine.records import MembershipChanged, Record, SiteExcluded, StepTaken
from coordinator.store.runs import RunStore
from coreg_core.protocol.messages import Ask, Dismissed, Prediction, ToSite, Vector
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan

NOW = "2026-01-01"
HONEST = ("a", "b")


def through_a_store(path: Path, plan: Plan, records: Iterable[Record]) -> list[Record]:
    """What a coordinator reads that takes the run up."""
    store = RunStore(path / "runs.sqlite")
    store.begin(plan, NOW)
    for record in records:
        store.write(plan.run, record, None, Lap(), NOW)
    found = store.records(plan.run)
    store.close()
    return found


# --- 1: a site that sent what cannot be used was taken back by a restart -------------------------------------------


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_site_that_sent_nan_stays_excluded_when_the_run_is_taken_up(
    tmp_path: Path, schedule: str, stored: bool
) -> None:
    plan = make_plan(on_lost="continue", schedule=schedule)
    pump = Pump(plan, make_sites(plan.sites)).join().steps(2)
    ask = pump.machine.run.live.ask
    assert ask is not None
    nan = Vector(np.full((UNLABELLED, 2), np.nan))
    site = pump.machine.run.live.asked[-1]  # block coordinate descent asks one
    pump.events.appendleft(Received(site, Prediction(RUN, ask.question, ask.attempt, nan)))
    pump.steps(4)
    others = tuple(s for s in plan.sites if s != site)
    assert pump.machine.participants == others
    records = through_a_store(tmp_path, plan, pump.records) if stored else pump.records
    again = Pump(plan, all_restarted(pump.sites), records).join()
    assert set(again.machine.run.recorded.excluded) == {site}
    assert again.machine.awaited == others
    again.run()
    assert again.end is not None
    assert again.end.outcome is Outcome.CONVERGED
    assert members(again.records) == []
    assert site not in again.models


@pytest.mark.parametrize("on_lost", ["wait", "continue"])
def test_an_excluded_site_is_told_at_once_when_it_comes_back_to_a_run_taken_up(on_lost: str) -> None:
    plan = make_plan(on_lost=on_lost)
    records = [*undisturbed(plan).records[:4], SiteExcluded("c", Outcome.SITE_FAULT, "c: NaN")]
    machine = Machine(plan, records=records)
    machine.start()
    actions = machine.handle(joins("c"))
    assert [s.message for s in sends(actions)] == [
        Dismissed(RUN, Outcome.SITE_FAULT, "c: no longer in this run: c: NaN")
    ]
    assert machine.handle(accepts(machine, "c")) == []


# --- 3: labels were asked for again although the sum of the answers was known --------------------------------------


def summed(records: Iterable[Record]) -> list[tuple[str, ...]]:
    """The memberships over which label-bearing answers were summed, in order."""
    found, now = [], ()
    for record in records:
        match record:
            case MembershipChanged(participants=now):
                pass
            case StepTaken(part="affine"):
                found.append(now)
    return found


def drop_c(pump: Pump) -> None:
    """Its session breaks before it answers, and time passes."""
    pump.events = type(pump.events)(without(pump.events, "c"))
    pump.events.append(SiteLost("c", "gone"))
    pump.out_of_time()


@pytest.fixture
def three() -> Pump:
    """At the first question of {a, b, c}, whose answers are on their way."""
    plan = make_plan(on_lost="continue", tolerance=1e-13, prediction_tolerance=1e-10)
    pump = Pump(plan, watched(plan)).join()
    while pump.machine.phase is not Phase.ASKING:
        pump.step()
    return pump


def labels_asked(pump: Pump) -> dict[str, int]:
    return {name: site.label_bearing for name, site in pump.sites.items()}  # type: ignore[attr-defined]


def until_membership(pump: Pump, number: int) -> Pump:
    while len(members(pump.records)) < number:
        pump.step()
    return pump


def test_the_sum_of_a_membership_that_was_is_used_again(three: Pump) -> None:
    drop_c(three.steps(1))
    assert members(three.records) == [("a", "b", "c"), HONEST]
    three.join("c").run()
    assert members(three.records) == [("a", "b", "c"), HONEST, ("a", "b", "c")]
    assert summed(three.records) == [("a", "b", "c"), HONEST]
    assert labels_asked(three) == {"a": 2, "b": 2, "c": 1 + on_trial(three, "c")}
    assert three.end is not None
    assert three.end.outcome is Outcome.CONVERGED
    total = next(r.total for r in three.records if isinstance(r, StepTaken))
    back = [r for r in three.records if isinstance(r, MembershipChanged)][-1]
    assert back.affine[("a", "b", "c")] == total
    assert np.array_equal(back.state["b"], total.values / 3)


def on_trial(pump: Pump, site: str) -> int:
    """Label-bearing questions that the site was asked of a membership that it was not of: they are answered once as well."""
    attempts = [r.participants for r in pump.records if isinstance(r, MembershipChanged)]
    asked = pump.sites[site].asked  # type: ignore[attr-defined]
    return sum(ask.part == "affine" and site not in attempts[ask.attempt] for ask in asked)


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("kept", ["before", "after"])
def test_the_sum_is_used_again_by_a_coordinator_that_was_killed(
    three: Pump, tmp_path: Path, kept: str, stored: bool
) -> None:
    """Killed while c was away, or just after it had been taken back."""
    drop_c(three.steps(1))
    plan = three.machine.plan
    if kept == "before":
        three.steps(3)
    else:
        until_membership(three.join("c"), 3)
        three.records = three.records[
            : 1 + max(i for i, r in enumerate(three.records) if isinstance(r, MembershipChanged))
        ]
    records = through_a_store(tmp_path, plan, three.records) if stored else three.records
    sites = {name: Watched(site) for name, site in all_restarted(three.sites).items()}
    again = Pump(plan, sites, records).join().run()
    assert again.end is not None
    assert again.end.outcome is Outcome.CONVERGED
    assert again.machine.participants == ("a", "b", "c")
    everything = [*three.records, *again.records]
    assert summed(everything) == [("a", "b", "c"), HONEST]
    assert labels_asked(again)["a"] == labels_asked(again)["b"] == 0


def test_answers_to_a_question_that_was_cut_short_are_held(three: Pump) -> None:
    """a and b answered it, c did not in time; its answer comes late, and then nobody has to be asked."""
    c = three.sites["c"]
    assert isinstance(c, Watched)
    late = [e for e in three.events if getattr(e, "site", None) == "c"]
    assert len(late) == 1
    three.events = type(three.events)(without(three.events, "c"))
    three.out_of_time()
    assert members(three.records) == [("a", "b", "c"), HONEST]
    three.events.extendleft(late)
    three.run()
    assert members(three.records) == [("a", "b", "c"), HONEST, ("a", "b", "c")]
    assert summed(three.records) == [HONEST, ("a", "b", "c")]
    assert labels_asked(three)["a"] == labels_asked(three)["b"] == 2
    assert three.end is not None
    assert three.end.outcome is Outcome.CONVERGED


# --- 5: a site that was killed after its last answer was not waited for, unless the run had converged ---------------


@pytest.mark.parametrize("schedule", ["conjugate-gradients", "consensus"])
@pytest.mark.parametrize(
    ("terms", "outcome"),
    [
        ({}, Outcome.CONVERGED),
        ({"max_rounds": 3}, Outcome.MAX_ROUNDS),
        ({"tolerance": 0.0, "prediction_tolerance": 0.0}, Outcome.STAGNATED),
    ],
)
def test_a_site_killed_after_its_last_answer_is_waited_for(
    schedule: str, terms: dict[str, float], outcome: Outcome
) -> None:
    plan = make_plan(schedule=schedule, **terms)
    expected = undisturbed(plan)
    assert expected.end is not None
    assert expected.end.outcome is outcome
    count = sum(isinstance(r, StepTaken) for r in expected.records)
    pump = Pump(plan, make_sites(plan.sites)).join().steps(count - 1)
    assert [e.site for e in pump.events if isinstance(e, Received)] == ["a", "b", "c"]
    a, b, c = pump.events
    pump.events = type(pump.events)([a, c, SiteLost("c", "killed"), b])
    pump.sites["c"] = restarted(pump.sites["c"])
    pump.run()
    assert pump.end is None
    assert (pump.machine.phase, pump.machine.awaited) == (Phase.DELIVERING, ("c",))
    pump.join("c").run()
    assert pump.end == expected.end
    assert pump.bits == expected.bits


def test_a_site_that_comes_back_to_a_run_that_converged_without_it_blames_nobody() -> None:
    """It answered questions that could become the result, and was dropped; a and b converged, and have not all fetched."""
    plan = make_plan(on_lost="continue", schedule="consensus")
    pump = Pump(plan, make_sites(plan.sites)).join().steps(3)
    drop_c(pump)
    while pump.machine.phase is not Phase.DELIVERING:
        pump.step()
    pump.events.clear()
    pump.join("c").run()
    assert pump.sites["c"].breach is None


def test_a_site_that_is_connected_when_the_others_converge_without_it_is_told() -> None:
    plan = make_plan(on_lost="continue", schedule="consensus")
    sites = watched(plan)
    sites["c"].when = lambda ask: ask.question < 3
    pump = Pump(plan, sites).join().run().out_of_time()
    ends: list[ToSite] = []
    real = pump.machine.handle

    def handle(event: Event) -> list[Action]:
        actions = real(event)
        ends.extend(
            a.message for a in actions if isinstance(a, Send) and a.site == "c" and not isinstance(a.message, Ask)
        )
        return actions

    pump.machine.handle = handle  # type: ignore[method-assign]
    pump.run()
    assert pump.end is not None
    assert pump.end.outcome is Outcome.CONVERGED
    assert len(ends) == 1
    assert pump.sites["c"].breach is None


# --- 7: a column that nothing couples made the shown residual look stuck -------------------------------------------


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_column_without_coupling_shows_no_residual(schedule: str) -> None:
    plan = make_plan(schedule=schedule, coupling=(0.0, 0.5))
    pump = undisturbed(plan)
    shown = [p.residual.tolist() for p in progress_of(plan, pump.records)]
    assert len(shown) > 3
    assert {uncoupled for uncoupled, _ in shown} == {0.0}
    largest = [max(residuals) for residuals in shown]
    assert largest[-1] < 1e-2 * largest[0], "what an operator sees falls"
