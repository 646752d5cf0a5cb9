"""What sites choose of the additive objective: noise and priors, multipliers, residuals that disclose, and forecasts."""

from dataclasses import replace

import numpy as np
import pytest
from additive_problems import (
    EVERYTHING,
    QUICK,
    TIGHT,
    Algebra,
    exact_traces,
    federation,
    own_intercepts,
    random_view,
    train,
)
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.linalg import hadamard

from coreg_core.additive.forecast import Forecast
from coreg_core.additive.model.grouping import (
    ResidualPolicy,
    members_of,
    near_groups,
    require_same_groups,
)
from coreg_core.additive.model.hyperparameters import Traces, next_hyper, traces
from coreg_core.additive.model.smoother import choose_smoother
from coreg_core.additive.model.view import Hyper
from coreg_core.additive.question_types import Ask, Column, folds_of
from coreg_core.additive.reference.closed_form import solve_dense
from coreg_core.additive.reference.in_memory import run_in_memory
from coreg_core.additive.site import AdditiveSite
from coreg_core.additive.solver.block_gmres import BlockGmres
from coreg_core.errors import Refused, UsageError

# --- tuning -----------------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1))
def test_probes_that_are_all_signs_give_the_exact_traces(seed):
    """With E Eᵀ/P = I (rows of a Hadamard matrix) the estimates are the traces themselves."""
    rng = np.random.default_rng(seed)
    problem = Algebra(
        [random_view(rng, n, 9) for n in (5, 6, 0)], [Hyper(0.3, 0.8), Hyper(0.5, 0.4), Hyper(1.0, 0.6)], 1.0
    )
    signs = np.split(hadamard(16)[:11].astype(float), [5])
    signs.append(np.zeros((0, 16)))
    labels = [np.c_[view.y, e] for view, e in zip(problem.views, signs, strict=True)]
    columns = (Column(), *(Column("probe", p) for p in range(16)))
    state = problem.solve(BlockGmres(columns, (1e-13,) * 17), labels)
    probe_sum = np.sum([view.coupling.backward(e) for view, e in zip(problem.views, signs, strict=True)], axis=0)
    gamma, kappa = exact_traces(problem.views, problem.hypers)
    for v, (view, hyper) in enumerate(zip(problem.views, problem.hypers, strict=True)):
        found = traces(view, hyper, state.x, signs[v], probe_sum)
        assert found.gamma == pytest.approx(max(gamma[v], 1e-3), rel=1e-6)
        assert found.kappa == pytest.approx(max(kappa[v], 0.05 * view.n_labelled), rel=1e-6)


def test_a_tuning_step_by_hand():
    start, old = Hyper(0.5, 2.0), Hyper(0.4, 1.0)
    found = Traces(weight=3.0, gamma=2.0, residual=1.0, kappa=5.0)
    assert next_hyper(found, old, start, 9.0, 10) == Hyper((1.0 + 2.5) / 10.0, 1.5)
    # Without labels: drawn to g τ₀², and σ² is nobody's.
    assert next_hyper(found, old, start, 0.25, 0) == Hyper(0.4, (3.0 + 5 * 0.25 * 2.0) / 7.0)
    # Clipped to [1/5, 5] and [1/2, 2] a step.
    assert next_hyper(replace(found, weight=1e6), old, start, 1.0, 10).prior == 5.0
    assert next_hyper(replace(found, weight=0.0), old, start, 1.0, 10).prior == pytest.approx(0.2)
    assert next_hyper(replace(found, residual=1e9), old, start, 1.0, 10).noise == 0.8
    # And σ² stays within e⁴ of where it began.
    assert next_hyper(replace(found, residual=1e9), Hyper(27.0, 1.0), start, 1.0, 10).noise == pytest.approx(
        0.5 * np.exp(4)
    )


