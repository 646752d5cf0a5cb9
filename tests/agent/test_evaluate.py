"""The commands evaluate, report and predict --interval, on files of one site."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from agent_files import agent, prepared, write
from numpy.random import default_rng
from numpy.testing import assert_allclose
from scipy.special import expit, softmax
from sklearn.metrics import roc_auc_score
from trained_sites import PLAN, SITES, prepared_sites, tables, trained

from coreg_core.additive.check import Correction, verdict
from coreg_core.additive.worth import Worth
from coreg_core.agreement.left_out import FoldErrors, PathChoice
from coreg_core.agreement.views import KernelExpansion
from coreg_core.errors import BadData, UsageError
from coreg_core.evaluation import ClassProbabilities, Probability
from coreg_core.kernels import Linear
from coreg_core.objectives.additive import Additive
from coreg_core.outcomes import Outcome
from coreg_federation.report import report_of
from coreg_federation.site import read_scores
from site_agent.cli.app import result_sentences
from site_agent.cli.service import told_score
from site_agent.data.inputs import Inputs
from site_agent.data.notation import Notation
from site_agent.data.prepare import prepare
from site_agent.data.sources import BadTable
from site_agent.data.tables import read_table
from site_agent.ledger.ledger import Disclosed
from site_agent.machine.additive import AdditiveComputation
from site_agent.machine.results import JudgedModels, ScoringResult
from site_agent.models import findings, report
from site_agent.models.batch import Scored, batch_of, interval, noise_of
from site_agent.models.evaluate import evaluate, evaluated_lines
from site_agent.models.file import ModelFile, load_model, save_model
from site_agent.service.app import Joined
from site_agent.service.on_demand import answers_by_place
from site_agent.site_data import PrivateData

N = 60


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A table of the site north with the label 2a + noise, a model of 2a, and a model of a."""
    monkeypatch.chdir(tmp_path)
    rng = default_rng(0)
    a = rng.normal(size=N)
    y = 2.0 * a + 0.1 * rng.normal(size=N)
    rows = [f"{i},{float(a[i])!r},{float(y[i])!r},x" for i in range(N)]
    write(tmp_path, "\n".join(["id,a,y,other", *rows, "n,0.5,,x", ""]))
    preprocessing = prepared(tmp_path / "t.csv", drop=("other",), scale=False).preprocessing
    for name, slope in (("good", 2.0), ("poor", 1.0)):
        function = KernelExpansion(Linear(), np.eye(1), np.array([slope]))
        model = ModelFile(
            function, preprocessing, "y", 0.0, 1.0, "north", name, "CONVERGED", 0.0, {}
        )
        save_model(tmp_path / f"{name}.model", model)
    return tmp_path


def changed(folder, name, **changes):
    """The good model under another name, changed."""
    save_model(folder / name, replace(load_model(folder / "good.model"), **changes))
    return folder / name


def test_a_command_writes_to_a_terminal_that_lacks_its_signs(folder):
    words = ["evaluate", "--model", "poor.model", "--model", "good.model", "--data", "t.csv"]
    command = [sys.executable, "-c", "from site_agent.cli.app import main; main()", *words]
    environment = {**os.environ, "PYTHONIOENCODING": "cp1252"}
    done = subprocess.run(command, env=environment, capture_output=True, timeout=100, check=False)
    assert done.returncode == 0
    assert b"Traceback" not in done.stderr
    assert b"good.model" in done.stdout
    assert b"?" in done.stdout, "for a sign that the encoding lacks"


def test_models_are_compared_with_the_first_on_the_same_rows(folder):
    words = ("evaluate", "--model", "poor.model", "--model", "good.model", "--data", "t.csv")
    found = json.loads(agent(*words, "--json").stdout)
    unscaled = load_model(
        folder / "good.model"
    ).preprocessing.ranges  # whose deviations are unknown
    assert found["rows"] == N
    assert found["target"] == "y"
    assert unscaled == {}
    table = read_table(folder / "t.csv").rows(np.arange(N))
    for row, name in zip(found["models"], ("poor", "good"), strict=True):
        errors = table.numbers("y") - load_model(folder / f"{name}.model").predict(table)
        assert row["rmse"] == pytest.approx(np.sqrt(np.mean(errors**2)))
        assert 0.0 < row["se"] < row["rmse"]
    first, beside = found["models"]
    assert "change" not in first
    assert beside["change"] == pytest.approx(beside["rmse"] / first["rmse"] - 1.0)
    assert beside["change"] < -5 * beside["change_se"] < 0.0
    assert any("1 rows without 'y' are left out" in note for note in found["notes"])
    printed = agent(*words).stdout.splitlines()
    change = f"{100 * beside['change']:+.1f} % ± {100 * beside['change_se']:.1f}"
    assert [change in line for line in printed] == [False, False, True, False, False]


