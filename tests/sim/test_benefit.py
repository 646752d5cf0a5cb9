"""`coreg-sim benefit` and the study of benchmarks/benefit: partitions, one federation, the verdict,
the report.
"""

import json
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from stand_in import stand_in

from benchmarks.benefit import partition as of_study
from benchmarks.benefit import report
from benchmarks.benefit.__main__ import run
from benchmarks.benefit.study import BenefitStudy, table_named
from benchmarks.benefit.trial import trial as trial_of_study
from coreg_core.errors import UsageError
from coreg_sim.benefit.partition import (
    LEAST_TEST,
    REGIMES,
    AttributeTable,
    fits,
    partition,
    table_of,
)
from coreg_sim.benefit.trial import SiteOutcome, TrainedPartition, trial
from coreg_sim.benefit.verdict import METHODS, figure, figures, findings


def table(rows=900, attributes=9):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, attributes))
    y = np.sin(X[:, 0]) + X[:, 3] + 0.5 * X[:, 5] ** 2 + 0.1 * rng.normal(size=rows)
    return AttributeTable(tuple(X[:, [j]] for j in range(attributes)), y)


# --- partitions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "regime", [r for r in REGIMES.values() if sum(r.labels) < 600], ids=lambda r: r.name
)
def test_a_regime_deals_what_it_says(regime):
    made = table()
    drawn = partition(made, regime, (1, 2))
    assert [len(y) for y in drawn.labels] == list(regime.labels)
    assert len(drawn.test) >= LEAST_TEST
    assert len(drawn.shared) == 405
    together = np.concatenate([drawn.shared, drawn.test, *drawn.labelled])
    assert len(np.unique(together)) == len(together), (
        "nobody trains on a test row, and no label is shared by chance"
    )
    for own, y in zip(drawn.labelled, drawn.labels, strict=True):
        assert_array_equal(y, made.y[own])
    assert sum(X.shape[1] for X in drawn.columns) == 9
    again = partition(table(), regime, (1, 2))
    other = partition(table(), regime, (1, 3))
    assert_array_equal(again.test, drawn.test)
    assert not np.array_equal(other.test, drawn.test)


@pytest.mark.parametrize("name", ["n10", "n200", "M8", "one"])
def test_a_table_fits_a_regime_if_it_has_the_rows_and_columns(name):
    regime = REGIMES[name]
    assert fits(table(regime.least_rows), regime)
    assert len(partition(table(regime.least_rows), regime, (0,)).test) >= LEAST_TEST
    assert not fits(table(regime.least_rows - 1), regime)
    made = table(regime.least_rows)
    assert not fits(replace(made, attributes=made.attributes[: len(regime.labels) - 1]), regime)
    assert table_of([np.zeros((90, 2))], np.arange(90.0)).attributes == (), "a constant column"


# --- one federation -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def federation():
    """A partition, and its trained federation."""
    drawn = partition(table(500), REGIMES["n20"], (3,))
    return drawn, TrainedPartition(drawn, 3)


def rmse(predictions, y):
    """A root mean squared error for each site."""
    return np.sqrt(np.mean((y - predictions) ** 2, axis=1))


def test_every_method_of_a_federation_against_the_local_model(federation):
    drawn, trained = federation
    methods = trained.methods()
    assert set(methods) == {*METHODS, "pooled"}
    local = rmse(trained.local, drawn.y_test)
    for site in trial(drawn, 3):
        for method, predictions in methods.items():
            ratio = rmse(predictions, drawn.y_test)[site.site] / local[site.site]
            assert site.change[method] == pytest.approx(ratio - 1.0)


def test_an_outcome_has_the_counts_of_its_site(federation):
    drawn, _ = federation
    sites = trial(drawn, 3)
    assert [site.site for site in sites] == [0, 1, 2]
    for site in sites:
        assert site.labels == 20
        assert site.shared == len(drawn.shared)
        assert site.areas == {}


def test_the_pooled_model_is_one_for_all(federation):
    drawn, trained = federation
    assert len(set(rmse(trained.methods()["pooled"], drawn.y_test))) == 1


def test_all_sites_have_one_score_but_for_their_own_intercepts(federation):
    _, trained = federation
    scores = trained.scores(checked=False)
    around_its_mean = scores - scores.mean(axis=1, keepdims=True)
    assert np.ptp(around_its_mean, axis=0).max() < 1e-9


