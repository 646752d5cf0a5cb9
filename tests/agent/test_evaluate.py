"""evaluate, report, and predict's intervals: the site's own judgement, by the commands, on files."""

import dataclasses
import json

import numpy as np
import pytest
from typer.testing import CliRunner

from coreg_core.additive.model.expansion import Expansion
from coreg_core.additive.model.features import Standardiser
from coreg_core.additive.model.predictive_sd import Spread
from coreg_core.agreement.views import KernelExpansion
from coreg_core.errors import BadData, UsageError
from coreg_core.evaluation import calibration
from coreg_core.evaluation.recommendation import judge
from coreg_core.kernels.functions import Linear
from site_agent.cli.app import app
from site_agent.data.prepare import Inputs, prepare
from site_agent.data.tables import read_table
from site_agent.machine.memory import Judged
from site_agent.models import findings
from site_agent.models.evaluate import evaluate
from site_agent.models.file import Intervals, Joint, SiteModel, load_model, save_model

N = 60


@pytest.fixture
def folder(tmp_path):
    """A table whose label is 2a + noise, a model that says so and one that says a; both of the site north."""
    rng = np.random.default_rng(0)
    a = rng.normal(size=N)
    y = 2.0 * a + 0.1 * rng.normal(size=N)
    rows = [f"{i},{float(a[i])!r},{float(y[i])!r},x" for i in range(N)]
    (tmp_path / "t.csv").write_text("\n".join(["id,a,y,other", *rows, "n,0.5,,x", ""]))
    prepared = prepare(Inputs(tmp_path / "t.csv", "y", "id", drop=("other",), scale=False))
    for name, slope in (("good", 2.0), ("poor", 1.0)):
        function = KernelExpansion(Linear(), np.eye(1), np.array([slope]))
        model = SiteModel(function, prepared.preprocessing, "y", 0.0, 1.0, "north", name, "CONVERGED", 0.0, {})
        save_model(tmp_path / f"{name}.model", model)
    return tmp_path


def command(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)


def test_models_are_compared_with_the_first_on_the_same_rows(folder):
    models = [folder / "poor.model", folder / "good.model"]
    told = command("evaluate", *(x for m in models for x in ("--model", m)), "--data", folder / "t.csv", "--json",
                   "--plot", folder / "e.svg")  # fmt: skip
    found = json.loads(told.stdout)
    assert (found["rows"], found["target"]) == (N, "y")
    table = read_table(folder / "t.csv").rows(np.arange(N))
    for row, path in zip(found["models"], models, strict=True):
        errors = table.numbers("y") - load_model(path).predict(table)
        assert row["rmse"]["value"] == pytest.approx(np.sqrt(np.mean(errors**2)))
        assert row["mean_absolute"] == pytest.approx(np.mean(np.abs(errors)))
        assert row["rmse"]["low"] < row["rmse"]["value"] < row["rmse"]["high"]
    assert found["models"][0]["change"] is None
    assert found["models"][1]["change"]["high"] < -0.8, "ten times as good, whatever rows are drawn"
    assert any("1 rows without 'y' are left out" in note for note in found["notes"])
    assert any("no model uses: 'id', 'other'" in note for note in found["notes"])
    picture = (folder / "e.svg").read_text()
    assert picture.count("<circle") == 2
    assert "good" in picture
    shown = command("evaluate", "--model", models[0], "--model", models[1], "--data", folder / "t.csv").stdout
    assert shown.count("●") == 2


def test_what_cannot_be_evaluated_says_so_by_name(folder):
    (folder / "short.csv").write_text("id,a,y\n1,2,3\n2,2,\n")
    with pytest.raises(BadData, match="1 rows have a value in 'y'"):
        evaluate([folder / "good.model"], folder / "short.csv")
    (folder / "odd.csv").write_text("id,A,y\n1,2,3\n2,2,4\n")
    with pytest.raises(BadData, match=r"no column 'a'.*Did you mean 'A'"):
        evaluate([folder / "good.model"], folder / "odd.csv")
    with pytest.raises(UsageError, match="named twice"):
        evaluate([folder / "good.model"] * 2, folder / "t.csv")
    other = dataclasses.replace(load_model(folder / "good.model"), target="z")
    save_model(folder / "z.model", other)
    with pytest.raises(UsageError, match="different targets"):
        evaluate([folder / "good.model", folder / "z.model"], folder / "t.csv")