def test_an_evaluation_that_is_not_possible_is_refused_by_name(folder):
    write(folder, "id,a,y\n1,2,3\n2,2,\n", "short.csv")
    write(folder, "id,A,y\n1,2,3\n2,2,4\n", "odd.csv")
    good = folder / "good.model"
    other = changed(folder, "z.model", target="z")
    for models, table, kind, words in (
        ([good], "short.csv", BadData, "1 rows have a value in 'y'"),
        ([good], "odd.csv", BadData, r"no column 'a'.*Did you mean 'A'"),
        ([good, good], "t.csv", UsageError, "named twice"),
        ([good, other], "t.csv", UsageError, "different targets"),
    ):
        with pytest.raises(kind, match=words):
            evaluate(models, folder / table, Notation())


def test_predict_overwrites_no_file_that_it_reads(folder):
    table = write(folder, "id,a\n1,2\n", "new.csv")
    (folder / "link.csv").symlink_to(table)
    for output in ("new.csv", "./new.csv", "link.csv"):
        with pytest.raises(UsageError, match=r"is read by this command.* Give another --output"):
            agent("predict", "--model", "good.model", "--data", "new.csv", "--output", output)
    assert table.read_text() == "id,a\n1,2\n"
    for header in ("id,a,score", "id,score", "id,low,high", "name,part_time"):
        text = f"{header}\n1,2,3\n"
        other = write(folder, text, "training.csv")
        with pytest.raises(UsageError, match="no earlier output of this command"):
            agent("predict", "--model", "good.model", "--data", "new.csv", "--output", other)
        assert other.read_text() == text


def test_the_command_writes_intervals_beside_the_predictions(federations, monkeypatch):
    (joined, _) = federations["gaussian"].write("a")[0]
    tmp_path = federations["gaussian"].folder
    monkeypatch.chdir(tmp_path)
    agent(
        "predict",
        "--data",
        "a-judged.csv",
        "--output",
        "p.csv",
        "--interval",
        90,
        "--model",
        joined,
    )
    written = read_table(tmp_path / "p.csv")
    model = load_model(joined)
    low, high = model.interval(read_table(tmp_path / "a-judged.csv"), 0.9)
    assert written.columns == ["prediction", "low", "high"]
    assert [written.numbers(end).tolist() for end in ("low", "high")] == [
        low.tolist(),
        high.tolist(),
    ]


def test_without_a_model_the_commands_take_the_newest_run(tmp_path, monkeypatch):
    """And of it the model that the verdict recommends; `report` tells where the eight words were
    not compared.
    """
    run = trained(tmp_path)
    monkeypatch.chdir(tmp_path)
    write(tmp_path, 'models = "a-models"\n', "agent.toml")
    run.write("a")
    folder = Path("a-models/unnamed/run-1")
    words = ("--data", "a-judged.csv", "--json")
    assert json.loads(agent("predict", *words).stdout)["model"] == str(folder / "model.coreg")
    found = json.loads(agent("evaluate", *words).stdout)["models"]
    assert [Path(row["model"]).name for row in found] == ["local.coreg", "model.coreg"]
    assert "were NOT compared" not in agent("report").stdout
    alone = replace(run.results["a"].judged.verdict, recommended="local")
    run.write("a", judged=JudgedModels((alone,), run.results["a"].judged.labels), compared=False)
    assert json.loads(agent("predict", *words).stdout)["model"] == str(folder / "local.coreg")
    assert "the eight words were NOT compared" in agent("report").stdout


