"""Runs and questions a day: counted by the ledger, over runs and restarts, whatever the plans are."""

import datetime as dt
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coreg_core.agreement.columns import Column
from coreg_core.protocol.messages import Ask, Fault, PlanAccepted, PlanRefused, Vector
from site_agent.ledger import Ledger
from site_agent.ledger.quota import DAY, Day, day_of
from site_agent.machine.site import Site
from site_agent.policy.guards import terms_of
from site_agent.policy.policy import Policy

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "machine"))
from tiny import UNLABELLED, make_plan, private_data

NOON = dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC)


def hours(number: float) -> dt.datetime:
    return NOON + dt.timedelta(hours=number)


def test_another_run_waits_until_the_oldest_is_a_day_old_and_a_run_that_was_begun_goes_on():
    day = Day()
    for run, at in (("one", -20), ("two", -10), ("two", -1)):
        day.note("PlanAccepted", run, hours(at))
    assert day.run_objection("three", 3, NOON) is None
    assert day.run_objection("two", 2, NOON) is None
    said = day.run_objection("three", 2, NOON)
    assert said is not None
    assert "2 runs since 2026-04-30 16:00:00 UTC, and the next may begin at 2026-05-01 16:00:00 UTC" in said
    assert day.run_objection("three", 1, NOON).count("2026-05-02 02:00:00") == 1  # both have to be past
    assert day.run_objection("three", 2, hours(3.99)) is not None
    assert day.run_objection("three", 2, hours(4)) is None


@given(st.lists(st.integers(-40, 0), max_size=30), st.integers(1, 12))
def test_answers_go_out_again_exactly_when_it_says_so(ages, most):
    def day():
        found = Day()
        for age in sorted(ages):
            found.note("Masked", "r", hours(age))
        return found

    said, counted = day().answer_objection(most, NOON), sum(age > -24 for age in ages)
    assert (said is not None) == (counted >= most)
    if said is not None:
        assert f"gave {counted} answers" in said
        when = dt.datetime.strptime(said.split("go out at ")[1].split(" UTC")[0], "%Y-%m-%d %H:%M:%S").replace(
            tzinfo=dt.UTC
        )
        assert day().answer_objection(most, when - dt.timedelta(seconds=1)) is not None
        assert day().answer_objection(most, when) is None


def test_of_a_ledger_s_lines_those_of_the_day_count_and_torn_ones_are_passed():
    def line(at, kind, run="r"):
        return f'{{"at": "{at.isoformat(timespec="milliseconds")}", "kind": "{kind}", "run": "{run}"}}\n'.encode()

    lines = [
        line(hours(-25), "PlanAccepted", "old"),
        line(hours(-24), "Prediction"),
        line(hours(-23.9), "PlanAccepted", "new"),
        line(hours(-1), "Share"),
        line(hours(-1), "Fault"),
        line(hours(0), "Masked")[:-9] + b"\n",
        b"\xff\xfe no line of ours\n",
        b'{"at": "2026-05-01T11:00:00.000+00:00"}\n',
        line(hours(5), "Masked"),  # a clock that was set back
    ]
    day = day_of(lines, NOON)
    assert list(day.runs) == ["new"]
    assert list(day.answers) == [hours(-1), hours(5)]
    assert NOON - day.runs["new"] < DAY


class Agent:
    """A site, its ledger and its policy, as `coreg-agent` puts them together."""

    def __init__(self, path, **policy):
        self.ledger = Ledger(path)
        self.site = Site("a", private_data("a"), terms_of(Policy(answers="clear", **policy), self.ledger))

    def handle(self, message):
        [answer] = self.site.handle(message)
        self.ledger.record(answer, message if isinstance(message, Ask) else None, self.site.kept(message.run))
        return answer


def test_over_restarts_and_plans_a_site_takes_part_in_so_many_runs_a_day(tmp_path):
    for number in range(3):
        agent = Agent(tmp_path / "l", runs_a_day=2)
        answer = agent.handle(make_plan(run=f"run-{number}", coupling=(0.1, 1.0 + number)))
        assert isinstance(answer, PlanAccepted if number < 2 else PlanRefused)
        agent.ledger.close()
    assert "runs_a_day=2: this site took part in 2 runs since " in answer.reason
    again = Agent(tmp_path / "l", runs_a_day=2)  # the coordinator takes up a run that was begun
    assert isinstance(again.handle(make_plan(run="run-1", coupling=(0.1, 2.0))), PlanAccepted)
    again.ledger.close()
    both = Agent(tmp_path / "l", runs_a_day=2, max_rounds=5)
    said = both.handle(make_plan(run="run-9")).reason
    assert "max_rounds=5" in said
    assert "runs_a_day=2" in said
    both.ledger.close()


@pytest.mark.parametrize("restart", [False, True])
def test_over_runs_a_site_gives_so_many_answers_a_day_and_says_when_the_next_may_come(tmp_path, restart):
    agent = Agent(tmp_path / "l", questions_a_day=2)
    for number in range(3):
        run = f"run-{number}"
        agent.site.runs.clear()  # the run before is over
        agent.handle(make_plan(run=run, coupling=(0.1, 1.0 + number)))
        columns = tuple(Column(c, 6.0 * c) for c in (0.1, 1.0 + number))  # 2λM of three sites
        answer = agent.handle(Ask(run, 0, 0, "affine", columns, True, Vector(np.zeros((UNLABELLED, 2)))))
        if restart:
            agent.ledger.close()
            agent = Agent(tmp_path / "l", questions_a_day=2)
    assert isinstance(answer, Fault)
    assert "questions_a_day=2: this site gave 2 answers since " in answer.reason
    assert agent.site.breach is None
    agent.ledger.close()
