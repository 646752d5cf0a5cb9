"""A federation that stands: sessions before, between and after runs; runs that come and go; nothing of them that stays."""

from collections import deque
from dataclasses import replace
from typing import Any

import pytest
from tiny import CLOCKS, Pump, hello, make_plan, make_sites, undisturbed

from coordinator.machine import notices
from coordinator.machine.events import (
    Action,
    Cancelled,
    Draining,
    Event,
    Finish,
    Interrupted,
    Notify,
    Persist,
    Received,
    Reject,
    Relisted,
    Revoked,
    Send,
    SiteJoined,
    Submitted,
)
from coordinator.machine.federation import Federation, handle
from coordinator.machine.records import Closed, Delivered, Ended, Record
from coreg_core.protocol.messages import Dismissed, Fetched, Finished, FromSite, Hello, Rejected, ToSite
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan
from site_agent.machine.site import Site

SITES = ("a", "b", "c")


class Several:
    """An agent that takes part in several runs: a site for each, as `site_agent.service.daemon` has it."""

    def __init__(self, name: str):
        self.name, self.runs = name, dict[str, Site]()

    def hello(self) -> Hello:
        return hello(self.name)

    def handle(self, message: ToSite) -> list[FromSite]:
        run = getattr(message, "run", None)
        if isinstance(message, Rejected) or run is None:
            return []
        if run not in self.runs:
            if not isinstance(message, Plan):
                return [Fetched(run)] if isinstance(message, Finished) and message.targets is None else []
            self.runs[run] = make_sites([self.name])[self.name]
            self.runs[run].hello()
        answers = self.runs[run].handle(message)
        if isinstance(message, Finished | Dismissed):
            del self.runs[run]
        return answers


class Standing:
    """The federation and its agents, wired by a queue of events."""

    def __init__(self) -> None:
        self.federation = Federation(standing=SITES, clocks=CLOCKS)
        self.agents = {name: Several(name) for name in SITES}
        self.events: deque[Event] = deque()
        self.records: dict[str, list[Record]] = {}
        self.finished: dict[str, Finish] = {}
        self.models: dict[tuple[str, str], Finished] = {}
        self.notices: list[Any] = []
        self.rejected: dict[str, str] = {}

    def tell(self, *events: Event) -> "Standing":
        self.events.extend(events)
        while self.events:
            self.one()
        return self

    def one(self) -> None:
        self.federation, actions = handle(self.federation, self.events.popleft())
        for action in actions:
            self.carry_out(action)

    def carry_out(self, action: Action) -> None:
        match action:
            case Send(name, message):
                if isinstance(message, Finished):
                    self.models[message.run, name] = message
                self.events.extend(Received(name, answer) for answer in self.agents[name].handle(message))
            case Persist(run, record):
                self.records.setdefault(run, []).append(record)
            case Finish(run):
                self.finished[run] = action
            case Reject(name, reason):
                self.rejected[name] = reason
            case Notify(notice):
                self.notices.append(notice)

    def joined(self) -> "Standing":
        return self.tell(*(SiteJoined(agent.hello(), "2027-01-01") for agent in self.agents.values()))

    def bits(self, run: str) -> dict[str, Any]:
        return {name: (m.outcome, m.columns, m.targets) for (r, name), m in sorted(self.models.items()) if r == run}


def test_runs_come_and_go_over_the_same_sessions_on_the_bits_of_a_federation_of_one_run() -> None:
    fed = Standing().joined()
    assert not fed.federation.done
    assert [n for n in fed.notices if isinstance(n, notices.SessionOpened)] == [
        notices.SessionOpened(name, "test", "2027-01-01") for name in SITES
    ]
    for number in range(3):
        fed.tell(Submitted(make_plan(run=f"run-{number}")))
        assert fed.finished[f"run-{number}"].outcome is Outcome.CONVERGED
        assert fed.federation.runs == {}, "nothing of it is kept"
        assert set(fed.federation.sessions) == set(SITES), "and everybody is still there"
        assert fed.bits(f"run-{number}") == undisturbed(make_plan()).bits


def test_two_runs_at_once_do_not_meet() -> None:
    plans = [make_plan(run="run-1"), make_plan(run="run-2", coupling=(0.3, 2.0))]
    fed = Standing().joined()
    fed.events.extend(Submitted(plan) for plan in plans)
    overlap = False
    while fed.events:
        fed.one()
        overlap = overlap or len(fed.federation.runs) == 2
    assert overlap
    for plan in plans:
        assert fed.bits(plan.run) == undisturbed(plan).bits


