"""Only sums: the same bits as in the clear, whatever happens to a run, and nothing answered that would tell one site's part."""

import random
from collections import deque
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from masked import another_process, data_of, masked_sites, sums
from tiny import Pump, make_sites

from coordinator.machine.events import Received, SiteJoined, SiteLost
from coordinator.machine.records import MembershipChanged, StepTaken
from coreg_core.protocol.messages import Fault, Masked, Participant, PlanRefused, Prediction, Roster, Share, Words
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan, plan_fault
from coreg_sim.federation.masks import fingerprint_of, identity_of, simulated_keys
from site_agent.identity.mask_keys import RunKeys
from site_agent.machine.site import Site, Terms

OBJECTIVES = ("agreement", "additive")


def in_clear(plan: Plan) -> Pump:
    clear = replace(plan, privacy=replace(plan.privacy, answers="clear"))
    return Pump(clear, {name: Site(name, data) for name, data in data_of(plan).items()}).join().run()


def ended(pump: Pump) -> Outcome:
    assert pump.end is not None
    return pump.end.outcome


@pytest.mark.parametrize("plan", [sums(), sums(schedule="consensus", coupling=(0.0, 0.1)), sums("additive")])
def test_masks_change_no_bit(plan: Plan) -> None:
    masked, clear = Pump(plan, masked_sites(plan)).join().run(), in_clear(plan)
    assert ended(masked) is ended(clear) is Outcome.CONVERGED
    assert masked.bits == clear.bits
    told = [[r for r in pump.records if isinstance(r, StepTaken)] for pump in (masked, clear)]
    assert [t.total for t in told[0]] == [t.total for t in told[1]]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_nothing_but_masked_words_leaves_a_site_after_its_acceptance(objective: str) -> None:
    plan = sums(objective)
    pump, said = Pump(plan, masked_sites(plan)), list[Any]()
    pump.join()
    while pump.events and pump.end is None:
        if isinstance(event := pump.events[0], Received):
            said.append(event.message)
        pump.step()
    assert not any(isinstance(message, Prediction | Share) for message in said)
    accepted = [m for m in said if hasattr(m, "bound")]
    assert {(m.bound, m.squared_norm, m.rounding) for m in accepted} == {(0.0, 0.0, 0.0)}
    assert len({m.key for m in accepted}) == len(plan.sites)
    words = np.concatenate([m.words.values for m in said if isinstance(m, Masked)])
    counts = np.bincount(words.view(np.uint8), minlength=256)
    expected = len(words) * 8 / 256
    assert abs(float(np.sum((counts - expected) ** 2) / expected) - 255) < 6 * np.sqrt(2 * 255)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_coordinator_that_is_killed_after_any_record_ends_on_the_same_bits(objective: str) -> None:
    plan = sums(objective)
    whole = Pump(plan, masked_sites(plan)).join().run()
    for kill_after in range(1, len(whole.records), 1 if objective == "agreement" else 5):
        first = Pump(plan, masked_sites(plan), kill_after=kill_after).join().run()
        second = Pump(plan, first.sites, first.records).join().run()
        assert ended(second) is Outcome.CONVERGED
        assert {**first.bits, **second.bits} == whole.bits


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("after", [1, 2, 5])
def test_an_agent_that_is_killed_comes_back_with_new_keys_and_everybody_ends_on_the_same_bits(
    objective: str, after: int
) -> None:
    plan = sums(objective)
    whole = Pump(plan, masked_sites(plan)).join().run()
    pump = Pump(plan, masked_sites(plan)).join().steps(after)
    pump.events = deque(e for e in pump.events if getattr(e, "site", None) != "b")
    pump.sites["b"] = another_process(pump.sites["b"])
    pump.events.append(SiteLost("b", "killed"))
    pump.join("b").run()
    assert ended(pump) is Outcome.CONVERGED
    assert pump.bits == whole.bits
    attempts = [r.attempt for r in pump.records if isinstance(r, MembershipChanged)]
    assert attempts == [0, 1]


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("seed", range(4))
def test_losses_and_returns_in_any_order_change_no_bit(objective: str, seed: int) -> None:
    """Agents are lost, killed and back, and so is the coordinator, at random, with messages in any order."""
    plan, rng = sums(objective), random.Random(seed)
    whole = Pump(plan, masked_sites(plan)).join().run()
    pump = Pump(plan, masked_sites(plan), shuffle=rng).join()
    for _ in range(6):
        for _ in range(rng.randrange(1, 12)):
            if pump.events and pump.end is None:
                pump.step()
        if pump.end is not None:
            break
        match rng.randrange(3):
            case 0:  # the coordinator
                pump = Pump(plan, pump.sites, [*pump.machine.records, *pump.records], shuffle=rng).join()
            case kind:
                name = rng.choice(plan.sites)
                pump.events = deque(e for e in pump.events if getattr(e, "site", None) != name)
                if kind == 1:
                    pump.sites[name] = another_process(pump.sites[name])
                pump.carry_out(pump.machine.handle(SiteLost(name, "lost")))
                pump.events.append(SiteJoined(pump.sites[name].hello()))
    pump.run()
    assert ended(pump) is Outcome.CONVERGED
    assert {name: site.result and site.result.outcome for name, site in pump.sites.items()} == dict.fromkeys(
        plan.sites, Outcome.CONVERGED
    )
    for name, model in pump.models.items():
        assert (model.targets, model.columns) == (whole.models[name].targets, whole.models[name].columns)


