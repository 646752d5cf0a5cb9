"""Runs under keys, through the real machines: the bits of a run in the clear; and what whoever adds and relays cannot do.

site_agent/machine/replica.py with site_agent/identity/run_keys.py. The wire between an honest coordinator and honest sites is
the adversary.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from machine.tiny import SCHEDULES, Pump, altered, make_plan, make_sites, sealed, site_with, undisturbed
from problems import golden, golden_problem

from coreg_core.agreement.closed_form import consensus_closed_form
from coreg_core.agreement.objective import consensus_weight
from coreg_core.protocol import messages as m
from coreg_core.protocol.messages import Words
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan
from coreg_sim.federation.simulate import fingerprint_of, identity_of, simulated_keys
from site_agent.identity.run_keys import AttemptSecrets, RunKeys
from site_agent.machine.site import Site
from site_agent.site_data import PrivateData

PLAN = sealed(make_plan(min_sites=3))
FIRST = 2  # the first step that carries a sum


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_keys_change_no_bit_and_the_sums_lead_to_the_closed_form(schedule: str) -> None:
    clear, secret = (
        undisturbed(replace(p, iteration=replace(p.iteration, name=schedule))) for p in (make_plan(min_sites=3), PLAN)
    )
    assert secret.outcome is clear.outcome is Outcome.CONVERGED
    assert secret.bits == clear.bits
    sites = [secret.sites[name] for name in "abc"]
    for column, coupling in enumerate(PLAN.couplings):
        views = [site.view for site in sites]
        z = consensus_closed_form(views, coupling)
        for view, site in zip(views, sites, strict=True):
            exact = view.solve(z, consensus_weight(coupling, 3)).prediction
            assert np.abs(site.result.solutions[column].prediction - exact).max() < PLAN.iteration.prediction_tolerance


@pytest.mark.parametrize("form", ["exact", "semi-parametric"])
@pytest.mark.parametrize("name", ["three-sites", "five-sites-strong"])  # λ = 0.5, 10
def test_sealed_runs_end_on_the_60_digit_solutions(name: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, truth = golden_problem(name, form), golden(name)[form.replace("-", "_")]
    names = tuple("abcdefg"[: len(problem.sites)])
    # Each site of these cases has a width and a ridge of its own, which no rule of a plan gives.
    views = {site.y.tobytes(): site.view() for site in problem.sites}
    monkeypatch.setattr("site_agent.machine.agreement.factor", lambda _terms, _data, y, *_: views[y.tobytes()])
    monkeypatch.setattr("site_agent.machine.agreement.units", lambda *_: (0.0, 1.0))  # labels as they are
    numbers = {"coupling": (problem.coupling,), "tolerance": 1e-26, "prediction_tolerance": 1e-10}
    plan = sealed(make_plan(sites=names, min_sites=len(names), form=form, **numbers))
    sites = {
        s: site_with(s, PrivateData(d.X, d.y, d.Z, "ids", s.encode()))
        for s, d in zip(names, problem.sites, strict=True)
    }
    pump = Pump(plan, sites).join().run()
    assert pump.outcome in (Outcome.CONVERGED, Outcome.STAGNATED), pump.end
    found = np.array([site.result.solutions[0].prediction for site in pump.sites.values()])
    expected = np.array(truth["predictions_unlabelled"])
    assert np.abs(found - expected).max() <= 1e-10 * np.abs(expected).max()


# --- what is done to messages on their way ------------------------------------------------------------------------


class Wire:
    """Everything that went to each site and came from it; ``change`` what a site's step becomes on its way."""

    def __init__(self, change: Callable[["Wire", str, m.Step], m.Step | None], plan: Plan = PLAN):
        self.steps: dict[int, m.Step] = {}
        self.answers: dict[tuple[str, int], m.Answer] = {}
        self.replies: list[tuple[m.Step, Any]] = []  # of steps that were changed
        self._change, self._sites = change, make_sites(plan.sites)
        for site in self._sites.values():
            altered(site, partial(self._heard, site.name))
        self.pump = Pump(plan, self._sites, wire=self._carried).join().run()

    def _carried(self, site: str, message: m.ToSite) -> m.ToSite | None:
        if not isinstance(message, m.Step):
            return message
        self.steps[message.step] = message
        return self._change(self, site, message)

    def _heard(self, site: str, message: m.ToSite, said: Any) -> Any:
        if isinstance(message, m.Step):
            if message != self.steps[message.step]:
                self.replies.append((message, said))
            if isinstance(said, m.Answer):
                self.answers[site, said.step] = said
        return said

    @property
    def breaches(self) -> list[str]:
        return [site.breach for site in self._sites.values() if site.breach]


