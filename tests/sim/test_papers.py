"""The pool, the runner, the command; and every experiment from one end to the other, on rows that are made up."""

import json
import subprocess
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
from expected import lacking
from scipy.spatial.distance import pdist
from sklearn.kernel_ridge import KernelRidge
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.preprocessing import StandardScaler
from stand_in import stand_in
from typer.testing import CliRunner

from coreg_core.errors import BadData, Unreachable, UsageError
from coreg_sim.benefit.study import BenefitStudy
from coreg_sim.cli.app import app
from coreg_sim.papers import corlsr_uci, corlsr_unlabelled, rademacher, runner
from coreg_sim.papers.baselines import RIDGES, WIDTHS, kernel_ridge
from coreg_sim.papers.pool import Pool, fetch
from coreg_sim.papers.runner import NAMES, find, run_experiment
from coreg_sim.study.jobs import Job
from coreg_sim.study.report import Report, ReportTable
from coreg_wire.terminal.svg import Plot, Series

ENTRY = {"name": "toy", "file": "toy.csv", "target": "y", "task": "regression", "categorical": ["kind"]}


def pool(folder, text, **changes):
    (folder / "toy.csv").write_text(text)
    (folder / "manifest.json").write_text(json.dumps({"datasets": [ENTRY | changes]}))
    return Pool(folder)


def test_a_table_becomes_numbers(tmp_path):
    data = pool(tmp_path, "a,kind,y\n1,cat,0.5\n,dog,1\n4, cat ,NA\n3,?,2.5\n").load("toy")
    assert data.columns == ("a", "kind=?", "kind=cat", "kind=dog")
    assert data.attributes == ((0,), (1, 2, 3))
    np.testing.assert_array_equal(data.X, [[1, 0, 1, 0], [2, 0, 0, 1], [3, 1, 0, 0]])  # 2 is the mean of 1 and 3
    np.testing.assert_array_equal(data.y, [0.5, 1.0, 2.5])


def test_two_classes_may_be_words(tmp_path):
    data = pool(tmp_path, "a,kind,y\n1,u,yes\n2,v,no\n", task="binary").load("toy")
    np.testing.assert_array_equal(data.y, [1.0, 0.0])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,kind,y\n1,u,2\nx,v,3\n", "'a' is not numeric .row 2 of those with a target.*categorical"),
        ("a,kind,z\n1,u,2\n", "no column 'y'"),
        ("a,kind,y\n1,u,two\n", "target 'y' is not numeric"),
        ("", "cannot be read"),
    ],
)
def test_a_file_that_does_not_fit_is_named(tmp_path, text, says):
    with pytest.raises(BadData, match=rf"toy\.csv: .*{says}"):
        pool(tmp_path, text).load("toy")


def test_a_folder_without_a_manifest_is_reported(tmp_path):
    with pytest.raises(UsageError, match=r"manifest\.json.*your-own-table"):
        Pool(tmp_path)
    (tmp_path / "manifest.json").write_text("[1, 2]")
    with pytest.raises(UsageError, match="not a manifest"):
        Pool(tmp_path)
    assert not pool(tmp_path, "a,y\n1,2\n").has("iris")
    with pytest.raises(UsageError, match="'iris'"):
        Pool(tmp_path).load("iris")


def test_fetched_sets_read_back_as_they_came(tmp_path, monkeypatch):
    asked = []

    def from_openml(name, **_):
        asked.append(name)
        if name == "absent":
            raise ValueError("No known OpenML dataset")
        return SimpleNamespace(
            data=np.array([[1.0, 0.0], [np.nan, 1.0]]),
            target=np.array([3.0, np.nan]),
            feature_names=["a", "kind"],
            target_names=["y"],
            categories={"kind": ["cat", "dog"]},
            details={"id": "7"},
        )

    monkeypatch.setattr("sklearn.datasets.fetch_openml", from_openml)
    assert fetch(("toy", "absent"), tmp_path / "new") == ["absent"]
    data = Pool(tmp_path / "new").load("toy")
    np.testing.assert_array_equal(data.X, [[1.0, 1.0]])
    assert data.columns == ("a", "kind=cat")
    assert fetch(("toy",), tmp_path / "new") == []
    assert asked == ["toy", "absent"]  # what is there is not asked for again

    def offline(name, **_):
        raise ConnectionError("no route to host")

    monkeypatch.setattr("sklearn.datasets.fetch_openml", offline)
    with pytest.raises(Unreachable, match="no route to host"):
        fetch(("other",), tmp_path / "new")


