"""What only sums promise: no digit of the 60-digit solutions is lost, no context is taken for another, no key serves twice."""

from collections import deque
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from masked import another_process, masked_sites, sums
from problems import golden, golden_problem
from tiny import Pump

from coordinator.machine.events import SiteJoined, SiteLost
from coreg_core.additive.question_types import Ask as Kind
from coreg_core.additive.question_types import Column as AdditiveColumn
from coreg_core.additive.question_types import Operator
from coreg_core.agreement.columns import Column
from coreg_core.errors import BadData
from coreg_core.masking.sums import Layout, opened, summand, total
from coreg_core.protocol.messages import Ask, Inquiry, Participant, Roster, Vector
from coreg_core.protocol.outcomes import Outcome
from coreg_sim.federation.masks import simulated_keys
from site_agent.identity.mask_keys import PairwiseMasks
from site_agent.machine import training
from site_agent.machine.masks import context_of
from site_agent.machine.site import Site, Terms
from site_agent.machine.site_data import PrivateData
from site_agent.machine.training import question_digest

# --- digits -------------------------------------------------------------------------------------------------------


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
    assert pump.end is not None
    assert pump.end.outcome in (Outcome.CONVERGED, Outcome.STAGNATED), pump.end
    results = [site.result for site in sites.values()]
    found = np.array([result.solutions[0].prediction for result in results if result is not None])
    expected = np.array(truth["predictions_unlabelled"])
    assert np.abs(found - expected).max() <= 1e-10 * np.abs(expected).max()


# --- contexts -----------------------------------------------------------------------------------------------------

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


# --- keys ---------------------------------------------------------------------------------------------------------


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
        self.pump = Pump(self.plan, masked_sites(self.plan)).join()

    @property
    def over(self) -> bool:
        return self.pump.end is not None

    @rule(events=st.integers(1, 15))
    def go_on(self, events: int) -> None:
        for _ in range(events):
            if self.pump.events and not self.over:
                self.pump.step()

    def _gone(self, name: str) -> None:
        self.pump.events = deque(e for e in self.pump.events if getattr(e, "site", None) != name)
        self.pump.carry_out(self.pump.machine.handle(SiteLost(name, "lost")))

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
            assert self.pump.end is not None
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
