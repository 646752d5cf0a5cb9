"""The benefit study: what is drawn is what a regime says, a killed study goes on, and the printed object is what came out."""

import itertools
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from stand_in import stand_in
from typer.testing import CliRunner

from coreg_core.errors import BadData, UsageError
from coreg_sim.benefit.agreement import COUPLINGS, SiteFeatures, agree
from coreg_sim.benefit.own import OwnTable
from coreg_sim.benefit.partition import LEAST_TEST, REGIMES, AttributeTable, least_rows, partition, table_of
from coreg_sim.benefit.report import calibration, report
from coreg_sim.benefit.study import CHOSEN_ON, JUDGED_ON, study, table_named
from coreg_sim.benefit.summary import OWN, TOGETHER, SiteOutcome, figure, headline, site_outcomes
from coreg_sim.benefit.trial import trial
from coreg_sim.cli.app import app
from coreg_sim.papers.pool import NumericDataSet, Pool
from coreg_sim.study.jobs import Where, run_study


def table(rows=900, attributes=9, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, attributes))
    y = np.sin(X[:, 0]) + X[:, 3] + 0.5 * X[:, 5] ** 2 + 0.1 * rng.normal(size=rows)
    return AttributeTable(tuple(X[:, [j]] for j in range(attributes)), y)


# --- dealing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("regime", [r for r in REGIMES.values() if r.name != "n200"], ids=lambda r: r.name)
def test_a_regime_deals_what_it_says(regime):
    made = table()
    drawn = partition(made, regime, (1, 2))
    assert [len(y) for y in drawn.labels] == list(regime.labels)
    assert len(drawn.test) >= LEAST_TEST
    assert len(drawn.shared) == min(regime.shared, 405)
    rows = [drawn.shared, drawn.test, *(drawn.labelled[:1] if regime.same_rows else drawn.labelled)]
    together = np.concatenate(rows)
    synthetic = regime.twist == "synthetic"
    assert all(len(X) == len(made.y) + (405 if synthetic else 0) for X in drawn.columns)
    assert (drawn.shared.min() >= len(made.y)) == synthetic
    assert len(np.unique(together)) == len(together), "nobody trains on a test row, and no label is shared by chance"
    if regime.same_rows:
        for other in drawn.labelled[1:]:
            assert_array_equal(other, drawn.labelled[0])
    # Each site's labels are a factor times the table's, and an offset: 1 and 0 but where a regime says otherwise.
    factors = [float(np.ptp(y) / np.ptp(made.y[drawn.test])) for y in drawn.y_test]
    offsets = [float(y.mean() - f * made.y[drawn.test].mean()) for y, f in zip(drawn.y_test, factors, strict=True)]
    assert (np.ptp(factors) > 0.01) == regime.units
    if regime.flipped:
        assert_allclose(drawn.y_test[-1], -made.y[drawn.test])
    elif not regime.units:
        assert (np.abs(offsets).max() > 0.01) == (regime.offset > 0)
        assert_allclose(drawn.y_test, made.y[drawn.test] + np.array(offsets)[:, None], atol=1e-12)
    shuffled = regime.twist == "shuffled"
    for v, (own, y) in enumerate(zip(drawn.labelled, drawn.labels, strict=True)):
        assert drawn.honest[v] == (not shuffled or v < 2)
        if regime.units or regime.flipped or regime.offset:
            continue
        assert_array_equal(np.sort(y), np.sort(made.y[own]))
        assert np.array_equal(y, made.y[own]) == drawn.honest[v]
    # Which attributes a site has, by the first row's values.
    have = [{int(np.flatnonzero([a[0, 0] == x for a in made.attributes])[0]) for x in X[0]} for X in drawn.columns]
    assert set.union(*have) == set(range(9))
    core = set.intersection(*have)
    assert len(core) == (3 if regime.columns == "core" else 0)
    assert sum(len(each - core) for each in have) == 9 - len(core)
    if regime.columns == "adjacent":
        assert [sorted(each) for each in have] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    again, other = partition(made, regime, (1, 2)), partition(made, regime, (1, 3))
    assert_array_equal(again.test, drawn.test)
    assert not np.array_equal(other.test, drawn.test)