def test_private_rows_help_less_than_common_ones(federation):
    drawn, trained = federation
    private = TrainedPartition(drawn, 3, private=True)
    change = trained.changes(trained.scores()).mean()
    assert private.changes(private.scores()).mean() > change


def test_labels_at_one_site_leave_the_others_the_mean():
    one = trial(partition(table(500), REGIMES["one"], (3,)), 3)
    assert [site.labels for site in one] == [100, 0, 0]
    assert one[1].change["mean"] == pytest.approx(0.0)


def of_two_values():
    """Labels 1.5 above the 0.7 quantile, and −0.5 below."""
    numbers = table(500)
    above = numbers.y > np.quantile(numbers.y, 0.7)
    return replace(numbers, y=np.where(above, 1.5, -0.5))


@pytest.fixture(scope="module")
def two_classes():
    drawn = partition(of_two_values(), REGIMES["n50"], (3,))
    return drawn, trial(drawn, 3)


def test_the_larger_of_two_values_is_one(two_classes):
    drawn, _ = two_classes
    labels = np.concatenate([*drawn.labels, drawn.y_test])
    assert {*labels} == {0.0, 1.0}
    assert drawn.y_test.mean() > 0.2
    assert drawn.y_test.mean() < 0.4


def test_a_target_of_two_values_is_judged_by_its_ranking(two_classes):
    _, sites = two_classes
    for site in sites:
        assert site.areas["pooled"] > site.areas["local"]
        for area in site.areas.values():
            assert area >= 0.0
            assert area <= 1.0


def test_findings_count_the_sites_whose_ranking_got_worse(two_classes):
    _, sites = two_classes
    [sentence] = [line for line in findings(REGIMES["n50"], sites) if "AUC" in line]
    changes = np.array([site.areas["joined"] - site.areas["local"] for site in sites])
    worse = 100 * np.mean(changes < -0.05)
    assert f"by more than 0.05 at {worse:.0f} % of the sites" in sentence


def test_findings_name_a_rare_class(two_classes):
    _, sites = two_classes
    rare = [replace(site, positive=0.02) for site in sites]
    text = "\n".join(findings(REGIMES["n50"], rare))
    assert "Only 2.0 % of the test labels are of one class" in text


def test_without_a_positive_test_row_there_is_no_ranking():
    numbers = table(500)
    second_largest = np.sort(numbers.y)[-2]
    few = replace(numbers, y=(numbers.y >= second_largest).astype(np.float64))
    drawn = partition(few, REGIMES["n10"], (2,))
    assert drawn.yes_no == drawn.y_test.any()
    for site in trial(drawn, 0):
        assert bool(site.areas) == drawn.yes_no


# --- the verdict ----------------------------------------------------------------------------------