def test_predict_says_that_it_could_evaluate(folder):
    told = command(
        "predict", "--model", folder / "good.model", "--data", folder / "t.csv", "--output", folder / "p.csv", "--json"
    )
    assert any("coreg-agent evaluate" in note for note in json.loads(told.stdout)["notes"])
    (folder / "new.csv").write_text("id,a\n1,2\n")
    told = command(
        "predict",
        "--model",
        folder / "good.model",
        "--data",
        folder / "new.csv",
        "--output",
        folder / "p.csv",
        "--id",
        "id",
        "--json",
    )
    assert json.loads(told.stdout)["notes"] == []


def with_intervals(folder, ratios):
    spread = Spread(
        Standardiser(np.zeros(1), np.ones(1)),
        Linear(),
        np.eye(1),
        np.array([[0.5]]),
        np.zeros(1),
        noise=0.04,
        factor=2.0,
    )
    good = load_model(folder / "good.model")
    own = Expansion(Standardiser(np.zeros(1), np.ones(1)), 0.0, (good.function,))
    model = dataclasses.replace(good, function=own, intervals=Intervals(spread, np.sort(ratios)))
    save_model(folder / "i.model", model)
    return load_model(folder / "i.model")


def test_an_interval_is_the_prediction_and_a_calibrated_deviation(folder):
    """19 ratios of 1 to 19: nine of ten new ones lie below the 18th, q = 18; d = 2 sqrt(0.04 + (a/2)^2)."""
    model = with_intervals(folder, np.arange(1.0, 20.0))
    table = read_table(folder / "t.csv").rows(np.arange(N))
    low, high = model.interval(table, 0.9)
    half = 18.0 * 2.0 * np.sqrt(0.04 + (0.5 * table.numbers("a")) ** 2)
    np.testing.assert_allclose(high - low, 2.0 * half, rtol=1e-12)
    np.testing.assert_allclose((high + low) / 2.0, model.predict(table), atol=1e-12)
    command(
        "predict",
        "--model",
        folder / "i.model",
        "--data",
        folder / "t.csv",
        "--output",
        folder / "p.csv",
        "--interval",
        90,
    )
    written = read_table(folder / "p.csv")
    assert written.columns == ["prediction", "low", "high"]
    np.testing.assert_allclose(written.numbers("low")[:N], low, rtol=1e-12)


def test_without_folds_or_with_too_few_labels_there_is_no_interval(folder):
    table = read_table(folder / "t.csv")
    with pytest.raises(BadData, match="keeps nothing to make intervals"):
        load_model(folder / "good.model").interval(table, 0.9)
    with pytest.raises(UsageError, match="5 left-out rows say nothing"):
        with_intervals(folder, np.ones(5)).interval(table, 0.9)


FOUND = {
    "labels": 60,
    "alone": {"rmse": 10.0, "se": 1.0, "rows": 60},
    "joined": {"rmse": 9.0, "se": 0.9, "rows": 60},
    "together": None,
    "own": "joined",
    "score": "joined",
    "told": "own",
    "forecast": -0.1,
    "federation": -0.05,
    "r2": 0.85,
}