def test_biased_rows_lean_to_an_end_of_one_column():
    made = table(4000)
    leans = []
    for seed in range(5):
        drawn = partition(made, REGIMES["biased50"], (seed,))
        for X, rows in zip(drawn.columns, drawn.labelled, strict=True):
            leans.append(np.abs(X[rows].mean(axis=0) - X.mean(axis=0)).max())
    # Odds of e² from one end to the other move a normal column's mean by 0.5; chance moves the largest of three by 0.14.
    assert np.mean(leans) > 0.35


def test_a_table_too_small_is_left_out_of_a_regime():
    assert partition(table(900), REGIMES["n200"], (0,)) is None  # 405 shared and 600 labelled
    assert partition(table(900, attributes=6), REGIMES["M8"], (0,)) is None
    nothing = np.zeros((900, 4))  # columns that never vary tell nothing
    flat = NumericDataSet("flat", nothing, np.arange(900.0), tuple("abcd"), tuple((j,) for j in range(4)), "regression")
    assert table_of(flat).attributes == ()
    assert all(partition(table_of(flat), regime, (0,)) is None for regime in REGIMES.values())
    assert partition(table(900), REGIMES["n50"], (0,), most_rows=200) is None
    assert len(partition(table(900), REGIMES["n10"], (0,), most_rows=200).test) == 200 - 90 - 30
    for regime in REGIMES.values():
        least = least_rows(regime)
        assert partition(table(least, attributes=9), regime, (0,)) is not None
        assert partition(table(least - 1, attributes=9), regime, (0,)) is None


def test_other_targets_are_no_columns(tmp_path):
    """sarcos_test's by what is known, another set's by its manifest: a column of texts that is left out needs no number."""
    folder = stand_in(tmp_path / "data", ["sarcos_test", "mg"], rows=200)
    before = {name: len(table_named(folder, name).attributes) for name in ("sarcos_test", "mg")}
    assert before["sarcos_test"] == len(table_of(Pool(folder).load("sarcos_test")).attributes) - 2
    path = folder / "mg.csv"
    texts = [f"{line},{'note' if i == 0 else 'words'}" for i, line in enumerate(path.read_text().splitlines())]
    path.write_text("\n".join(texts) + "\n")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["datasets"][1]["drop"] = ["x1", "note"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert len(table_of(Pool(folder).load("mg")).attributes) == before["mg"] - 1
    with pytest.raises(UsageError, match="no column z"):
        table_of(Pool(folder).load("mg"), ("z",))


def own_table(folder, **changes):
    """Sixty rows as a spreadsheet of many countries writes them: semicolons, decimal commas, empty cells, dates, names."""
    lines = [f"p{i};2024-01-{i % 28 + 1:02};{i % 7},5;{'' if i == 3 else i % 5};{i},25;{i + 7}" for i in range(60)]
    path = folder / "own.csv"
    path.write_text("\n".join(["who;when;x;z;y;number", *lines]) + "\n")
    return OwnTable(**{"path": str(path), "target": "y", "drop": ("who",), "dates": ("when",), **changes})


def test_an_own_table_is_read_as_an_agent_reads_it(tmp_path):
    table, warnings = own_table(tmp_path).read()
    by_width = sorted(block.shape[1] for block in table.attributes)
    assert by_width == [1, 1, 1, 2], "x, number, the day; z and whether it is empty"
    assert_allclose(np.corrcoef(table.y, np.arange(60))[0, 1], 1.0, atol=1e-3)
    assert [sentence for sentence in warnings if "number" in sentence] == [
        "column 'number' has another whole number in each row. Add --drop number if it is an id."
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target": "yy"}, "no column 'yy' .*Did you mean 'y'"),
        ({"target": "who"}, "column 'who'"),
        ({"drop": ("nobody",)}, "no column 'nobody'"),
        ({"dates": ("x",)}, "column 'x'"),
        ({"drop": ("who", "when", "x", "z", "number"), "dates": ()}, "0 features"),
    ],
)
def test_an_own_table_that_cannot_be_used_is_explained(tmp_path, changes, words):
    with pytest.raises((BadData, UsageError), match=words):
        own_table(tmp_path, **changes).read()


