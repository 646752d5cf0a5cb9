"""coordinator/store/repeats.py: studies that repeat, and the dates of their runs."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine.tiny import make_plan
from store.filled import NOW

from coordinator.store.maintenance import verify
from coordinator.store.repeats import Repeats
from coordinator.store.summaries import Summaries
from coreg_core.errors import StorageError
from coreg_core.protocol.outcomes import Outcome

WEEK = 7 * 86400.0
START = datetime(2026, 11, 2, 5, 30, tzinfo=UTC)  # a Monday
PLAN = replace(make_plan(), study="weekly")


@pytest.fixture
def repeats(store: Summaries) -> Repeats:
    return Repeats(store.path)


def weeks(number: float) -> datetime:
    return START + timedelta(weeks=number)


def test_a_run_is_queued_at_each_date_once_the_last_one_has_ended(store: Summaries, repeats: Repeats) -> None:
    assert repeats.repeat(PLAN, WEEK, START).next == "2026-11-09T05:30:00+00:00"
    assert list(repeats.queue_due(weeks(1) - timedelta(seconds=1))) == []
    assert repeats.waiting() == []
    assert list(repeats.queue_due(weeks(1))) == []
    [(queued, _)] = repeats.waiting()
    assert queued.run != PLAN.run
    assert replace(queued, run=PLAN.run) == PLAN
    assert list(repeats.queue_due(weeks(1.5))) == [], "one run a date"
    for begin in (False, True):  # queued, then active
        if begin:
            store.begin(queued, NOW)
        [(study, reason)] = repeats.queue_due(weeks(2 + begin))
        assert (study, reason.startswith(f"run {queued.run} has not ended")) == ("weekly", True)
    store.close_run(queued, Outcome.REFUSED, "", NOW)  # the end does not matter
    assert list(repeats.queue_due(weeks(4))) == []
    assert len(repeats.waiting()) == 1


@given(late=st.floats(0, 30 * WEEK))
def test_missed_dates_give_one_run_and_the_dates_keep_their_distance(
    tmp_path_factory: pytest.TempPathFactory, late: float
) -> None:
    repeats = Repeats(tmp_path_factory.mktemp("missed") / "runs.sqlite")
    repeats.repeat(PLAN, WEEK, START)
    now = weeks(1) + timedelta(seconds=late)
    assert list(repeats.queue_due(now)) == []
    assert len(repeats.waiting()) == 1
    following = datetime.fromisoformat(repeats.repeats()[0].next)
    assert now < following <= now + timedelta(weeks=1)
    assert (following - START).total_seconds() % WEEK == 0
    repeats.close()


def test_a_study_repeats_with_its_newest_plan_until_it_is_ended(repeats: Repeats) -> None:
    repeats.repeat(PLAN, WEEK, START)
    newer = replace(make_plan(coupling=(9.0,)), study="weekly")
    repeats.repeat(newer, 2 * WEEK, START)
    assert [(each.seconds, each.next[:10]) for each in repeats.repeats()] == [(2 * WEEK, "2026-11-16")]
    assert list(repeats.queue_due(weeks(2))) == []
    [(queued, _)] = repeats.waiting()
    assert queued.digest == newer.digest
    assert repeats.end_repeat("weekly")
    assert not repeats.end_repeat("weekly")
    assert list(repeats.queue_due(weeks(9))) == []
    assert len(repeats.waiting()) == 1, "what is queued stays"


def test_a_damaged_plan_ends_its_study_and_no_other(repeats: Repeats) -> None:
    repeats.repeat(PLAN, WEEK, START)
    repeats.repeat(replace(PLAN, study="other"), WEEK, START)
    repeats._db.execute("update repeats set plan = replace(plan, 'tiny', 'tony') where study = 'weekly'")
    with pytest.raises(StorageError, match="the plan of study weekly, which repeats"):
        verify(repeats.path)
    [(study, reason)] = repeats.queue_due(weeks(1))
    assert (study, "submit the study again" in reason) == ("weekly", True)
    assert [plan.study for plan, _ in repeats.waiting()] == ["other"]
    assert [each.study for each in repeats.repeats()] == ["other"]
