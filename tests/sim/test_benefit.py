"""The benefit study: a federation's methods and verdicts; a killed study goes on, and the printed object is what came out."""

import itertools
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from benefit_table import table
from numpy.testing import assert_allclose
from sklearn.linear_model import RidgeCV
from sklearn.preprocessing import StandardScaler
from stand_in import stand_in
from typer.testing import CliRunner

from coreg_core.errors import UsageError
from coreg_sim.benefit import yes_no
from coreg_sim.benefit.agreement import COUPLINGS, SiteFeatures, agree
from coreg_sim.benefit.partition import REGIMES, partition
from coreg_sim.benefit.report import report
from coreg_sim.benefit.study import study
from coreg_sim.benefit.summary import OWN, TOGETHER, site_outcomes
from coreg_sim.benefit.trial import _peers, trial
from coreg_sim.cli.app import app
from coreg_sim.study.jobs import Where, run_study

# --- the agreement in closed form -------------------------------------------------------------------------------------


def parts(seed=0, labels=(12, 11, 0)):
    rng = np.random.default_rng(seed)
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
    made = [p.with_intercept() for p in parts()]
    ends = np.cumsum([0, *(p.shared.shape[1] for p in made)])

    def split(w):
        return [w[a:b] for a, b in itertools.pairwise(ends)]

    for j, coupling in enumerate(COUPLINGS):
        # The quadratic's minimiser, from its gradient at 0 and along every axis.
        at = lambda w, c=coupling: objective(made, c, split(w))  # noqa: E731
        zero, unit = at(np.zeros(ends[-1])), np.eye(ends[-1])
        H = np.array([[at(a + b) - at(a) - at(b) + zero for b in unit] for a in unit])
        g = np.array([at(a) - at(-a) for a in unit]) / 2
        ws = split(np.linalg.solve(H, -g))
        for p, w, test in zip(made, ws, agree(parts()).test, strict=True):
            assert_allclose(test[j], p.test @ w, atol=1e-7)


def test_exact_leave_one_out_is_leaving_one_out_of_the_whole_federation():
    made = parts(labels=(4, 5, 3))
    found = agree(made)
    errors = np.zeros((len(COUPLINGS), 4))
    for i in range(4):
        keep = np.arange(4) != i
        left = SiteFeatures(
            made[0].labelled[keep], made[0].shared, made[0].labelled[[i]], made[0].y[keep], made[0].ridge
        )
        errors[:, i] = (
            made[0].y[i]
            - agree([left, *(SiteFeatures(p.labelled, p.shared, p.test[:1], p.y, p.ridge) for p in made[1:])]).test[0][
                :, 0
            ]
        )
    assert int(np.argmin(np.mean(errors**2, axis=1))) == found.chosen_exactly[0]


def test_a_site_without_labels_has_nothing_to_choose_by():
    assert agree(parts()).chosen[2] is None
    assert agree(parts()).chosen_exactly[2] is None


# --- one federation ---------------------------------------------------------------------------------------------------


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
            assert found[v].change["together-else-own"] == found[v].change["together"]
        else:
            assert found[v].change["together-own-pick"] == 0.0
            assert found[v].change["together-else-own"] in (0.0, found[v].change["additive-common"])
        assert 0.0 <= told["coverage"]["0.8"][0] <= told["coverage"]["0.9"][0] <= 1.0
        assert told["coverage"]["0.8"][1] <= told["coverage"]["0.9"][1]
        if told["coupling"] == 0.0:
            assert out["methods"]["agreement-loo"][v] == out["alone"][v]
    for method in ("pooled", "best-site"):
        assert len(set(out["methods"][method])) == 1, "one model for all"
    assert np.ptp(out["methods"]["together"]) < 0.1 * np.mean(out["methods"]["together"]), "one score, own intercepts"
    assert out["methods"]["best-site"][0] in out["alone"]


def test_labels_at_one_site_and_the_same_rows_everywhere():
    one = trial(partition(table(500), REGIMES["one"], (3,)), 3, trees=False)
    assert [told["labels"] for told in one["sites"]] == [100, 0, 0]
    assert one["sites"][1]["own"] is None
    assert one["methods"]["best-site"][0] == one["alone"][0]
    assert one["methods"]["agreement-loo"][1] == one["alone"][1]
    same = trial(partition(table(500), REGIMES["same50"], (3,)), 3, trees=False)
    assert all(value is not None for value in (told["together"] for told in same["sites"]))


