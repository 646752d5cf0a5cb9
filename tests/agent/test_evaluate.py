"""evaluate, report, and predict's intervals: what a site finds out about its own models, by the commands, on files."""

import dataclasses
import json

import numpy as np
import pytest
from agent_files import agent, prepared, write

from coreg_core.additive.model.expansion import Expansion
from coreg_core.additive.model.features import Standardiser
from coreg_core.additive.model.predictive_sd import Spread
from coreg_core.agreement.views import KernelExpansion
from coreg_core.errors import BadData, UsageError
from coreg_core.kernels.functions import Linear
from site_agent.data.tables import read_table
from site_agent.models import findings
from site_agent.models.evaluate import evaluate
from site_agent.models.file import Intervals, SiteModel, load_model, save_model

N = 60


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A table whose label is 2a + noise, a model that says so and one that says a; both of the site north."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    a = rng.normal(size=N)
    y = 2.0 * a + 0.1 * rng.normal(size=N)
    rows = [f"{i},{float(a[i])!r},{float(y[i])!r},x" for i in range(N)]
    write(tmp_path, "\n".join(["id,a,y,other", *rows, "n,0.5,,x", ""]))
    preprocessing = prepared(tmp_path / "t.csv", drop=("other",), scale=False).preprocessing
    for name, slope in (("good", 2.0), ("poor", 1.0)):
        function = KernelExpansion(Linear(), np.eye(1), np.array([slope]))
        model = SiteModel(function, preprocessing, "y", 0.0, 1.0, "north", name, "CONVERGED", 0.0, {})
        save_model(tmp_path / f"{name}.model", model)
    return tmp_path


def changed(folder, name, **changes):
    """The good model under another name, changed."""
    save_model(folder / name, dataclasses.replace(load_model(folder / "good.model"), **changes))
    return folder / name


def rows_of(folder):
    return read_table(folder / "t.csv").rows(np.arange(N))


def test_models_are_compared_with_the_first_on_the_same_rows(folder):
    words = ("evaluate", "--model", "poor.model", "--model", "good.model", "--data", "t.csv")
    found = json.loads(agent(*words, "--json").stdout)
    assert (found["rows"], found["target"]) == (N, "y")
    for row, name in zip(found["models"], ("poor", "good"), strict=True):
        errors = rows_of(folder).numbers("y") - load_model(folder / f"{name}.model").predict(rows_of(folder))
        assert row["rmse"] == pytest.approx(np.sqrt(np.mean(errors**2)))
        assert row["mean_absolute"] == pytest.approx(np.mean(np.abs(errors)))
        assert 0.0 < row["standard_error"] < row["rmse"]
    assert found["models"][0]["paired"] is None
    beside = found["models"][1]["paired"]
    assert (beside["change"] < -0.8, beside["difference"] < -5 * beside["standard_error"]) == (True, True)
    assert any("1 rows without 'y' are left out" in note for note in found["notes"])
    assert any("ignored, because no model uses them: 'id', 'other'" in note for note in found["notes"])
    assert agent(*words).stdout.splitlines()[-1].count("(more than one s.e.)") == 1


def test_an_evaluation_that_is_not_possible_is_refused_by_name(folder):
    write(folder, "id,a,y\n1,2,3\n2,2,\n", "short.csv")
    write(folder, "id,A,y\n1,2,3\n2,2,4\n", "odd.csv")
    good, other = folder / "good.model", changed(folder, "z.model", target="z")
    for models, table, kind, words in (
        ([good], "short.csv", BadData, "1 rows have a value in 'y'"),
        ([good], "odd.csv", BadData, r"no column 'a'.*Did you mean 'A'"),
        ([good, good], "t.csv", UsageError, "named twice"),
        ([good, other], "t.csv", UsageError, "different targets"),
    ):
        with pytest.raises(kind, match=words):
            evaluate(models, folder / table)


