"""Yes/no targets at a site: reading them, a training of three sites, the model file, evaluation and scores."""

import json
from pathlib import Path

import numpy as np
import pytest
from agent_files import agent
from machine.additive_tiny import additive_plan
from machine.tiny import Pump, sealed, site_with
from scipy.special import expit
from sklearn.metrics import roc_auc_score

from coreg_core.additive.model.terms import Additive
from coreg_core.errors import UsageError
from coreg_core.evaluation.probability import Probability
from coreg_core.protocol.outcomes import Outcome
from site_agent.data.errors import BadTable
from site_agent.data.inputs import Inputs
from site_agent.data.prepare import prepare
from site_agent.models.batch import Scored
from site_agent.models.evaluate import evaluate, lines
from site_agent.models.file import load_model
from site_agent.models.writer import Models

SITES = ("a", "b", "c")
SHARED, LABELS = 60, 30


def tables(folder: Path, positive: str = "yes", negative: str = "no") -> dict[str, Path]:
    """Three sites with two columns each; the label is yes where the sum of all sites' parts is above 0."""
    rng = np.random.default_rng(4)
    X = rng.normal(size=(SHARED + 3 * LABELS + 200, 6))
    yes = np.sin(X[:, 0]) + X[:, 2] + 0.5 * X[:, 4] > 0
    out = {}
    for v, site in enumerate(SITES):
        own = SHARED + LABELS * v + np.arange(LABELS)
        for name, rows, labelled in (
            (site, [*own, *range(SHARED)], own),
            (f"{site}-judged", range(-200, 0), range(-200, 0)),
        ):
            known = set(labelled)
            text = "id,u,v,y\n" + "".join(
                f"p{i},{X[i, 2 * v]},{X[i, 2 * v + 1]},{(positive if yes[i] else negative) if i in known else ''}\n"
                for i in rows
            )
            out[name] = folder / f"{name}.csv"
            out[name].write_text(text)
    return out


def trained(folder: Path, **changes: str) -> tuple[Pump, dict[str, Models]]:
    found = tables(folder)
    made = {s: prepare(Inputs(table=found[s], target="y", id="id", positive="yes"), s.encode()) for s in SITES}
    plan = sealed(
        additive_plan(
            SITES, min_sites=3, forecast=True, folds=3, landmarks=40, **({"task": "classification"} | changes)
        )
    )
    pump = Pump(plan, {s: site_with(s, made[s].data) for s in SITES}).join().run()
    return pump, {s: Models(s, made[s], "y", folder / f"{s}.model", None) for s in SITES}


def test_three_sites_train_probabilities(tmp_path: Path) -> None:
    pump, models = trained(tmp_path)
    assert pump.outcome is Outcome.CONVERGED, pump.end
    notes: list[str] = []
    site = pump.sites["b"]
    assert site.result is not None
    own, local = models["b"].write(site.result, notes.append)
    assert any(note.startswith("area under the ROC curve on the same labels") for note in notes)
    model = load_model(own)
    assert model.positive == "yes"
    assert model.probability is not None
    found = evaluate([local, own], tmp_path / "b-judged.csv")
    area, loss, off = found.classification[str(own)]
    assert 0.6 < area <= 1.0
    assert loss < np.log(2)
    assert off < 0.2
    assert found.quality(str(own)) == {"auc": area, "log_loss": loss, "calibration_error": off}
    assert any("AUC" in line and "log loss" in line for line in lines(found))


def test_the_command_writes_probabilities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pump, models = trained(tmp_path)
    site = pump.sites["b"]
    assert site.result is not None
    models["b"].write(site.result, lambda _: None)

    monkeypatch.chdir(tmp_path)
    given = ("--model", "b.model", "--data", "b-judged.csv", "--id", "id", "--output", "p.csv")
    agent("predict", *given)
    header, *rows = (tmp_path / "p.csv").read_text().splitlines()
    assert header == "id,probability"
    p = np.array([float(row.split(",")[1]) for row in rows])
    judged = [line.split(",")[3] == "yes" for line in (tmp_path / "b-judged.csv").read_text().splitlines()[1:]]
    assert ((p > 0) & (p < 1)).all()
    assert roc_auc_score(judged, p) > 0.6
    with pytest.raises(UsageError, match="intervals are for a target of numbers"):
        agent("predict", *given, "--interval", "90")
    told = agent("evaluate", "--model", "b.model", "--data", "b-judged.csv", "--json")
    [row] = json.loads(told.stdout)["models"]
    assert row["auc"] == pytest.approx(roc_auc_score(judged, p))


