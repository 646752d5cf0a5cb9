"""Yes/no targets at a site: reading them, a training of three sites, the model file, evaluation and scores."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from agent_files import agent
from machine.tiny import Pump, site_with
from scipy.special import expit
from sklearn.metrics import roc_auc_score
from trained_sites import PLAN, SITES, prepared_sites, tables, trained

from coreg_core.errors import UsageError
from coreg_core.evaluation import Probability
from coreg_core.objectives.additive import Additive
from coreg_core.protocol.outcomes import Outcome
from site_agent.data.errors import BadTable
from site_agent.data.inputs import Inputs
from site_agent.data.prepare import prepare
from site_agent.machine.job import SiteResult
from site_agent.models.batch import Scored, batch_of
from site_agent.models.evaluate import evaluate, lines
from site_agent.models.file import load_model


def test_three_sites_train_probabilities(tmp_path: Path) -> None:
    run = trained(tmp_path, (60, 30, 30), ("no", "yes"))
    (own, local), notes = run.write("b")
    assert any(note.startswith("area under the ROC curve on the same labels") for note in notes)
    model, probabilities = load_model(own), run.results["b"].probabilities
    assert (model.positive, model.probability, model.score_probability) == ("yes", *probabilities[:2])
    assert load_model(local).probability == probabilities[2]
    _, scored = batch_of(model, {"": Inputs(table=tmp_path / "b-judged.csv", id="id")}, b"salt")
    assert scored.probability == probabilities[1]
    found = evaluate([local, own], tmp_path / "b-judged.csv")
    area, loss, off = found.classification[str(own)]
    assert 0.6 < area <= 1.0
    assert loss < np.log(2)
    assert off < 0.2
    assert found.quality(str(own)) == {"auc": area, "log_loss": loss, "calibration_error": off}
    assert any("AUC" in line and "log loss" in line for line in lines(found))


def test_the_command_writes_probabilities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(tmp_path, (60, 30, 30), ("no", "yes")).write("b")
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
    found = tables(tmp_path, values=("no", "yes") if positive else ("2", "7"))
    made = prepared_sites(found, positive)
    plan = replace(PLAN, objective=Additive(task=task))  # type: ignore[arg-type]
    pump = Pump(plan, {s: site_with(s, made[s].data) for s in SITES}).join().run()
    assert not pump.bits
    assert match in pump.end.reason


def test_a_positive_value_that_never_occurs_or_means_missing_is_told(tmp_path: Path) -> None:
    found = tables(tmp_path, values=("no", "yes"))
    path, made = found["a"], prepared_sites(found, "yes")["a"]
    assert not any("positive value" in note for note in made.notes)
    path.write_text(path.read_text().replace(",yes\n", ",no\n"))
    made = prepared_sites(found, "yes")["a"]
    assert any("no row of 'y' has the positive value 'yes', so all labels are 0" in note for note in made.notes)
    with pytest.raises(BadTable, match="the positive value 'NA' means a missing value"):
        prepare(Inputs(table=path, target="y", id="id", positive="NA"), b"a")
    assert Inputs(table=path, id="id", positive=True).positive == "true"  # type: ignore[arg-type]


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
    result = SiteResult(
        Outcome.CONVERGED,
        "",
        PLAN,
        scores=np.array([0.2, 0.9]),
        present=(("a", "b", "c"), ("a", "c")),
        missing=np.array([0.0, 0.5]),
    )
    [path] = scored.write(result, {"d": tmp_path / "s.csv"})
    header, *rows = path.read_text().splitlines()
    assert header == "id,score,probability,sites,missing_deviation"
    assert [row.split(",")[3:] for row in rows] == [["a b c", "0.0"], ["a c", "0.5"]]
    assert [float(row.split(",")[2]) for row in rows] == pytest.approx(expit([-0.6, 0.8]).tolist())