# --- refused, never wrong -----------------------------------------------------------------------------------------


def altered(site: Site, change: Any) -> None:
    before = site.handle
    site.handle = lambda message: [change(answer) for answer in before(message)]  # type: ignore[method-assign]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_flipped_bit_of_a_masked_answer_s_check_is_found_and_ends_the_run(objective: str) -> None:
    def flip(answer: Any) -> Any:
        if not isinstance(answer, Masked) or answer.question < 1:
            return answer
        words = answer.words.values.copy()
        words[-1] ^= np.uint64(1)
        return replace(answer, words=Words(words))

    plan = sums(objective)
    sites = masked_sites(plan)
    altered(sites["b"], flip)
    pump = Pump(plan, sites).join().run()
    assert ended(pump) is Outcome.SITE_FAULT
    assert pump.end is not None
    assert "the masks do not cancel" in pump.end.reason


CONTEXT = {
    "run": lambda ask: replace(ask, run="run-2"),
    "question": lambda ask: replace(ask, question=ask.question + 1),
    "exponents": lambda ask: replace(ask, exponents=tuple(e - 1 for e in ask.exponents)),
    "targets": lambda ask: replace(ask, targets=replace(ask.targets, values=0.5 * ask.targets.values)),
    "part": lambda ask: replace(ask, part="affine" if ask.part == "linear" else "linear"),
}


@pytest.mark.parametrize("what", sorted(CONTEXT))
def test_a_site_that_is_asked_something_else_than_the_others_gives_no_wrong_sum(what: str) -> None:
    """The coordinator puts another question to one site, and passes its answer off as one to the question of all."""
    plan = sums()
    sites = masked_sites(plan)
    honest = sites["b"].handle

    def another(message: Any) -> list[Any]:
        if not hasattr(message, "verifies") or message.question != 2:
            return honest(message)
        asked = CONTEXT[what](message)
        answers = honest(asked)
        return [replace(a, run=message.run, question=message.question) for a in answers]

    sites["b"].handle = another  # type: ignore[method-assign]
    pump = Pump(plan, sites).join().run()
    assert ended(pump) is Outcome.SITE_FAULT


def test_an_answer_in_the_clear_under_a_plan_of_sums_is_not_used() -> None:
    plan = sums()
    sites = masked_sites(plan)

    def clear(answer: Any) -> Any:
        if not isinstance(answer, Masked):
            return answer
        return Prediction(answer.run, answer.question, answer.attempt, pump.machine.run.live.ask.targets)

    altered(sites["b"], clear)
    pump = Pump(plan, sites)
    pump.join().run()
    assert ended(pump) is Outcome.SITE_FAULT
    assert pump.end is not None
    assert "in the clear, where the plan has sums alone" in pump.end.reason


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"schedule": "block-coordinate-descent"}, "no sum hides it"),
        ({"min_sites": 2}, "of two sites' sum each learns the other's part"),
    ],
)
def test_plans_that_sums_cannot_serve_say_why(changes: dict[str, Any], said: str) -> None:
    plan = sums(**changes)
    assert said in (plan_fault(plan) or "")
    [answer] = masked_sites(plan)["a"].handle(plan)
    assert isinstance(answer, PlanRefused)
    assert said in answer.reason


def test_a_site_without_a_key_takes_no_part() -> None:
    plan = sums()
    [answer] = make_sites(["a"])["a"].handle(plan)
    assert isinstance(answer, PlanRefused)
    assert "no certificate" in answer.reason


