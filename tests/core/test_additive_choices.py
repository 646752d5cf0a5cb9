"""What sites choose of the additive objective: noise and priors, multipliers, residuals that disclose, and forecasts."""

from dataclasses import replace

import numpy as np
import pytest
from additive_problems import (
    EVERYTHING,
    QUICK,
    TIGHT,
    federation,
    train,
)
from numpy.testing import assert_allclose, assert_array_equal

from coreg_core.additive.model.grouping import (
    ResidualPolicy,
    members_of,
    near_groups,
    require_same_groups,
)
from coreg_core.additive.site import AdditiveSite
from coreg_core.errors import Refused, UsageError

# --- common rows, grouped and open residuals ----------------------------------------------------------------------------


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