def test_a_target_of_two_values_is_judged_by_its_probabilities_in_every_regime():
    numbers = table(500)
    two = replace(numbers, y=np.where(numbers.y > np.quantile(numbers.y, 0.7), 1.5, -0.5))
    drawn = partition(two, REGIMES["n50"], (3,))
    assert {*np.concatenate(drawn.labels), *drawn.y_test.ravel()} == {0.0, 1.0}
    assert 0.2 < drawn.y_test.mean() < 0.4, "1 is the larger value"
    out = trial(drawn, 3, trees=False)
    json.dumps(out, allow_nan=False)
    for told in out["sites"]:
        assert list(told["yes_no"]) == list(yes_no.METHODS)
        area = {method: values[0] for method, values in told["yes_no"].items()}
        assert area["pooled"] > area["local model"]
        assert area["pooled, logistic loss"] == pytest.approx(area["pooled"], abs=0.1), "the same features"
        assert all(0.0 <= off <= 0.5 < area["pooled"] for _, _, off in told["yes_no"].values())
    shown = yes_no.table(site_outcomes({"a/n50/3": out}))
    assert [row[1] for row in shown.rows] == list(yes_no.METHODS)
    mean = np.mean([told["yes_no"]["pooled"] for told in out["sites"]], axis=0)
    assert shown.rows[-2][2:] == (*(f"{value:.3f}" for value in mean), 1)
    [told] = yes_no.findings(site_outcomes({"a/n50/3": out}))
    moved = [y["joined model"][0] - y["local model"][0] for y in (s["yes_no"] for s in out["sites"])]
    assert f"by more than 0.05 at {100 * np.mean(np.array(moved) < -0.05):.0f} % of the sites" in told
    assert "rare events" not in told
    few = {"a/n50/3": out | {"sites": [s | {"positive": 0.02} for s in out["sites"]]}}
    assert "Only 2.0 % of the test labels are of one class" in yes_no.findings(site_outcomes(few))[0]
    offset = partition(two, REGIMES["offset50"], (3,))
    assert not offset.yes_no, "shifted labels are no classes"
    above = partition(numbers, REGIMES["yes-no20"], (3,))
    assert (above.yes_no, abs(above.y_test.mean() - 0.5) < 0.1) == (True, True)
    assert not partition(numbers, REGIMES["n20"], (3,)).yes_no


# --- a study ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return stand_in(tmp_path_factory.mktemp("benefit") / "data", ["mg", "sarcos_test"], rows=300)


def benefit(*arguments, **options):
    return CliRunner().invoke(app, ["benefit", *map(str, arguments)], **options)


