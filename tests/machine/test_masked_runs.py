"""Runs under masks, through both machines: the bits of a run in the clear, whatever happens, and no key serves twice."""

import random
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from machine.masked import another_process, data_of, masked_sites, sums
from machine.tiny import Pump, altered
from problems import golden, golden_problem

from coordinator.machine.events import Received, SiteJoined, SiteLost
from coordinator.machine.records import MembershipChanged, StepTaken
from coreg_core.masking.sums import Layout
from coreg_core.protocol.messages import Masked, Prediction, Share
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan
from coreg_core.protocol.vectors import Words
from coreg_sim.federation.masks import simulated_keys
from site_agent.identity.mask_keys import PairwiseMasks
from site_agent.machine import training
from site_agent.machine.site import Site, Terms
from site_agent.machine.site_data import PrivateData

OBJECTIVES = ("agreement", "additive")


def in_clear(plan: Plan) -> Pump:
    clear = replace(plan, privacy=replace(plan.privacy, aggregation="plaintext"))
    return Pump(clear, {name: Site(name, data) for name, data in data_of(plan).items()}).join().run()


@pytest.mark.parametrize("plan", [sums(), sums(schedule="consensus", coupling=(0.0, 0.1)), sums("additive")])
def test_masks_change_no_bit(plan: Plan) -> None:
    masked, clear = Pump(plan, masked_sites(plan)).join().run(), in_clear(plan)
    assert masked.outcome is clear.outcome is Outcome.CONVERGED
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
    for kill_after in range(1, len(whole.records), 1 if objective == "agreement" else 9):
        first = Pump(plan, masked_sites(plan), kill_after=kill_after).join().run()
        second = Pump(plan, first.sites, first.records).join().run()
        assert second.outcome is Outcome.CONVERGED
        assert {**first.bits, **second.bits} == whole.bits


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("after", [1, 2, 5])
def test_an_agent_that_is_killed_comes_back_with_new_keys_and_everybody_ends_on_the_same_bits(
    objective: str, after: int
) -> None:
    plan = sums(objective)
    whole = Pump(plan, masked_sites(plan)).join().run()
    pump = Pump(plan, masked_sites(plan)).join().steps(after)
    pump.without("b").sites["b"] = another_process(pump.sites["b"])
    pump.events.append(SiteLost("b", "killed"))
    pump.join("b").run()
    assert pump.outcome is Outcome.CONVERGED
    assert pump.bits == whole.bits
    attempts = [r.attempt for r in pump.records if isinstance(r, MembershipChanged)]
    assert attempts == [0, 1]