def test_the_report_of_two_sites_says_what_their_scores_need(tmp_path, monkeypatch):
    run = trained(tmp_path)
    monkeypatch.chdir(tmp_path)
    write(tmp_path, 'models = "a-models"\n', "agent.toml")
    run.write("a")
    assert "scores_of_two" not in agent("report").stdout
    run.write("a", sites=("a", "b"))
    assert "it needs scores_of_two = true in both policies" in agent("report").stdout


def test_the_report_counts_the_trainings_with_these_labels(tmp_path, monkeypatch):
    run = trained(tmp_path)
    monkeypatch.chdir(tmp_path)
    write(tmp_path, 'models = "a-models"\n', "agent.toml")
    run.write("a", training="training 2 of 3 with these labels")
    last = agent("report").stdout.splitlines()[-1]
    assert last == "training 2 of 3 with these labels (openings in policy.toml)."


# --- does joining pay? ----------------------------------------------------------------------------


def judged(n, *, joined, score=None, level=3.0, opposed=False, two=False):
    """The verdict at n labels of a site whose local model errs by 1 and the others by so much;
    ``two``: of two classes.
    """
    y, error = default_rng(0).normal(size=(2, n))
    y = level * y
    if two:
        y = (y > 0.0).astype(float)
    left = joined * error
    if opposed:
        left = 2.0 * y + error
    scored = None
    if score is not None:
        scored = score * error
    return JudgedModels((verdict(y, error, left, scored),), y)


ERROR = default_rng(0).normal(size=40)


def path(local=ERROR, joined=0.5 * ERROR, chosen=1):
    """The findings of a path of λ = 0 and 0.5 with these left-out errors."""
    return findings.of_path(
        PathChoice(chosen, (local, joined), FoldErrors(joined, (local, joined), 9.0 * local)),
        (0.0, 0.5),
        2.0,
    )


def statements(*models):
    """What `report` prints of each run, by its heading."""
    blocks = (
        agent("report", *(word for model in models for word in ("--model", model)))
        .stdout.strip()
        .split("\n\n")
    )
    return {heading: rest for heading, *rest in (block.splitlines() for block in blocks)}


def test_each_run_is_compared_with_its_own_local_model_in_any_order(folder):
    """A baseline of one run beside the other's error turned the advice round."""
    first = findings.of_training(judged(60, joined=0.5))
    one = changed(folder, "additive.model", findings=first, run="one")
    two = changed(folder, "path.model", findings=path(joined=2.0 * ERROR), run="two")
    found = statements(one, two)
    assert found == statements(two, one)
    assert statements(one, two, changed(folder, "again.model", findings=first, run="one")) == found
    assert list(found) == [f"run one ({one})", f"run two ({two})"]
    additive, agreement = found.values()
    assert additive[0].startswith("recommendation: keep the joined model.")
    assert "on 60 left-out labels (± one standard error)" in additive[1]
    assert [line.split("  ")[0] for line in additive[3:6]] == [
        "mean of labels",
        "local model",
        "joined model",
    ]
    assert f"{100 * first.models['joined']['change']:+.1f} %" in additive[5]
    assert agreement[0].startswith("recommendation: stay alone.")
    assert "on 40 left-out labels" in agreement[1]
    assert agreement[5].startswith("joined, own λ")
    found = json.loads(agent("report", "--model", one, "--model", two, "--json").stdout)
    assert [(run["run"], run["local"]["rows"]) for run in found["runs"]] == [
        ("one", 60),
        ("two", 40),
    ]
    assert [run["recommendation"][0] for run in found["runs"]] == [additive[0], agreement[0]]
    with pytest.raises(BadData, match="no report is in there"):
        agent("report", "--model", "good.model")


USES = ("keep the joined model.", "stay alone.", "score together")
JOINED, ALONE, SCORE = (f"recommendation: {use} " for use in USES)


