"""Figures of `evaluate` and `report` against scikit-learn on what the files predict; ranges that a
model file keeps of its training; pictures.
"""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from agent_files import agent, prepared, write
from scipy.stats import entropy, ks_2samp
from sklearn.calibration import calibration_curve
from sklearn.metrics import log_loss, mean_absolute_error, r2_score, roc_auc_score
from trained_sites import trained

from coreg_core.agreement.views import KernelExpansion
from coreg_core.kernels import Linear
from site_agent.data.notation import Notation
from site_agent.data.tables import read_table
from site_agent.models import report
from site_agent.models.evaluate import evaluate, evaluated_lines
from site_agent.models.figures import of_classes
from site_agent.models.file import ModelFile, load_model, save_model
from site_agent.models.stability import moved, training_shares

WITHIN = 1e-6


@pytest.fixture(scope="module")
def classified(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("figures"), (100, 60, 30), ("no", "yes"))


def files(run, site="a"):
    """The joined and the local model, and the judged rows."""
    joined, local = run.write(site)[0]
    return joined, local, run.folder / f"{site}-judged.csv"


def evaluated(*models, data):
    words = [word for model in models for word in ("--model", model)]
    return json.loads(agent("evaluate", *words, "--data", data, "--json").stdout)["models"]


def test_figures_of_numbers_are_scikit_learns(federations):
    joined, local, data = files(federations["gaussian"])
    table = read_table(data)
    y = table.numbers("y")
    for path, found in zip((local, joined), evaluated(local, joined, data=data), strict=True):
        predicted = load_model(path).predict(table)
        assert found["r2"] == pytest.approx(r2_score(y, predicted), abs=WITHIN)
        assert found["mae"] == pytest.approx(mean_absolute_error(y, predicted), abs=WITHIN)


def test_figures_of_classes_are_scikit_learns(classified):
    joined, _, data = files(classified)
    table = read_table(data)
    y = np.array([float(text == "yes") for text in table.texts("y")])
    p = load_model(joined).predict(table)
    [found] = evaluated(joined, data=data)
    area = roc_auc_score(y, p)
    assert found["auc"] == pytest.approx(area, abs=WITHIN)
    assert found["gini"] == pytest.approx(2.0 * area - 1.0, abs=WITHIN)
    assert found["ks"] == pytest.approx(ks_2samp(p[y > 0], p[y == 0]).statistic, abs=WITHIN)
    assert found["log_loss"] == pytest.approx(log_loss(y, p), abs=WITHIN)
    positive, mean = calibration_curve(y, p, n_bins=10, strategy="quantile")
    columns = found["tenths"]
    assert columns["positive"][::-1] == pytest.approx(positive, abs=WITHIN)
    assert columns["probability"][::-1] == pytest.approx(mean, abs=WITHIN)
    assert columns["lift"] == pytest.approx(positive[::-1] / y.mean(), abs=WITHIN)
    assert columns["gain"] == pytest.approx(np.cumsum(positive[::-1]) / positive.sum(), abs=WITHIN)


def test_a_report_has_the_same_figures_of_left_out_labels(classified):
    judged = classified.results["a"].judged
    found = load_model(files(classified)[0]).findings.models
    for key, residuals in judged.verdict.left_out.items():
        y = judged.labels[: len(residuals)]
        scores = y - residuals
        area = roc_auc_score(y, scores)
        assert found[key]["gini"] == pytest.approx(2.0 * area - 1.0, abs=WITHIN)
        statistic = ks_2samp(scores[y > 0], scores[y == 0]).statistic
        assert found[key]["ks"] == pytest.approx(statistic, abs=WITHIN)
        assert found[key]["mae"] == pytest.approx(np.abs(residuals).mean(), abs=WITHIN)
        assert sum(found[key]["tenths"]["rows"]) == len(y)


def test_fewer_than_fifty_labels_have_no_tenths_which_could_show_one(classified):
    found = load_model(files(classified, "c")[0]).findings
    assert found.models["local"]["tenths"] == {}
    assert not any("tenths" in line for line in report.lines(found, "y"))


def test_a_tenth_that_ties_leave_with_few_rows_hides_the_table():
    p = np.r_[np.full(9, 0.1), np.linspace(0.2, 0.9, 51)]  # the second tenth has three rows
    assert of_classes(p, np.arange(60) % 2.0)["tenths"] == {}
    p[:9] = np.linspace(0.1, 0.19, 9)
    assert of_classes(p, np.arange(60) % 2.0)["tenths"]["rows"] == [6.0] * 10


# --- the stability index --------------------------------------------------------------------------


def mixed(folder, rows, name):
    rng = np.random.default_rng(len(rows))
    cells = [f"{i},{x!r},{'red' if x > 0 else 'blue'},{rng.normal()!r}" for i, x in enumerate(rows)]
    return write(folder, "\n".join(["id,x,colour,y", *cells, ""]), name)


