"""site_agent/machine/masks.py: rosters are judged before anything is answered, and every byte of a context counts."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from machine.masked import accepted_by, another_process, data_of, first_question, masked_sites, roster_of, sums
from machine.tiny import Pump, make_sites, private_data

from coreg_core.additive.question_types import Ask as Kind
from coreg_core.additive.question_types import Column as AdditiveColumn
from coreg_core.additive.question_types import Operator
from coreg_core.agreement.columns import Column
from coreg_core.errors import BadData
from coreg_core.masking.sums import Layout, opened, summand, total
from coreg_core.protocol.messages import Ask, Fault, Inquiry, Masked, Participant, PlanRefused, Roster
from coreg_core.protocol.plan import Plan, plan_fault
from coreg_core.protocol.vectors import Vector
from coreg_sim.federation.masks import fingerprint_of, identity_of, simulated_keys
from site_agent.identity.mask_keys import PairwiseMasks, RunKeys
from site_agent.machine.masks import context_of
from site_agent.machine.site import Site, Terms
from site_agent.machine.training import question_digest


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


# --- rosters --------------------------------------------------------------------------------------------------------


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

        site.handle = keep
    pump.join()
    while not found:
        pump.step()
    return sites["a"], found[0], plan


def heard(site: Site, roster: Roster) -> str:
    answers = Site.handle(site, roster)
    return "" if not answers else answers[0].reason


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
        tuple(Participant(n, o.key, o.signature, o.identity) for n, o in told),
    )
    assert "under two names" in heard(site, roster)


def test_a_peer_that_is_not_pinned_is_refused_with_what_to_do() -> None:
    site, roster, _plan = rostered()
    site._terms.keys._pinned = lambda name: None
    assert "is not among the [peers]" in heard(site, roster)
    assert simulated_keys("a").offer(sums()) != simulated_keys("a").offer(sums()), "fresh in every process"


def test_nothing_is_answered_without_the_roster_of_that_very_attempt() -> None:
    site, roster, plan = rostered()
    other = masked_sites(plan)
    asked: list[Any] = []
    before = other["a"].handle
    other["a"].handle = lambda m: (asked.append(m), before(m))[1]
    Pump(plan, other).join().steps(1)
    ask = next(m for m in asked if hasattr(m, "is_candidate"))
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


@pytest.mark.parametrize("objective", ["agreement", "additive"])
def test_a_question_that_was_answered_is_not_answered_again_without_a_roster(objective: str) -> None:
    plan, asked = sums(objective), list[Any]()
    sites = masked_sites(plan)
    before = sites["b"].handle

    def listening(message: Any) -> Any:
        asked.append(message)
        return before(message)

    sites["b"].handle = listening
    Pump(plan, sites).join().run()
    again = another_process(sites["b"])
    again.handle(plan)
    questions = [m for m in asked if isinstance(m, Ask | Inquiry)]
    assert len(questions) > 4
    for ask in questions:
        [answer] = again.handle(ask)
        assert isinstance(answer, Fault), type(answer)
        assert "no roster" in answer.reason


# --- contexts -------------------------------------------------------------------------------------------------------


ROSTER = Roster("run-1", 1, tuple(Participant(s, f"{i:02x}" * 32, "", f"{i + 8:02x}" * 9) for i, s in enumerate("abc")))
SECRETS = {frozenset(pair): bytes([i]) * 32 for i, pair in enumerate(("ab", "ac", "bc"), 1)}
TARGETS = Vector(np.arange(6.0).reshape(3, 2))
ASK = Ask("run-1", 3, 1, "linear", (Column(0.1, 0.2), Column(0.1, 0.3)), True, TARGETS, (40, 41))
INQUIRY = Inquiry(
    "run-1",
    3,
    1,
    Kind.FIXED_POINT,
    "linear",
    2,
    (AdditiveColumn(), AdditiveColumn("probe", 1)),
    (0.5,),
    TARGETS,
    (40, 41),
)


def masks_of(name: str) -> PairwiseMasks:
    return PairwiseMasks(ROSTER, name, {p: SECRETS[frozenset((name, p))] for p in "abc" if p != name})


def context(asked: Ask | Inquiry, roster: Roster = ROSTER) -> bytes:
    digest = asked.digest if isinstance(asked, Inquiry) else question_digest(asked)
    return context_of(roster, asked, digest, Layout(3, 2, 1))


def sum_with(told: dict[str, bytes]) -> Any:
    """Of three sites, each masking under its own idea of the context."""
    layout, summands = None, []
    for name, its_context in told.items():
        layout, words = summand(np.ones((3, 2)), (1.0,), (40, 41), 3)
        masks_of(name).add(layout, words, its_context)
        summands.append(words)
    assert layout is not None
    return opened(layout, total(layout, summands), (40, 41))


@pytest.mark.parametrize("asked", [ASK, INQUIRY], ids=["ask", "inquiry"])
def test_every_byte_of_the_context_counts(asked: Ask | Inquiry) -> None:
    """One bit of it, at one site: a refusal, and never a wrong sum."""
    whole = context(asked)
    values, scalars = sum_with(dict.fromkeys("abc", whole))
    assert np.array_equal(values, np.full((3, 2), 3.0))
    assert scalars == (3.0,)
    for i in range(len(whole)):
        flipped = bytes([*whole[:i], whole[i] ^ 1, *whole[i + 1 :]])
        with pytest.raises(BadData, match="do not cancel"):
            sum_with({"a": whole, "b": flipped, "c": whole})


OTHER = {
    "run": "run-2",
    "question": 4,
    "attempt": 2,
    "part": "affine",
    "columns": (Column(0.1, 0.2), Column(0.1, 0.4)),
    "targets": Vector(np.arange(6.0).reshape(3, 2) + np.eye(3, 2) * 1e-12),
    "exponents": (40, 42),
}
OTHER_INQUIRY = OTHER | {
    "kind": Kind.SMOOTHED,
    "step": 3,
    "scalars": (0.25,),
    "columns": (AdditiveColumn(), AdditiveColumn("probe", 1, Operator(noise=2.0))),
}


@pytest.mark.parametrize(
    ("asked", "field", "value"),
    [*((ASK, f, v) for f, v in OTHER.items()), *((INQUIRY, f, v) for f, v in OTHER_INQUIRY.items())],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_everything_that_is_asked_is_in_the_context(asked: Any, field: str, value: Any) -> None:
    assert context(replace(asked, **{field: value})) != context(asked)


@pytest.mark.parametrize("field", ["site", "key", "identity"])
def test_everybody_who_is_summed_is_in_the_context(field: str) -> None:
    a, b, c = ROSTER.participants
    other = replace(ROSTER, participants=(a, replace(b, **{field: "ff"}), c))
    assert context(ASK, other) != context(ASK)
    assert context(ASK, replace(ROSTER, participants=(a, b))) != context(ASK)


# --- keys -----------------------------------------------------------------------------------------------------------


def test_a_job_that_begins_anew_has_another_key_since_its_data_may_be_others() -> None:
    """Under `serve` a table is read again: two rows under one stream would tell their difference."""
    plan, keys = sums(coupling=(0.1,)), {name: simulated_keys(name) for name in "abc"}

    def answered(seed: int) -> Any:
        sites = {n: Site(n, private_data(n, seed if n == "b" else 0), Terms(keys=keys[n])) for n in "abc"}
        accepted = accepted_by(sites, plan)
        assert sites["b"].handle(roster_of(plan, accepted)) == []
        [answer] = sites["b"].handle(first_question(plan, accepted))
        assert isinstance(answer, Masked), answer
        return accepted["b"].key, answer.words.values

    (key, words), (other_key, other_words) = answered(0), answered(1)
    assert key != other_key
    difference = (words - other_words).view(np.int64).astype(float)
    assert np.abs(difference).max() > 2.0**50, "two pads, not one"
