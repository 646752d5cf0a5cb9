"""A whole training over sums: to the dense oracle, gone on with on the same bits, telling no more than its table says."""

from dataclasses import replace

import numpy as np
import pytest
from additive_problems import QUICK, TIGHT, federation, oracle, own_intercepts, train
from numpy.testing import assert_allclose, assert_array_equal

from benchmarks.additive_reference.in_memory import run_in_memory
from coreg_core.additive.question_types import Ask
from coreg_core.additive.site import AdditiveSite
from coreg_core.additive.training import Training
from coreg_core.agreement.schedules.schedule import Stop
from coreg_core.errors import BadData


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"targets": "raw"},
        {"bandwidth": 4.0, "ridge": 0.5},
        {"random_intercept": 0.0},
        {"rows": "common", "folds": 2},
        {"rows": "common", "residuals": "grouped"},
    ],
    ids=str,
)
def test_messages_alone_equal_the_dense_oracle(changes):
    """To 1e-8 of a deviation: the federation's units, so of 1 ("raw": of the labels' own deviation, about 3)."""
    terms = replace(TIGHT, **changes)
    made = federation(terms)
    training, state = train(made, terms)
    assert training.finished(state)
    assert training.stop(state) in (Stop.CONVERGED, Stop.STAGNATED)
    s, a, dense = oracle(made, terms, state)
    m = made.n_unlabelled
    assert_allclose(state.x[:m, 0], s, atol=1e-8)
    assert state.x[-1, 0] == pytest.approx(a, abs=1e-8)
    certificate = training.certificate(state)
    assert np.linalg.norm(state.x[:m, 0] + state.rho[:m] - s) <= certificate.score_bound + 1e-10
    # s (and q, but where residuals are read at labelled rows) has mean zero: features are centred and S 1 = 0.
    assert abs(state.x[:m, 0].mean()) < 1e-10
    if terms.residuals == "smoothed":
        assert abs(state.x[m : 2 * m, 0].mean()) < 1e-9
    # A site's part is its own features times the oracle's w, in its own units.
    mean, deviation = state.units.tolist()
    own = own_intercepts([site.view for site in made.sites], dense)
    for site, w, offset in zip(made.sites, dense.w, own, strict=True):
        candidate = site._features(site._settings[None])
        assert_allclose(site.model.part.predict(site._X), deviation * (candidate.labelled @ w), atol=1e-7)
        assert site.model.intercept == pytest.approx(mean + deviation * (a + offset), abs=1e-7)


def test_questions_that_are_label_free_do_not_change_with_labels():
    """What the module's table says: same hyper-parameters, other labels, same answers."""
    one, other = federation(QUICK), federation(QUICK, labels=lambda _v, y: y[::-1].copy())
    training = Training(QUICK)
    state = training.start(one.n_unlabelled)
    free = 0
    while not training.finished(state):
        question = training.query(state)
        answers = [
            (site.answer(question), twin.answer(question)) for site, twin in zip(one.sites, other.sites, strict=True)
        ]
        for site, twin in zip(one.sites, other.sites, strict=True):
            # Widths and tuning follow labels; with these made equal, the linear questions have none in them.
            twin._hypers, twin._settings = list(site._hypers), site._settings
        if question.ask in (Ask.SMOOTHED, Ask.GRADIENT) or (
            question.ask is Ask.FIXED_POINT and question.part == "linear"
        ):
            free += 1
            for mine, its in answers:
                assert_array_equal(mine.vectors, its.vectors)
                assert_array_equal(mine.scalars, its.scalars)
        total = answers[0][0]
        for mine, _ in answers[1:]:
            total = total + mine
        state = training.step_with(state, total)
    assert free > 5


def test_labels_in_other_units_give_the_same_models_in_those_units():
    """Celsius or kelvin, gram or kilogram: the federation's mean and deviation take units out."""
    plain = federation(TIGHT)
    scaled = federation(TIGHT, labels=lambda _v, y: 1e3 * y - 273.15)
    for made in (plain, scaled):
        train(made, TIGHT)
    for one, other, (rows, _) in zip(plain.sites, scaled.sites, plain.tables, strict=True):
        expected = 1e3 * one.model.own.predict(rows) - 273.15
        assert_allclose(other.model.own.predict(rows), expected, rtol=1e-6)


# --- edges ------------------------------------------------------------------------------------------------------------


def test_one_site_is_ridge_regression_tuned_by_the_evidence():
    made = federation(TIGHT, n=(20,))
    _, state = train(made, TIGHT)
    s, a, _ = oracle(made, TIGHT, state)
    assert_allclose(state.x[: made.n_unlabelled, 0], s, atol=1e-8)
    assert state.x[-1, 0] == pytest.approx(a, abs=1e-8)
    site, (rows, _) = made.sites[0], made.tables[0]
    # Nobody else: the others' sum is 0, so the joint score is the joined model.
    assert_allclose(site.model.joined.predict(rows), site.model.intercept + site.model.part.predict(rows), atol=1e-6)


def test_no_shared_instances():
    made = federation(TIGHT, n=(20, 15), m=0)
    _, state = train(made, TIGHT)
    _, a, _ = oracle(made, TIGHT, state)
    assert state.x[-1, 0] == pytest.approx(a, abs=1e-9)


@pytest.mark.parametrize("n", [(1, 0), (2, 1), (3, 1)])
def test_hardly_any_label(n):
    made = federation(QUICK, n=n)
    train(made, QUICK)
    for site, (rows, _) in zip(made.sites, made.tables, strict=True):
        assert np.isfinite(site.model.own.predict(rows)).all()


def test_labels_that_do_not_differ():
    made = federation(QUICK, labels=lambda _v, y: np.full_like(y, 7.3))
    train(made, QUICK)
    for site, (rows, _) in zip(made.sites, made.tables, strict=True):
        assert_allclose(site.model.own.predict(rows), 7.3, atol=1e-6)


def test_nobody_knows_a_label():
    made = federation(QUICK, n=(0, 0))
    with pytest.raises(BadData, match="no site of this federation has a label"):
        train(made, QUICK)


def test_columns_that_do_not_vary():
    site = AdditiveSite(np.ones((4, 2)), np.arange(4.0), np.ones((6, 2)), QUICK)
    other = federation(QUICK, n=(12,), m=6).sites[0]
    training = Training(QUICK)
    run_in_memory(training, training.start(6), [site, other])
    assert np.isfinite(site.model.own.predict(np.ones((3, 2)))).all()


@pytest.mark.parametrize("steps", [0, 2])
def test_the_last_residual_is_relative_to_the_answer_at_0(steps):
    """Also without tuning, as in the plans of the preset strict."""
    terms = replace(QUICK, tuning_steps=steps)
    _, state = train(federation(terms), terms)
    assert state.scale[0] > 0.0
    assert np.linalg.norm(state.rho) <= 1.1 * terms.final_tolerance * state.scale[0]