def model_of(folder, rows):
    """A linear model of x (and of no colour), with what it keeps of these training rows."""
    text = mixed(folder, rows, "training.csv").read_text()
    made = prepared(write(folder, f"{text}shared,0.5,red,\n", "site.csv"))
    weights = np.eye(len(made.preprocessing.feature_names))
    function = KernelExpansion(Linear(), weights, np.eye(len(weights))[0])
    model = ModelFile(function, made.preprocessing, "y", 0.0, 1.0, "a", "r", "CONVERGED", 0.0, {})
    return replace(model, shares=training_shares(model, made.data.X))


def index_of(model, path):
    X = model.features(read_table(path))
    return moved(model, X, model.predict_features(X))


def test_the_index_is_of_each_column_and_of_the_predictions(tmp_path):
    before = np.random.default_rng(0).normal(size=300).tolist()
    after = (1.0 + np.random.default_rng(1).normal(size=200)).tolist()
    model = model_of(tmp_path, before)
    same = index_of(model, tmp_path / "training.csv")
    assert same["columns"] == {"x": 0.0, "colour": 0.0}
    assert same["predictions"] == 0.0
    found = index_of(model, mixed(tmp_path, after, "new.csv"))
    blue = [np.mean(np.array(rows) <= 0.0) for rows in (before, after)]
    p, q = ([share, 1.0 - share] for share in blue)
    expected = entropy(p, q) + entropy(q, p)
    assert found["columns"]["colour"] == pytest.approx(expected, abs=WITHIN)
    assert found["predictions"] == pytest.approx(found["columns"]["x"]), "the model is x alone"
    assert found["columns"]["x"] > 10.0 * found["by_chance"]


def test_a_file_keeps_counts_of_ranges_and_no_cell_and_an_older_one_has_no_index(tmp_path):
    rows = np.random.default_rng(0).normal(size=40).tolist()
    model = model_of(tmp_path, rows)
    save_model(tmp_path / "m.coreg", model)
    again = load_model(tmp_path / "m.coreg")
    assert [tuple(each) for each in again.shares] == model.shares
    assert min(count for _, counts in again.shares for count in counts) >= 5
    written = (tmp_path / "m.coreg").read_bytes()
    assert not [x for x in rows if repr(x).encode() in written]
    save_model(tmp_path / "old.coreg", replace(model, shares=None))
    found = evaluate([tmp_path / "old.coreg"], tmp_path / "training.csv", Notation())
    assert found.models[str(tmp_path / "old.coreg")]["stability"] is None
    assert not any("stability" in line for line in evaluated_lines(found))


def test_every_model_of_a_training_knows_how_far_new_rows_moved(federations, tmp_path):
    joined, local, data = files(federations["gaussian"])
    far = pl.read_csv(data).with_columns(pl.col("u") + 3.0)
    far.write_csv(tmp_path / "far.csv")
    near = evaluated(local, joined, data=data)
    for found, before in zip(
        evaluated(local, joined, data=tmp_path / "far.csv"), near, strict=True
    ):
        assert found["stability"]["columns"]["u"] > 1.0 > before["stability"]["columns"]["u"]
        assert found["stability"]["columns"]["v"] == before["stability"]["columns"]["v"]
        assert found["stability"]["predictions"] > before["stability"]["predictions"]


# --- pictures -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "panels"), [("numbers", 3), ("classes", 4)])
def test_both_commands_draw_residuals_or_calibration_and_gain(
    federations, classified, tmp_path, kind, panels
):
    pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    joined, _, data = files(federations["gaussian"] if kind == "numbers" else classified)
    agent("report", "--model", joined, "--plot", tmp_path / "r.svg")
    agent("evaluate", "--model", joined, "--data", data, "--plot", tmp_path / "e.svg")
    for name in ("r.svg", "e.svg"):
        drawn = (tmp_path / name).read_text()
        assert drawn.count('<g id="axes_') == panels
        titles = {"numbers": ["Residuals"], "classes": ["Calibration by tenths", "Gain"]}
        assert all(f"<!-- {title} -->" in drawn for title in titles[kind])


def test_a_picture_of_several_classes_has_the_area_of_each(tmp_path):
    pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    from site_agent.models.picture import draw

    areas = {"low": 0.9, "high": None}
    models = {"local model": {"rmse": 0.5, "se": 0.1, "auc_by_class": areas}}
    draw(tmp_path / "classes.svg", "grade", models, {})
    drawn = (tmp_path / "classes.svg").read_text()
    assert "<!-- Area under the ROC curve -->" in drawn
    assert "<!-- root of the Brier score of grade ± s.e. -->" in drawn
    assert "<!-- Residuals -->" not in drawn
