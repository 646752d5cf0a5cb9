"""The additive method from rows to models, in memory: joining pays, and its numbers are those of
pooled regressions.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import statsmodels.api as sm
from numpy.random import default_rng
from numpy.testing import assert_allclose

from coreg_core.additive.features import SiteRows
from coreg_core.additive.training import train
from coreg_core.evaluation import p_value
from coreg_core.objectives.additive import IN_MEMORY, Additive

LINEAR = replace(IN_MEMORY, kernel="linear")


@dataclass
class Federation:
    sites: list[SiteRows]
    n_common: int
    new: list[np.ndarray]  # 500 rows that no site trains on, a table for each site
    truth: np.ndarray  # of them


def federation(seed=0, n=40, m=300, private=False, unit=1.0):
    """Three sites of two columns each, m unlabelled rows, and n labels of its own for each site.

    With ``private``, a site's labelled rows are its own. ``unit`` is that of the first site's
    labels.
    """
    rng = default_rng(seed)
    labelled_end = m + 3 * n
    X = rng.normal(size=(labelled_end + 500, 6))
    tables = [X[:, :2], X[:, 2:4], X[:, 4:]]
    truth = np.zeros(len(X))
    for table in tables:
        truth += np.sin(table[:, 0]) + 0.5 * table[:, 1]
    y = truth + 0.1 * rng.normal(size=len(X))
    units = [unit, 1.0, 1.0]
    sites = []
    for v, table in enumerate(tables):
        labelled = m + v * n + np.arange(n)
        labels = units[v] * y[labelled]
        if private:
            rows = np.concatenate([table[:m], table[labelled]])
            sites.append(SiteRows(rows, m + np.arange(n), labels))
        else:
            sites.append(SiteRows(table[:labelled_end], labelled, labels))
    n_common = m if private else labelled_end
    new = [table[labelled_end:] for table in tables]
    return Federation(sites, n_common, new, truth[labelled_end:])


def with_more_noise(sites, weight, seed):
    """The same sites with labels that are ``weight`` times as large, and standard normal noise."""
    rng = default_rng(seed)
    noise = rng.normal(size=(3, len(sites[0].y)))
    noisy = []
    for rows, errors in zip(sites, noise, strict=True):
        labels = weight * rows.y + errors
        noisy.append(replace(rows, y=labels))
    return noisy


def rmse(a, b):
    errors = a - b
    return float(np.sqrt(np.mean(errors**2)))


def features(run, tables):
    return [site.model.phi(X) for site, X in zip(run.sites, tables, strict=True)]


def checked_scores(run, tables):
    """The scores that each site's verdict makes."""
    phi = features(run, tables)
    scores = []
    for v, X in enumerate(tables):
        model = run.sites[v].model
        score = run.score(phi, v)
        scores.append(model.correct_score(score, model.alone(X), X))
    return scores


def estimates(run):
    """All sites' coefficients of a linear training, and their standard errors."""
    slopes = [site.model.slopes() for site in run.sites]
    coefficients = np.concatenate([estimate for estimate, _ in slopes])
    errors = np.concatenate([error for _, error in slopes])
    return coefficients, errors


def p_values_of(coefficients, errors):
    return [p_value(b, se) for b, se in zip(coefficients, errors, strict=True)]


def test_the_model_of_a_site_refines_as_the_training_does():
    given = federation(n=80)
    run = train(given.sites, given.n_common)
    phi = features(run, given.new)
    scores = checked_scores(run, given.new)
    for v, site in enumerate(run.sites):
        total = run.score(phi, v) - site.model.score_intercept
        assert_allclose(site.model.score(total, given.new[v]), scores[v])
    refinements = [site.verdict.score.refinement for site in run.sites]
    assert any(refinement is not None for refinement in refinements)


def test_a_linear_training_has_no_refinement():
    given = federation(n=80)
    run = train(given.sites, given.n_common, rules=LINEAR)
    for site in run.sites:
        assert site.verdict.score.refinement is None


