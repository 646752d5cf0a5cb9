"""A standing plan: who is asked for, what leaves of whom, what a coordinator sees, and what a
member that asks too much gets.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from machine.test_scoring import SITES, M, batch, lacks, means, plan_of
from machine.tiny import TIMEOUTS, Pump, TinySite, hello, offer_of, site_with
from numpy.testing import assert_allclose

from coordinator.machine.events import (
    BeginRun,
    CallStanding,
    Cancelled,
    CloseRun,
    Event,
    Received,
    Rested,
    RunForgotten,
    SendToSite,
    SiteJoined,
    SiteLost,
    Submitted,
)
from coordinator.machine.federation import FederationState, Scheduler, handle
from coordinator.machine.standing import LONGEST_PAUSE, PAUSE, StudyRequests
from coreg_core.messages import Finished, Step, Unaligned, Wanted
from coreg_core.objectives.alignment import Alignment
from coreg_core.objectives.scoring import Scoring
from coreg_core.outcomes import Outcome
from coreg_core.plan import MOST_RUNS, Plan, on_demand, plan_fault
from site_agent.machine.objective import Question, Reply
from site_agent.machine.standing import StandingComputation

STANDING = plan_of(standing=True)


def asking(site: str, *places: int, **changes: Any) -> TinySite:
    return site_with(site, batch(site, wanted=places, **changes))


def asked(plan: Plan = STANDING, sites: Any = None, **places: tuple[int, ...]) -> Pump:
    made = {name: asking(name, *places.get(name, ())) for name in plan.sites}
    return Pump(plan, made | (sites or {})).join().run()


def questions(site: TinySite) -> list[str]:
    return [disclosure.question for disclosure in site.disclosed]


def sizes(pump: Pump) -> list[tuple[str, list[int]]]:
    """What the coordinator sees of the answers that it forwards."""
    steps = [each for each in pump.sent if isinstance(each.message, Step)]
    return sorted(
        (each.site, [len(part.data) for part in each.message.parts])
        for each in steps
        if isinstance(each.message, Step)
    )


def test_who_asks_reads_the_scores_of_those_alone_and_nobody_else_reads_one() -> None:
    pump = asked(b=(1, 3))
    result = pump.sites["b"].result
    assert pump.outcome is Outcome.CONVERGED
    expected = means("abcd")
    expected[[0, 2, 4]] = np.nan
    assert_allclose(result.scores, expected, atol=1e-11)
    assert [pump.sites[name].result.scores for name in "acd"] == [None] * 3


def test_one_run_serves_all_that_ask_by_then() -> None:
    pump = asked(a=(0,), c=(0, 4))
    of_a = pump.sites["a"].result.scores
    of_c = pump.sites["c"].result.scores
    assert np.isnan(of_a).tolist() == [False, True, True, True, True]
    assert np.isnan(of_c).tolist() == [False, True, True, True, False]
    expected = means("abcd")
    assert_allclose(of_a[0], expected[0], atol=1e-11)
    assert_allclose(of_c[[0, 4]], expected[[0, 4]], atol=1e-11)


def test_a_run_that_nobody_asked_for_tells_nothing_of_anyone() -> None:
    pump = asked()
    assert pump.outcome is Outcome.CONVERGED
    assert [questions(site) for site in pump.sites.values()] == [["asked"]] * 4
    assert all(site.consent.memory.scores().size == 0 for site in pump.sites.values())


def test_a_site_says_nothing_of_those_whom_no_member_asks_for() -> None:
    with_records = asked(b=(1,))
    without = asked(b=(1,), sites={"a": asking("a", **lacks(0, 2, 3, 4))})
    assert sizes(with_records) == sizes(without)
    for pump in (with_records, without):
        assert pump.sites["b"].result.present == ((), SITES, (), (), ())


def test_the_coordinator_sees_the_same_sizes_however_many_are_asked() -> None:
    assert sizes(asked(b=(1,))) == sizes(asked(b=(0, 1, 2), d=(4,)))


def test_an_individual_that_few_sites_know_has_no_score() -> None:
    lacking = {name: asking(name, **lacks(1)) for name in "cd"}
    result = asked(b=(0, 1), sites=lacking).sites["b"].result
    assert np.isnan(result.scores).tolist() == [False, True, True, True, True]


def test_every_asked_individual_is_counted_and_charged_at_every_site() -> None:
    pump = asked(b=(1, 3))
    for name, site in pump.sites.items():
        memory = site.consent.memory
        assert memory.asked("b", "") == 2
        others = 2
        if name == "b":
            others = 0
        assert len(memory.scores()) == others, "b's own part is its own"


def test_a_member_over_its_limit_gets_no_part_and_the_others_get_theirs() -> None:
    left = {"b": 1}
    strict = {name: asking(name, left=left) for name in "acd"}
    of_d = asking("d", 4, left=left)
    pump = asked(sites=strict | {"b": asking("b", 0, 1), "d": of_d})
    assert pump.outcome is Outcome.CONVERGED
    assert np.isnan(pump.sites["b"].result.scores).all()
    expected = means("abcd")
    assert_allclose(pump.sites["d"].result.scores[4], expected[4], atol=1e-11)
    assert all(site.consent.memory.asked("b", "") == 0 for site in strict.values())


def test_who_receives_no_scores_cannot_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    only_a = replace(STANDING, objective=replace(STANDING.objective, receivers=("a",)))
    assert asked(only_a, b=(1,)).sites["b"].result.scores is None
    honest = StandingComputation.answer

    def lying(site: StandingComputation, question: Question, chain: bytes) -> Reply:
        if (site.name, question.kind) == ("b", "asked"):
            return Reply(to_all=np.packbits(np.ones(M, dtype=np.bool_)).tobytes())
        return honest(site, question, chain)

    monkeypatch.setattr(StandingComputation, "answer", lying)
    pump = asked(only_a)
    assert "b asks for scores, and the plan has none for it" in pump.end.reason
    assert all("records" not in questions(site) for site in pump.sites.values())


def test_a_standing_plan_has_sums_alone() -> None:
    terms = replace(STANDING.objective, contributions=True, trained="additive")
    assert "a standing plan has sums only" in str(plan_fault(replace(STANDING, objective=terms)))


# --- the coordinator ------------------------------------------------------------------------------

NOW = replace(STANDING, study="now")


class Asked:
    """A federation whose sites ask; the store has the standing plan of the study "now"."""

    def __init__(self) -> None:
        self.federation = FederationState(TIMEOUTS, SITES, Scheduler(4))
        self.calls = list[CallStanding]()
        self.tell(*(SiteJoined(hello(site)) for site in SITES))

    def tell(self, *events: Event) -> "Asked":
        for event in events:
            self.federation, actions = handle(self.federation, event)
            self.calls += [each for each in actions if isinstance(each, CallStanding)]
        return self

    def wants(self, site: str, study: str = "now") -> "Asked":
        return self.tell(Received(site, Wanted(study)))

    def begins(self, name: str) -> Plan:
        plan = on_demand(NOW, name)
        self.tell(Submitted(plan))
        return plan

    def ends(self, plan: Plan) -> None:
        self.tell(Cancelled(plan.run, "over"))


def test_a_request_begins_one_run_and_the_next_waits_for_its_end() -> None:
    service = Asked().wants("a")
    assert service.calls == [CallStanding("now", ("a",), PAUSE)]
    plan = service.begins("1")
    service.wants("b").wants("b").wants("c")
    assert len(service.calls) == 1, "one run of a study at a time"
    service.ends(plan)
    assert len(service.calls) == 1, "nor within the pause"
    service.tell(Rested("now"))
    assert service.calls[1:] == [CallStanding("now", ("b", "c"), PAUSE)]


def test_a_site_that_asks_without_end_waits_for_the_pause_and_stops_no_other() -> None:
    service = Asked().wants("a")
    service.ends(service.begins("1"))
    for _ in range(100):
        service.wants("a")
    service.wants("b")
    assert len(service.calls) == 1
    service.tell(Rested("now"))
    assert service.calls[1:] == [CallStanding("now", ("a", "b"), PAUSE)]


def test_a_site_begins_a_number_of_runs_a_day_and_stops_no_other() -> None:
    service = Asked()
    for _ in range(MOST_RUNS + 5):
        service.wants("a").tell(Rested("now"))
    assert len(service.calls) == MOST_RUNS, "each of them is kept at all sites"
    service.wants("b")
    assert service.calls[MOST_RUNS:] == [CallStanding("now", ("a", "b"), PAUSE)], (
        "a has its scores too"
    )
    service.tell(Rested("now")).wants("a")
    assert len(service.calls) == MOST_RUNS + 1
    service.tell(RunForgotten(("a",)))
    assert len(service.calls) == MOST_RUNS + 1, "b's run counts for a too"
    service.tell(RunForgotten(("a", "b")))
    assert service.calls[MOST_RUNS + 1 :] == [CallStanding("now", ("a",), PAUSE)]


def test_a_study_whose_runs_fail_rests_longer_and_a_good_end_mends_it() -> None:
    """A member that spoils each run began two a second, at all sites."""
    wishes = StudyRequests().wish("a", "now")
    for expected in (PAUSE, 2 * PAUSE, 4 * PAUSE):
        _, [call] = wishes.call([])
        assert call.pause == expected
        wishes = wishes.ended("now", good=False)
    for _ in range(20):
        wishes = wishes.ended("now", good=False)
    assert wishes.call([])[1][0].pause == LONGEST_PAUSE
    assert wishes.ended("now", good=True).call([])[1][0].pause == PAUSE


def test_a_request_for_what_does_not_stand_begins_nothing() -> None:
    service = Asked().wants("a", "no such study")
    assert not service.federation.runs
    for number in range(100):
        service.wants("b", f"study-{number}")
    assert [call.study for call in service.calls] == ["no such study", "study-0"]


def test_a_site_that_invents_studies_stops_no_other_site() -> None:
    service = Asked()
    for number in range(100):
        service.wants("b", f"study-{number}")
    service.wants("a")
    assert service.calls[1:] == [CallStanding("now", ("a",), PAUSE)]
    service.tell(Rested("study-0"))
    assert service.calls[2:] == [CallStanding("study-99", ("b",), PAUSE)], (
        "the last one it asked for"
    )


def test_with_too_few_sites_nothing_begins_and_the_askers_alone_hear_why() -> None:
    service = Asked().tell(SiteLost("c", "gone"), SiteLost("d", "gone"))
    plan = on_demand(NOW, "1")
    service.federation, actions = handle(service.federation, Submitted(plan, askers=("a",)))
    why = Outcome.TOO_FEW_SITES, "c, d not connected"
    assert actions == [CloseRun(plan, *why), SendToSite("a", Finished(plan.run, *why))]
    assert not service.federation.runs


def test_a_run_that_a_site_asked_for_aligns_no_ids() -> None:
    """Else a member could list other ids for each run, and learn which ones all others have."""
    service = Asked()
    plan = on_demand(replace(NOW, align=Alignment()), "1")
    service.tell(Submitted(plan, askers=("b",)))
    others = [Received(site, offer_of(site, plan)) for site in "acd"]
    seen = []
    for event in (Received("b", Unaligned(plan.run)), *others):
        service.federation, actions = handle(service.federation, event)
        seen += actions
    assert not any(isinstance(action, BeginRun) for action in seen)
    dismissed = [a.message.reason for a in seen if isinstance(a, SendToSite) and a.site == "b"]
    assert "its ids are not those that were aligned" in dismissed[0]


def test_the_consent_to_scores_of_several_classes_says_how_many_numbers_leave() -> None:
    assert "its part of each score, for each of 3 classes" in Scoring("r0", columns=3).leaves(20)
    standing = Scoring("r0", standing=True, columns=3)
    assert standing.leaves(20).endswith("its part of the score, for each of 3 classes")
    assert Scoring("r0").leaves(20).endswith("its part of each score")
