"""The last question of a run that rounding ended: a site that cannot tell its residual never ends the run."""

from typing import Any

import numpy as np
import pytest
from machine.tiny import UNLABELLED, make_plan, private_data

from coreg_core.agreement.columns import Column
from coreg_core.agreement.views.optimality import Optimality
from coreg_core.computation.rounds import Ask, Round
from coreg_core.masking.words import Layout
from site_agent.machine import agreement
from site_agent.machine.agreement import AgreementJob

COLUMNS = (Column(0.1, 0.6), Column(1.0, 6.0))


def told() -> tuple[float, ...]:
    plan = make_plan()
    job = AgreementJob(plan, plan.objective, private_data("a"), lambda n: n)
    job.begin(plan.sites)
    targets = np.random.default_rng(0).normal(size=(UNLABELLED, 2))
    values, scalars = job.answer(Round(Ask("residual", COLUMNS, targets), Layout(0, 0, 5), (), (0, 1, 2)))
    assert values.size == 0
    return scalars


def test_a_site_tells_one_and_two_squares_of_each_column() -> None:
    scalars = told()
    assert len(scalars) == 5
    assert scalars[0] == 1.0
    assert all(0.0 <= s < 1e-20 for s in scalars[1:]), "exact answers to rounding"


def no_memory(*_: Any) -> Any:
    raise MemoryError


def no_factor(*_: Any) -> Any:
    raise np.linalg.LinAlgError("not positive definite")


@pytest.mark.parametrize(
    "found",
    [
        no_memory,
        no_factor,
        lambda *_: None,
        lambda *_: Optimality(1e200, np.zeros(UNLABELLED), 0.0),  # its square overflows
        lambda *_: Optimality(1.0, np.full(UNLABELLED, np.nan), 0.0),
    ],
    ids=["no memory", "no factor", "no method", "overflow", "not a number"],
)
def test_a_site_that_cannot_tell_adds_zeros(found: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "optimality_of", found)
    assert told() == (0.0,) * 5