def test_another_file_or_another_column_is_another_job(tmp_path):
    def identity(table):
        return study(table, None, "n10", draws=1).jobs()[0].arguments

    first = identity(own_table(tmp_path))
    assert identity(own_table(tmp_path)) == first
    assert json.loads(json.dumps(first)) == first, "or a resumed study would compute it again"
    assert identity(own_table(tmp_path, drop=("who", "x"))) != first
    with (tmp_path / "own.csv").open("a", encoding="utf-8") as file:
        file.write("q;2024-01-01;1,5;1;1,0;99\n")
    assert identity(OwnTable(str(tmp_path / "own.csv"), "y", ("who",), ("when",))) != first


def test_the_two_groups_share_no_set():
    assert not set(CHOSEN_ON) & set(JUDGED_ON)


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


# --- what came out ----------------------------------------------------------------------------------------------------


def site_outcome(name, change, **changes):
    values = {"regime": REGIMES["n20"], "site": 0, "labels": 20, "judged": True, "record": {}}
    return SiteOutcome(name, change={"additive": change}, **(values | changes))


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return stand_in(tmp_path_factory.mktemp("benefit") / "data", ["mg", "sarcos_test"], rows=300)


def benefit(*arguments):
    return CliRunner().invoke(app, ["benefit", *map(str, arguments)])


def test_a_study_ends_with_one_object_on_one_line_and_goes_on_where_it_was(folder, tmp_path):
    options = ["--data", folder, "--regimes", "n10,one", "--draws", 1, "--out", tmp_path]
    result = benefit(*options, "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout.splitlines()[-1])
    assert list(told) == ["sites", "together", "sets"]
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
    assert page["headline"] == told
    assert page["study"]["source"] is None, "a page that everyone reads names no folder of somebody's"


def test_what_a_study_refuses(folder, tmp_path):
    entry = {"name": "mg", "file": "mg.csv", "target": "y"}
    (tmp_path / "own.csv").write_text("x,y\n1,2\n3,4\n")
    (tmp_path / "manifest.json").write_text(json.dumps({"datasets": [entry]}))
    for options, why in (
        (["--data", tmp_path], "the data set 'mg' has no task. Add the keys; the task is regression or binary."),
        (["--data", folder, "--sets", "nothing"], "no such data set"),
        (["--data", folder, "--regimes", "n11"], "The regimes are n10"),
        (
            ["--data", folder, "--regimes", "n200", "--out", tmp_path],
            "is too small. n200 needs 3 columns and 1171 rows",
        ),
        (["--sets", "mg"], "Name it with --data"),
        (["--data", tmp_path / "nowhere"], "no folder with manifest.json"),
        (["--data", tmp_path / "own.csv"], "Name the column to predict with --target"),
        (["--data", folder, "--target", "y"], "name its file with --data"),
        (["--drop", "y"], "name its file with --data"),
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
    assert re.search(r"The mean of the labels instead of a model: [+-]\d", made.findings[1])
    assert "Targets on these sets" in made.findings[2]
    assert made.findings[3].startswith("These are only 6 sites")
    assert "3 sites of 10 labels" in made.findings[4]
    titles = [t.title for t in made.tables]
    assert "Map of regimes" in titles
    assert "Forecasts: rank correlation with the result" in titles


def test_an_own_table_has_one_answer_for_each_regime(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(700, 4))
    rows = "\n".join(";".join(f"{v:.4f}".replace(".", ",") for v in (*x, x.sum() + rng.normal())) for x in X)
    (tmp_path / "mine.csv").write_text(f"a;b;c;d;y\n{rows}\n")
    options = (
        "--data",
        tmp_path / "mine.csv",
        "--target",
        "y",
        "--regimes",
        "n10,n20",
        "--draws",
        1,
        "--out",
        tmp_path / "o",
    )
    result = benefit(*options)
    assert (result.exit_code, result.exception) == (0, None)
    told = " ".join(result.stdout.split())
    for regime in (
        r"n10 \(3 sites of 10 labels\): joined models [+-]",
        r"n20 \(3 sites of 20 labels\): joined models [+-]",
    ):
        assert re.search(regime, told)
    assert "2 federations, 2 of 2 jobs from an earlier run" in benefit(*options).stdout