def with_words(step: m.Step, change: Callable[[np.ndarray], np.ndarray]) -> m.Step:
    assert step.words is not None
    return replace(step, words=Words(change(step.words.values.copy())))


def bit(position: int) -> Callable[[np.ndarray], np.ndarray]:
    def flipped(values: np.ndarray) -> np.ndarray:
        values[position] ^= np.uint64(1)
        return values

    return flipped


def answered(wire: Wire, site: str, step: int) -> np.ndarray:
    found = wire.answers[site, step - 1].words
    assert found is not None
    return found.values


SUMS: dict[str, Callable[[Wire, m.Step], m.Step]] = {
    "a bit of its first word": lambda w, s: with_words(s, bit(0)),
    "a bit of its last word": lambda w, s: with_words(s, bit(-5)),
    "a bit of its tag": lambda w, s: with_words(s, bit(-1)),
    "one word fewer": lambda w, s: with_words(s, lambda v: v[:-1]),
    "one word more": lambda w, s: with_words(s, lambda v: np.append(v, v[:1])),
    "all zeros": lambda w, s: with_words(s, np.zeros_like),
    "twice": lambda w, s: with_words(s, lambda v: v + v),
    "a number added to all": lambda w, s: with_words(s, lambda v: v + np.uint64(1)),
    "without b": lambda w, s: with_words(s, lambda v: v - answered(w, "b", s.step)),
    "b twice": lambda w, s: with_words(s, lambda v: v + answered(w, "b", s.step)),
    "b alone": lambda w, s: with_words(s, lambda v: answered(w, "b", s.step)),
    "the sum before": lambda w, s: replace(s, words=w.steps[s.step - 1].words),
    "b's words of the step before": lambda w, s: with_words(
        s, lambda v: v - answered(w, "b", s.step) + answered(w, "b", s.step - 1)
    ),
}


@pytest.mark.parametrize("what", SUMS)
def test_a_sum_that_was_changed_on_its_way_is_found_before_anything_follows_from_it(what: str) -> None:
    """The third vector: its length is that of the one before, so that the one before could stand in for it."""
    at = FIRST + 3

    def change(wire: Wire, site: str, step: m.Step) -> m.Step:
        return SUMS[what](wire, step) if step.step == at else step

    wire = Wire(change)
    assert wire.replies
    for _, said in wire.replies:
        assert isinstance(said, m.Fault)
        assert "the sum of this step does not match the sites' answers" in said.reason or "one word" in what
    assert wire.pump.outcome is Outcome.SITE_FAULT
    assert wire.pump.bits == {}
    assert max(step for _, step in wire.answers) == at - 1, "no answer was made of it"


def test_after_a_sum_that_was_changed_the_true_one_still_serves() -> None:
    def change(wire: Wire, site: str, step: m.Step) -> m.Step:
        if step.step == FIRST + 2:
            [said] = wire._sites[site].handle(with_words(step, bit(0)))
            assert isinstance(said, m.Fault)
        return step

    assert Wire(change).pump.bits == undisturbed(PLAN).bits


def test_a_sum_that_is_withheld_ends_in_a_breach_that_says_so() -> None:
    wire = Wire(lambda w, site, step: replace(step, words=None) if step.step == FIRST + 1 else step)
    assert wire.replies == [], "nothing is answered"
    assert len(wire.breaches) == 3
    assert "without the answers to the step before" in wire.breaches[0]


