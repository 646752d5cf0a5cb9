"""Runs under keys have the bits of a run in the clear. A coordinator cannot read or change them.

site_agent/machine/site.py with site_agent/identity/run_keys.py. The wire between an honest
coordinator and honest sites is the adversary.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine.tiny import (
    SOLVERS,
    Pump,
    altered,
    make_plan,
    make_sites,
    private_data,
    sealed,
    site_with,
    undisturbed,
)

from coreg_core.agreement.closed_form import consensus_closed_form
from coreg_core.agreement.objective import consensus_weight
from coreg_core.agreement.rounds import norm_fault, scalar_fault
from coreg_core.messages import Answer, Fault, Offer, PlanRefused, Proposal, Step, ToSite, Words
from coreg_core.outcomes import Outcome
from coreg_core.plan import Plan
from coreg_sim.simulate import fingerprint_of, identity_of, simulated_keys
from site_agent.identity.run_keys import AttemptSecrets, RunKeys
from site_agent.machine import agreement
from site_agent.machine.agreement import AgreementComputation

PLAN = sealed(make_plan(min_sites=3))
FIRST = 2  # the first step that carries a sum


@pytest.mark.parametrize("solver", SOLVERS)
def test_keys_change_no_bit_and_the_sums_lead_to_the_closed_form(solver: str) -> None:
    plan = make_plan(min_sites=3, solver=solver)
    clear = undisturbed(plan)
    secret = undisturbed(sealed(plan))
    assert secret.outcome is clear.outcome is Outcome.CONVERGED
    assert secret.bits == clear.bits
    sites = [secret.sites[name] for name in "abc"]
    for column, coupling in enumerate(PLAN.couplings):
        views = [site.computation.view for site in sites]
        z = consensus_closed_form(views, coupling)
        for view, site in zip(views, sites, strict=True):
            exact = view.solve(z, consensus_weight(coupling, 3)).prediction
            assert (
                np.abs(site.result.solutions[column].prediction - exact).max()
                < PLAN.iteration.prediction_tolerance
            )


# --- what is done to messages on their way --------------------------------------------------------


class Wire:
    """Everything that went to each site and came from it; ``change`` what a site's step becomes on
    its way.
    """

    def __init__(self, change: Callable[["Wire", str, Step], Step | None], plan: Plan = PLAN):
        self.steps: dict[int, Step] = {}
        self.answers: dict[tuple[str, int], Answer] = {}
        self.replies: list[tuple[Step, Any]] = []  # of steps that were changed
        self._change = change
        self.sites = make_sites(plan.sites)
        for site in self.sites.values():
            altered(site, partial(self._heard, site.name))
        self.pump = Pump(plan, self.sites, wire=self._carried).join().run()

    def _carried(self, site: str, message: ToSite) -> ToSite | None:
        if not isinstance(message, Step):
            return message
        self.steps[message.step] = message
        return self._change(self, site, message)

    def _heard(self, site: str, message: ToSite, said: Any) -> Any:
        if isinstance(message, Step):
            if message != self.steps[message.step]:
                self.replies.append((message, said))
            if isinstance(said, Answer):
                self.answers[site, said.step] = said
        return said


def with_words(step: Step, change: Callable[[np.ndarray], np.ndarray]) -> Step:
    assert step.summed is not None
    return replace(step, summed=Words(change(step.summed.values.copy())))


def bit(position: int) -> Callable[[np.ndarray], np.ndarray]:
    def flipped(values: np.ndarray) -> np.ndarray:
        values[position] ^= np.uint64(1)
        return values

    return flipped


def answered(wire: Wire, site: str, step: int) -> np.ndarray:
    found = wire.answers[site, step - 1].summed
    assert found is not None
    return found.values


SUMS: dict[str, Callable[[Wire, Step], Step]] = {
    "a bit of its first word": lambda w, s: with_words(s, bit(0)),
    "one word more": lambda w, s: with_words(s, lambda v: np.append(v, v[:1])),
    "all zeros": lambda w, s: with_words(s, np.zeros_like),
    "twice": lambda w, s: with_words(s, lambda v: v + v),
    "without b": lambda w, s: with_words(s, lambda v: v - answered(w, "b", s.step)),
    "b alone": lambda w, s: with_words(s, lambda v: answered(w, "b", s.step)),
    "the sum before": lambda w, s: replace(s, summed=w.steps[s.step - 1].summed),
    "b's words of the step before": lambda w, s: with_words(
        s, lambda v: v - answered(w, "b", s.step) + answered(w, "b", s.step - 1)
    ),
}


@pytest.mark.parametrize("what", SUMS)
def test_a_sum_that_was_changed_on_its_way_is_found_before_anything_follows_from_it(
    what: str,
) -> None:
    """The third vector: its length is that of the one before, so that the one before could stand in
    for it.
    """
    at = FIRST + 3

    def change(wire: Wire, site: str, step: Step) -> Step:
        if step.step == at:
            return SUMS[what](wire, step)
        return step

    wire = Wire(change)
    assert wire.replies
    for _, said in wire.replies:
        assert isinstance(said, Fault)
        assert (
            "the sum of this step does not match the sites' answers" in said.reason
            or "one word" in what
        )
    assert wire.pump.outcome is Outcome.SITE_FAULT
    assert wire.pump.bits == {}
    assert max(step for _, step in wire.answers) == at - 1, "no answer was made of it"


def test_after_a_changed_sum_the_true_one_still_serves_and_a_withheld_one_ends_it() -> None:
    def change(wire: Wire, site: str, step: Step) -> Step:
        if step.step == FIRST + 2:
            [said] = wire.sites[site].handle(with_words(step, bit(0)))
            assert isinstance(said, Fault)
        return step

    assert Wire(change).pump.bits == undisturbed(PLAN).bits
    wire = Wire(
        lambda w, site, step: replace(step, summed=None) if step.step == FIRST + 1 else step
    )
    assert {said.received for _, said in wire.replies} == {True}
    assert "has no sum of the answers" in wire.pump.end.reason
    assert wire.pump.bits == {}


@pytest.mark.parametrize("last", [False, True])
def test_two_sums_under_one_step_are_found_by_the_sites_themselves(last: bool) -> None:
    """The coordinator tells b another sum.

    If it was the last, the others have the result of the true one already.
    """
    plan = sealed(make_plan(min_sites=3, max_rounds=3, tolerance=0.0, prediction_tolerance=0.0))
    at = max(Wire(lambda w, site, step: step, plan).steps) - (0 if last else 2)

    def change(wire: Wire, site: str, step: Step) -> Step:
        if site == "b" and step.step == at:
            return with_words(step, bit(0))
        return step

    wire = Wire(change, plan)
    assert [type(said) for _, said in wire.replies] == [Fault]
    true = undisturbed(plan).bits
    assert wire.pump.bits == ({"a": true["a"], "c": true["c"]} if last else {})


# --- who is on the roster -------------------------------------------------------------------------


def meets(change: Callable[[dict[str, Offer]], Any], plan: Plan = PLAN, **rules: Any) -> str:
    """What site a says of a roster that the coordinator has changed; empty where it answers."""
    sites = {
        name: site_with(name, private_data(name), **(rules if name == "a" else {}))
        for name in plan.sites
    }
    offers = {name: site.handle(Proposal(plan.run, 0, plan))[0] for name, site in sites.items()}
    changed = change(offers)
    roster = tuple(offers.values()) if changed is None else changed
    [said] = sites["a"].handle(Step(plan.run, 0, 0, roster))
    if isinstance(said, PlanRefused):
        return said.reason
    return ""


def as_b(offers: dict[str, Offer], keys: RunKeys, **changes: Any) -> None:
    """b's offer, made and signed with these keys."""
    empty = dict.fromkeys(("key", "identity", "signature"), "")
    offers["b"] = keys.draw(replace(offers["b"], **empty)).offer
    if changes:
        from coreg_wire.identity.signatures import offer_statement, sign

        shown = replace(offers["b"], **changes)
        offers["b"] = replace(shown, signature=sign(identity_of("b"), offer_statement(shown)))