def outcomes(count=30, regime="n20", areas=None, **changes):
    values = {"joined": 0.0, "score": 0.0, "ridge": 0.0, "mean": 0.3, "pooled": -0.3} | changes
    return REGIMES[regime], [
        SiteOutcome(n % 3, n // 3, 20, 198, values, areas or {}) for n in range(count)
    ]


def verdict(*made):
    [line] = [line for line in findings(*made) if line.startswith("Verdict")]
    return line


@pytest.mark.parametrize(
    ("joined", "ridge", "mean", "score", "said"),
    [
        (-0.10, 0.05, 0.3, -0.2, "join. Joined models pay. Scores gain more."),
        (
            -0.10,
            -0.2,
            0.3,
            -0.2,
            "with every agent connected. For predictions alone use ridge regression.",
        ),
        (-0.10, -0.2, 0.3, -0.01, "do not join. Ridge regression on the own columns is better"),
        (-0.02, 0.05, 0.3, -0.2, "join for scores only, with every agent connected."),
        (-0.02, 0.05, 0.3, -0.01, "do not join. The gain is below 5 %."),
        (
            -0.10,
            0.05,
            -0.1,
            -0.1,
            "do not join with this number of labels. Neither joined models nor scores are",
        ),
    ],
)
def test_the_verdict_follows_the_tutorial(joined, ridge, mean, score, said):
    made = outcomes(joined=joined, ridge=ridge, mean=mean, score=score)
    assert verdict(*made).startswith("Verdict for n20: ")
    assert said in verdict(*made)
    few = (
        "\n    60 labelled individuals: default policies refuse fewer than 150; lower least_rows in"
        " study and policies."
    )
    assert verdict(*made).endswith(few) == ("do not join" not in said)
    assert "refuse" not in verdict(REGIMES["n50"], made[1]), "150 are enough"
    head, *lines = findings(*made)[0].split("\n    ")
    assert head == "n20 (3 sites of 20 labels, 198 shared rows), 30 simulated sites:"
    for line, change in zip(lines, (joined, score, ridge, mean), strict=True):
        assert f" {100 * change:+.1f} %" in line
    assert f"beats joined: {100 * (ridge < joined):.0f} %" in lines[2]


def test_figures_are_means_over_sites():
    _, sites = outcomes(4, joined=-0.1)
    sites[0] = replace(sites[0], change=sites[0].change | {"joined": 0.3})
    got = figure(sites, "joined")
    assert got.mean == pytest.approx(0.0)
    assert got.median == -0.1
    assert got.harmed == 0.25
    assert "-0.0 % ± 6.7" in findings(REGIMES["n20"], sites)[0], "the standard error over the draws"
    assert figures(sites)["joined"] == {"mean_change": 0.0, "median_change": -0.1, "harmed": 0.25}


# --- the study of benchmarks/ ---------------------------------------------------------------------


def test_every_site_has_the_change_of_every_method():
    sites = trial_of_study(of_study.partition(table(), of_study.REGIMES["n50"], (3,)), 3)
    json.dumps(sites, allow_nan=False)
    for site in sites:
        assert {"score", "joined", "private score", "default score", "score, one missing"} <= set(
            site["change"]
        )
        assert 0.5 < site["inside"]["score"] <= 1.0
        assert site["recommended"] == "score"
        assert site["forecast"]["score"] == pytest.approx(site["change"]["score"], abs=0.35)
    whole, missing = (
        np.mean([site["change"][name] for site in sites])
        for name in ("score", "score, one missing")
    )
    assert whole < missing < 0.0, "three parts are better than two"
    few = trial_of_study(of_study.partition(table(500), of_study.REGIMES["n20"], (3,)), 3)
    assert not any("default score" in site["change"] for site in few), (
        "the rules want 150 labelled individuals"
    )


def test_owners_overlap_in_some_individuals():
    drawn = of_study.partition(table(), of_study.REGIMES["overlap100"], (3,))
    assert [len(rows) for rows in drawn.labelled] == [110, 110, 110]
    for rows, before in zip(drawn.labelled, np.roll(drawn.labelled, 1, axis=0), strict=True):
        assert_array_equal(rows[100:], before[:10])
    assert len(np.unique(np.concatenate(drawn.labelled))) == 300


def test_a_study_writes_its_tables(tmp_path):
    folder = stand_in(tmp_path / "data", ["mg", "sarcos_test"], rows=300)
    run(BenefitStudy(folder, ("mg", "diabetes"), ("n10",), 1), tmp_path, 1)
    page = json.loads((tmp_path / "benefit.json").read_text())
    text = (tmp_path / "benefit.md").read_text()
    heading, *rows = page["changes"]
    assert [row[0] for row in rows] == ["n10"]
    assert rows[0][heading.index("default score")] == "", "too few labels for a federation"
    assert text.count("| n10 | 1 |") == 3, (
        "judged, strong baselines, and the set that defaults were chosen on"
    )
    assert "" not in page["rivals"][1], "every baseline has a figure"
    assert "2 federations" in text
    plain = len(table_named(folder, "sarcos_test").attributes)
    assert plain == 6, "two of its eight columns are other targets"
    with pytest.raises(UsageError, match="no data sets nothing"):
        BenefitStudy(folder, ("nothing",))
    with pytest.raises(UsageError, match="unknown regimes n11"):
        BenefitStudy(folder, ("mg",), ("n11",))


def test_each_set_counts_once_and_sites_without_labels_or_with_shuffled_ones_do_not():
    site = {"honest": True, "labels": 20, "change": {"score": -0.1}}
    sets = {
        "a": [site] * 8 + [site | {"labels": 0, "change": {"score": 9.0}}],
        "b": [site | {"change": {"score": 0.3}}],
    }
    sets["b"].append(site | {"honest": False, "change": {"score": 9.0}})
    assert report.figure(sets, lambda each: each["change"]["score"]) == pytest.approx(0.1)
