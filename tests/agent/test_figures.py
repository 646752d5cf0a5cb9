"""Figures of `evaluate` and `report` against scikit-learn on what the files predict; ranges that a
model file keeps of its training; pictures.
"""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from agent_files import agent, prepared, write
from numpy.random import default_rng
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
from site_agent.models.figures import of_classes, of_several_classes
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
    for path, figures in zip((local, joined), evaluated(local, joined, data=data), strict=True):
        predicted = load_model(path).predict(table)
        assert figures["r2"] == pytest.approx(r2_score(y, predicted), abs=WITHIN)
        assert figures["mae"] == pytest.approx(mean_absolute_error(y, predicted), abs=WITHIN)


@pytest.fixture(scope="module")
def ranked(classified):
    """The classes of judged rows, their probabilities, and the figures of `evaluate`."""
    joined, _, data = files(classified)
    table = read_table(data)
    y = np.array(table.texts("y")) == "yes"
    [figures] = evaluated(joined, data=data)
    return y.astype(float), load_model(joined).predict(table), figures


def ks_of(y, scores):
    return ks_2samp(scores[y > 0], scores[y == 0]).statistic


def test_figures_of_classes_are_scikit_learns(ranked):
    y, p, figures = ranked
    area = roc_auc_score(y, p)
    assert figures["auc"] == pytest.approx(area, abs=WITHIN)
    assert figures["gini"] == pytest.approx(2.0 * area - 1.0, abs=WITHIN)
    assert figures["ks"] == pytest.approx(ks_of(y, p), abs=WITHIN)
    assert figures["log_loss"] == pytest.approx(log_loss(y, p), abs=WITHIN)


def test_tenths_of_classes_are_scikit_learns(ranked):
    y, p, figures = ranked
    positive, mean = calibration_curve(y, p, n_bins=10, strategy="quantile")
    from_the_highest = positive[::-1]
    columns = figures["tenths"]
    assert columns["positive"] == pytest.approx(from_the_highest, abs=WITHIN)
    assert columns["probability"] == pytest.approx(mean[::-1], abs=WITHIN)
    assert columns["lift"] == pytest.approx(from_the_highest / y.mean(), abs=WITHIN)
    gain = np.cumsum(from_the_highest) / positive.sum()
    assert columns["gain"] == pytest.approx(gain, abs=WITHIN)


@pytest.mark.parametrize("key", ["local", "joined", "score"])
def test_a_report_has_the_same_figures_of_left_out_labels(classified, key):
    judged = classified.results["a"].judged
    residuals = judged.verdict.left_out[key]
    y = judged.labels[: len(residuals)]
    scores = y - residuals

    figures = load_model(files(classified)[0]).findings.models[key]

    area = roc_auc_score(y, scores)
    assert figures["gini"] == pytest.approx(2.0 * area - 1.0, abs=WITHIN)
    assert figures["ks"] == pytest.approx(ks_of(y, scores), abs=WITHIN)
    assert figures["mae"] == pytest.approx(np.abs(residuals).mean(), abs=WITHIN)
    assert sum(figures["tenths"]["rows"]) == len(y)


def test_fewer_than_fifty_labels_have_no_tenths_which_could_show_one(classified):
    few = load_model(files(classified, "c")[0]).findings
    assert few.models["local"]["tenths"] == {}
    assert "tenths" not in "\n".join(report.lines(few, "y"))


def test_a_tenth_that_ties_leave_with_few_rows_hides_the_table():
    """The second tenth has three rows."""
    ties = np.full(9, 0.1)
    p = np.concatenate([ties, np.linspace(0.2, 0.9, 51)])
    assert of_classes(p, np.arange(60) % 2.0)["tenths"] == {}


def test_without_ties_each_tenth_has_six_of_sixty_rows():
    p = np.linspace(0.1, 0.9, 60)
    assert of_classes(p, np.arange(60) % 2.0)["tenths"]["rows"] == [6.0] * 10


# --- the stability index --------------------------------------------------------------------------


def mixed(folder, rows, name):
    rng = default_rng(len(rows))
    lines = ["id,x,colour,y"]
    for i, x in enumerate(rows):
        colour = "blue"
        if x > 0:
            colour = "red"
        lines.append(f"{i},{x!r},{colour},{rng.normal()!r}")
    return write(folder, "\n".join([*lines, ""]), name)


def model_of(folder, rows):
    """A linear model of x (and of no colour), with what it keeps of these training rows."""
    text = mixed(folder, rows, "training.csv").read_text()
    data = prepared(write(folder, f"{text}shared,0.5,red,\n", "site.csv"))
    n_features = len(data.preprocessing.feature_names)
    of_x_alone = np.zeros(n_features)
    of_x_alone[0] = 1.0
    function = KernelExpansion(Linear(), np.eye(n_features), of_x_alone)
    model = ModelFile(function, data.preprocessing, "y", 0.0, 1.0, "a", "r", "CONVERGED", 0.0, {})
    return replace(model, shares=training_shares(model, data.data.X))