@pytest.mark.parametrize(
    ("found", "begins", "holds"),
    [
        (judged(100, joined=0.5), JOINED, "% smaller. The local model is saved too."),
        (judged(25, joined=1.2, score=1.3), ALONE, "% larger"),
        (judged(100, joined=0.8, score=0.3), SCORE, "For other instances keep the joined model."),
        (judged(100, joined=1.3, score=0.3), SCORE, "For other instances stay alone"),
        (
            judged(100, joined=1.3, score=0.3, level=0.2),
            SCORE,
            "For other instances no model is clearly",
        ),
        (judged(15, joined=0.5), JOINED, "With 15 labels this can be chance."),
        (
            judged(2, joined=0.5),
            JOINED,
            "too few for a test, are all equal, or have none of one of",
        ),
        (judged(100, joined=1.0), "recommendation: no clear difference", "either model serves"),
        (judged(15, joined=0.9, level=0.3), "recommendation: none yet", "mean of the labels"),
        (
            judged(100, joined=0.5, opposed=True),
            "",
            "predictions with the other sites rise. Check their sign",
        ),
    ],
)
def test_the_recommendation_follows_the_verdict(found, begins, holds):
    told = " ".join(report.sentences(findings.of_training(found), "y"))
    assert ("stay alone" in told) <= (findings.of_training(found).alone == "local")
    assert told.startswith(begins)
    assert holds in told
    result = SimpleNamespace(judged=found, gains={}, classes=(), probabilities=())
    sent = {"Offer": Disclosed(1, 0), "Answer": Disclosed(2, 1500)}
    files = Path("m.coreg"), Path("l.coreg")
    joined = Joined("a", Outcome.CONVERGED, result, "run-1", files, sent, Path("l"))
    said = list(result_sentences(joined))
    assert said[0].startswith("what left this machine: 1,500 numbers in 3 messages; l lists each")
    file = "m"
    if findings.of_training(found).alone == "local":
        file = "l"
    score = ""
    if begins == SCORE:
        score = "; coreg-agent score --data new.csv --id NAME"
    assert said[-1].endswith(f"predict --model {file}.coreg --data new.csv --id NAME{score}")


@pytest.mark.parametrize(
    ("slope", "words"), [(0.4, "One in twenty sites"), (0.003, "Such a factor is no chance")]
)
def test_a_factor_between_units_is_no_chance(slope, words):
    found = replace(findings.of_training(judged(40, joined=0.5), {}), slope=slope)
    [warning] = [text for text in report.sentences(found, "y") if "this site's labels" in text]
    assert words in warning


def test_a_yes_no_target_has_areas_and_too_few_labels_of_a_class_are_told():
    found = findings.of_training(judged(60, joined=0.4, score=0.2, two=True), classes=True)
    lines = report.sentences(found, "y")
    assert lines[1].startswith(
        "root mean square error of the score for y, which is 0 or 1, on 60 left-out labels"
    )
    listed = [line for line in lines if " AUC " in line]
    names = ["local model", "joined model", "scored together"]
    assert [line.split(" AUC ")[0].strip() for line in listed] == names
    assert "tenths of these labels, scored together, the largest probabilities first" in lines
    assert found.auc["local"] < found.auc["joined"] < found.auc["score"]
    few = findings.of_training(judged(9, joined=0.4, two=True), classes=True)
    assert "hardly calibrated. This takes 10 labels" in report.recommended(few)[-1]


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (
            path(),
            "keep the joined model. On left-out labels the joined model's error is 50.0 % smaller.",
        ),
        (
            path(joined=2.0 * ERROR),
            "stay alone. On left-out labels the joined model's error is 100.0 % larger.",
        ),
        (
            path(np.ones(40), np.array([4.0] + [0.9] * 39)),
            "joined models are better on average, so they are the",
        ),
        (path(ERROR[:5], 0.5 * ERROR[:5]), "With 5 labels this can be chance"),
        (path(joined=2.0 * ERROR, chosen=0), report.LOCAL_CHOSEN),
    ],
)
def test_a_path_keeps_the_joined_model_unless_it_errs_clearly_more(found, words):
    assert words in report.recommended(found)[0]
    assert ("joined, own λ" in "\n".join(report.lines(found, "y"))) == (
        words != report.LOCAL_CHOSEN
    )


# --- yes/no targets -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def classified(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("classified"), (60, 30, 30), ("no", "yes"))


def partners(worths):
    return findings.Findings(partners=findings.partners_of(worths))