@pytest.fixture(scope="module", params=[False, True], ids=["common", "private"])
def joined(request):
    """A federation, its training by the default rules, and whether labelled rows are private."""
    given = federation(n=80, private=request.param)
    run = train(given.sites, given.n_common, rules=Additive())
    return given, run, request.param


def test_joining_pays_where_each_site_has_a_part(joined):
    given, run, private = joined
    scores = checked_scores(run, given.new)
    most = 0.7
    if private:
        most = 0.9
    for site, X, score in zip(run.sites, given.new, scores, strict=True):
        alone = rmse(site.model.alone(X), given.truth)
        assert rmse(score, given.truth) < most * alone
        joined = rmse(site.model.predict(X), given.truth)
        assert joined < 1.03 * alone


def test_the_score_is_recommended_where_labelled_rows_are_common(joined):
    _, run, private = joined
    if not private:
        assert {site.verdict.recommended for site in run.sites} == {"score"}


def test_a_score_without_a_site_is_between_that_of_all_and_the_local_model(joined):
    given, run, _ = joined
    first, second, third = features(run, given.new)
    score = run.score([first, second, third], 0)
    without_second = run.score([first, None, third], 0)
    local = run.sites[0].model.alone(given.new[0])
    everyone = rmse(score, given.truth)
    missing = rmse(without_second, given.truth)
    alone = rmse(local, given.truth)
    assert everyone < missing < alone


def test_nine_tenths_intervals_cover_eight_tenths_and_more(joined):
    given, run, _ = joined
    site = run.sites[0]
    W = site.model.features(given.new[0])
    deviations, _ = site.own.deviations(run.fits[0], W, site.private_noise)
    half_width = 1.645 * site.verdict.spread * deviations
    score = run.score(features(run, given.new), 0)
    covered = np.abs(score - given.truth) < half_width
    assert covered.mean() > 0.8


def ratios_of_left_out_errors(seed):
    """Of each site's joined model: the left-out mean square, by that on 2,000 new rows.

    Columns of common factors say much of each other: a labelled row is one of those that complete
    them.
    """
    rng = default_rng(seed)
    factors = rng.normal(size=(2400, 6))
    signal = factors @ rng.normal(size=(6, 12))
    X = signal + rng.normal(size=(2400, 12))
    truth = X @ rng.normal(size=12) / 3
    y = truth + 0.5 * rng.normal(size=2400)
    tables = [X[:, :4], X[:, 4:8], X[:, 8:]]
    sites = []
    for v, table in enumerate(tables):
        labelled = 80 * v + np.arange(80)
        sites.append(SiteRows(table[:400], labelled, y[labelled]))
    run = train(sites, 400)
    ratios = []
    for site, table in zip(run.sites, tables, strict=True):
        left_out = np.mean(site.verdict.left_out["joined"] ** 2)
        predictions = site.model.predict(table[400:])
        errors = y[400:] - predictions
        ratios.append(left_out / np.mean(errors**2))
    return ratios


def test_the_left_out_error_of_the_joined_model_is_that_on_new_rows():
    ratios = [ratios_of_left_out_errors(seed) for seed in range(4)]
    squares = 12 * 80
    standard_error = np.sqrt(2 / squares)
    assert np.mean(ratios) == pytest.approx(1.0, abs=3 * standard_error)


def test_labels_in_another_unit_are_named_and_rescaled():
    given = federation(n=80, unit=20.0)
    run = train(given.sites, given.n_common)
    site = run.sites[0]
    truth = 20 * given.truth
    assert site.verdict.slope > 2.0
    alone = rmse(site.model.alone(given.new[0]), truth)
    score, _, _ = checked_scores(run, given.new)
    assert rmse(score, truth) < 1.02 * alone


def test_a_model_has_the_corrections_of_its_verdict():
    given = federation(n=80, unit=20.0)
    site = train(given.sites, given.n_common).sites[0]
    assert site.model.correct_joined == site.verdict.joined
    assert site.model.correct_score == site.verdict.score
    assert site.verdict.joined != site.verdict.score