def with_b(changes: Callable[[dict[str, Offer]], Any]) -> Callable[[dict[str, Offer]], Any]:
    """The roster with b's offer changed."""
    return lambda o: (o["a"], replace(o["b"], **changes(o)), o["c"])


ROSTERS: dict[str, tuple[Callable[[dict[str, Offer]], Any], str]] = {
    "as it is": (lambda o: None, ""),
    "without the site": (
        lambda o: (o["b"], o["c"]),
        "does not contain this site's unchanged offer",
    ),
    "its offer changed": (
        lambda o: (replace(o["a"], release="2"), o["b"], o["c"]),
        "this site's unchanged offer",
    ),
    "two sites": (lambda o: (o["a"], o["b"]), "the roster has 2 sites; the plan needs at least 3"),
    "in another order": (lambda o: (o["b"], o["a"], o["c"]), "every site once, in site order"),
    "a site twice": (lambda o: (o["a"], o["b"], o["b"], o["c"]), "every site once, in site order"),
    "a stranger": (
        lambda o: (*o.values(), replace(o["c"], site="z")),
        "the roster lists z, which the plan does not",
    ),
    "another attempt": (with_b(lambda o: {"attempt": 1}), "b is for another plan or attempt"),
    "another plan": (with_b(lambda o: {"plan_digest": "0"}), "b is for another plan or attempt"),
    "other ids": (with_b(lambda o: {"ids_digest": "0"}), "not the same ids"),
    "another key under the signature": (
        with_b(lambda o: {"key": o["c"].key[::-1]}),
        "not signed by",
    ),
    "other rows": (
        with_b(lambda o: {"data_digest": "x"}),
        "the offer of b for this run is not signed by that site",
    ),
    "c's key at b": (
        with_b(lambda o: {"key": o["c"].key}),
        "one site cannot take part under two names",
    ),
    "c's identity": (with_b(lambda o: {"identity": o["c"].identity}), "under two names"),
    "c's identity in upper case": (
        with_b(lambda o: {"identity": o["c"].identity.upper()}),
        "under two names",
    ),
    "no identity": (with_b(lambda o: {"identity": "00"}), "sent for b cannot be read"),
    "a curve that does not exist": (
        with_b(
            lambda o: {"identity": o["b"].identity.replace("2a8648ce3d030107", "2a8648ce3d030177")}
        ),
        "sent for b cannot be read",
    ),
    "made up by who signs certificates": (
        lambda o: as_b(o, RunKeys(identity_of("the coordinator's own"), fingerprint_of)),
        "the key that the coordinator sent for b is not the one that is confirmed here",
    ),
    "a key of low order": (
        lambda o: as_b(o, simulated_keys("b"), key=bytes(32).hex()),
        "b offered an invalid key",
    ),
    "of order eight": (
        lambda o: as_b(
            o,
            simulated_keys("b"),
            key="e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
        ),
        "b offered an invalid key",
    ),
}