@pytest.mark.parametrize("known", [False, True])
def test_the_report_says_what_each_partner_brings_or_their_order(known) -> None:
    worths = {"lab-2": Worth(0.34, 0.08), "b": Worth(0.05, 0.03)}
    expected = [0.34, 0.05]
    if not known:
        worths = dict.fromkeys(worths)
        expected = [None, None]
    found = partners(worths)
    told = report.sentences(found, "y")
    if known:
        assert told[1:] == ["lab-2           +34 % ± 8", "b               +5 % ± 3"]
    else:
        [order] = told
        assert order.startswith("lab-2, b: ")
    rows = report_of("r", "y", found, "").partners
    assert [row["site"] for row in rows] == ["lab-2", "b"]
    changes = [row.get("change") for row in rows]
    assert changes == expected
    assert not report.sentences(partners({"b": None}), "y"), "one has no order"


def test_three_sites_train_probabilities(classified) -> None:
    run = classified
    tmp_path = classified.folder
    (own, local), notes = run.write("b")
    assert any(note.startswith("joined model    AUC ") for note in notes)
    model = load_model(own)
    probabilities = run.results["b"].probabilities
    assert (model.positive, model.probability, model.score_probability) == (
        "yes",
        *probabilities[:2],
    )
    assert load_model(local).probability == probabilities[2]
    _, scored = batch_of(model, Inputs(table=tmp_path / "b-judged.csv", id="id"), b"salt")
    assert scored.probability == probabilities[1]
    assert scored.correction == model.function.correct_score
    found = evaluate([local, own], tmp_path / "b-judged.csv", Notation())
    for each, known in (
        (found, False),
        (evaluate([local, own], tmp_path / "b.csv", Notation()), True),
    ):
        assert any(f"at least {each.seen} of these rows" in note for note in each.notes) is known
    row = found.models[str(own)]
    assert 0.6 < row["auc"] <= 1.0
    assert row["log_loss"] < np.log(2)
    assert row["calibration_error"] < 0.2
    assert any("AUC" in line and "log loss" in line for line in evaluated_lines(found))
    agent(
        "predict",
        "--model",
        own,
        "--data",
        tmp_path / "b-judged.csv",
        "--id",
        "id",
        "--output",
        tmp_path / "p.csv",
    )
    written = read_table(tmp_path / "p.csv")
    judged = [text == "yes" for text in read_table(tmp_path / "b-judged.csv").texts("y")]
    assert written.columns == ["id", "probability"]
    assert row["auc"] == pytest.approx(roc_auc_score(judged, written.numbers("probability")))
    with pytest.raises(UsageError, match="intervals are for a target of numbers"):
        model.interval(written, 0.9)
    other = tmp_path / "other.csv"  # a text that training did not know is no negative class
    other.write_text((tmp_path / "b-judged.csv").read_text().replace(",no\n", ",unknown\n"))
    with pytest.raises(BadData, match="holds 'unknown'; known are 'yes' and 'no'"):
        evaluate([own], other, Notation())


def test_a_share_for_an_interval_is_refused_with_the_percentage(tmp_path):
    with pytest.raises(UsageError, match=r"Do you mean --interval 90\?"):
        agent("predict", "--data", tmp_path / "t.csv", "--interval", "0.9")


@pytest.mark.parametrize(
    ("task", "positive", "words"),
    [
        ("classification", "", "other values than 0 and 1"),
        ("regression", "yes", "the plan's task is regression"),
    ],
)
def test_a_target_of_another_task_is_refused(task: str, positive: str, words: str) -> None:
    terms = Additive(task=task)
    rows = np.zeros((3, 2))  # type: ignore[arg-type]
    data = PrivateData(rows, np.array([0.0, 1.0, 2.0]), rows, "ids", positive=positive)
    plan = replace(PLAN, objective=terms)
    with pytest.raises(BadData, match=words):
        AdditiveComputation(plan, terms, "a", data, int, os.urandom)
    classes = replace(data, y=np.array([0.0, 1.0, 1.0]), positive="yes")
    AdditiveComputation(plan, Additive(task="classification"), "a", classes, int, os.urandom)


