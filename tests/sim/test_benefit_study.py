"""The benefit study of benchmarks/: what each regime deals, the methods of a federation, and the report."""

import json
from dataclasses import replace

import numpy as np
import pytest
from benefit_table import table
from numpy.testing import assert_allclose, assert_array_equal
from stand_in import stand_in

from benchmarks.benefit.__main__ import run
from benchmarks.benefit.partition import REGIMES, least_rows, partition
from benchmarks.benefit.report import figure
from benchmarks.benefit.study import CHOSEN_ON, JUDGED_ON, BenefitStudy, table_named
from benchmarks.benefit.trial import trial
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


def test_every_site_has_the_change_of_every_method():
    sites = trial(partition(table(), REGIMES["n50"], (3,)), 3)
    json.dumps(sites, allow_nan=False)
    for site in sites:
        assert {"score", "joined", "private score", "default score", "score, one missing"} <= set(site["change"])
        assert 0.5 < site["inside"]["score"] <= 1.0
        assert site["recommended"] == "score"
        assert site["forecast"]["score"] == pytest.approx(site["change"]["score"], abs=0.35)
    whole, missing = (np.mean([site["change"][name] for site in sites]) for name in ("score", "score, one missing"))
    assert whole < missing < 0.0, "three parts are better than two"
    few = trial(partition(table(500), REGIMES["n20"], (3,)), 3)
    assert not any("default score" in site["change"] for site in few), "the rules want 150 labelled individuals"


def test_a_yes_no_target_has_probabilities():
    for site in trial(partition(table(500), REGIMES["yes-no50"], (3,)), 3):
        area, loss, error = (
            dict(zip(site["yes_no"], x, strict=True)) for x in zip(*site["yes_no"].values(), strict=True)
        )
        assert area["score"] > area["local"]
        assert loss["score"] < loss["local"]
        assert all(0.0 <= x < 0.5 for x in error.values())


def test_a_study_writes_its_tables(tmp_path):
    folder = stand_in(tmp_path / "data", ["mg", "sarcos_test"], rows=300)
    run(BenefitStudy(folder, ("mg", "diabetes"), ("n10", "one"), 1), tmp_path, 1)
    page, text = json.loads((tmp_path / "benefit.json").read_text()), (tmp_path / "benefit.md").read_text()
    assert set(page) == {"n10", "one"}
    assert page["n10"]["default score"] == "", "too few labels for a federation"
    assert "| n10 | 2 |" in text
    assert "4 federations" in text
    plain = len(table_named(folder, "sarcos_test").attributes)
    assert plain == 6, "two of its eight columns are other targets"
    with pytest.raises(UsageError, match="no data sets nothing"):
        BenefitStudy(folder, ("nothing",))
    with pytest.raises(UsageError, match="unknown regimes n11"):
        BenefitStudy(folder, ("mg",), ("n11",))


def test_the_two_groups_share_no_set():
    assert not set(CHOSEN_ON) & set(JUDGED_ON)


def test_each_set_counts_once_and_sites_without_labels_or_with_shuffled_ones_do_not():
    site = {"honest": True, "labels": 20, "change": {"score": -0.1}}
    sets = {
        "a": [site] * 8 + [site | {"labels": 0, "change": {"score": 9.0}}],
        "b": [site | {"change": {"score": 0.3}}],
    }
    sets["b"].append(site | {"honest": False, "change": {"score": 9.0}})
    assert figure(sets, lambda each: each["change"]["score"]) == pytest.approx(0.1)