@dataclass
class Pooled:
    """What a linear training on 120 labels of six columns is, if rows were pooled."""

    design: np.ndarray  # standardised columns, a column for each owner's offset, the constant
    labels: np.ndarray  # centred
    prior_precision: np.ndarray
    noise: float  # variance
    unit: float  # deviation of the labels
    deviations: np.ndarray  # of the columns


def pooled(sites, run):
    own = np.concatenate([rows.own for rows in sites])
    columns = []
    deviations = []
    for site, rows in zip(run.sites, sites, strict=True):
        basis = site.model.features.basis
        columns.append(basis.standardised(rows.X)[own])
        deviations.append(basis.deviation)
    offsets = np.repeat(np.eye(3), 40, axis=0)
    y = np.concatenate([rows.y for rows in sites])
    fit = run.fits[0]
    precision = np.repeat(1.0 / fit.tau, [2, 2, 2, 3])
    return Pooled(
        design=np.column_stack([*columns, offsets, np.ones(120)]),
        labels=y - y.mean(),
        prior_precision=np.append(precision, 0.0),
        noise=fit.sigma[0],
        unit=fit.moments.deviation,
        deviations=np.concatenate(deviations),
    )


def test_the_coefficients_of_a_linear_training_are_the_posterior_of_the_pooled_columns():
    """Components are a rotation: the prior is the same in standardised columns."""
    given = federation()
    run = train(given.sites, given.n_common, rules=LINEAR)

    coefficients, errors = estimates(run)

    p = pooled(given.sites, run)
    of_labels = p.design.T @ p.design / p.noise
    precision = of_labels + np.diag(p.prior_precision)
    covariance = np.linalg.inv(precision)
    mean = covariance @ p.design.T @ p.labels / p.noise
    standard_errors = p.unit * np.sqrt(np.diag(covariance))
    assert_allclose(coefficients, mean[:6] / p.deviations, atol=1e-8)
    assert_allclose(errors, standard_errors[:6] / p.deviations, rtol=1e-8)


def test_p_values_are_those_of_statsmodels_on_the_pooled_columns_and_the_prior():
    """The prior is rows of its own beside the pooled ones, with a goal of zero."""
    given = federation()
    sites = with_more_noise(given.sites, 0.2, seed=0)
    run = train(sites, given.n_common, rules=LINEAR)

    coefficients, errors = estimates(run)
    p_values = p_values_of(coefficients, errors)

    p = pooled(sites, run)
    scale = p.unit * np.sqrt(p.noise)
    rows_of_prior = np.diag(np.sqrt(p.prior_precision)) / p.unit
    rows = np.concatenate([p.design / scale, rows_of_prior])
    goal = np.concatenate([p.labels / scale, np.zeros(10)])
    model = sm.OLS(goal, rows)
    expected = model.fit(cov_type="fixed scale", cov_kwds={"scale": 1.0}, use_t=False)
    assert_allclose(coefficients * p.deviations, expected.params[:6], atol=1e-8)
    assert_allclose(errors * p.deviations, expected.bse[:6], rtol=1e-8)
    assert_allclose(p_values, expected.pvalues[:6], atol=1e-8)
    assert min(p_values) < 0.05 < max(p_values)


@pytest.mark.parametrize("seed", range(3))
def test_p_values_of_600_labels_are_within_a_twentieth_of_ordinary_least_squares(seed):
    given = federation(seed, n=200, m=100)
    sites = with_more_noise(given.sites, 0.1, seed)
    run = train(sites, given.n_common, rules=LINEAR)

    coefficients, errors = estimates(run)
    p_values = p_values_of(coefficients, errors)

    own = np.concatenate([rows.own for rows in sites])
    X = np.column_stack([rows.X[own] for rows in sites])
    y = np.concatenate([rows.y for rows in sites])
    expected = sm.OLS(y, sm.add_constant(X)).fit()
    assert_allclose(p_values, expected.pvalues[1:], atol=0.05)
    assert max(p_values) > 0.1, "some p-value could differ"