@pytest.mark.parametrize("after", [0, 3, 9])
def test_a_run_that_was_left_is_taken_up_on_the_same_bits_while_another_is_under_way(after: int) -> None:
    plan, whole = make_plan(run="run-1"), undisturbed(make_plan())
    killed = Pump(plan, make_sites(SITES), kill_after=after + 1).join().run()
    fed = Standing().joined()
    fed.agents = {name: Several(name) for name in SITES}
    for name, agent in fed.agents.items():
        agent.runs["run-1"] = killed.sites[name]  # they went on, and their ledgers with them
    other = make_plan(run="run-2", coupling=(0.3, 2.0))
    fed.tell(Submitted(other), Submitted(plan, tuple(killed.records)))
    assert fed.bits("run-1") == whole.bits
    assert fed.bits("run-2") == undisturbed(other).bits


def test_a_cancelled_run_is_over_for_good_and_the_federation_goes_on() -> None:
    fed = Standing()
    fed.tell(Submitted(make_plan(run="run-1"))).tell(SiteJoined(hello("a")))
    fed.tell(Cancelled("run-1", "not today"), Cancelled("nobody", "knows it"))
    assert fed.finished == {"run-1": Finish("run-1", Outcome.CANCELLED, "not today")}
    assert [type(r) for r in fed.records["run-1"]] == [Ended, Delivered, Closed]
    assert not fed.federation.done


def test_a_run_that_is_cancelled_between_two_questions_ends_with_what_it_has() -> None:
    fed = Standing().joined()
    fed.events.append(Submitted(make_plan(run="run-1")))
    while not any(isinstance(n, notices.QuestionAnswered) and n.question == 4 for n in fed.notices):
        fed.one()
    fed.tell(Cancelled("run-1", "enough"))
    assert fed.finished["run-1"].outcome is Outcome.CANCELLED
    assert {m.outcome for m in fed.models.values()} == {Outcome.CANCELLED}
    assert fed.federation.runs == {}


def test_a_revoked_site_is_put_out_told_why_and_missed() -> None:
    fed = Standing().joined()
    fed.tell(Revoked("b", "b is not in the list"), Revoked("z", "was never here"))
    assert fed.rejected == {"b": "b is not in the list"}
    assert set(fed.federation.sessions) == {"a", "c"}
    assert notices.SessionRejected("b", "b is not in the list") in fed.notices
    assert notices.SessionEnded("b", "b is not in the list") in fed.notices
    fed.tell(Submitted(make_plan(run="run-1", min_sites=3)))
    assert fed.federation.runs["run-1"].awaited == ("b",)
    fed.tell(SiteJoined(hello("b")))
    assert fed.finished["run-1"].outcome is Outcome.CONVERGED


def test_who_is_welcome_is_read_anew() -> None:
    fed = Standing().joined().tell(Relisted(("a", "b", "d")))
    assert list(fed.rejected) == ["c"]
    fed.tell(SiteJoined(hello("d")), SiteJoined(hello("c")))
    assert set(fed.federation.sessions) == {"a", "b", "d"}
    assert "c: not in this federation's list of sites (a, b, d)" in fed.rejected["c"]


def test_draining_leaves_what_is_under_way_and_delivers_what_is_over() -> None:
    """The first run waits for a fourth site; of the second, one site has not fetched its model yet."""
    fed = Standing().joined()
    fed.tell(Submitted(make_plan(run="waits", sites=("a", "b", "c", "d"), min_sites=4)))
    slow = fed.agents["c"].handle
    held: list[FromSite] = []

    def late(message: ToSite) -> list[FromSite]:
        answers = slow(message)
        if isinstance(message, Finished):
            held.extend(answers)
            return []
        return answers

    fed.agents["c"].handle = late  # type: ignore[method-assign]
    fed.tell(Submitted(make_plan(run="over")))
    fed.tell(Draining())
    assert fed.finished["waits"].outcome is Outcome.INTERRUPTED
    assert "waits" not in fed.records, "nothing is written down as an end: it is taken up by the next start"
    assert not fed.federation.done
    fed.tell(*(Received("c", answer) for answer in held))
    assert fed.federation.done
    assert fed.finished["over"].outcome is Outcome.CONVERGED


def test_an_interrupt_waits_for_nobody() -> None:
    fed = Standing().joined().tell(Submitted(make_plan(run="waits", sites=("a", "b", "c", "d"), min_sites=4)))
    assert fed.tell(Interrupted()).federation.done


def test_a_federation_of_one_run_says_nothing_of_sessions() -> None:
    fed = Standing()
    fed.federation = replace(fed.federation, standing=None)
    fed.tell(Submitted(make_plan())).joined()
    assert not [n for n in fed.notices if isinstance(n, notices.SessionOpened | notices.SessionEnded)]
    assert fed.federation.done