@dataclass
class Squares:
    """An experiment of four jobs, which counts what it is asked to do."""

    factor: int = 1
    done: list[str] = field(default_factory=list)
    name, title, source, sets = "squares", "Squares", "nobody", ("toy", "other")

    def jobs(self, pool, *, quick):
        return [Job(str(i), {"i": i, "factor": self.factor, "pair": (1, 2)}) for i in range(2 if quick else 4)]

    def run(self, job, pool):
        self.done.append(job.key)
        return {"value": job.arguments["factor"] * job.arguments["i"] ** 2}

    def report(self, results, *, quick):
        values = tuple(float(r["value"]) for r in results.values())
        series = Series("squares", tuple(float(k) for k in results), values)
        return Report(("they grow",), (ReportTable("t", ("i", "i²"), tuple(zip(results, values, strict=True))),), (
            Plot("squares", "Squares", "i", "i²", (series,)),
        ), {"sum": sum(values)})  # fmt: skip


def figures(study):
    return study.page["report"]["figures"]


@pytest.fixture
def toys(tmp_path):
    return pool(tmp_path, "a,kind,y\n1,u,2\n")


def test_a_killed_run_goes_on_where_it_was(tmp_path, toys):
    out, first = tmp_path / "out", Squares()
    whole = run_experiment(first, toys, out)
    assert first.done == ["0", "1", "2", "3"]
    assert (len(whole.results), whole.resumed, figures(whole)) == (4, 0, {"sum": 14.0})
    report = (out / "squares.json").read_text()
    assert json.loads(report)["absent"] == ["other"]
    lines = (out / "squares.jsonl").read_bytes().splitlines(keepends=True)
    for torn in (b"", lines[2][:9], lines[2][:-1]):  # killed between two lines, in one, before its end
        (out / "squares.jsonl").write_bytes(b"".join(lines[:2]) + torn)
        again = Squares()
        assert run_experiment(again, toys, out).resumed == 2
        assert again.done == ["2", "3"]
    assert json.loads((out / "squares.json").read_text())["report"] == json.loads(report)["report"]


def test_a_job_with_other_arguments_is_another_job(tmp_path, toys):
    run_experiment(Squares(), toys, tmp_path / "out")
    other = Squares(factor=10)
    assert figures(run_experiment(other, toys, tmp_path / "out")) == {"sum": 140.0}
    assert other.done == ["0", "1", "2", "3"]
    third = Squares(factor=10)  # the later line of a key counts
    run_experiment(third, toys, tmp_path / "out")
    assert third.done == []


def test_a_quick_run_has_a_record_of_its_own(tmp_path, toys):
    run_experiment(Squares(), toys, tmp_path / "out", quick=True)
    assert json.loads((tmp_path / "out" / "squares-quick.json").read_text())["jobs"] == 2
    assert not (tmp_path / "out" / "squares.json").exists()


def test_progress_is_told_from_where_it_stands(tmp_path, toys):
    told = []
    run_experiment(Squares(), toys, tmp_path / "out", quick=True)
    (tmp_path / "out" / "squares-quick.jsonl").rename(tmp_path / "out" / "squares.jsonl")
    run_experiment(Squares(), toys, tmp_path / "out", progress=lambda *pair: told.append(pair))
    assert told == [(2, 4), (3, 4), (4, 4)]


def test_no_set_of_it_is_there(tmp_path, toys, monkeypatch):
    monkeypatch.setattr(Squares, "jobs", lambda self, pool, quick: [])
    with pytest.raises(UsageError, match=r"squares.*toy, other.*--fetch"):
        run_experiment(Squares(), toys, tmp_path / "out")


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    return stand_in(tmp_path_factory.mktemp("papers") / "data")


def paper(*arguments):
    return CliRunner().invoke(app, ["paper", *map(str, arguments)])