def test_the_report_puts_the_runs_of_one_site_together(folder):
    good = load_model(folder / "good.model")
    save_model(folder / "additive.model", dataclasses.replace(good, found=FOUND))
    path = {"labels": 60, "alone": {"rmse": 10.5, "se": 1, "rows": 60}, "agreement": {"rmse": 9.8, "se": 1, "rows": 60}}
    save_model(folder / "path.model", dataclasses.replace(good, found=path))
    told = command(
        "report", "--model", folder / "additive.model", "--model", folder / "path.model", "--plot", folder / "r.svg"
    )
    lines = told.stdout.splitlines()
    assert [line.split("  ")[0] for line in lines[:3]] == ["alone", "agreement, own λ", "learnt together"]
    assert "-10.0 %" in lines[2]
    assert "forecast from 60 own labels: -10.0 %" in told.stdout
    assert "keep the joined model" in told.stdout
    like = calibration.R2.like(0.85)
    assert f"r² = 0.85; of {like.sites} sites in docs/benefit.md" in told.stdout
    assert f"half came to {100 * like.median_change:+.1f} % or better" in told.stdout
    assert (folder / "r.svg").read_text().count("<circle") == 3
    with pytest.raises(BadData, match="no run of these looked"):
        command("report", "--model", folder / "good.model")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"own": "alone"}, "stay alone"),
        ({"told": "federation", "labels": 15}, "forecast of the federation"),
        ({"together": FOUND["joined"], "score": "together"}, "score it together"),
        ({"together": FOUND["joined"]}, "do not score together"),
        ({"joined": None}, "too few"),
    ],
)
def test_the_recommendation_follows_the_verdict(changes, words):
    assert words in " ".join(findings.sentences(FOUND | changes))


def test_a_model_of_the_format_before_is_read_and_has_no_part(folder):
    good = load_model(folder / "good.model")
    own = Expansion(Standardiser(np.zeros(1), np.ones(1)), 1.0, (good.function,))
    save_model(folder / "new.model", dataclasses.replace(good, function=own))
    whole = (folder / "new.model").read_bytes()
    assert whole.count(b"coreg-model/4") == 1
    (folder / "old.model").write_bytes(whole.replace(b"coreg-model/4", b"coreg-model/3"))
    table = read_table(folder / "t.csv").rows(np.arange(N))
    old = load_model(folder / "old.model")
    np.testing.assert_array_equal(old.predict(table), load_model(folder / "new.model").predict(table))
    assert (old.found, old.joint, old.intervals) == (None, None, None)
    with pytest.raises(BadData, match="keeps no part"):
        old.part(table)


def test_a_part_survives_its_file_bit_by_bit(folder):
    good = load_model(folder / "good.model")
    own = Expansion(Standardiser(np.zeros(1), np.ones(1)), 1.0, (good.function,))
    part = Expansion(Standardiser(np.full(1, 0.1), np.full(1, 0.7)), -0.25, (good.function,))
    save_model(folder / "j.model", dataclasses.replace(good, function=own, joint=Joint(part, 5.5), mean_on_shared=0.0))
    found = load_model(folder / "j.model")
    table = read_table(folder / "t.csv").rows(np.arange(N))
    np.testing.assert_array_equal(found.part(table), part.predict(found.preprocessing.transform(table)))
    assert (found.intercept, found.mean_on_shared) == (5.5, 0.0)


def test_a_run_without_folds_recommends_nothing():
    """It has no figure of left-out labels, and says so: "too few labels" would be a reason that nobody found."""
    judged = Judged(judge(None, 60), None, None, 0.5)
    found = findings.of_training(judged, 60)
    assert (found["own"], found["alone"]) == (None, None)
    told = " ".join(findings.sentences(found))
    assert "was not looked at" in told
    assert "recommendation" not in told
    few = findings.of_training(Judged(judge(None, 2, -0.05), None, None, 0.5, -0.05), 2)
    assert "too few" in " ".join(findings.sentences(few)), "there were folds, and this site has no labels for them"


@pytest.mark.parametrize(("labels", "names"), [((3, 4), True), ((3, ""), False), (("", ""), False)])
def test_predict_names_evaluate_only_where_it_would_work(folder, labels, names):
    (folder / "new.csv").write_text(f"id,a,y\n1,2,{labels[0]}\n2,2,{labels[1]}\n")
    told = command("predict", "--model", folder / "good.model", "--data", folder / "new.csv", "--json",
                   "--output", folder / "p.csv")  # fmt: skip
    assert any("coreg-agent evaluate" in note for note in json.loads(told.stdout)["notes"]) == names