def test_scores_made_together_are_compared_on_the_rows_that_have_one(folder):
    """The scores are exact for the first 40 records, in another order than the table."""
    y = rows_of(folder).numbers("y")
    write(folder, "\n".join(["id,score", *(f"{i},{float(y[i])!r}" for i in reversed(range(40))), ""]), "scores.csv")
    words = ("evaluate", "--model", "good.model", "--data", "t.csv", "--scores", "scores.csv")
    found = json.loads(agent(*words, "--id", "id", "--json").stdout)
    errors = y[:40] - load_model(folder / "good.model").predict(rows_of(folder))[:40]
    model, scores = found["models"]
    assert (found["rows"], scores["model"], scores["rmse"]) == (40, "scores.csv", 0.0)
    assert model["rmse"] == pytest.approx(np.sqrt(np.mean(errors**2)))
    assert any("no score of 20 labelled rows" in note for note in found["notes"])
    assert not any("'id'" in note for note in found["notes"]), "the id is used"
    with pytest.raises(UsageError, match="--scores and --id belong together"):
        agent(*words)
    write(folder, "id,score\n7,1\n7,2\n", "scores.csv")
    with pytest.raises(BadData, match="an id has two scores"):
        agent(*words, "--id", "id")
    write(folder, "id,score\n7x,1\n1,2\n", "scores.csv")
    with pytest.raises(BadData, match=r"scores of 1 labelled rows .* how the two files write 'id'"):
        agent(*words, "--id", "id")


def test_probabilities_made_together_are_judged_as_probabilities(folder):
    write(folder, "id,a,y\n1,0,0\n2,1,1\n3,0.5,1\n", "new.csv")
    write(folder, "id,score,probability\n1,-9,0.25\n2,9,0.75\n3,9,0.75\n", "scores.csv")
    found = evaluate([folder / "good.model"], folder / "new.csv", folder / "scores.csv", "id")
    assert found.models[str(folder / "scores.csv")][0].rmse == pytest.approx(0.25)
    assert found.quality(str(folder / "scores.csv"))["auc"] == 1.0


def test_predict_overwrites_no_file_that_it_reads(folder):
    table = write(folder, "id,a\n1,2\n", "new.csv")
    (folder / "link.csv").symlink_to(table)
    for output in ("new.csv", "./new.csv", "link.csv"):
        with pytest.raises(
            UsageError, match=r"is read by this command, and would be overwritten\. Give another --output"
        ):
            agent("predict", "--model", "good.model", "--data", "new.csv", "--output", output)
    assert table.read_text() == "id,a\n1,2\n"


def test_a_model_reads_missing_values_as_in_training(folder):
    preprocessing = dataclasses.replace(load_model(folder / "good.model").preprocessing, na_values=("-999",))
    changed(folder, "coded.model", preprocessing=preprocessing)
    write(folder, "id,a,y\n1,-999,1\n2,2,4\n3,1,2\n4,3,-999\n", "new.csv")
    agent("predict", "--model", "coded.model", "--data", "new.csv")
    assert abs(read_table(folder / "predictions.csv").numbers("prediction")[0]) < 10.0, "the mean, not −999"
    assert evaluate([folder / "coded.model"], folder / "new.csv").rows == 3


def with_intervals(folder, ratios):
    unit = Standardiser(np.zeros(1), np.ones(1))
    spread = Spread(unit, Linear(), np.eye(1), np.array([[0.5]]), np.zeros(1), noise=0.04, factor=2.0)
    own = Expansion(unit, 0.0, (load_model(folder / "good.model").function,))
    return load_model(changed(folder, "i.model", function=own, intervals=Intervals(spread, np.sort(ratios))))


