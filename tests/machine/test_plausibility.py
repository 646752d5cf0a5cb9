"""coreg_core/computation/question.py: no honest answer is found false, and an enormous one is, in the sum."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine.tiny import Pump, make_plan, make_sites, sealed

from coordinator.machine.records import StepDone
from coreg_core.computation.question import Question, norm_fault, scalar_fault
from coreg_core.protocol.outcomes import Outcome
from site_agent.machine.agreement import AgreementJob

seeds = st.integers(0, 2**32 - 1)
powers = st.floats(-3.0, 3.0)


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
    assert scalar_fault((1.0, number)) is not None


# --- in a run -------------------------------------------------------------------------------------------------------

BOTH = pytest.mark.parametrize("secure", [False, True], ids=["plaintext", "sealed"])


def lying(secure: bool, lie: Callable[[Any, Any, Any], Any], monkeypatch: pytest.MonkeyPatch) -> Pump:
    """A run in which site b answers what ``lie`` makes of the question, its values and its scalars."""
    plan = make_plan(min_sites=3)
    honest = AgreementJob.answer

    def answer(job: AgreementJob, asked: Question) -> Any:
        values, scalars = honest(job, asked)
        return lie(asked, values, scalars) if job.data.salt == b"b" else (values, scalars)

    monkeypatch.setattr(AgreementJob, "answer", answer)
    return Pump(sealed(plan) if secure else plan, make_sites("abc")).join().run()


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
def test_sizes_below_zero_end_the_run(secure: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def lie(asked: Any, values: Any, scalars: Any) -> Any:
        return values, tuple(-1e6 * x for x in scalars) if asked.kind == "sizes" else scalars

    found_and_laid_to_nobody(lying(secure, lie, monkeypatch))


@pytest.mark.parametrize("size", [1e6, 1e290])
def test_an_answer_beyond_the_bound_of_its_sum_is_no_summand(size: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own site says so: it could wrap, and nothing of it leaves."""
    lie = lambda asked, values, scalars: (values + size if values.size else values, scalars)  # noqa: E731
    pump = lying(True, lie, monkeypatch)
    assert pump.outcome is Outcome.SITE_FAULT
    assert pump.end.reason == "b: a number is beyond the bound that the sum was scaled by."
