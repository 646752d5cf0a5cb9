"""What a benefit study found: figures, verdicts and their doubts, from outcomes that are made up."""

import re
from dataclasses import replace

import pytest

from coreg_sim.benefit import yes_no
from coreg_sim.benefit.findings import findings
from coreg_sim.benefit.partition import REGIMES
from coreg_sim.benefit.report import calibration
from coreg_sim.benefit.summary import SiteOutcome, figure, headline


def site_outcome(name, change, **changes):
    values = {"regime": REGIMES["n20"], "site": 0, "labels": 20, "judged": True, "record": {}}
    return SiteOutcome(name, change={"additive": change}, **(values | changes))


@pytest.mark.parametrize(
    ("joined", "ridge", "mean", "scores", "checked", "said"),
    [
        (-0.10, 0.05, 0.3, -0.2, -0.2, "join. Joined models pay. Scores gain more."),
        (-0.10, -0.2, 0.3, -0.2, -0.2, "with every agent connected. For predictions alone use ridge regression."),
        (-0.10, -0.2, 0.3, -0.01, -0.01, "do not join. Ridge regression on the own columns is better"),
        (-0.02, 0.05, 0.3, -0.2, -0.2, "join for scores only, with every agent connected."),
        (-0.02, 0.05, 0.3, 0.03, -0.2, 'join for checked scores only (rows = "common", preset partners)'),
        (-0.02, 0.05, 0.3, -0.01, -0.01, "do not join. The gain is below 5 %."),
        (
            -0.10,
            0.05,
            -0.1,
            -0.1,
            -0.1,
            "do not join with this number of labels. Neither joined models nor scores are better than the mean of the",
        ),
    ],
)
def test_the_verdict_on_an_own_table_follows_the_tutorial(joined, ridge, mean, scores, checked, said):
    changes = {
        "additive": joined, "ridge-alone": ridge, "mean-of-labels": mean, "together-private": scores,
        "together-own-pick": checked,
    }  # fmt: skip
    told = findings({"your data": [replace(site_outcome("a", 0.0), change=changes) for _ in range(30)]})
    [verdict] = [line for line in told if line.startswith("Verdict for n20: ")]
    assert said in verdict
    [answer] = [line.split("\n    ") for line in told if "30 simulated sites" in line]
    for line, change in zip(answer[1:], (joined, scores, checked, ridge, mean), strict=True):
        assert f" {100 * change:+.1f} %" in line
    assert f"beats joined: {100 * (ridge < joined):.0f} %" in answer[4]