def test_a_site_of_noise_is_weighed_as_noise():
    """Junk labels: their σ² ends above the others' (design, 7.4)."""
    terms = replace(QUICK, landmarks=60, tuning_steps=6, probes=16)
    shuffled = np.random.default_rng(1).permutation
    made = federation(terms, n=(40, 40, 40), m=200, labels=lambda v, y: shuffled(y) if v == 2 else y)
    train(made, terms)
    noise = [site.hypers[-1].noise for site in made.sites]
    assert noise[2] > 1.5 * max(noise[:2])


# --- common rows, grouped and open residuals ----------------------------------------------------------------------------


def test_common_rows_choose_their_multipliers_by_the_joint_score():
    """Rows left out at every site at once, the joint score read at own labelled rows: by the dense oracle."""
    terms = replace(QUICK, rows="common", folds=3, tolerance=1e-10)
    made = federation(terms)
    _, state = train(made, terms)
    assert state.joint.shape == (12,)
    hypers = [site.hypers[-1].times(0.25, 3.0) for site in made.sites]
    position = 2 * 3 + 2  # noise ¼, prior 3 in the grid's order
    total = 0.0
    for fold in range(3):
        out = [folds_of(site.view.n_labelled, 3, terms.seed)[fold] for site in made.sites]
        kept = [
            site.view.keep(np.setdiff1d(np.arange(site.view.n_labelled), rows))
            for site, rows in zip(made.sites, out, strict=True)
        ]
        dense = solve_dense(kept, hypers)
        s = np.sum([view.shared @ w for view, w in zip(kept, dense.w, strict=True)], axis=0)
        for site, rows, own in zip(made.sites, out, own_intercepts(kept, dense), strict=True):
            if len(rows):
                residual = site._labels()[rows] - dense.intercept - own - s[site._positions[rows]]
                total += float(residual @ residual) / (site.n_labelled * site.own_fit.noise)
    assert state.joint[position] == pytest.approx(total, rel=1e-5)


def test_open_residuals_disclose_every_label():
    """y_i = a + a_v + s_i + σ_v² q_i exactly, and q names the labelled rows. So every site must consent."""
    terms = replace(TIGHT, rows="common", residuals="open")
    made = federation(terms)
    _, state = train(made, terms)
    m = made.n_unlabelled
    s, q, a = state.x[:m, 0], state.x[m : 2 * m, 0], state.x[-1, 0]
    noise, _ = state.operator.tolist()
    labelled = np.concatenate([site._positions for site in made.sites if site.n_labelled])
    assert set(np.flatnonzero(np.abs(q) > 1e-9)) == set(labelled.tolist())
    both = set(made.sites[0]._positions) & set(made.sites[1]._positions)
    for site in made.sites[:2]:
        alpha, _ = site.view.solve(
            state.x[:, :1], site.view.y[:, None], site.hypers[-1].times(*state.operator.tolist())
        )
        own = site.view.own_intercept(alpha)[0]
        for i, y in zip(site._positions, site._labels(), strict=True):
            if i not in both:
                assert a + own + s[i] + site.hypers[state.step].noise * noise * q[i] == pytest.approx(y, abs=1e-6)


def test_grouped_residuals_are_means_over_groups():
    """q is constant over a group: each label is hidden among k."""
    terms = replace(TIGHT, rows="common", residuals="grouped")
    made = federation(terms, n=(20, 0))
    _, state = train(made, terms)
    m, site = made.n_unlabelled, made.sites[0]
    q = state.x[m : 2 * m, 0][site._positions]
    groups = near_groups(site._standardiser(site._X), 3)
    assert len(groups) == 6
    for group in groups:
        members = np.flatnonzero(group)
        assert len(members) >= 3
        assert np.ptp(q[members]) < 1e-12 * np.abs(q).max()