def test_a_study_ends_with_one_object_on_one_line_and_goes_on_where_it_was(folder, tmp_path):
    options = ["--data", folder, "--regimes", "n10,one", "--draws", 1, "--out", tmp_path]
    result = benefit(*options, "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout.splitlines()[-1])
    assert list(told) == ["sites", "together", "sets", "findings"]
    assert set(told["sites"]) == set(OWN)
    assert set(told["together"]) == set(TOGETHER)
    assert set(told["sets"]) == {"mg", "sarcos_test"}
    for group in ("sites", "together"):
        for method, values in told[group].items():
            assert set(values) == {"mean_change", "median_change", "harmed"}
            assert 0.0 <= values["harmed"] <= 1.0
            assert values["mean_change"] == pytest.approx(
                np.mean([told["sets"][n][method] for n in told["sets"]]), abs=2e-5
            )
    record = tmp_path / "benefit.jsonl"
    lines = record.read_bytes().splitlines(keepends=True)
    assert len(lines) == 4
    # Killed within the third job: its torn line is done again, the first two are not.
    record.write_bytes(b"".join(lines[:2]) + lines[2][:50])
    again = benefit(*options, "--json")
    assert json.loads(again.stdout.splitlines()[-1]) == told
    after = record.read_bytes().splitlines(keepends=True)
    assert after[:2] == lines[:2]
    shown = benefit(*options)
    assert "4 federations, 4 of 4 jobs from an earlier run" in shown.stdout
    assert "Map of regimes" not in shown.stdout
    assert "Map of regimes" in benefit(*options, "--details").stdout
    page = json.loads((tmp_path / "benefit.json").read_text())
    assert page["headline"] == {name: told[name] for name in ("sites", "together", "sets")}
    assert page["study"]["source"] is None, "a page that everyone reads names no folder of somebody's"


def test_what_a_study_refuses(folder, tmp_path):
    entry = {"name": "mg", "file": "mg.csv", "target": "y"}
    (tmp_path / "own.csv").write_text("x,y\n1,2\n3,4\n")
    (tmp_path / "manifest.json").write_text(json.dumps({"datasets": [entry]}))
    for options, why in (
        (["--data", tmp_path], "the data set 'mg' has no task. Add the keys; the task is regression or binary."),
        (["--data", folder, "--sets", "nothing"], "no such data set"),
        (["--data", folder, "--regimes", "n11"], "--regimes n11: unknown regime; did you mean n10?"),
        (
            ["--data", folder, "--regimes", "n30"],
            "n30: unknown regime; did you mean n20?\nBy labels at each site: n10, n20, n50,",
        ),
        (["--data", folder, "--regimes", "adjacent5"], "adjacent5: unknown regime; did you mean adjacent50?"),
        (
            ["--data", folder, "--regimes", "n200", "--out", tmp_path],
            "is too small. n200 needs 3 columns and 1171 rows",
        ),
        (
            ["--data", tmp_path / "own.csv", "--target", "y", "--out", tmp_path],
            "n50 needs 3 columns and 353 rows with a target, and 40 more regimes. Choose other --regimes (the smallest: n10",
        ),
        (["--sets", "mg"], "Name it with --data"),
        (["--data", tmp_path / "nowhere"], "no folder with manifest.json"),
        (["--data", tmp_path / "own.csv"], "Name the column to predict with --target"),
        (["--data", folder, "--target", "y"], "Name it: --data FILE"),
        (["--drop", "y"], "Name it: --data FILE"),
        (["--data", tmp_path / "own.csv", "--target", "y", "--sets", "mg"], "--sets chooses from a folder"),
    ):
        result = benefit(*options)
        assert isinstance(result.exception, UsageError), result.output
        assert why in str(result.exception)


def test_quick_takes_a_thousand_rows_and_the_bundled_set_needs_no_folder():
    quick = study(None, None, "n10", quick=True)
    assert (quick.sets, quick.rows, quick.draws) == (("diabetes",), 1000, 2)
    done = quick.do(quick.jobs()[0])
    assert len(done["sites"]) == 3


def test_the_bundled_set_alone_makes_a_report(tmp_path):
    """It is a set on which choices were made, so the page has no calibration: its tables are empty, and no error."""
    result = benefit("--quick", "--draws", 1, "--regimes", "n10", "--out", tmp_path)
    assert (result.exit_code, result.exception) == (0, None)
    assert "1 federation, " in result.stdout
    assert json.loads((tmp_path / "benefit-quick.json").read_text())["calibration"]["own"]["bands"] == []


def test_a_report_of_few_federations_says_only_what_it_has(folder, tmp_path):
    asked = study(folder, "mg", "n10,n20", draws=1)
    made = report(site_outcomes(run_study(asked, tmp_path, "r", Where(1), lambda *_: {}).results))
    assert [plot.name for plot in made.plots] == ["benefit-price", "benefit-labels"]
    assert made.findings[0].startswith("Harmed: ")
    assert "1 set (judged on)" in made.findings[1]
    assert re.search(r"RidgeCV\) on the site's own columns: [+-]\d.*at \d+ % of the sites", made.findings[2])
    assert re.search(r"The mean of the labels as the prediction: [+-]\d", made.findings[3])
    assert "Goals that we set for these sets" in made.findings[4]
    assert made.findings[5].startswith("This is based on only 6 simulated sites")
    assert "3 sites of 10 labels" in made.findings[6]
    titles = [t.title for t in made.tables]
    assert "Map of regimes" in titles
    assert "Forecasts: rank correlation with the result" in titles


def test_own_columns_learn_the_pooled_model_up_to_what_they_know():
    """With all columns at a site only the 225 shared rows limit what it learns; with one column much more is missing."""
    made = table(500)
    whole = replace(made, groups=((*range(len(made.attributes)),), (0,)))
    out = trial(partition(whole, REGIMES["n50"], (3,)), 3, trees=False)["methods"]
    assert out["pooled"][0] < out["distilled"][0] < 1.5 * out["pooled"][0]
    assert out["distilled"][1] > 2.0 * out["distilled"][0]


def test_a_rare_class_ends_no_study():
    """Some of these federations have no positive label, some have no positive test row."""
    numbers, found = table(500), {}
    for k in (2, 12):
        rare = replace(numbers, y=(numbers.y >= np.sort(numbers.y)[-k]).astype(np.float64))
        for draw in range(3):
            drawn = partition(rare, REGIMES["n10"], (draw,))
            found[f"a/n10/{draw}"] = trial(drawn, draw, trees=False)
            assert drawn.yes_no == drawn.y_test.any()
            assert all(("yes_no" in told) == drawn.yes_no for told in found[f"a/n10/{draw}"]["sites"])
        json.dumps(found, allow_nan=False)
    assert any("yes_no" in told for out in found.values() for told in out["sites"])


def test_the_linear_ridge_of_a_site_is_the_one_that_scikit_learn_fits():
    drawn = partition(table(500), REGIMES["n20"], (0,))
    found = _peers(drawn, 0, trees=False)
    for v, (X, rows, y) in enumerate(zip(drawn.columns, drawn.labelled, drawn.labels, strict=True)):
        scaler = StandardScaler().fit(X[rows])
        model = RidgeCV(np.logspace(-2.0, 4.0, 13)).fit(scaler.transform(X[rows]), y)
        error = np.mean((drawn.y_test[v] - model.predict(scaler.transform(X[drawn.test]))) ** 2)
        assert found["ridge-alone"][v] == pytest.approx(error)