def test_a_site_of_one_class_takes_part_and_is_told(tmp_path: Path) -> None:
    found = tables(tmp_path)
    text = found["c"].read_text().replace(",yes\n", ",no\n")
    found["c"].write_text(text)
    made = {s: prepare(Inputs(table=found[s], target="y", id="id", positive="yes"), s.encode()) for s in SITES}
    plan = sealed(additive_plan(SITES, min_sites=3, task="classification"))
    pump = Pump(plan, {s: site_with(s, made[s].data) for s in SITES}).join().run()
    assert pump.outcome is Outcome.CONVERGED, pump.end
    result = pump.sites["c"].result
    assert result is not None
    assert result.findings[0].startswith("probabilities are hardly calibrated: this takes 10 labels")


@pytest.mark.parametrize(
    ("task", "positive", "labels", "match"),
    [
        ("classification", "", None, "other values than 0 and 1"),
        ("regression", "yes", None, "the plan's task is regression"),
    ],
)
def test_a_target_of_another_task_is_refused(
    tmp_path: Path, task: str, positive: str, labels: None, match: str
) -> None:
    values = ("yes", "no") if positive else ("2", "7")
    found = tables(tmp_path, *values)
    made = {s: prepare(Inputs(table=found[s], target="y", id="id", positive=positive), s.encode()) for s in SITES}
    plan = sealed(additive_plan(SITES, min_sites=3, task=task))
    pump = Pump(plan, {s: site_with(s, made[s].data) for s in SITES}).join().run()
    assert not pump.bits
    assert match in pump.end.reason


def test_a_positive_value_that_never_occurs_or_means_missing_is_told(tmp_path: Path) -> None:
    path = tables(tmp_path)["a"]
    made = prepare(Inputs(table=path, target="y", id="id", positive="yes"), b"a")
    assert not any("positive value" in note for note in made.notes)
    path.write_text(path.read_text().replace(",yes\n", ",no\n"))
    made = prepare(Inputs(table=path, target="y", id="id", positive="yes"), b"a")
    assert any("no row of 'y' has the positive value 'yes', so all labels are 0" in note for note in made.notes)
    with pytest.raises(BadTable, match="the positive value 'NA' means a missing value"):
        prepare(Inputs(table=path, target="y", id="id", positive="NA"), b"a")
    assert Inputs(table=path, id="id", positive=True).positive == "true"  # type: ignore[arg-type]


def test_means_over_groups_of_yes_and_no_are_refused() -> None:
    with pytest.raises(UsageError, match="discloses each label of its group"):
        Additive(rows="common", residuals="grouped", task="classification")


@pytest.mark.parametrize(
    ("cells", "match"),
    [
        (("yes", "no", "maybe"), r"'y' has the values 'maybe', 'no' besides the positive one, 'yes'"),
        (("yes", "Yes"), "'Yes' besides the positive one"),
    ],
)
def test_three_values_are_a_sentence_with_lines(tmp_path: Path, cells: tuple[str, ...], match: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text("id,x,y\n" + "".join(f"p{i},{i},{cell}\n" for i, cell in enumerate((*cells, ""))))
    with pytest.raises(BadTable, match=match):
        prepare(Inputs(table=path, target="y", id="id", positive="yes"))


def test_scores_have_a_probability_beside_them(tmp_path: Path) -> None:
    scored = Scored({"d": ("p1", "p2")}, {"d": "id"}, (), Probability(2.0, -1.0))
    [path] = scored.write(np.array([0.2, 0.9]), {"d": tmp_path / "s.csv"})
    header, *rows = path.read_text().splitlines()
    assert header == "id,score,probability"
    assert [float(row.split(",")[2]) for row in rows] == pytest.approx(expit([-0.6, 0.8]).tolist())