@pytest.mark.parametrize("last", [False, True])
def test_two_sums_under_one_step_are_found_by_the_sites_themselves(last: bool) -> None:
    """The coordinator tells b another sum. If it was the last, the others have the result of the true one already."""
    plan = sealed(make_plan(min_sites=3, max_rounds=3, tolerance=0.0, prediction_tolerance=0.0))
    at = max(Wire(lambda w, site, step: step, plan).steps) - (0 if last else 2)

    def change(wire: Wire, site: str, step: m.Step) -> m.Step:
        return with_words(step, bit(0)) if site == "b" and step.step == at else step

    wire = Wire(change, plan)
    assert [type(said) for _, said in wire.replies] == [m.Fault]
    true = undisturbed(plan).bits
    assert wire.pump.bits == ({"a": true["a"], "c": true["c"]} if last else {})


def test_a_contribution_that_was_changed_on_its_way_names_the_site() -> None:
    def change(old: m.Part) -> m.Part:
        return replace(old, data=("00" if old.data[:2] != "00" else "01") + old.data[2:]) if old.site == "b" else old

    wire = Wire(lambda w, site, step: replace(step, parts=tuple(map(change, step.parts))) if step.step == 1 else step)
    assert "the contribution of b to the key of this run cannot be opened" in wire.pump.end.reason
    assert all("cannot be opened" in said.reason for _, said in wire.replies)


# --- who is on the roster -----------------------------------------------------------------------------------------


def offers_of(plan: Plan, sites: dict[str, Site]) -> dict[str, m.Offer]:
    found = {}
    for name, site in sites.items():
        [found[name]] = site.handle(m.Proposal(plan.run, 0, plan))
        assert isinstance(found[name], m.Offer), found[name]
    return found


def meets(change: Callable[[dict[str, m.Offer]], Any], plan: Plan = PLAN, **rules: Any) -> str:
    """What site a says of a roster that the coordinator has changed; empty where it answers."""
    sites = {
        name: site_with(name, make_sites(name)[name]._data, **(rules if name == "a" else {})) for name in plan.sites
    }
    offers = offers_of(plan, sites)
    changed = change(offers)
    roster = tuple(offers.values()) if changed is None else changed
    [said] = sites["a"].handle(m.Step(plan.run, 0, 0, roster))
    return said.reason if isinstance(said, m.PlanRefused) else ""


def as_b(offers: dict[str, m.Offer], keys: RunKeys, **changes: Any) -> None:
    """b's offer, made and signed with these keys."""
    empty = dict.fromkeys(("key", "identity", "signature"), "")
    offers["b"] = keys.draw(replace(offers["b"], **empty)).offer
    if changes:
        from coreg_wire.identity.signatures import sign
        from site_agent.identity.run_keys import _statement

        shown = replace(offers["b"], **changes)
        offers["b"] = replace(shown, signature=sign(identity_of("b"), _statement(shown)))


