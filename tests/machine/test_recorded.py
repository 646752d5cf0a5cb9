"""What a run remembers is a fold of its records, and nothing else: whatever happens, live and resumed are the same bits."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from stepwise import RUN, every_field
from tiny import SCHEDULES, UNLABELLED, Pump, make_plan, make_sites

from coordinator.machine.events import DeadlinePassed, Event, Received, SiteLost
from coordinator.machine.records import Record
from coordinator.machine.run import Reaction
from coordinator.machine.state import Recorded, after, resume
from coreg_core.protocol.messages import Fault, Leaving, Prediction, Vector

MOST_EVENTS = 300


@contextmanager
def noted(after_each: list[tuple[Record, Recorded]]) -> Iterator[None]:
    """Every record with what the run remembered right after it, in the middle of an event too."""
    real = Reaction.record

    def noting(reaction: Reaction, record: Record) -> None:
        real(reaction, record)
        after_each.append((record, reaction.recorded))

    with patch.object(Reaction, "record", noting):
        yield


def mishap(pump: Pump, chance: random.Random) -> Event:
    """Something that goes wrong."""
    site = chance.choice(pump.machine.plan.sites)
    ask = pump.machine.run.live.ask
    number = (0, 0) if ask is None else (ask.question, ask.attempt)
    nan = Vector(np.full((UNLABELLED, 2), np.nan))
    several: list[Event] = [
        SiteLost(site, "its stream ended"),
        Received(site, Leaving("stopped")),
        DeadlinePassed(RUN, pump.machine.token),
        DeadlinePassed(RUN, pump.machine.token),
    ]
    rare: list[Event] = [
        Received(site, Fault(RUN, *number, "the disk is full")),
        Received(site, Prediction(RUN, *number, nan)),
    ]
    return chance.choice(several if chance.random() < 0.9 else rare)


@given(seed=st.integers(0, 10**6), schedule=st.sampled_from(SCHEDULES), on_lost=st.sampled_from(["wait", "continue"]))
def test_what_a_live_run_remembers_is_the_fold_of_its_records(seed: int, schedule: str, on_lost: str) -> None:
    chance = random.Random(seed)
    plan = make_plan(schedule=schedule, on_lost=on_lost, sites=("a", "b", "c", "d"), most_returns=2)
    after_each: list[tuple[Record, Recorded]] = []
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
    folded = Recorded(plan)
    for record, live in after_each:
        folded = after(folded, record)
        assert every_field(live) == every_field(folded), record
    assert every_field(pump.machine.run.recorded) == every_field(resume(plan, pump.records))


def test_nothing_is_remembered_of_no_records() -> None:
    assert every_field(resume(make_plan(), [])) == every_field(Recorded(make_plan()))