def test_a_verdict_that_other_draws_can_change_says_it():
    names = ("additive", "ridge-alone", "mean-of-labels", "together-private", "together-own-pick")
    better = dict.fromkeys(names, -0.2) | {"mean-of-labels": 0.3, "ridge-alone": 0.1}
    sites = [replace(site_outcome("a", 0.0), change=better, draw=str(n // 3)) for n in range(30)]
    [sure] = [line for line in findings({"your data": sites}) if line.startswith("Verdict")]
    assert sure == "Verdict for n20: join. Joined models pay."
    for at in (
        4,
        20,
    ):  # two sites of thirty are harmed: 6.7 %, and in (1 - 2/10)^10 + 10 (2/10) (8/10)^9 of resamples below 5 %
        sites[at] = replace(sites[at], change=better | dict.fromkeys(("additive", *names[3:]), 0.1))
    [unsure] = [line for line in findings({"your data": sites}) if line.startswith("Verdict")]
    found = re.fullmatch(
        r"Verdict for n20: do not join\. More than 5 % of the sites are harmed\. Near a limit: (\d+) of 100 resamples of the "
        r"draws give: join\. Raise --draws\.",
        unsure,
    )
    assert abs(int(found[1]) - 37.6) < 15  # three standard deviations of a binomial of 100
    [joined] = [line for line in findings({"your data": sites})[2].split("\n") if "joined model" in line][:1]
    assert joined.split()[:5] == ["joined", "model", "-18.0", "%", "±"]


def test_few_results_and_one_site_with_labels_are_said_beside_the_verdict():
    names = ("additive", "ridge-alone", "mean-of-labels", "together-private", "together-own-pick")
    change = dict.fromkeys(names, -0.0001) | {"mean-of-labels": 0.3}
    one = [replace(site_outcome("a", 0.0), change=change, regime=REGIMES["one"]) for _ in range(10)]
    told = findings({"your data": [*one, *(replace(one[0], regime=REGIMES["n20"]) for _ in range(30))]})
    assert "These are only 10 results" in told[3]
    assert told[4].startswith(
        "Verdict for one: do not join. The gain is below 5 %. Where one site has all labels, FATE and"
    )
    assert [line for line in told if "worse here" in line or "only 30" in line] == []
    assert told[-1] == "Verdict for n20: do not join. The gain is below 5 %."


def test_the_logarithm_is_no_advice_for_a_yes_no_target():
    changes = dict.fromkeys(("additive", "ridge-alone", "mean-of-labels", "together-private", "together-own-pick"), 0.0)
    judged = {method: [0.5 + 0.1 * (method == "checked scores"), 0.7, 0.1] for method in yes_no.METHODS}
    for record, advised in (({}, True), ({"yes_no": judged}, False)):
        sites = [replace(site_outcome("a", 0.0), change=changes, record=record) for _ in range(30)]
        lines = findings({"your data": sites})
        [told] = [line for line in lines if line.startswith("Neither")]
        assert ("logarithm" in told) is advised
        ranked = [i for i, line in enumerate(lines) if "checked scores 0.60" in line]
        assert len(ranked) == (not advised)
        assert ranked == [] or lines[ranked[0] + 1].startswith("Verdict for"), "the AUC is told before the verdict"


def test_the_verdict_on_a_yes_no_target_names_what_does_not_fall():
    record = {"yes_no": {method: [0.5, 0.7, 0.1] for method in yes_no.METHODS}}
    methods = ("additive", "together-private", "together-own-pick")
    changes = dict.fromkeys(methods, -0.03) | {"ridge-alone": 0.0, "mean-of-labels": 0.1}
    for each, words in (
        (record, "The reduction of the probability's error is below 5 %."),
        ({}, "The gain is below 5 %."),
    ):
        sites = [replace(site_outcome("a", 0.0), change=changes, record=each) for _ in range(30)]
        assert any(f"do not join. {words}" in line for line in findings({"your data": sites}))


def test_each_set_counts_once():
    found = [site_outcome("a", -0.1)] * 8 + [site_outcome("b", 0.3)] + [site_outcome("b", 0.01)]
    got = figure(found, "additive")
    assert got.mean == pytest.approx((-0.1 + 0.155) / 2)
    assert got.harmed == pytest.approx((0.0 + 0.5) / 2)
    assert got.median == -0.1
    assert got.sites == 10
    assert figure(found, "pooled") is None


def test_a_forecast_that_no_site_had_has_no_bands():
    record = {"own": {"change": -0.2}, "r2": None}
    told = calibration([replace(site_outcome("a", 0.0), record=record, change={"additive-blended": -0.1})])
    assert told["r2"]["bands"] == []
    assert [band[:3] for band in told["own"]["bands"]] == [[None, None, 1]]


def test_the_headline_leaves_out_what_it_says():
    kept, none = site_outcome("a", -0.1), {"labels": 0}
    for changes in ({"judged": False}, none, {"regime": REGIMES["same50"]}):
        told = headline([kept, site_outcome("a", 0.9, **changes)])
        assert told["sites"] == {"additive": {"mean_change": -0.1, "median_change": -0.1, "harmed": 0.0}}
    assert told["sets"] == {"a": {"additive": -0.1}}