def test_an_interval_is_the_prediction_and_a_calibrated_deviation(folder):
    """19 ratios of 1 to 19: nine of ten new ones lie below the 18th, q = 18; d = 2 sqrt(0.04 + (a/2)^2)."""
    model, table = with_intervals(folder, np.arange(1.0, 20.0)), rows_of(folder)
    low, high = model.interval(table, 0.9)
    half = 18.0 * 2.0 * np.sqrt(0.04 + (0.5 * table.numbers("a")) ** 2)
    np.testing.assert_allclose(high - low, 2.0 * half, rtol=1e-12)
    np.testing.assert_allclose((high + low) / 2.0, model.predict(table), atol=1e-12)
    agent("predict", "--model", "i.model", "--data", "t.csv", "--output", "p.csv", "--interval", 90)
    written = read_table(folder / "p.csv")
    assert written.columns == ["prediction", "low", "high"]
    np.testing.assert_allclose(written.numbers("low")[:N], low, rtol=1e-12)


# --- does joining pay? --------------------------------------------------------------------------------------------

FOUND = {
    "labels": 60, "alone": {"rmse": 10.0, "se": 1.0, "rows": 60}, "joined": {"rmse": 9.0, "se": 0.9, "rows": 60},
    "together": None, "own": "joined", "score": "joined", "told": "own", "forecast": -0.1, "federation": -0.05, "r2": 0.85,
}  # fmt: skip


PATH = {"labels": 40, "alone": {"rmse": 8.0, "se": 1, "rows": 40}, "agreement": {"rmse": 10.0, "se": 1, "rows": 40}}


def statements(*models):
    """What `report` prints of each run, by its heading."""
    blocks = agent("report", *(word for model in models for word in ("--model", model))).stdout.strip().split("\n\n")
    return {heading: rest for heading, *rest in (block.splitlines() for block in blocks)}


def test_each_run_is_compared_with_its_own_local_model_in_any_order(folder):
    """A baseline of one run beside the other's error turned the advice round."""
    one = changed(folder, "additive.model", found=FOUND, run="one")
    two = changed(folder, "path.model", found=PATH | {"own": "alone", "chosen": 0.5}, run="two")
    found = statements(one, two)
    assert found == statements(two, one)
    assert statements(one, two, changed(folder, "again.model", found=FOUND, run="one")) == found
    assert list(found) == [f"run one ({one})", f"run two ({two})"]
    first, second = found.values()
    assert first[0].startswith("recommendation: keep the joined model")
    assert first[1] == "root mean square error of y, in units of y, on 60 left-out labels (± one standard error)"
    assert [line.split("  ")[0] for line in first[3:5]] == ["local model", "joined model"]
    assert "-10.0 %" in first[4]
    assert ("stay alone" in second[0], "on 40 left-out labels" in second[1], "+25.0 %" in second[4]) == (True,) * 3
    for words in ("keep the joined model. On left-out labels its error is 10.0 % smaller. ", "r² = 0.85."):
        assert words in "\n".join(first)
    found = json.loads(agent("report", "--model", one, "--model", two, "--json").stdout)
    assert [(run["run"], run["alone"]["rmse"]) for run in found["runs"]] == [("one", 10.0), ("two", 8.0)]
    with pytest.raises(BadData, match="no report is in there"):
        agent("report", "--model", "good.model")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"own": "alone"}, "stay alone"),
        ({"told": "federation", "labels": 15}, "forecast of the federation"),
        ({"together": FOUND["joined"], "score": "together"}, "score together the instances"),
        ({"together": FOUND["joined"]}, "do not score together"),
        ({"joined": None}, "too few"),
        (
            {"labels": 19},
            "19 labels are too few to tell. On left-out labels the joined model's error is 10.0 % smaller",
        ),
        ({"joined": FOUND["joined"] | {"rmse": 9.95}}, "no clear difference"),
        (
            {"labels": 40},
            "its error is 10.0 % smaller. With 40 labels this can be chance.",
        ),
    ],
)
def test_the_recommendation_follows_the_verdict(changes, words):
    assert words in " ".join(findings.told(FOUND | changes, "y"))
