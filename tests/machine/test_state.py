"""coordinator/machine/state.py: what a run remembers is a fold of its records, so that a killed run ends on the same bits."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine.stepwise import RUN, every_field
from machine.tiny import SCHEDULES, UNLABELLED, Pump, all_restarted, make_plan, make_sites, undisturbed

from coordinator.machine import events as e
from coordinator.machine.phases import Phase
from coordinator.machine.records import Ended, Record, SiteExcluded
from coordinator.machine.run import RunUpdate
from coordinator.machine.state import RunState, after, resume
from coreg_core.protocol import messages as m
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan

MOST_EVENTS = 300


@contextmanager
def noted(after_each: list[tuple[Record, RunState]]) -> Iterator[None]:
    """Every record with what the run remembered right after it, in the middle of an event too."""
    real = RunUpdate.record

    def noting(update: RunUpdate, record: Record) -> None:
        real(update, record)
        after_each.append((record, update.recorded))

    with patch.object(RunUpdate, "record", noting):
        yield


def mishap(pump: Pump, chance: random.Random) -> e.Event:
    """Something that goes wrong."""
    site = chance.choice(pump.machine.plan.sites)
    ask = pump.machine.run.live.ask
    number = (0, 0) if ask is None else (ask.question, ask.attempt)
    nan = m.Vector(np.full((UNLABELLED, 2), np.nan))
    several: list[e.Event] = [
        e.SiteLost(site, "its stream ended"),
        e.Received(site, m.Leaving("stopped")),
        e.DeadlinePassed(RUN, pump.machine.token),
        e.DeadlinePassed(RUN, pump.machine.token),
    ]
    rare: list[e.Event] = [
        e.Received(site, m.Fault(RUN, *number, "the disk is full")),
        e.Received(site, m.Prediction(RUN, *number, nan)),
    ]
    return chance.choice(several if chance.random() < 0.9 else rare)


@given(
    seed=st.integers(0, 10**6), schedule=st.sampled_from(SCHEDULES), on_dropout=st.sampled_from(["wait", "continue"])
)
def test_what_a_live_run_remembers_is_the_fold_of_its_records(seed: int, schedule: str, on_dropout: str) -> None:
    chance = random.Random(seed)
    plan = make_plan(schedule=schedule, on_dropout=on_dropout, sites=("a", "b", "c", "d"), max_rejoins=2)
    after_each: list[tuple[Record, RunState]] = []
    with noted(after_each):
        pump = Pump(plan, make_sites(plan.sites), shuffle=chance).join()
        for _ in range(MOST_EVENTS):
            if pump.end is not None:
                break
            if not pump.events or chance.random() < 0.05:
                pump.events.append(mishap(pump, chance))
            if chance.random() < 0.05:
                pump.join(chance.choice(plan.sites))
            pump.step()
    assert [r for r, _ in after_each] == pump.records
    folded = RunState(plan)
    for record, live in after_each:
        folded = after(folded, record)
        assert every_field(live) == every_field(folded), record
    assert every_field(pump.machine.run.recorded) == every_field(resume(plan, pump.records))


def test_nothing_is_remembered_of_no_records() -> None:
    assert every_field(resume(make_plan(), [])) == every_field(RunState(make_plan()))


# --- a coordinator that was killed --------------------------------------------------------------------------------


def resumed(first: Pump, *, restarted: bool) -> Pump:
    """Resumed after a kill; ``restarted``: its sites are other processes too, with what their ledgers tell."""
    sites = all_restarted(first.sites) if restarted else first.sites
    return Pump(first.machine.plan, sites, [*first.machine.records, *first.records]).join().run()


def same_bits(expected: Pump, *pumps: Pump) -> bool:
    """What sites ended with, in whichever process they heard of it."""
    bits = {site: bits for pump in pumps for site, bits in pump.bits.items()}
    clean = not any(site.breach for pump in pumps for site in pump.sites.values())
    return bits == expected.bits and clean and pumps[-1].end == expected.end


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_killed_after_any_record_a_run_ends_on_the_same_bits(schedule: str, restarted: bool) -> None:
    plan = make_plan(
        schedule=schedule, sites=("a", "b"), coupling=(0.3, 0.8), prediction_tolerance=0.03, tolerance=1e-3
    )
    expected = undisturbed(plan)
    assert expected.end == e.Finish(RUN, Outcome.CONVERGED, "")
    assert len(expected.records) > 5
    for kept in range(1, len(expected.records)):
        first = Pump(plan, make_sites(plan.sites), kill_after=kept).join().run()
        assert len(first.records) == kept
        again = resumed(first, restarted=restarted)
        assert same_bits(expected, first, again), f"killed after {kept} records"


def test_killed_again_and_again_it_still_ends_on_the_same_bits() -> None:
    plan = make_plan()
    expected = undisturbed(plan)
    lives = [Pump(plan, make_sites(plan.sites), kill_after=1).join().run()]
    while lives[-1].end is None:
        last = lives[-1]
        records = [*last.machine.records, *last.records]
        again = Pump(plan, all_restarted(last.sites), records, kill_after=1 if len(lives) % 2 else 2)
        lives.append(again.join().run())
    assert len(lives) > 6
    assert same_bits(expected, *lives)


def test_killed_between_a_question_and_its_last_answer_the_same_sites_answer_from_their_cache() -> None:
    plan = make_plan()
    expected = undisturbed(plan)
    pump = Pump(plan, make_sites(plan.sites)).join().steps(4)
    asked = {name: site.answered for name, site in pump.sites.items()}  # question 4 is answered, nothing is written
    views = {name: site.view for name, site in pump.sites.items()}
    again = Pump(plan, pump.sites, pump.records).join().steps(1)
    # Question 4 once more, and question 5, whose answers are on their way.
    assert {name: site.answered - asked[name] for name, site in again.sites.items()} == {"a": 2, "b": 2, "c": 2}
    assert {name: site.view for name, site in again.sites.items()} == views, "nothing is factored again"
    assert again.run().bits == expected.bits


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_stalled_run_is_resumed_where_it_was_and_ends_on_the_same_bits(schedule: str) -> None:
    plan = make_plan(schedule=schedule)
    expected = undisturbed(plan)
    pump = Pump(plan, make_sites(plan.sites)).join().steps(4)
    ledgers = all_restarted(pump.sites)
    pump.events.clear()  # every site is away, b for longer than the run waits
    assert pump.out_of_time().machine.phase is Phase.STALLED
    while pump.end is None:
        pump.out_of_time()
    assert pump.outcome is Outcome.STALLED
    assert not any(isinstance(r, Ended) for r in pump.records)
    assert Pump(plan, ledgers, pump.records).join().run().bits == expected.bits


def test_a_resumed_run_whose_sites_are_late_again_can_be_resumed_once_more() -> None:
    plan = make_plan()
    expected = undisturbed(plan)
    first = Pump(plan, make_sites(plan.sites), kill_after=4).join().run()
    late = Pump(plan, all_restarted(first.sites), first.records).join("a", "b").out_of_time()
    late.run()  # those who are here fetch what there is
    assert late.end == e.Finish(RUN, Outcome.TOO_FEW_SITES, "c did not accept the plan in time")
    assert not any(site.breach for site in late.sites.values())
    assert late.records == []
    once_more = Pump(plan, all_restarted(late.sites), first.records).join().run()
    assert once_more.bits == expected.bits


@pytest.mark.parametrize("on_dropout", ["wait", "continue"])
@pytest.mark.parametrize("min_sites", [2, 3])
def test_killed_between_an_exclusion_and_what_follows_from_it_the_same_follows(on_dropout: str, min_sites: int) -> None:
    """A fault of c is on record, and what the run makes of it is not: an end, or another membership."""
    plan = make_plan(on_dropout=on_dropout, min_sites=min_sites)
    alive, killed = faulted(plan), faulted(plan, kill_after=5)
    assert killed.records[4:] == [SiteExcluded("c", Outcome.SITE_FAULT, "c: the disk is full")]
    honest = {name: site for name, site in all_restarted(killed.sites).items() if name != "c"}
    again = Pump(plan, honest, killed.records).join().run()
    goes_on = on_dropout == "continue" and min_sites == 2
    assert again.end == alive.end
    assert again.outcome is (Outcome.CONVERGED if goes_on else Outcome.SITE_FAULT)
    assert again.bits == {name: bits for name, bits in alive.bits.items() if name != "c"}
    assert not any(site.breach for site in honest.values())


def faulted(plan: Plan, kill_after: int | None = None) -> Pump:
    """c cannot answer the fourth question."""
    pump = Pump(plan, make_sites(plan.sites), kill_after=kill_after).join().steps(3)
    ask = pump.without("c").machine.run.live.ask
    pump.events.append(e.Received("c", m.Fault(RUN, ask.question, ask.attempt, "the disk is full")))
    return pump.run()
