"""Runs and questions per day: counted by the ledger, over runs and restarts, whatever the plans are."""

import datetime as dt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine.tiny import UNLABELLED, make_plan, private_data

from coreg_core.agreement.columns import Column
from coreg_core.protocol.messages import Ask, Fault, PlanAccepted, PlanRefused
from coreg_core.protocol.vectors import Vector
from site_agent.ledger import Ledger, quota_of
from site_agent.ledger.quota import RollingQuota
from site_agent.machine.site import Site
from site_agent.policy.guards import terms_of
from site_agent.policy.policy import Policy

NOON = dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC)


def hours(number):
    return NOON + dt.timedelta(hours=number)


def quota(*entries):
    found = RollingQuota()
    for kind, run, age in entries:
        found.add({"kind": kind, "run": run, "at": hours(age).isoformat()})
    return found


def test_another_run_waits_until_the_oldest_is_a_day_old_and_a_run_that_was_begun_goes_on():
    day = quota(*(("PlanAccepted", run, at) for run, at in (("one", -20), ("two", -10), ("two", -1))))
    assert day.run_objection("three", 3, NOON) is None
    assert day.run_objection("two", 2, NOON) is None
    assert "2 runs since 2026-04-30 16:00:00 UTC. The next may begin at 2026-05-01 16:00:00 UTC" in (
        day.run_objection("three", 2, NOON) or ""
    )
    assert "2026-05-02 02:00:00" in day.run_objection("three", 1, NOON)  # both have to be past
    assert day.run_objection("three", 2, hours(3.99)) is not None
    assert day.run_objection("three", 2, hours(4)) is None


@given(st.lists(st.integers(-40, 0), max_size=30), st.integers(1, 12))
def test_answers_go_out_again_exactly_at_the_time_that_is_named(ages, limit):
    def objection(now):
        return quota(*(("Masked", "r", age) for age in sorted(ages))).answer_objection(limit, now)

    text, counted = objection(NOON), sum(age > -24 for age in ages)
    assert (text is not None) == (counted >= limit)
    if text is not None:
        assert f"gave {counted} answers" in text
        when = dt.datetime.fromisoformat(text.split("go out at ")[1].split(" UTC")[0]).replace(tzinfo=dt.UTC)
        assert objection(when - dt.timedelta(seconds=1)) is not None
        assert objection(when) is None


def test_of_a_ledgers_lines_those_of_the_day_count_and_torn_ones_are_passed(tmp_path):
    def line(age, kind, run="r"):
        at = hours(age).isoformat(timespec="milliseconds")
        return f'{{"at": "{at}", "kind": "{kind}", "run": "{run}"}}\n'.encode()

    lines = [
        line(-25, "PlanAccepted", "old"),
        line(-24, "Prediction"),
        line(-23.9, "PlanAccepted", "new"),
        line(-1, "Share"),
        line(-1, "Fault"),
        line(0, "Masked")[:-9] + b"\n",
        b"\xff\xfe no line of ours\n",
        line(5, "Masked"),  # a clock that was set back
    ]
    (tmp_path / "l").write_bytes(b"".join(lines))
    found = quota_of(tmp_path / "l", NOON)
    assert found.runs == {"new": hours(-23.9)}
    assert list(found.answers) == [hours(-1), hours(5)]
    assert quota_of(tmp_path / "none", NOON) == RollingQuota()


class Agent:
    """A site, its ledger and its policy, as `coreg-agent` puts them together."""

    def __init__(self, path, **policy):
        self.ledger = Ledger(path)
        self.site = Site("a", private_data("a"), terms_of(Policy(aggregation="plaintext", **policy), self.ledger))

    def handle(self, message):
        [answer] = self.site.handle(message)
        self.ledger.record(answer, message if isinstance(message, Ask) else None, self.site.kept(message.run))
        return answer


def test_over_restarts_and_plans_a_site_takes_part_in_so_many_runs_per_day(tmp_path):
    def asked(run, coupling, **policy):
        agent = Agent(tmp_path / "l", max_runs_per_day=2, **policy)
        try:
            return agent.handle(make_plan(run=run, coupling=coupling))
        finally:
            agent.ledger.close()

    first, second, third = (asked(f"run-{number}", (0.1, 1.0 + number)) for number in range(3))
    assert [type(answer) for answer in (first, second, third)] == [PlanAccepted, PlanAccepted, PlanRefused]
    assert "max_runs_per_day=2: this site took part in 2 runs since " in third.reason
    assert isinstance(asked("run-1", (0.1, 2.0)), PlanAccepted), "a run that was begun goes on"
    both = asked("run-9", (0.1, 1.0), max_rounds=5).reason
    assert ("max_rounds=5" in both, "max_runs_per_day=2" in both) == (True, True)


@pytest.mark.parametrize("restart", [False, True])
def test_over_runs_a_site_gives_so_many_answers_per_day_and_names_the_time_of_the_next(tmp_path, restart):
    agent = Agent(tmp_path / "l", max_questions_per_day=2)
    for number in range(3):
        run, couplings = f"run-{number}", (0.1, 1.0 + number)
        agent.site.runs.clear()  # the run before is over
        agent.handle(make_plan(run=run, coupling=couplings))
        columns = tuple(Column(c, 6.0 * c) for c in couplings)  # 2λM of three sites
        answer = agent.handle(Ask(run, 0, 0, "affine", columns, True, Vector(np.zeros((UNLABELLED, 2)))))
        if restart:
            agent.ledger.close()
            agent = Agent(tmp_path / "l", max_questions_per_day=2)
    assert isinstance(answer, Fault)
    assert "max_questions_per_day=2: this site gave 2 answers since " in answer.reason
    assert agent.site.breach is None
    agent.ledger.close()