def test_groups_depend_on_rows_alone_and_are_never_small():
    rows = np.random.default_rng(0).normal(size=(11, 3))
    groups = near_groups(rows, 3)
    assert_array_equal(groups, near_groups(rows, 3))
    assert_array_equal(groups, near_groups(np.asfortranarray(rows), 3))
    assert (np.count_nonzero(groups, axis=1) >= 3).all()
    assert (np.count_nonzero(groups, axis=0) == 1).all()
    assert_allclose(groups.sum(axis=1), 1.0)
    assert near_groups(np.zeros((0, 3)), 3).shape == (0, 0)
    with pytest.raises(Refused, match="no group of 3"):
        near_groups(rows[:2], 3)
    with pytest.raises(UsageError, match="fewer than 3"):
        ResidualPolicy(grouped_at_least=2)


def test_no_label_goes_out_in_two_groups():
    """Two groupings that differ by one row give that row's label by a difference."""
    rows, keys = np.random.default_rng(0).normal(size=(13, 3)), [f"k{i:02d}" for i in range(14)]
    first = members_of(near_groups(rows, 3), keys)
    assert sorted(key for group in first for key in group) == keys[:13]
    require_same_groups(first, (), "x")
    require_same_groups(first, first, "x")
    require_same_groups(members_of(near_groups(rows, 3), [f"other{i}" for i in range(13)]), first, "x")
    with pytest.raises(Refused, match=r"x: [0-9]+ labels went out in other groups before"):
        require_same_groups(members_of(near_groups(rows, 4), keys), first, "x")
    one_more = np.concatenate([rows, rows[:1] + 0.01])
    with pytest.raises(Refused, match="went out in other groups before"):
        require_same_groups(members_of(near_groups(one_more, 3), keys), first, "x")
    corrected = [*keys[:5], "k05, corrected", *keys[6:13]]
    with pytest.raises(Refused, match="2 labels went out in other groups"):  # its neighbours stay, their mean does not
        require_same_groups(members_of(near_groups(rows, 3), corrected), first, "x")


def test_the_same_question_again_changes_no_answer():
    """A coordinator whose power failed asks its last questions anew: SMOOTHER without SCORE before it, a view that folds used."""
    for changes in ({"residuals": "grouped"}, {"residuals": "open"}, {"folds": 2}):
        terms = replace(QUICK, rows="common", **changes)
        made = federation(terms)
        asked = []
        for site in made.sites:
            site.answer = asking(site.answer, asked if site is made.sites[0] else [])
        train(made, terms)
        site, answer = made.sites[0], type(made.sites[0]).answer
        hypers, view = site.hypers, site.view
        [score, smoother] = [q for q, _ in asked if q.ask in (Ask.SCORE, Ask.SMOOTHER)]
        for again in ([smoother], [score, smoother], [smoother, smoother]):
            for question in again:
                answer(site, question)
            assert site.hypers == hypers[:1]
            assert_array_equal(site.view.y, view.y)
        for question, said in asked[asked.index((smoother, dict(asked)[smoother])) :]:
            assert_array_equal(answer(site, question).vectors, said.vectors)


def asking(answer, asked):
    def noting(question):
        asked.append((question, said := answer(question)))
        return said

    return noting


def test_another_training_of_the_same_site_has_folds_of_its_own():
    """A site that was lost is taken back: other units, another smoother, and so other views without a fold's rows."""
    terms = replace(QUICK, rows="common", folds=2)
    twice, once = federation(terms), federation(terms)
    for made in (twice, once):
        made.sites[2]._y = made.sites[2]._y * 0.0
    alone = replace(twice, sites=twice.sites[:1])
    train(alone, terms)
    assert twice.sites[0]._left_out
    _, after = train(twice, terms)
    _, fresh = train(once, terms)
    assert_array_equal(after.joint, fresh.joint)
    assert_array_equal(after.x, fresh.x)


