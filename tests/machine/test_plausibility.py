"""coordinator/machine/plausibility.py: no honest answer is found false, and false ones are, by name where there is one.

Derivations: docs/mathematics.md, "What an answer cannot be".
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from additive_problems import random_view
from hypothesis import example, given
from hypothesis import strategies as st
from machine.additive_tiny import additive_plan, additive_sites
from machine.masked import masked_sites, sums
from machine.tiny import Pump, altered, make_plan, make_sites

from coordinator.machine.plausibility import linear_fault, part_fault, smoothed_fault
from coordinator.machine.records import Ended, StepTaken
from coreg_core.additive.model.view import Hyper
from coreg_core.additive.question_types import Ask, Operator, stack
from coreg_core.additive.site import AdditiveSite
from coreg_core.protocol.messages import Masked, PlanAccepted, Prediction, ToSite
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan
from coreg_core.protocol.vectors import Vector

HERE = Operator()
seeds = st.integers(0, 2**32 - 1)
powers = st.floats(-3.0, 3.0)


def honest(rng: np.random.Generator, hypers: list[Hyper], m: int, k: int) -> tuple[Any, Any, float]:
    """Directions, the sum of the sites' answers to them, and M times the largest κ."""
    views = [random_view(rng, int(rng.integers(0, 12)), m) for _ in hypers]
    x = rng.normal(size=(2 * m + 1, k)) * 10.0 ** rng.uniform(-6, 6, size=k)
    y = sum(view.answer(x, None, hyper) for view, hyper in zip(views, hypers, strict=True))
    return x, y, len(views) * max(view.stretch(h) for view, h in zip(views, hypers, strict=True))


@example(seed=142, noise=0.0, prior=0.0, n_sites=1, k=1)  # a site without a row
@given(seeds, powers, powers, st.integers(1, 4), st.integers(1, 5))
def test_no_honest_part_and_no_sum_of_them_is_found_false(seed, noise, prior, n_sites, k):
    rng = np.random.default_rng(seed)
    hypers = [Hyper(10.0**noise, 10.0**prior) for _ in range(n_sites)]
    x, y, gain = honest(rng, hypers, int(rng.integers(1, 15)), k)
    assert part_fault(x, y, [HERE] * k, gain) is None


@given(seeds, powers, powers)
def test_an_answer_is_no_longer_than_its_stretch_and_no_direction_stretches_more(seed, noise, prior):
    """gain ≤ κ: what `operator_norm_bound` bounds is enough for the sums' scale, and is not above it without need."""
    rng, hyper = np.random.default_rng(seed), Hyper(10.0**noise, 10.0**prior)
    view = random_view(rng, int(rng.integers(0, 12)), int(rng.integers(1, 15)))
    assert view.gain(hyper) <= view.stretch(hyper) * (1.0 + 1e-12)
    q = np.linalg.svd(view.shared)[0][:, :1]
    alone = replace(view, y=view.y[:0], labelled=view.labelled[:0], coupling=view.coupling.keep(np.arange(0)))
    x = stack(np.zeros_like(q), q, np.zeros(1))
    assert np.linalg.norm(alone.answer(x, None, hyper)) == pytest.approx(alone.stretch(hyper), rel=1e-9)


LIES = {
    "a multiple": lambda x, y: -1000.0 * x,
    "a large multiple": lambda x, y: -5e5 * x,
    "its negative": lambda x, y: -y,
    "another direction's": lambda x, y: np.roll(y, 1, axis=1),
    "noise": lambda x, y: y + 0.01 * np.linalg.norm(y) * np.random.default_rng(1).normal(size=y.shape),
    "instances exchanged": lambda x, y: np.concatenate([y[3:6], y[:3], y[6:]]),
    "enormous": lambda x, y: 1e300 * y,
}
HIDES = ("a multiple", "its negative")  # in a sum, among what the others honestly give off: nothing tells it there


@pytest.mark.parametrize(
    ("lie", "n_sites"), [*((lie, 1) for lie in LIES), *((lie, 3) for lie in LIES if lie not in HIDES)]
)
@given(seeds)
def test_each_lie_is_found_in_one_answer_and_in_a_sum(lie, n_sites, seed):
    rng = np.random.default_rng(seed)
    views = [random_view(rng, 10, 8) for _ in range(n_sites)]
    x = rng.normal(size=(17, 4))
    told = [view.answer(x, None, Hyper(0.1, 1.0)) for view in views]
    with np.errstate(over="ignore", invalid="ignore"):
        told[0] = LIES[lie](x, told[0])
        assert part_fault(x, sum(told), [HERE] * 4, n_sites * 2.0**20) is not None