@pytest.fixture
def small(monkeypatch):
    """The quick forms with fewer folds and labelled rows; `make papers` runs the experiments themselves."""
    for module in (corlsr_uci, rademacher):
        monkeypatch.setattr(module, "FOLDS", 3)
    monkeypatch.setattr(corlsr_unlabelled, "LABELLED", 20)


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_runs_and_reports(everything, tmp_path, small, name):
    result = paper(name, "--data", everything, "--quick", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    run = json.loads((tmp_path / f"{name}-quick.json").read_text())
    assert run["report"]["findings"]
    assert run["absent"] == []
    tables, plots = run["report"]["tables"], run["report"]["plots"]
    assert tables
    for table in tables:
        assert {len(row) for row in table["rows"]} == {len(table["header"])}
        assert table["title"] in result.output
    for plot in plots:
        for series in plot["series"]:
            assert len(series["x"]) == len(series["y"]) > 0
    shown = json.dumps(tables)
    assert "kernel ridge" in shown  # what a practitioner would use today
    again = paper(name, "--data", everything, "--quick", "--out", tmp_path, "--json")
    assert json.loads(again.stdout)["report"] == run["report"]


@pytest.mark.parametrize("name", NAMES)
def test_a_full_run_is_jobs_with_keys_of_their_own(everything, name):
    experiment, data = find(name), Pool(everything)
    jobs = experiment.jobs(data, quick=False)
    assert len({job.key for job in jobs}) == len(jobs) > len(experiment.jobs(data, quick=True))
    json.dumps([job.arguments for job in jobs])
    assert set(experiment.sets) <= set(data.names())


@pytest.mark.e2e
def test_over_ray_the_numbers_are_the_same(everything, tmp_path):
    """In a process of its own, as a user has it."""
    arguments = ["oca", "--data", everything, "--quick", "--json"]
    here = paper(*arguments, "--out", tmp_path / "here")
    program = [sys.executable, "-c", "from coreg_sim.cli.app import main; main()", "paper", *arguments, "--jobs", "2"]
    done = subprocess.run([*program, "--out", tmp_path / "there"], capture_output=True, text=True, timeout=240)
    if done.returncode == Unreachable.exit_code:
        lacking("ray", told=f"Ray does not start on this machine: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["report"] == json.loads(here.stdout)["report"]


def test_the_practitioner_chooses_as_grid_search_would():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 3)), rng.normal(size=40)
    y += np.sin(X[:, 0])
    fitted = kernel_ridge(X, y, seed=3)
    scaled = StandardScaler().fit_transform(X)
    median = np.median(pdist(scaled, "sqeuclidean"))
    grid = {"gamma": [w / median for w in WIDTHS], "alpha": RIDGES}
    # Squared errors are summed over the folds, and the folds of 40 rows are of the same size: the means are the same.
    search = GridSearchCV(
        KernelRidge(kernel="rbf"), grid, cv=KFold(5, shuffle=True, random_state=3), scoring="neg_mean_squared_error"
    ).fit(scaled, y - y.mean())
    assert (fitted.model.gamma, fitted.model.alpha) == (search.best_params_["gamma"], search.best_params_["alpha"])
    np.testing.assert_allclose(fitted.predict(X), search.predict(scaled) + y.mean(), rtol=1e-10)


def test_an_unknown_experiment_is_reported():
    with pytest.raises(UsageError, match=r"'nope'.*corlsr-uci.*or all"):
        runner.find("nope")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"task": "regresion"}, r"task 'regresion'. Use one of regression, binary"),
        ({"drop": ["warrd"]}, r"no column 'warrd', which the manifest lists as drop. Columns: "),
        ({"categorical": ["b"]}, "no column 'b', which the manifest lists as categorical"),
        ({"drop": "a"}, "drop of 't' is a list of columns, not 'a'"),
        ({"drop": ["y"]}, "'t' drops its target 'y'"),
        ({"exclude": ["a"]}, "unknown key 'exclude'. The keys are name, file, target, task, categorical, drop"),
        ({}, "'w' is not numeric .row 1 of those with a target.. List it in manifest.json under categorical"),
        ({"target": "w"}, "the target 'w' is not numeric. coreg trains regressors"),
    ],
)
def test_a_mistyped_manifest_is_an_error(tmp_path, change, words):
    (tmp_path / "t.csv").write_text("a,y,w\n1,2,red\n3,4,blue\n")
    entry = {"name": "t", "file": "t.csv", "target": "y", "task": "regression"} | change
    (tmp_path / "manifest.json").write_text(json.dumps({"datasets": [entry]}))
    with pytest.raises((BadData, UsageError), match=words):
        Pool(tmp_path).load("t")


def test_another_table_of_the_same_name_is_another_study(tmp_path):
    entry = {"name": "t", "file": "t.csv", "target": "y", "task": "regression"}
    (tmp_path / "manifest.json").write_text(json.dumps({"datasets": [entry]}))
    digests = []
    for text in ("a,y\n1,2\n", "a,y\n1,3\n"):
        (tmp_path / "t.csv").write_text(text)
        digests.append(BenefitStudy(str(tmp_path), ("t",), ("n20",), 1, None).jobs()[0].arguments["table"])
    assert digests[0] != digests[1]
