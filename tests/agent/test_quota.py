"""Runs and questions per day: counted by the ledger, over runs and restarts, whatever the plans are."""

import datetime as dt
import json

from hypothesis import given
from hypothesis import strategies as st
from machine.tiny import Pump, make_plan, make_sites, private_data

from coreg_core.protocol.messages import Offer, PlanRefused, Proposal
from site_agent.ledger import Ledger, quota_of
from site_agent.ledger.quota import RollingQuota
from site_agent.machine.site import Site
from site_agent.policy.guards import rules_of
from site_agent.policy.policy import Policy

NOON = dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC)


def hours(number):
    return NOON + dt.timedelta(hours=number)


def quota(*entries):
    found = RollingQuota()
    for kind, run, age in entries:
        found.add({"kind": kind, "run": run, "numbers": 1, "at": hours(age).isoformat()})
    return found


def test_another_run_waits_until_the_oldest_is_a_day_old_and_a_run_that_was_begun_goes_on():
    day = quota(*(("Offer", run, at) for run, at in (("one", -20), ("two", -10), ("two", -1))))
    assert day.run_objection("three", 3, NOON) is None
    assert day.run_objection("two", 2, NOON) is None
    assert "2 runs since 2026-04-30 16:00:00 UTC. The next can begin at 2026-05-01 16:00:00 UTC" in (
        day.run_objection("three", 2, NOON) or ""
    )
    assert "2026-05-02 02:00:00" in day.run_objection("three", 1, NOON)  # both have to be past
    assert day.run_objection("three", 2, hours(3.99)) is not None
    assert day.run_objection("three", 2, hours(4)) is None


@given(st.lists(st.integers(-40, 0), max_size=30), st.integers(1, 12))
def test_answers_go_out_again_exactly_at_the_time_that_is_named(ages, limit):
    def objection(now):
        return quota(*(("Answer", "r", age) for age in sorted(ages))).answer_objection(limit, now)

    text, counted = objection(NOON), sum(age > -24 for age in ages)
    assert (text is not None) == (counted >= limit)
    if text is not None:
        assert f"sent {counted} answers" in text
        when = dt.datetime.fromisoformat(text.split("be sent at ")[1].split(" UTC")[0]).replace(tzinfo=dt.UTC)
        assert objection(when - dt.timedelta(seconds=1)) is not None
        assert objection(when) is None


def test_of_a_ledgers_lines_those_of_the_day_count_and_torn_ones_are_passed(tmp_path):
    def line(age, kind, run="r", **more):
        at = hours(age).isoformat(timespec="milliseconds")
        return json.dumps({"at": at, "kind": kind, "run": run, **more}).encode() + b"\n"

    lines = [
        line(-25, "Offer", "old"),
        line(-24, "Answer", numbers=1),
        line(-23.9, "Offer", "new"),
        line(-2, "PlanAccepted", "old protocol"),
        line(-1, "Answer", numbers=3),
        line(-1, "Answer"),  # keys and proofs
        line(-1, "Fault"),
        line(0, "Answer", numbers=3)[:-9] + b"\n",
        b"\xff\xfe no line of ours\n",
        line(5, "Masked"),  # of protocol 2, and a clock that was set back
    ]
    (tmp_path / "l").write_bytes(b"".join(lines))
    found = quota_of(tmp_path / "l", NOON)
    assert found.runs == {"new": hours(-23.9), "old protocol": hours(-2)}
    assert list(found.answers) == [hours(-1), hours(5)]
    assert quota_of(tmp_path / "none", NOON) == RollingQuota()


class Agent:
    """A site, its ledger and its policy, as `coreg-agent` puts them together."""

    def __init__(self, path, **policy):
        self.ledger, self.said = Ledger(path), []
        self.site = Site("a", private_data("a"), rules_of(Policy(aggregation="plaintext", **policy), self.ledger))
        self._handle, self.site.handle = self.site.handle, self.handle

    def handle(self, message):
        answers = [self.ledger.record(said, self.site.told) for said in self._handle(message)]
        self.said += answers
        return answers


def test_over_restarts_and_plans_a_site_takes_part_in_so_many_runs_per_day(tmp_path):
    def asked(run, coupling, **policy):
        agent = Agent(tmp_path / "l", max_runs_per_day=2, **policy)
        try:
            [answer] = agent.site.handle(Proposal(run, 0, make_plan(run=run, coupling=coupling)))
            return answer
        finally:
            agent.ledger.close()

    first, second, third = (asked(f"run-{number}", (0.1, 1.0 + number)) for number in range(3))
    assert [type(answer) for answer in (first, second, third)] == [Offer, Offer, PlanRefused]
    assert "max_runs_per_day = 2: this site took part in 2 runs since " in third.reason
    assert isinstance(asked("run-1", (0.1, 2.0)), Offer), "a run that was begun goes on"
    both = asked("run-9", (0.1, 1.0), max_rounds=5).reason
    assert ("max_rounds = 5" in both, "max_runs_per_day = 2" in both) == (True, True)


def test_over_runs_and_restarts_a_site_gives_so_many_answers_per_day_and_names_the_time_of_the_next(tmp_path):
    """Whatever the plans are: the first run is of another one than the second."""
    for coupling, most in ((0.1, 3), (0.2, 5)):
        agent, plan = Agent(tmp_path / "l", max_questions_per_day=most), make_plan(coupling=(coupling,))
        pump = Pump(plan, {**make_sites("bc"), "a": agent.site}).join().run()
        agent.ledger.close()
        assert len(quota_of(tmp_path / "l", dt.datetime.now(dt.UTC)).answers) == most
        refusal = next(said.reason for said in agent.said if isinstance(said, PlanRefused))
        assert f"max_questions_per_day = {most}: this site sent {most} answers since " in refusal
        assert pump.breaches == {}