def test_a_positive_value_that_never_occurs_or_means_missing_is_told(tmp_path: Path) -> None:
    found = tables(tmp_path, values=("no", "yes"))
    path = found["a"]
    made = prepared_sites(found, "yes")["a"]
    assert not any("positive value" in note for note in made.notes)
    path.write_text(path.read_text().replace(",yes\n", ",no\n"))
    made = prepared_sites(found, "yes")["a"]
    assert any(
        "no row of 'y' has the positive value 'yes', so all labels are 0" in note
        for note in made.notes
    )
    with pytest.raises(BadTable, match="the positive value 'NA' means a missing value"):
        prepare(Inputs(table=path, target="y", id="id", positive="NA"), b"a")
    assert Inputs(table=path, id="id", positive=True).positive == "true"  # type: ignore[arg-type]


def test_three_values_are_a_sentence_with_lines(tmp_path: Path) -> None:
    path = write(tmp_path, "id,x,y\np,1,yes\nq,2,no\nr,3,maybe\ns,4,\n")
    with pytest.raises(
        BadTable, match=r"line 4, column 'y': holds 'maybe', 'no' besides the positive value, 'yes'"
    ):
        prepare(Inputs(table=path, target="y", id="id", positive="yes"))


def test_scores_of_numbers_have_intervals_that_absent_sites_widen(tmp_path: Path) -> None:
    scored = Scored(("p1", "p2", "p3"), "id", (), noise=3.0)
    result = ScoringResult(
        Outcome.CONVERGED,
        "",
        scores=np.array([10.0, 20.0, np.nan]),
        missing=np.array([0.0, 4.0, np.nan]),
        present=(("a", "b", "c"), ("a", "c"), ("a",)),
    )
    [path] = scored.write(result, tmp_path)
    header, *rows = [line.split(",") for line in path.read_text().splitlines()]
    assert header == ["id", "score", "low", "high", "sites", "missing_deviation"]
    half = 1.6448536269514722 * np.array([3.0, 5.0])  # the 95 % quantile of a normal number
    centre = np.array([10.0, 20.0])
    expected = np.column_stack([centre - half, centre + half])
    assert_allclose([[float(cell) for cell in row[2:4]] for row in rows[:2]], expected)
    assert rows[2][1:4] == ["", "", ""], "no score, no interval"


def test_nine_of_ten_new_labels_lie_within_the_interval_of_their_score(tmp_path: Path) -> None:
    sites = trained(tmp_path, labels=(60, 60, 60))
    models = {site: load_model(sites.write(site)[0][0]) for site in SITES}
    judged = {site: read_table(tmp_path / f"{site}-judged.csv") for site in SITES}
    parts = [models[site].function.part(models[site].phi(judged[site]), range(3)) for site in SITES]
    for site, model in models.items():
        own = judged[site]
        whole = model.intercept + np.sum(parts, axis=0)
        local = model.local_predictions(own)
        score = model.function.correct_score(whole, local, model.features(own))
        between = interval(score, noise_of(model))
        labels = np.array(own.numbers("y"))
        share = np.mean((between["low"] <= labels) & (labels <= between["high"]))
        assert 0.8 < share < 0.99, "a share of 200 labels has a standard error of 0.02"


def test_scores_have_a_probability_beside_them(tmp_path: Path) -> None:
    scored = Scored(("p1", "p2"), "id", (), Probability(2.0, -1.0))
    parts = {"a": np.array([0.1, 0.4]), "b": np.array([0.3, np.nan])}
    known = {"present": (("a", "b", "c"), ("a", "c")), "missing": np.array([0.0, 0.5])}
    result = ScoringResult(
        Outcome.CONVERGED, "", scores=np.array([0.2, 0.9]), contributions=parts, **known
    )
    [path] = scored.write(result, tmp_path)
    header, *rows = path.read_text().splitlines()
    assert header == "id,score,probability,sites,missing_deviation,part_a,part_b"
    assert [row.split(",")[3:] for row in rows] == [
        ["a b c", "0.0", "0.1", "0.3"],
        ["a c", "0.5", "0.4", ""],
    ]
    assert [float(row.split(",")[2]) for row in rows] == pytest.approx(expit([-0.6, 0.8]).tolist())