ROSTERS: dict[str, tuple[Callable[[dict[str, m.Offer]], Any], str]] = {
    "as it is": (lambda o: None, ""),
    "without the site": (lambda o: (o["b"], o["c"]), "does not contain this site's unchanged offer"),
    "its offer changed": (lambda o: (replace(o["a"], release="2"), o["b"], o["c"]), "this site's unchanged offer"),
    "two sites": (lambda o: (o["a"], o["b"]), "the roster has 2 sites; the plan needs at least 3"),
    "in another order": (lambda o: (o["b"], o["a"], o["c"]), "every site once, in site order"),
    "a site twice": (lambda o: (o["a"], o["b"], o["b"], o["c"]), "every site once, in site order"),
    "a stranger": (lambda o: (*o.values(), replace(o["c"], site="z")), "the roster lists z, which the plan does not"),
    "another attempt": (lambda o: (o["a"], replace(o["b"], attempt=1), o["c"]), "b is for another plan or attempt"),
    "another plan": (lambda o: (o["a"], replace(o["b"], plan_digest="0"), o["c"]), "b is for another plan or attempt"),
    "other ids": (lambda o: (o["a"], replace(o["b"], ids_digest="0"), o["c"]), "not the same ids"),
    "another key under the signature": (
        lambda o: (o["a"], replace(o["b"], key=o["c"].key[::-1]), o["c"]),
        "not signed by",
    ),
    "other rows": (
        lambda o: (o["a"], replace(o["b"], data_digest="x"), o["c"]),
        "the offer of b for this run is not signed by that site",
    ),
    "c's key at b": (
        lambda o: (o["a"], replace(o["b"], key=o["c"].key), o["c"]),
        "the same key as b: one site cannot take part under two names",
    ),
    "c's identity": (lambda o: (o["a"], replace(o["b"], identity=o["c"].identity), o["c"]), "under two names"),
    "no identity": (
        lambda o: (o["a"], replace(o["b"], identity="00"), o["c"]),
        "sent for b cannot be read",
    ),
    "a curve that does not exist": (
        lambda o: (
            o["a"],
            replace(o["b"], identity=o["b"].identity.replace("2a8648ce3d030107", "2a8648ce3d030177")),
            o["c"],
        ),
        "sent for b cannot be read",
    ),
    "made up by who signs certificates": (
        lambda o: as_b(o, RunKeys(identity_of("the coordinator's own"), fingerprint_of)),
        "the key that the coordinator sent for b is not the one that is confirmed here",
    ),
    "a key of low order": (
        lambda o: as_b(o, simulated_keys("b"), key="00" * 32),
        "b offered an invalid key",
    ),
    "of order eight": (
        lambda o: as_b(o, simulated_keys("b"), key="e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
        "b offered an invalid key",
    ),
}


@pytest.mark.parametrize("what", ROSTERS)
def test_a_roster_is_judged_before_anything_is_answered(what: str) -> None:
    change, reason = ROSTERS[what]
    assert (reason in meets(change)) if reason else meets(change) == ""


def test_a_peer_whose_key_is_not_confirmed_is_refused_with_what_to_do() -> None:
    keys = RunKeys(identity_of("a"), lambda name: None if name == "c" else fingerprint_of(name))
    said = meets(lambda o: None, keys=keys)
    assert said.startswith("the key of c is not confirmed here")
    assert "Compare the eight words with the other operators" in said


def test_a_site_without_a_certificate_takes_no_part() -> None:
    [said] = site_with("a", make_sites("a")["a"]._data, keys=None).handle(m.Proposal(PLAN.run, 0, PLAN))
    assert isinstance(said, m.PlanRefused)
    assert "need a certificate" in said.reason


def test_of_a_site_that_gives_another_contribution_to_each_nobody_opens_a_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = AttemptSecrets.wrap

    def each_another(secrets: AttemptSecrets, roster: tuple[m.Offer, ...], transcript: bytes) -> dict[str, str]:
        if secrets.offer.site != "b":
            return honest(secrets, roster, transcript)
        told = [honest(secrets, roster, transcript) for secrets._contribution in (bytes(32), bytes([7]) * 32)]
        return {**told[0], "c": told[1]["c"]}

    monkeypatch.setattr(AttemptSecrets, "wrap", each_another)
    pump = Pump(PLAN, make_sites("abc")).join().run()
    assert pump.outcome is Outcome.SITE_FAULT
    assert pump.bits == {}


def test_every_process_and_every_attempt_has_keys_of_its_own_and_no_text_shows_them() -> None:
    shown: list[m.Offer] = []
    sites = make_sites("a") | {"again": make_sites("a")["a"]}
    for attempt in (0, 1):
        for site in sites.values():
            shown += site.handle(m.Proposal(PLAN.run, attempt, PLAN))
    for name in ("key", "signature"):
        assert len({getattr(offer, name) for offer in shown}) == 4
    secrets = simulated_keys("a").draw(shown[0])
    assert repr(secrets) == "AttemptSecrets('a')"
    assert secrets._contribution.hex() not in repr(vars(sites["a"]))