@pytest.mark.parametrize("form", ["exact", "semi-parametric"])
@pytest.mark.parametrize("name", ["three-sites", "narrow-three", "five-sites-strong"])  # λ = 0.5, 0.1, 10
def test_masked_runs_end_on_the_60_digit_solutions(name: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """1e-10 of the largest prediction, as the issue asks at λ ≤ 1; it holds at λ = 10 too."""
    problem, truth = golden_problem(name, form), golden(name)[form.replace("-", "_")]
    names = tuple("abcdefg"[: len(problem.sites)])
    # Each site of these cases has a width and a ridge of its own, which no rule of a plan gives.
    views = {site.y.tobytes(): site.view() for site in problem.sites}
    monkeypatch.setattr(training, "factor", lambda _objective, _data, y, *_: views[y.tobytes()])
    numbers = {"coupling": (problem.coupling,), "tolerance": 1e-26, "prediction_tolerance": 1e-10}
    plan = sums(sites=names, min_sites=len(names), form=form, label_units="raw", **numbers)
    sites = {
        site: Site(site, PrivateData(s.X, s.y, s.Z, "ids", site.encode()), Terms(keys=simulated_keys(site)))
        for site, s in zip(names, problem.sites, strict=True)
    }
    pump = Pump(plan, sites).join().run()
    assert pump.end.outcome in (Outcome.CONVERGED, Outcome.STAGNATED), pump.end
    results = [site.result for site in sites.values()]
    found = np.array([result.solutions[0].prediction for result in results if result is not None])
    expected = np.array(truth["predictions_unlabelled"])
    assert np.abs(found - expected).max() <= 1e-10 * np.abs(expected).max()


# --- answers that are altered on their way --------------------------------------------------------------------------


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_flipped_bit_of_a_masked_answer_s_check_is_found_and_ends_the_run(objective: str) -> None:
    def flip(message: Any, answer: Any) -> Any:
        if not isinstance(answer, Masked) or answer.question < 1:
            return answer
        words = answer.words.values.copy()
        words[-1] ^= np.uint64(1)
        return replace(answer, words=Words(words))

    plan = sums(objective)
    sites = masked_sites(plan)
    altered(sites["b"], flip)
    pump = Pump(plan, sites).join().run()
    assert pump.outcome is Outcome.SITE_FAULT
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
        if not hasattr(message, "is_candidate") or message.question != 2:
            return honest(message)
        asked = CONTEXT[what](message)
        answers = honest(asked)
        return [replace(a, run=message.run, question=message.question) for a in answers]

    sites["b"].handle = another
    pump = Pump(plan, sites).join().run()
    assert pump.outcome is Outcome.SITE_FAULT


def test_an_answer_in_the_clear_under_a_plan_of_sums_is_not_used() -> None:
    plan = sums()
    sites = masked_sites(plan)

    def clear(message: Any, answer: Any) -> Any:
        if not isinstance(answer, Masked):
            return answer
        return Prediction(answer.run, answer.question, answer.attempt, message.targets)

    altered(sites["b"], clear)
    pump = Pump(plan, sites).join().run()
    assert pump.outcome is Outcome.SITE_FAULT
    assert "in the clear, where the plan has sums alone" in pump.end.reason


# --- keys -----------------------------------------------------------------------------------------------------------


class Disturbed(RuleBasedStateMachine):
    """A masked run, through losses, returns and kills of agents and of the coordinator, in an order that hypothesis chooses.

    Whatever happens: no stream hides two different numbers, no site's answer leaves unmasked, the run ends on the bits of the
    undisturbed one.
    """

    objective: ClassVar[str] = "agreement"
    whole: ClassVar[dict[str, Any]] = {}

    @initialize(seed=st.integers(0, 2**16))
    def begin(self, seed: int) -> None:
        self.plan, self.used, self.patch = sums(self.objective), {}, pytest.MonkeyPatch()
        if self.objective not in self.whole:
            self.whole[self.objective] = Pump(self.plan, masked_sites(self.plan)).join().run().bits
        before = PairwiseMasks.add

        def add(masks: PairwiseMasks, layout: Layout, words: Any, context: bytes) -> None:
            for secret in masks.secrets.values():
                stream = (masks.name, secret, context)
                said = words.tobytes()
                assert self.used.setdefault(stream, said) == said, "two answers under one stream"
            before(masks, layout, words, context)

        self.patch.setattr(PairwiseMasks, "add", add)
        self.pump = Pump(self.plan, masked_sites(self.plan), shuffle=random.Random(seed)).join()

    @property
    def over(self) -> bool:
        return self.pump.end is not None

    @rule(events=st.integers(1, 15))
    def go_on(self, events: int) -> None:
        for _ in range(events):
            if self.pump.events and not self.over:
                self.pump.step()

    def _gone(self, name: str) -> None:
        self.pump.without(name).carry_out(self.pump.machine.handle(SiteLost(name, "lost")))

    @rule(name=st.sampled_from("abc"))
    def an_agent_is_cut_off_and_comes_back(self, name: str) -> None:
        if not self.over:
            self._gone(name)
            self.pump.events.append(SiteJoined(self.pump.sites[name].hello()))

    @rule(name=st.sampled_from("abc"))
    def an_agent_is_killed_and_comes_back(self, name: str) -> None:
        if not self.over:
            self.pump.sites[name] = another_process(self.pump.sites[name])
            self._gone(name)
            self.pump.events.append(SiteJoined(self.pump.sites[name].hello()))

    @rule()
    def the_coordinator_is_killed(self) -> None:
        if not self.over:
            records = [*self.pump.machine.records, *self.pump.records]
            self.pump = Pump(self.plan, self.pump.sites, records).join()

    def teardown(self) -> None:
        if not hasattr(self, "pump"):
            return
        try:
            self.pump.run()
            assert self.pump.end.outcome is Outcome.CONVERGED, self.pump.end
            for name, told in self.pump.bits.items():
                assert told == self.whole[self.objective][name]
            assert self.used
        finally:
            self.patch.undo()


@pytest.mark.parametrize(("objective", "examples"), [("agreement", 20), ("additive", 6)])
def test_no_stream_serves_twice_whatever_happens_to_a_run(objective: str, examples: int) -> None:
    machine = type("Disturbed", (Disturbed,), {"objective": objective})
    checks = settings(
        max_examples=examples, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
    )
    run_state_machine_as_test(machine, settings=checks)


def test_the_state_machine_would_find_a_stream_that_serves_twice() -> None:
    """The check itself: contexts that forget the question, or the attempt, are found."""
    machine = Disturbed()
    machine.begin(0)
    before = training.masked
    try:
        machine.patch.setattr(
            "site_agent.machine.masks.context_of", lambda roster, asked, digest, layout: roster.run.encode()
        )
        assert before is training.masked
        with pytest.raises(AssertionError, match="two answers under one stream"):
            machine.pump.run()
    finally:
        machine.patch.undo()
