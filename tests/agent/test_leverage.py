"""How much of a sum is one label: what a site measures before it accepts, on all instances or on those that matter."""

import numpy as np
import pytest

import site_agent.machine.agreement as leverage
from coreg_core.agreement.views import make_view
from coreg_core.kernels.bases import EveryPoint, LabelledPoints
from coreg_core.kernels.functions import Gaussian
from coreg_core.objectives.setting import Membership
from coreg_core.protocol.plan import Plan
from site_agent.machine.agreement import share_of_one_label
from site_agent.site_data import PrivateData


def problem(span, *, among, n=12, m=60):
    rng = np.random.default_rng(5)
    X, Z = rng.normal(size=(n, 3)), rng.normal(size=(m, 3))
    if among:
        Z[7] = X[3]
    y = rng.normal(size=n)
    return make_view(span, Gaussian(2.0), X, y, Z, 0.05), PrivateData(X, y, Z, "ids")


@pytest.mark.parametrize("span", [EveryPoint(), LabelledPoints()])
@pytest.mark.parametrize("weight", [0.0, 8.0])
def test_it_is_the_share_of_the_sum_s_variance_that_one_label_has(span, weight):
    """By its definition, label by label, from answers to labels that are one at one row and nothing elsewhere."""
    view, data = problem(span, among=True)
    unit = [make_view(span, Gaussian(2.0), data.X, e, data.Z, 0.05) for e in np.eye(len(data.y))]
    zero = np.zeros((len(data.Z), 1))
    H = np.column_stack([v.respond(zero, np.array([weight]))[:, 0] for v in unit])
    sizes = (H**2).sum(axis=1)
    shares = [[H[z, i] ** 2 / (sizes[z] + 3 * np.median(sizes)) for i in range(12)] for z in range(60)]
    assert share_of_one_label(view, data, [weight], 4) == pytest.approx(np.max(shares), rel=1e-8)
    assert share_of_one_label(view, data, [0.0, weight], 4) >= np.max(shares) * (1 - 1e-9)
    assert share_of_one_label(view, data, [weight], 8) < share_of_one_label(view, data, [weight], 4)


@pytest.mark.parametrize("span", [EveryPoint(), LabelledPoints()])
def test_of_many_instances_those_like_a_labelled_row_are_looked_at(span, monkeypatch):
    view, data = problem(span, among=True)
    whole = share_of_one_label(view, data, [8.0], 4)
    monkeypatch.setattr(leverage, "MOST_ENTRIES", 0)
    monkeypatch.setattr(leverage, "OTHERS", 40)
    assert share_of_one_label(view, data, [8.0], 4) == pytest.approx(whole, rel=0.2)  # the median is of fewer
    monkeypatch.setattr(leverage, "OTHERS", 5)
    assert leverage._some(data).tolist() == [0, 7, 14, 29, 44, 59]


def test_a_site_with_nothing_to_tell():
    data = PrivateData(np.ones((2, 1)), np.ones(2), np.zeros((0, 1)), "ids")
    assert (
        share_of_one_label(make_view(EveryPoint(), Gaussian(1.0), data.X, data.y, data.Z, 1.0), data, [1.0], 3) == 0.0
    )
    assert Plan("r", "f", Membership(("a",), 1)).masked  # which is where it is asked
