"""coreg_core/computation/plausibility.py: no honest answer is found false, and an enormous one is, in the sum."""

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
from coreg_core.additive.question_types import stack
from coreg_core.computation.plausibility import norm_fault, scalar_fault
from coreg_core.computation.rounds import Round
from coreg_core.protocol.outcomes import Outcome
from site_agent.machine.additive import AdditiveJob
from site_agent.machine.agreement import AgreementJob

seeds = st.integers(0, 2**32 - 1)
powers = st.floats(-3.0, 3.0)


@example(seed=142, noise=0.0, prior=0.0, n_sites=1, k=1)  # a site without a row
@given(seeds, powers, powers, st.integers(1, 4), st.integers(1, 5))
def test_no_honest_part_and_no_sum_of_them_is_found_false(seed, noise, prior, n_sites, k):
    rng, hyper = np.random.default_rng(seed), Hyper(10.0**noise, 10.0**prior)
    m = int(rng.integers(1, 15))
    views = [random_view(rng, int(rng.integers(0, 12)), m) for _ in range(n_sites)]
    x = rng.normal(size=(2 * m + 1, k)) * 10.0 ** rng.uniform(-6, 6, size=k)
    y = sum(view.answer(x, None, hyper) for view in views)
    gain = n_sites * max(view.stretch(hyper) for view in views)
    assert norm_fault(x, y, gain) is None
    assert norm_fault(x, 1e100 * np.ones_like(y), gain) is not None


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


@given(seeds, powers)
def test_no_honest_response_is_found_false(seed, weight):
    """R = μS(I + μS)⁻¹ for any S ⪰ 0."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(9, 4))
    S, mu, t = A @ A.T, 10.0**weight, rng.normal(size=(9, 3))
    assert norm_fault(t, mu * S @ np.linalg.solve(np.eye(9) + mu * S, t), 1.0) is None
    assert norm_fault(t, 1.1 * t, 1.0) is not None


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_is_found(number):
    t = np.ones((3, 2))
    assert norm_fault(t, t * number, 1e100) is not None
    assert scalar_fault((1.0, number), negative=True) is not None


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
@pytest.mark.parametrize(
    ("kind", "scalars"),
    [
        ("SPREAD", (-5e4,)),
        ("SCORE", (-1e3,)),
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