@pytest.mark.parametrize("what", ROSTERS)
def test_a_roster_is_judged_before_anything_is_answered(what: str) -> None:
    change, reason = ROSTERS[what]
    assert (reason in meets(change)) if reason else meets(change) == ""


def test_a_peer_whose_key_is_not_confirmed_takes_no_part() -> None:
    keys = RunKeys(identity_of("a"), lambda name: None if name == "c" else fingerprint_of(name))
    said = meets(lambda o: None, keys=keys)
    assert said.startswith("the key of c is not confirmed here")
    assert "Compare the eight words with the other operators" in said


def test_of_a_site_that_gives_another_contribution_to_each_nobody_opens_a_sum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = AttemptSecrets.wrap

    def each_another(
        secrets: AttemptSecrets, roster: tuple[Offer, ...], transcript: bytes
    ) -> dict[str, bytes]:
        if secrets.offer.site != "b":
            return honest(secrets, roster, transcript)
        told = [
            honest(secrets, roster, transcript)
            for secrets.contribution in (bytes(32), bytes([7]) * 32)
        ]
        return {**told[0], "c": told[1]["c"]}

    monkeypatch.setattr(AttemptSecrets, "wrap", each_another)
    pump = Pump(PLAN, make_sites("abc")).join().run()
    assert pump.outcome is Outcome.SITE_FAULT
    assert pump.bits == {}


# --- answers that are false -----------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1), st.floats(-3.0, 3.0))
def test_no_honest_response_is_found_false_and_numbers_that_are_not_finite_are(
    seed: int, weight: float
) -> None:
    """R = μS(I + μS)⁻¹ for any S ⪰ 0."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(9, 4))
    S = A @ A.T
    mu = 10.0**weight
    t = rng.normal(size=(9, 3))
    assert norm_fault(t, mu * S @ np.linalg.solve(np.eye(9) + mu * S, t), 1.0) is None
    assert norm_fault(t, 1.1 * t, 1.0) is not None
    for number in (np.nan, np.inf, -np.inf):
        assert norm_fault(t, t * number, 1e100) is not None
        assert scalar_fault((1.0, number)) is not None


@pytest.mark.parametrize(
    ("secure", "lie", "reason"),
    [
        (
            False,
            lambda kind, v, s: (v, tuple(-1e6 * x for x in s) if kind == "sizes" else s),
            "some site sends false",
        ),
        (
            True,
            lambda kind, v, s: (v, tuple(-1e6 * x for x in s) if kind == "sizes" else s),
            "some site sends false",
        ),
        (
            True,
            lambda _kind, v, s: (v + 1e6 if v.size else v, s),
            "b: a number is beyond the bound that the sum was",
        ),
    ],
)
def test_a_false_answer_ends_the_run_alike_at_all_sites(
    secure: bool, lie: Callable[..., Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A false answer in the sum names no site.

    An answer beyond the bound could wrap, so its own site refuses it.
    """
    honest = agreement.summand

    def summand(layout: Any, values: Any, scalars: Any, *more: Any) -> Any:
        if lying[0]:
            values, scalars = lie("sizes" if layout.scalars else "", values, scalars)
        return honest(layout, values, scalars, *more)

    def answer(computation: AgreementComputation, *about: Any) -> Any:
        lying[0] = computation.name == "b"
        return answer_of(computation, *about)

    lying = [False]
    answer_of = AgreementComputation.answer
    monkeypatch.setattr(agreement, "summand", summand)
    monkeypatch.setattr(AgreementComputation, "answer", answer)
    pump = Pump(PLAN if secure else make_plan(min_sites=3), make_sites("abc")).join().run()
    assert pump.outcome is Outcome.SITE_FAULT
    assert reason in pump.end.reason
    assert pump.bits == {}
    assert pump.end.reason.startswith("b:") or not any(
        f"{name}:" in pump.end.reason for name in "abc"
    )