def test_another_site_s_data_is_no_lie_that_anybody_can_find():
    """A site that answers from other rows, or with nothing, answers as an honest one with those rows would."""
    rng = np.random.default_rng(3)
    x, other = rng.normal(size=(17, 2)), random_view(rng, 5, 8)
    assert part_fault(x, other.answer(x, None, Hyper(0.1, 1.0)), [HERE] * 2, 2.0**20) is None
    assert part_fault(x, np.zeros_like(x), [HERE] * 2, 2.0**20) is None


@given(seeds, powers)
def test_the_smoother_is_held_to_the_size_that_is_stated_with_it(seed, noise):
    rng, hyper = np.random.default_rng(seed), Hyper(10.0**noise, 1.0)
    views = [random_view(rng, int(rng.integers(1, 12)), 8) for _ in range(3)]
    rho = rng.normal(size=(8, 1)) * 1e-6
    answers = sum(view.smoothed(rho, hyper) for view in views)
    norms = [view.coupling_norm / hyper.noise for view in views]
    told = zip(norms, views, strict=True)
    sizes = np.array(
        [
            sum(norm * view.coupling_norm for norm, view in zip(norms, views, strict=True)),
            sum(norm * np.sqrt(view.n_labelled) for norm, view in told),
        ]
    )
    assert smoothed_fault(rho, answers, sizes) is None
    assert smoothed_fault(rho, -answers, sizes) is not None
    assert smoothed_fault(rho, answers, sizes / 1e4) is not None