# --- rosters ------------------------------------------------------------------------------------------------------


def rostered(**terms: Any) -> tuple[Site, Roster, Plan]:
    """Site a of four, with its plan accepted, and the roster that an honest coordinator would send."""
    plan = sums(sites=("a", "b", "c", "d"))
    sites, found = masked_sites(plan, **terms), list[Any]()
    pump = Pump(plan, sites)
    for name, site in sites.items():
        before = site.handle

        def keep(message: Any, name: str = name, before: Any = before) -> list[Any]:
            if isinstance(message, Roster) and name == "a":
                found.append(message)
                return []
            return [] if isinstance(message, Roster) else before(message)

        site.handle = keep  # type: ignore[method-assign]
    pump.join()
    while not found:
        pump.step()
    return sites["a"], found[0], plan


def heard(site: Site, roster: Roster) -> str:
    answers = Site.handle(site, roster)
    return "" if not answers else answers[0].reason  # type: ignore[union-attr]


def less(roster: Roster, *names: str, **changes: Any) -> Roster:
    return replace(roster, participants=tuple(p for p in roster.participants if p.site not in names), **changes)


def test_a_roster_is_judged_before_anything_is_answered_under_it() -> None:
    site, roster, _plan = rostered()
    a, b, c, _d = roster.participants
    assert "fewer than 3" in heard(site, less(roster, "c", "d"))
    assert "does not list a" in heard(site, less(roster, "a"))
    assert "another key for a" in heard(site, replace(roster, participants=(replace(a, key=b.key), b, c)))
    assert "in site order" in heard(site, replace(roster, participants=(b, a, c)))
    assert "not signed by that site" in heard(site, replace(roster, participants=(a, replace(b, key=c.key), c)))
    assert "not the one that this site's policy pins" in heard(
        site, replace(roster, participants=(a, replace(b, identity=c.identity), c))
    )
    assert heard(site, roster) == ""
    assert heard(site, roster) == "", "the same again is the same"
    assert "another roster under the number" in heard(site, less(roster, "d"))


def test_the_authority_can_invent_nobody() -> None:
    """The coordinator signs certificates, and makes up b, whose key it has: the name is in the plan, the key not pinned."""
    site, roster, plan = rostered()
    invented = RunKeys("b", identity_of("the coordinator's own"), lambda name: None).offer(plan)
    a, b, c, d = roster.participants
    forged = replace(b, key=invented.key, signature=invented.signature, identity=invented.identity)
    assert "puts itself in that site's place" in heard(site, replace(roster, participants=(a, forged, c, d)))


def test_one_organisation_under_two_names_is_not_two_sites() -> None:
    plan = sums()
    keys = RunKeys("a", identity_of("a"), lambda name: fingerprint_of("b"))
    site = Site("a", data_of(plan)["a"], Terms(keys=keys))
    own = site.handle(plan)[0]
    b, c = (RunKeys(name, identity_of("b"), lambda n: None).offer(plan) for name in ("b", "c"))
    told = [("a", own), ("b", b), ("c", c)]
    roster = Roster(
        plan.run,
        0,
        tuple(Participant(n, o.key, o.signature, o.identity) for n, o in told),  # type: ignore[union-attr]
    )
    assert "under two names" in heard(site, roster)


def test_a_peer_that_is_not_pinned_is_refused_with_what_to_do() -> None:
    site, roster, _plan = rostered()
    site._terms.keys._pinned = lambda name: None  # type: ignore[union-attr]
    assert "is not among the [peers]" in heard(site, roster)
    assert simulated_keys("a").offer(sums()) != simulated_keys("a").offer(sums()), "fresh in every process"


def test_nothing_is_answered_without_the_roster_of_that_very_attempt() -> None:
    site, roster, plan = rostered()
    other = masked_sites(plan)
    asked: list[Any] = []
    before = other["a"].handle
    other["a"].handle = lambda m: (asked.append(m), before(m))[1]  # type: ignore[method-assign]
    Pump(plan, other).join().steps(1)
    ask = next(m for m in asked if hasattr(m, "verifies"))
    [fault] = Site.handle(site, ask)
    assert isinstance(fault, Fault)
    assert "no roster of attempt 0" in fault.reason
    assert heard(site, roster) == ""
    [answer] = Site.handle(site, ask)
    assert isinstance(answer, Masked)
    [again] = Site.handle(site, ask)
    assert again == answer
    [fault] = Site.handle(site, replace(ask, attempt=1))
    assert isinstance(fault, Fault)
