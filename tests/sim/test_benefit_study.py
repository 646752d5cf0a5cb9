"""The benefit study of benchmarks/: what each regime deals, the methods of a federation, and the report."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from benefit_table import table
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.linear_model import RidgeCV
from sklearn.preprocessing import StandardScaler
from stand_in import stand_in

from benchmarks.benefit import yes_no
from benchmarks.benefit.__main__ import run
from benchmarks.benefit.agreement import COUPLINGS, SiteFeatures, agree
from benchmarks.benefit.partition import REGIMES, least_rows, partition
from benchmarks.benefit.study import CHOSEN_ON, JUDGED_ON, BenefitStudy, table_named
from benchmarks.benefit.summary import OWN, TOGETHER, SiteOutcome, figure, headline, site_outcomes
from benchmarks.benefit.trial import _peers, trial
from coreg_core.errors import UsageError


@pytest.mark.parametrize("regime", [r for r in REGIMES.values() if sum(r.labels) < 600], ids=lambda r: r.name)
def test_a_regime_deals_what_it_says(regime):
    made = table()
    drawn = partition(made, regime, (1, 2))
    assert (drawn is None) == (regime.sizes and regime.shared > 405), "the number of shared rows is what it is about"
    if drawn is None:
        assert least_rows(regime) == -(-regime.shared * 100 // 45)
        return
    if regime.yes_no:
        made = replace(made, y=(made.y > np.median(made.y)).astype(float))
    assert [len(y) for y in drawn.labels] == list(regime.labels)
    assert len(drawn.shared) == min(regime.shared, 405)
    rows = [drawn.shared, drawn.test, *(drawn.labelled[:1] if regime.same_rows else drawn.labelled)]
    together = np.concatenate(rows)
    assert len(np.unique(together)) == len(together), "nobody trains on a test row, and no label is shared by chance"
    if regime.same_rows:
        for other in drawn.labelled[1:]:
            assert_array_equal(other, drawn.labelled[0])
    # Each site's labels are a factor times the table's, and an offset: 1 and 0 but where a regime says otherwise.
    factors = [float(np.ptp(y) / np.ptp(made.y[drawn.test])) for y in drawn.y_test]
    assert (np.ptp(factors) > 0.01) == regime.units
    if regime.flipped:
        assert_allclose(drawn.y_test[-1], -made.y[drawn.test])
    shuffled = regime.twist == "shuffled"
    for v, (own, y) in enumerate(zip(drawn.labelled, drawn.labels, strict=True)):
        assert drawn.honest[v] == (not shuffled or v < 2)
        if not (regime.units or regime.flipped or regime.offset):
            assert_array_equal(np.sort(y), np.sort(made.y[own]))
            assert np.array_equal(y, made.y[own]) == drawn.honest[v]
    firsts = [float(a[0, 0]) for a in made.attributes]
    have = [{firsts.index(x) for x in X[0] if x in firsts} for X in drawn.columns]
    assert all(X.shape[1] - len(each) == regime.noise for X, each in zip(drawn.columns, have, strict=True))
    core = set.intersection(*have)
    assert len(core) == (3 if regime.columns == "core" else 0)
    if regime.columns == "adjacent":
        assert [sorted(each) for each in have] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def parts(labels=(12, 11, 0)):
    rng = np.random.default_rng(0)
    return [
        SiteFeatures(
            rng.normal(size=(n, r)),
            rng.normal(size=(12, r)),
            rng.normal(size=(4, r)),
            rng.normal(size=n),
            0.4 + 0.1 * r,
        )
        for n, r in zip(labels, (3, 2, 4), strict=True)
    ]


def objective(made, coupling, ws):
    said = [p.shared @ w for p, w in zip(made, ws, strict=True)]
    total = sum(float(np.sum((p.y - p.labelled @ w) ** 2) + p.ridge * w @ w) for p, w in zip(made, ws, strict=True))
    return total + coupling * sum(float(np.sum((a - b) ** 2)) for a in said for b in said)


def test_the_path_minimises_the_papers_objective():
    made, found = [p.with_intercept() for p in parts()], agree(parts())
    ends = np.cumsum([0, *(p.shared.shape[1] for p in made)])

    def split(w):
        return [w[a:b] for a, b in itertools.pairwise(ends)]

    for j, coupling in enumerate(COUPLINGS):
        # The quadratic's minimiser, from its gradient at 0 and along every axis.
        at = lambda w, c=coupling: objective(made, c, split(w))  # noqa: E731
        zero, unit = at(np.zeros(ends[-1])), np.eye(ends[-1])
        H = np.array([[at(a + b) - at(a) - at(b) + zero for b in unit] for a in unit])
        g = np.array([at(a) - at(-a) for a in unit]) / 2
        for p, w, test in zip(made, split(np.linalg.solve(H, -g)), found.test, strict=True):
            assert_allclose(test[j], p.test @ w, atol=1e-7)
    assert found.chosen[2] is None, "a site without labels has nothing to choose by"


def test_every_method_of_a_federation_and_what_its_sites_were_told():
    drawn = partition(table(500), REGIMES["n20"], (3,))
    out = trial(drawn, 3)
    assert set(out["methods"]) | {"additive", "together-own-pick", "together-else-own"} == set(OWN + TOGETHER)
    json.dumps(out, allow_nan=False)
    found = site_outcomes({"a/n20/3": out})
    for v, told in enumerate(out["sites"]):
        for method, errors in out["methods"].items():
            assert found[v].change[method] == pytest.approx(np.sqrt(errors[v] / out["alone"][v]) - 1.0)
        harm = told["own"]["difference"] > told["own"]["standard_error"]
        assert found[v].change["additive"] == (0.0 if harm else found[v].change["additive-blended"])
        if told["together"]["difference"] < 0.0:
            assert found[v].change["together-own-pick"] == found[v].change["together"]
        else:
            assert found[v].change["together-own-pick"] == 0.0
        assert 0.0 <= told["coverage"]["0.8"][0] <= told["coverage"]["0.9"][0] <= 1.0
    for v, (X, rows, y) in enumerate(zip(drawn.columns, drawn.labelled, drawn.labels, strict=True)):
        scaler = StandardScaler().fit(X[rows])
        model = RidgeCV(np.logspace(-2.0, 4.0, 13)).fit(scaler.transform(X[rows]), y)
        error = np.mean((drawn.y_test[v] - model.predict(scaler.transform(X[drawn.test]))) ** 2)
        assert _peers(drawn, 0, trees=False)["ridge-alone"][v] == pytest.approx(error)


def test_a_yes_no_target_has_probabilities_of_every_method():
    out = trial(partition(table(500), REGIMES["yes-no50"], (3,)), 3, trees=False)
    for told in out["sites"]:
        assert list(told["yes_no"]) == list(yes_no.METHODS)
        area = {method: values[0] for method, values in told["yes_no"].items()}
        assert area["pooled, logistic loss"] == pytest.approx(area["pooled"], abs=0.1), "the same features"
    shown = yes_no.table(site_outcomes({"a/yes-no50/3": out}))
    assert [row[1] for row in shown.rows] == list(yes_no.METHODS)


def test_own_columns_learn_the_pooled_model_up_to_what_they_know():
    """With all columns at a site only the 225 shared rows limit what it learns; with one column much more is missing."""
    drawn = partition(table(500), REGIMES["n50"], (3,))
    whole = np.concatenate(drawn.columns, axis=1)
    columns = [whole, drawn.columns[1][:, :1], drawn.columns[2]]
    out = trial(replace(drawn, columns=columns), 3, trees=False)["methods"]
    assert out["pooled"][0] < out["distilled"][0] < 1.5 * out["pooled"][0]
    assert out["distilled"][1] > 2.0 * out["distilled"][0]


def test_a_study_writes_its_report_and_the_figures_of_the_docs(tmp_path):
    folder = stand_in(tmp_path / "data", ["mg", "sarcos_test"], rows=300)
    study = BenefitStudy(folder, ("mg", "diabetes"), ("n10", "one"), 1)
    run(study, tmp_path, 1)
    page, text = json.loads((tmp_path / "benefit.json").read_text()), (tmp_path / "benefit.txt").read_text()
    assert page["study"]["folder"] is None, "a page that everyone reads names no folder of somebody's"
    assert set(page["headline"]["sites"]) == set(OWN)
    assert {"Map of regimes", "Set by set", "Forecasts: rank correlation with the result"} <= set(page["tables"])
    assert "1 set (judged on): joined models" in text
    assert "4 federations" in text
    plain = len(table_named(folder, "sarcos_test").attributes)
    assert plain == 6, "two of its eight columns are other targets"
    with pytest.raises(UsageError, match="no data sets nothing"):
        BenefitStudy(folder, ("nothing",))
    with pytest.raises(UsageError, match="unknown regimes n11"):
        BenefitStudy(folder, ("mg",), ("n11",))


def test_the_two_groups_share_no_set():
    assert not set(CHOSEN_ON) & set(JUDGED_ON)


def test_each_set_counts_once_and_the_headline_leaves_out_what_it_says():
    def outcome(name, change, **changes):
        values = {"regime": REGIMES["n20"], "site": 0, "labels": 20, "judged": True, "record": {}}
        return SiteOutcome(name, change={"additive": change}, **(values | changes))

    found = [outcome("a", -0.1)] * 8 + [outcome("b", 0.3)] + [outcome("b", 0.01)]
    got = figure(found, "additive")
    assert got.mean == pytest.approx((-0.1 + 0.155) / 2)
    assert got.harmed == pytest.approx((0.0 + 0.5) / 2)
    assert (got.median, got.sites) == (-0.1, 10)
    for changes in ({"judged": False}, {"labels": 0}, {"regime": REGIMES["same50"]}):
        told = headline([outcome("a", -0.1), outcome("a", 0.9, **changes)])
        assert told["sets"] == {"a": {"additive": -0.1}}