@given(seeds, powers)
def test_no_honest_response_is_found_false(seed, weight):
    """R = μS(I + μS)⁻¹ for any S ⪰ 0 with ‖S‖ ≤ b."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(9, 4))
    S, mu = A @ A.T, 10.0**weight
    t = rng.normal(size=(9, 3))
    x = mu * np.linalg.norm(S, 2)
    answers = mu * S @ np.linalg.solve(np.eye(9) + mu * S, t)
    assert linear_fault(t, answers, np.full(3, x / (1.0 + x)), 1) is None
    assert "points away" in (linear_fault(t, -answers - t, np.full(3, x / (1.0 + x)), 1) or "")
    assert "farther" in (linear_fault(t, t, np.full(3, 0.5), 1) or "")


# --- in a run -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("made", [(make_plan, make_sites), (additive_plan, additive_sites)])
def test_a_liar_is_named_in_the_clear_and_nothing_is_certified(made: Any) -> None:
    plan: Plan = made[0](on_dropout="wait", min_sites=3)
    sites = made[1](plan.sites if made[0] is make_plan else plan)

    def lie(message: ToSite, answer: Any) -> Any:
        """To linear questions, a multiple of what was asked."""
        if getattr(message, "part", "") != "linear" or getattr(message, "kind", Ask.FIXED_POINT) is not Ask.FIXED_POINT:
            return answer
        return replace(answer, values=Vector(-1000.0 * message.targets.values))

    altered(sites["b"], lie)
    pump = Pump(plan, sites).join().run()
    assert pump.outcome is Outcome.SITE_FAULT
    assert pump.end.reason.startswith("b: its answer to question")
    assert {finished.outcome for finished in pump.models.values()} == {Outcome.SITE_FAULT}


@pytest.mark.parametrize("objective", ["agreement", "additive"])
def test_under_masks_a_lie_is_found_in_the_sum_and_laid_to_nobody(objective: str, monkeypatch) -> None:
    plan = sums(objective)
    sites = masked_sites(plan)
    from site_agent.machine import additive, training

    module = additive if objective == "additive" else training
    before = module.masked

    def lie(masks: Any, asked: Any, digest: str, values: Any, scalars: Any) -> Masked:
        if masks.name == "b" and asked.part == "linear" and getattr(asked, "kind", Ask.FIXED_POINT) is Ask.FIXED_POINT:
            values = (-0.9 if objective == "agreement" else -5e5) * asked.targets.values
        return before(masks, asked, digest, values, scalars)

    monkeypatch.setattr(module, "masked", lie)
    pump = Pump(plan, sites).join().run()
    assert pump.outcome is Outcome.SITE_FAULT
    assert "some site answers falsely" in pump.end.reason
    assert not any(name in pump.end.reason for name in ("a:", "b:", "c:"))


def test_a_part_that_is_stronger_than_the_plan_allows_answers_nothing_at_all() -> None:
    plan = additive_plan(operator_norm_bound=0.5)
    pump = Pump(plan, additive_sites(plan)).join().run()
    assert pump.outcome is Outcome.SITE_FAULT
    assert "operator_norm_bound=0.5" in pump.end.reason
    taken = [r.part for r in pump.records if getattr(r, "total", None) is not None and r.total.shape[0] == 61]
    assert not taken, "no sum of its operator's answers was ever taken"


def test_what_hides_in_a_sum_of_three() -> None:
    """docs/threat-model.md says so: a lie that is smaller than what the others honestly give off."""
    rng = np.random.default_rng(5)
    views, x = [random_view(rng, 10, 8) for _ in range(2)], rng.normal(size=(17, 4))
    others = sum(view.answer(x, None, Hyper(0.01, 1.0)) for view in views)
    assert part_fault(x, others - 1000.0 * x, [HERE] * 4, 3 * 2.0**20) is None
    t = rng.normal(size=(9, 2))
    assert linear_fault(t, 2 * 0.9 * t - 0.5 * t, np.full(2, 2.9), 3) is None


@pytest.mark.parametrize(
    ("kind", "scalars"),
    [
        ("LABELS", (-3.0, 1.0)),
        ("LABELS", (2.5, 1.0)),
        ("SPREAD", (-50.0,)),
        ("SCORE", (-1.0,)),
        ("TRACES", (-1.0, 2.0)),
        ("SMOOTHED", (-1.0, 2.0)),
        ("GRADIENT", (-1000.0, -1000.0)),
    ],
)
@pytest.mark.parametrize("answers", ["plaintext", "secure"])
def test_scalars_that_no_site_has_end_the_run(kind: str, scalars: tuple[float, ...], answers: str, monkeypatch) -> None:
    """In the clear by name; of a sum nobody can tell whose."""
    plan = sums("additive") if answers == "secure" else additive_plan(min_sites=3)
    sites = masked_sites(plan) if answers == "secure" else additive_sites(plan)
    engine, before = AdditiveSite, AdditiveSite.answer
    wrong = scalars if answers == "plaintext" else tuple(1e3 * x if x < 0 else x for x in scalars)

    def lie(site: AdditiveSite, question: Any) -> Any:
        answer = before(site, question)
        if site.name != "b" or question.ask.name != kind:
            return answer
        return replace(answer, scalars=np.array(wrong))

    monkeypatch.setattr(engine, "answer", lie)
    pump = Pump(plan, sites).join().run()
    assert pump.outcome is Outcome.SITE_FAULT, pump.end
    assert pump.end.reason.startswith("b: " if answers == "plaintext" else "question ")


@pytest.mark.parametrize("schedule", ["block-coordinate-descent", "consensus"])
def test_predictions_beyond_what_was_stated_are_named_under_every_schedule(schedule: str) -> None:
    plan = make_plan(schedule=schedule, min_sites=3)
    sites = make_sites(plan.sites)

    def huge(message: ToSite, answer: Any) -> Any:
        if not isinstance(answer, Prediction):
            return answer
        return replace(answer, values=Vector(np.full(answer.values.shape, 1e6)))

    altered(sites["b"], huge)
    pump = Pump(plan, sites).join().run()
    assert pump.outcome is Outcome.SITE_FAULT
    assert pump.end.reason.startswith("b: ")


# --- answers so large that nothing follows from them -----------------------------------------------------------------


def one_huge(size: float) -> dict[str, Any]:
    """b states a reach of 2¹⁰⁰⁰, and answers what that allows."""

    def huge(message: ToSite, answer: Any) -> Any:
        if isinstance(answer, PlanAccepted):
            return replace(answer, reach=1000)
        if not isinstance(answer, Prediction) or message.part != "affine":
            return answer
        signs = np.where(np.arange(len(answer.values.values)) % 2, -size, size)[:, None]
        return replace(answer, values=Vector(signs * np.ones(answer.values.shape)))

    sites = make_sites("abc")
    altered(sites["b"], huge)
    return sites


@pytest.mark.parametrize("size", [1e290, 1e300])
def test_a_site_whose_answers_overflow_ends_its_run_and_nothing_else(size: float) -> None:
    """The next direction would be no number; found again where the coordinator was killed before it could say so."""
    plan = make_plan()
    with np.errstate(over="ignore", invalid="ignore"):
        pump = Pump(plan, one_huge(size)).join().run()
        stepped = [i for i, record in enumerate(pump.records) if isinstance(record, StepTaken)]
        again = Pump(plan, one_huge(size), pump.records[: stepped[-1] + 1]).join().run()
    for each in (pump, again):
        assert each.outcome is Outcome.SITE_FAULT
        assert f"no question follows from the answers before question {len(stepped)}" in each.end.reason
        assert any(isinstance(record, Ended) for record in each.records), "and it is not resumed"
