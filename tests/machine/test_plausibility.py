"""coreg_core/computation/plausibility.py: no honest answer is found false, and false ones are, in the sum.

Derivations: docs/research/mathematics.md, "What an answer cannot be".
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from additive_problems import random_view
from hypothesis import example, given
from hypothesis import strategies as st
from machine.additive_tiny import additive_plan, additive_sites
from machine.tiny import Pump, make_plan, make_sites, sealed

from coordinator.machine.records import StepDone
from coreg_core.additive.model.view import Hyper
from coreg_core.additive.question_types import Ask, Operator, stack
from coreg_core.computation.plausibility import linear_fault, part_fault, smoothed_fault
from coreg_core.computation.rounds import Round
from coreg_core.protocol.outcomes import Outcome
from site_agent.machine.additive import AdditiveJob
from site_agent.machine.agreement import AgreementJob

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


def test_what_hides_in_a_sum_of_three() -> None:
    """docs/concepts/threat-model.md says so: a lie that is smaller than what the others honestly give off."""
    rng = np.random.default_rng(5)
    views, x = [random_view(rng, 10, 8) for _ in range(2)], rng.normal(size=(17, 4))
    others = sum(view.answer(x, None, Hyper(0.01, 1.0)) for view in views)
    assert part_fault(x, others - 1000.0 * x, [HERE] * 4, 3 * 2.0**20) is None
    t = rng.normal(size=(9, 2))
    assert linear_fault(t, 2 * 0.9 * t - 0.5 * t, np.full(2, 2.9), 3) is None


# --- in a run -------------------------------------------------------------------------------------------------------

LYING = {"agreement": make_plan(min_sites=3), "additive": additive_plan(min_sites=3)}
BOTH = pytest.mark.parametrize("secure", [False, True], ids=["plaintext", "sealed"])


def lying(objective: str, secure: bool, lie: Callable[[Any, Any, Any], Any], monkeypatch: pytest.MonkeyPatch) -> Pump:
    """A run in which site b answers what ``lie`` makes of the question, its values and its scalars."""
    plan = sealed(LYING[objective]) if secure else LYING[objective]
    kind = AdditiveJob if objective == "additive" else AgreementJob
    honest = kind.answer

    def answer(job: Any, asked: Round) -> Any:
        values, scalars = honest(job, asked)
        return lie(asked.question, values, scalars) if job.data.salt == b"b" else (values, scalars)

    monkeypatch.setattr(kind, "answer", answer)
    return Pump(plan, additive_sites(plan) if objective == "additive" else make_sites("abc")).join().run()


def found_and_laid_to_nobody(pump: Pump) -> None:
    """Each site finds it in the same sum, so that the run ends alike at all of them, and nobody has a model."""
    assert pump.outcome is Outcome.SITE_FAULT
    assert "some site sends false answers" in pump.end.reason
    assert not any(name in pump.end.reason for name in ("a:", "b:", "c:"))
    assert pump.bits == {}
    assert not pump.breaches
    last = [r.report for r in pump.records if isinstance(r, StepDone)][-1]
    assert (last.outcome, last.reason) == ("SITE_FAULT", pump.end.reason)


@BOTH
@pytest.mark.parametrize("objective", LYING)
def test_a_lie_is_found_in_the_sum_by_every_site(objective: str, secure: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def lie(asked: Any, values: Any, scalars: Any) -> Any:
        """To linear questions, a multiple of what was asked."""
        if asked.part != "linear" or getattr(asked, "ask", Ask.FIXED_POINT) is not Ask.FIXED_POINT:
            return values, scalars
        if getattr(asked, "stage", "respond") != "respond":
            return values, scalars
        return (-0.9 if objective == "agreement" else -5e5) * asked.targets, scalars

    found_and_laid_to_nobody(lying(objective, secure, lie, monkeypatch))


@BOTH
@pytest.mark.parametrize(
    ("kind", "scalars"),
    [
        ("LABELS", (-3e3, 1.0)),
        ("LABELS", (2.5, 1.0)),
        ("SPREAD", (-5e4,)),
        ("SCORE", (-1e3,)),
        ("TRACES", (-1e3, 2.0)),
        ("SMOOTHED", (-1e3, 2.0)),
        ("GRADIENT", (-1e6, -1e6)),
    ],
)
def test_scalars_that_no_site_has_end_the_run(
    kind: str, scalars: tuple[float, ...], secure: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lie = lambda asked, values, honest: (values, scalars if asked.ask.name == kind else honest)  # noqa: E731
    found_and_laid_to_nobody(lying("additive", secure, lie, monkeypatch))


@BOTH
def test_sizes_below_zero_end_the_run(secure: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def lie(asked: Any, values: Any, scalars: Any) -> Any:
        return values, tuple(-1e6 * x for x in scalars) if asked.stage == "sizes" else scalars

    found_and_laid_to_nobody(lying("agreement", secure, lie, monkeypatch))


@pytest.mark.parametrize("size", [1e6, 1e290])
def test_an_answer_beyond_the_bound_of_its_sum_is_no_summand(size: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own site says so: it could wrap, and nothing of it leaves."""
    lie = lambda asked, values, scalars: (values + size if values.size else values, scalars)  # noqa: E731
    pump = lying("agreement", True, lie, monkeypatch)
    assert pump.outcome is Outcome.SITE_FAULT
    assert pump.end.reason == "b: a number is beyond the bound that the sum was scaled by."


def test_a_part_that_is_stronger_than_the_plan_allows_answers_nothing_at_all() -> None:
    plan = additive_plan(operator_norm_bound=0.5)
    pump = Pump(plan, additive_sites(plan)).join().run()
    assert pump.outcome is Outcome.SITE_FAULT
    assert "operator_norm_bound = 0.5" in pump.end.reason
    assert not any(
        kept is not None and any(t.values is not None and t.values.shape[0] == 61 for t in kept.sums)
        for kept in (site.kept for site in pump.sites.values())
    )
