"""Judgement: losses and verdicts by their definitions, leave-one-out by really leaving out, intervals by how often they hold."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coreg_core.additive.model.cross_validation import LeftOut
from coreg_core.errors import UsageError
from coreg_core.evaluation.intervals import conformal_factor, least_rows
from coreg_core.evaluation.losses import Paired, estimate, paired
from coreg_core.evaluation.recommendation import Choice, Told, judge, keeps_joined, scores_together


def left_out(alone, own, together=None, deviation=None):
    n = len(alone)
    none = np.full(n, np.nan)
    return LeftOut(
        np.arange(n), np.zeros(n), -alone, -own, none if together is None else -together,
        np.ones(n) if deviation is None else deviation,
    )  # fmt: skip


@given(st.integers(0, 2**32 - 1), st.integers(2, 40))
def test_a_paired_difference_is_the_mean_difference_of_squares(seed, n):
    rng = np.random.default_rng(seed)
    e, b = rng.normal(size=n), rng.normal(size=n)
    found = paired(e, b)
    assert found.difference == pytest.approx(estimate(e).rmse ** 2 - estimate(b).rmse ** 2)
    assert found.change == pytest.approx(estimate(e).rmse / estimate(b).rmse - 1.0)
    assert found.standard_error == pytest.approx(np.sqrt(np.var(e**2 - b**2, ddof=1) / n))
    back = paired(b, e)
    assert (back.difference, back.standard_error) == pytest.approx((-found.difference, found.standard_error))


def test_other_rows_are_refused_and_none_say_nothing():
    with pytest.raises(UsageError, match="same rows"):
        paired(np.zeros(2), np.zeros(3))
    assert np.isnan(estimate(np.zeros(0)).rmse)
    assert np.isnan(estimate(np.ones(1)).standard_error)
    assert paired(np.zeros(0), np.zeros(0)).rows == 0
    assert paired(np.zeros(3), np.zeros(3)).change == 0.0
    assert paired(np.ones(3), np.zeros(3)).change == np.inf


@pytest.mark.parametrize(
    ("difference", "kept"), [(-1.0, True), (0.0, True), (0.99, True), (1.0, True), (1.01, False), (5.0, False)]
)
def test_a_joined_model_is_kept_unless_its_loss_exceeds_one_standard_error(difference, kept):
    assert keeps_joined(Paired(difference, 1.0, 0.0, 60)) is kept


@pytest.mark.parametrize(("difference", "used"), [(-1.0, True), (-0.01, True), (0.0, False), (0.5, False)])
def test_a_score_is_used_where_folds_say_that_it_errs_less(difference, used):
    assert scores_together(Paired(difference, 1.0, 0.0, 60)) is used


def test_the_verdict_of_a_site_with_labels():
    rng = np.random.default_rng(1)
    alone = rng.normal(size=60)
    better, worse = judge(left_out(alone, 0.5 * alone), 60, -0.1), judge(left_out(alone, 2.0 * alone), 60, -0.1)
    assert (better.own, better.score, better.told) == (Choice.JOINED, Choice.JOINED, Told.OWN)
    assert better.forecast == pytest.approx(-0.5)
    assert (worse.own, worse.score) == (Choice.ALONE, Choice.ALONE)
    assert better.together is None
    both = judge(left_out(alone, 2.0 * alone, 0.25 * alone), 60)
    assert (both.own, both.score) == (Choice.ALONE, Choice.TOGETHER)
    neither = judge(left_out(alone, 0.9 * alone, 1.1 * alone), 60)
    assert neither.score is Choice.JOINED  # the joint score errs more than the model alone


def test_below_fifty_labels_the_federation_speaks():
    alone = np.random.default_rng(2).normal(size=20)
    few = judge(left_out(alone, 0.5 * alone), 20, -0.07)
    assert (few.told, few.forecast, few.own) == (Told.FEDERATION, -0.07, Choice.JOINED)
    silent = judge(left_out(alone, 0.5 * alone), 20)
    assert silent.told is Told.NOTHING
    assert np.isnan(silent.forecast)
    without = judge(LeftOut.nothing(), 0, -0.07)
    assert (without.own, without.told, without.alone) == (Choice.JOINED, Told.FEDERATION, None)


# --- intervals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9])
def test_a_conformal_factor_covers_what_is_exchangeable(coverage):
    """Any distribution, deviations wrong by a factor: the share covered is γ to within 1/(n + 1) and chance."""
    rng = np.random.default_rng(6)
    covered = []
    for _ in range(1500):
        deviation = 7.0 * rng.uniform(0.5, 2.0, size=40)
        residuals = deviation * rng.standard_t(3, size=40)
        q = conformal_factor(residuals[1:], deviation[1:], coverage)
        covered.append(abs(residuals[0]) <= q * deviation[0])
    assert coverage - 0.03 <= np.mean(covered) <= coverage + 1 / 40 + 0.03


def test_too_few_rows_have_no_interval():
    assert (least_rows(0.9), least_rows(0.95), least_rows(0.5)) == (9, 19, 1)
    assert conformal_factor(np.arange(9.0), np.ones(9), 0.9) == 8.0  # the largest of nine
    with pytest.raises(UsageError, match=r"needs 9 left-out labels; this model has 8\. Ask for at most 88 %"):
        conformal_factor(np.ones(8), np.ones(8), 0.9)
    for coverage in (0.0, 1.0):
        with pytest.raises(UsageError, match="between 0 and 1"):
            conformal_factor(np.ones(9), np.ones(9), coverage)
    with pytest.raises(UsageError, match="not positive"):
        conformal_factor(np.ones(9), np.zeros(9), 0.5)