@pytest.mark.parametrize("name", ["sites", "score", "probability", "missing_deviation", "part_a"])
def test_a_study_that_names_its_ids_like_a_column_of_scores_ends_with_scores(
    tmp_path: Path, name: str
) -> None:
    """It ended every agent that served."""
    scored = Scored(("p1",), name, (), Probability(2.0, -1.0))
    result = ScoringResult(
        Outcome.CONVERGED, "", scores=np.array([0.2]), contributions={"a": np.array([0.1])},
        present=(("a", "b"),), missing=np.array([0.5]),
    )  # fmt: skip
    [path] = scored.write(result, tmp_path)
    assert path.read_text().startswith("id,score,probability,sites,missing_deviation,part_a\n")


def of_three_classes() -> tuple[Scored, ScoringResult]:
    def corrected(scores: np.ndarray, local: np.ndarray | None, X: np.ndarray | None) -> np.ndarray:
        assert local is None
        assert X is None
        return scores + np.array([0.0, 0.0, 0.5])

    scored = Scored(
        ("p1", "p2", "p3"),
        "id",
        (),
        ClassProbabilities(2.0, np.zeros(3)),
        corrected,
        classes=("low", "middle", "high"),
    )
    scores = np.array([[0.2, 0.6, 0.3], [np.nan] * 3, [0.9, 0.1, 0.0]])
    present = (("a", "b"), ("a",), ("a", "b"))
    return scored, ScoringResult(
        Outcome.CONVERGED, "", scores=scores, present=present, missing=np.full(3, np.nan)
    )


def test_scores_of_classes_are_the_most_probable_one_and_each_probability(tmp_path: Path) -> None:
    scored, result = of_three_classes()
    [path] = scored.write(result, tmp_path)
    header, first, second, third = path.read_text().splitlines()
    assert header == "id,score,probability_low,probability_middle,probability_high,sites"
    expected = softmax([0.4, 1.2, 1.6])
    assert first.split(",")[1] == "high"
    assert [float(cell) for cell in first.split(",")[2:5]] == pytest.approx(expected.tolist())
    assert second == "p2,,,,,a"
    assert third.split(",")[1] == "low"
    frame = read_scores(path)
    assert frame["score"].to_list() == ["high", None, "low"]
    assert frame["probability_high"][0] == pytest.approx(expected[2])


def test_scores_on_demand_have_the_probability_of_each_class_and_no_interval() -> None:
    scored, result = of_three_classes()
    answers = answers_by_place(result, scored)
    assert list(answers) == [0, 2]
    answer = answers[0]
    columns = {f"probability_{name}" for name in scored.classes}
    assert answer.keys() == {"score", *columns, "sites", "from"}
    assert answer["score"] == "high"
    assert answer["sites"] == ("a", "b")
    expected = softmax([0.4, 1.2, 1.6])[2]
    assert answer["probability_high"] == pytest.approx(expected)
    assert told_score(answer) == f"high  {expected:.3g}"
    assert told_score({"score": 1.5, "low": 1.0, "high": 2.0}) == "1.5  1 to 2"


def test_a_written_score_is_corrected_by_the_sites_own_labels(tmp_path: Path) -> None:
    """The slope first; then, where this site has a record, the blend with its local model."""
    correction = Correction(slope=0.5, level=1.0, centre=4.0, weight=0.75)
    scored = Scored(
        ("p1", "p2"), "id", (), Probability(2.0, -1.0), correction, np.array([2.0, np.nan])
    )
    result = ScoringResult(
        Outcome.CONVERGED, "", scores=np.array([6.0, 3.0]), present=(("a", "b"), ("b",))
    )
    [path] = scored.write(result, tmp_path)
    found = pl.read_csv(path)
    expected = [0.25 * 2.0 + 0.75 * (1.0 + 0.5 * (6.0 - 4.0)), 1.0 + 0.5 * (3.0 - 4.0)]
    assert found["id"].to_list() == ["p1", "p2"]
    assert found["score"].to_list() == pytest.approx(expected), (
        "without a record no local prediction"
    )
    assert found["probability"].to_list() == pytest.approx(
        expit(2.0 * np.array(expected) - 1.0).tolist()
    )