def index_of(model, path):
    X = model.features(read_table(path))
    return moved(model, X, model.predict_features(X))


BEFORE = default_rng(0).normal(size=300)
AFTER = 1.0 + default_rng(1).normal(size=200)


def test_rows_of_the_training_have_not_moved(tmp_path):
    model = model_of(tmp_path, BEFORE.tolist())
    index = index_of(model, tmp_path / "training.csv")
    assert index["columns"] == {"x": 0.0, "colour": 0.0}
    assert index["predictions"] == 0.0


def test_the_index_is_of_each_column_and_of_the_predictions(tmp_path):
    model = model_of(tmp_path, BEFORE.tolist())
    index = index_of(model, mixed(tmp_path, AFTER.tolist(), "new.csv"))
    columns = index["columns"]
    assert index["predictions"] == pytest.approx(columns["x"]), "the model is x alone"
    assert columns["x"] > 10.0 * index["by_chance"]


def test_the_index_of_a_column_is_the_symmetric_relative_entropy_of_its_shares(tmp_path):
    model = model_of(tmp_path, BEFORE.tolist())
    index = index_of(model, mixed(tmp_path, AFTER.tolist(), "new.csv"))
    p = [np.mean(BEFORE <= 0.0), np.mean(BEFORE > 0.0)]
    q = [np.mean(AFTER <= 0.0), np.mean(AFTER > 0.0)]
    expected = entropy(p, q) + entropy(q, p)
    assert index["columns"]["colour"] == pytest.approx(expected, abs=WITHIN)


def test_a_file_keeps_counts_of_ranges_and_no_cell(tmp_path):
    rows = BEFORE[:40].tolist()
    model = model_of(tmp_path, rows)
    path = tmp_path / "m.coreg"
    save_model(path, model)
    shares = [tuple(share) for share in load_model(path).shares]
    assert shares == model.shares
    for _, counts in shares:
        assert min(counts) >= 5
    content = path.read_bytes()
    for x in rows:
        assert repr(x).encode() not in content


def test_a_file_of_an_older_release_has_no_index(tmp_path):
    model = model_of(tmp_path, BEFORE[:40].tolist())
    path = tmp_path / "old.coreg"
    save_model(path, replace(model, shares=None))
    evaluation = evaluate([path], tmp_path / "training.csv", Notation())
    assert evaluation.models[str(path)]["stability"] is None
    assert "stability" not in "\n".join(evaluated_lines(evaluation))


def test_every_model_of_a_training_knows_how_far_new_rows_moved(federations, tmp_path):
    joined, local, data = files(federations["gaussian"])
    far = tmp_path / "far.csv"
    pl.read_csv(data).with_columns(pl.col("u") + 3.0).write_csv(far)
    before = evaluated(local, joined, data=data)
    after = evaluated(local, joined, data=far)
    for old, new in zip(before, after, strict=True):
        near = old["stability"]
        moved_rows = new["stability"]
        assert near["columns"]["u"] < 1.0
        assert moved_rows["columns"]["u"] > 1.0
        assert moved_rows["columns"]["v"] == near["columns"]["v"]
        assert moved_rows["predictions"] > near["predictions"]


# --- pictures -------------------------------------------------------------------------------------


def drawn_by_both_commands(joined, data, folder):
    agent("report", "--model", joined, "--plot", folder / "r.svg")
    agent("evaluate", "--model", joined, "--data", data, "--plot", folder / "e.svg")
    return [(folder / name).read_text() for name in ("r.svg", "e.svg")]


def test_both_commands_draw_residuals_of_numbers(federations, tmp_path):
    pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    joined, _, data = files(federations["gaussian"])
    for picture in drawn_by_both_commands(joined, data, tmp_path):
        assert picture.count('<g id="axes_') == 3
        assert "<!-- Residuals -->" in picture


def test_both_commands_draw_calibration_and_gain_of_classes(classified, tmp_path):
    pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    joined, _, data = files(classified)
    for picture in drawn_by_both_commands(joined, data, tmp_path):
        assert picture.count('<g id="axes_') == 4
        assert "<!-- Calibration by tenths -->" in picture
        assert "<!-- Gain -->" in picture


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


@pytest.mark.parametrize("few", [0, 9, 10])
def test_an_area_of_few_labels_of_a_class_is_not_shown(few):
    """One event of 180 had an AUC of 0 and a KS of 1: it was the one that was left out."""
    labels = np.repeat([1.0, 0.0], [few, 171])
    shown = of_classes(np.linspace(0.1, 0.9, len(labels)), labels)
    assert (shown["auc"] is None) is (shown["ks"] is None) is (few < 10)
    assert (shown["auc_se"] is None) is (few < 10)
    places = np.repeat([0.0, 1.0, 2.0], [few, 80, 91])
    probabilities = np.full((len(places), 3), 1 / 3)
    areas = of_several_classes(probabilities, places, "abc")["auc_by_class"]
    assert (areas["a"] is None) is (few < 10)
    assert areas["b"] == 0.5