@pytest.mark.parametrize(
    ("changes", "policy", "reason"),
    [
        ({"residuals": "open"}, ResidualPolicy(grouped_at_least=3), "open_residuals = true"),
        ({"residuals": "grouped"}, ResidualPolicy(open_residuals=True), "does not say grouped_at_least"),
        ({"residuals": "grouped", "group_size": 4}, ResidualPolicy(grouped_at_least=5), "grouped_at_least = 5"),
        ({"residuals": "open"}, None, "open_residuals = true"),
    ],
)
def test_a_policy_refuses_what_it_does_not_name(changes, policy, reason):
    terms = replace(QUICK, rows="common", **changes)
    with pytest.raises(Refused, match=reason):
        AdditiveSite(np.eye(4), np.arange(4.0), np.eye(8, 4), terms, name="x", positions=np.arange(4), policy=policy)
    assert EVERYTHING.require("open", 3, "x") is None


# --- forecasts ------------------------------------------------------------------------------------------------------------


def test_a_forecast_is_honest():
    """A fold's columns are a training without its rows, fitted on the kept ones with the multipliers kept."""
    terms = replace(TIGHT, tolerance=1e-12, folds=3)
    made = federation(terms)
    _, state = train(made, terms)
    schedule = Forecast.of(terms, state)
    found = run_in_memory(schedule, schedule.start(made.n_unlabelled), made.sites)
    assert found.sums[2] == sum(site.n_labelled for site in made.sites)
    assert np.isfinite(found.gain)
    joined = alone = 0.0
    for fold in range(3):
        kept, out = [], []
        for site in made.sites:
            rows = folds_of(site.n_labelled, 3, terms.seed)[fold]
            out.append(rows)
            kept.append(np.setdiff1d(np.arange(site.n_labelled), rows))
        views, hypers = [], []
        for site in made.sites:
            setting, full = site._settings[fold], site.hypers
            views.append(setting.view)
            hypers.append(setting.start.times(full[-1].noise / full[0].noise, full[-1].prior / full[0].prior))
            assert_array_equal(setting.rows, kept[made.sites.index(site)])
        dense = solve_dense(views, hypers)
        s = np.sum([view.shared @ w for view, w in zip(views, dense.w, strict=True)], axis=0)
        for site, view, w, rows, offset in zip(
            made.sites, views, dense.w, out, own_intercepts(views, dense), strict=True
        ):
            setting = site._settings[fold]
            if setting.own is None or not len(rows):
                continue
            own, reading = site._candidates[setting.own.candidate], site._candidates[setting.smoother.candidate]
            others = s - view.shared @ w
            smooth = others.mean() + reading.labelled[rows] @ setting.smoother.coefficients(reading, others)
            y = site._labels()[rows]
            by_itself = setting.own.intercept + own.labelled[rows] @ setting.own.w
            together = dense.intercept + offset + own.labelled[rows] @ w + smooth
            fixed = dense.intercept + others.mean() + reading.labelled @ setting.smoother.coefficients(reading, others)
            weight = site._blend(setting, hypers[made.sites.index(site)], fixed[setting.rows])[0].weight
            joined += float(np.sum((y - weight * together - (1 - weight) * by_itself) ** 2))
            alone += float(np.sum((y - by_itself) ** 2))
    assert_allclose(found.sums[:2], [joined, alone], rtol=1e-7)
    with pytest.raises(UsageError, match="groups are made once"):
        Forecast.of(replace(terms, rows="common", residuals="open"), state)


def test_the_rank_correlation_before_training_is_a_sites_own():
    """r² of the smoother: near 1 where a site's columns tell the others' score, near 0 where they do not."""
    terms = replace(QUICK, landmarks=60)
    rng = np.random.default_rng(0)
    site = AdditiveSite(rng.normal(size=(5, 2)), rng.normal(size=5), Z := rng.normal(size=(200, 2)), terms)
    told = choose_smoother(site._candidates, np.sin(Z[:, 0]))
    untold = choose_smoother(site._candidates, rng.normal(size=200))
    assert told.r2 > 0.95
    assert untold.r2 < 0.2
    assert choose_smoother(site._candidates, None, default=1).r2 == 0.0
