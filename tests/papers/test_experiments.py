"""The papers' tables and jobs; no method sees a held-out target, the statistics are right; every
experiment on made-up rows.
"""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from numpy.random import default_rng
from numpy.testing import assert_allclose, assert_array_equal
from stand_in import stand_in

from benchmarks.papers import corlsr_uci, corlsr_unlabelled, rademacher, snf, xnv
from benchmarks.papers.baselines import PEERS
from benchmarks.papers.jobs import Job, run_jobs
from benchmarks.papers.pool import NumericDataSet, Pool
from benchmarks.papers.runner import NAMES, find, run_experiment
from benchmarks.papers.views import scaled
from coreg_core.kernels import Gaussian
from coreg_core.selection import paper_bandwidth, paper_ridge


def data_set(n=60, d=4, seed=0):
    rng = default_rng(seed)
    X = rng.normal(3.0, size=(n, d))
    y = X[:, 0] * X[:, 1] + 0.1 * rng.normal(size=n) + 5
    return NumericDataSet("toy", X, y, tuple("abcd"), ((0,), (1,), (2,), (3,)), "regression")


@pytest.mark.parametrize("reading", ["literal", "level numbers", "standardised", "practitioner"])
def test_the_held_out_targets_are_not_looked_at(reading):
    data = data_set()
    labelled = np.arange(12)
    rest = np.arange(12, 60)
    hidden = replace(data, y=np.where(np.arange(60) < 12, data.y, np.nan))
    columns = [np.array([0, 1]), np.array([2, 3])]
    seen = corlsr_uci._predictions(data, reading, columns, labelled, rest)
    blind = corlsr_uci._predictions(hidden, reading, columns, labelled, rest)
    methods = corlsr_uci.METHODS
    if reading == "practitioner":
        methods = PEERS
    assert set(seen) == set(methods)
    for method in seen:
        assert_array_equal(seen[method], blind[method])


def test_w_sums_the_ranks_of_the_sets_that_got_worse():
    errors = {  # exact − rlsr: −1, +2, −3, −4: the only worse set has rank 2
        name: {"rlsr": [10.0], "exact": [10.0 + d], "semi-parametric": [11.0 + d]}
        for name, d in zip("abcd", (-1.0, 2.0, -3.0, -4.0), strict=True)
    }
    W, p, better = corlsr_uci._wilcoxon(errors)["exact", "rlsr"]
    assert W == 2.0
    assert better == 3
    assert p == pytest.approx(3 / 16)  # of the 16 sign patterns those with W ≤ 2: {}, {1}, {2}


def split(n=240, binary=False):
    data = data_set(2 * n, seed=4)
    y = data.y
    if binary:
        y = np.where(y > np.median(y), 1.0, -1.0)
    return xnv._XnvSplit.of(data.X, y, np.arange(n), np.arange(n, 2 * n), binary=binary)


@pytest.mark.parametrize("binary", [False, True])
def test_xnv_learns_from_its_labels_alone(binary):
    one = split(binary=binary)
    hidden = replace(one, y=np.where(np.arange(240) < 100, one.y, np.nan))
    for a, b in zip(
        *(list(xnv._families(s, 20, default_rng(0))) for s in (one, hidden)), strict=True
    ):
        assert a.method == b.method
        error = a.error(one, a.tuned(one, 100), 60)
        assert error == b.error(hidden, b.tuned(hidden, 100), 60)
        assert 0 <= error < 1.0


def test_snf_s_methods_see_no_target_of_an_unlabelled_row():
    data = data_set(30)
    X = scaled(data.X, data.X)
    y = scaled(data.y, data.y)
    labelled = np.arange(0, 30, 3)
    rest = np.setdiff1d(np.arange(30), np.arange(0, 30, 3))
    hidden = np.where(np.isin(np.arange(30), labelled), y, np.nan)
    seen = snf._methods(X, y, 2)
    blind = snf._methods(X, hidden, 2)
    assert tuple(sorted(seen)) == tuple(sorted((*snf.SIX, *snf.OTHERS)))
    for method in seen:
        few = slice(None, None, 7)
        a = snf._chosen(seen[method][few], y, labelled, rest)(labelled, rest)
        b = snf._chosen(blind[method][few], hidden, labelled, rest)(labelled, rest)
        assert_array_equal(a, b)
        assert len(a) == len(rest)


@pytest.mark.parametrize("reading", rademacher.READINGS)
def test_the_bounds_are_theorem_3_as_printed(reading):
    data = data_set()
    columns = [np.array([0, 2]), np.array([1, 3])]
    *_, before, after = rademacher._fold(data, columns, np.arange(12), np.arange(12, 60), reading)
    (XF, ZF), (XG, ZG) = ((data.X[:12, c], data.X[12:, c]) for c in columns)
    kF = Gaussian(paper_bandwidth(XF))
    kG = Gaussian(paper_bandwidth(XG))
    share = 1 / 24  # 1/(2ℓ)
    if reading == "literal":
        share = 1.0
    gF = paper_ridge(XF) * share
    gG = paper_ridge(XG) * share
    lam = {"literal": 0.1, "consistent": 0.1 / 12, "pairs once": 0.1 / 24}[reading]
    J = kF(ZF, XF) / gF - kG(ZG, XG) / gG
    M = kF(ZF, ZF) / gF + kG(ZG, ZG) / gG
    plain = 12 / gF + 12 / gG  # k(x, x) = 1
    U = np.sqrt([plain, plain - lam * np.trace(J.T @ np.linalg.inv(np.eye(48) + lam * M) @ J)])
    assert_allclose([before, after], U / 12, rtol=1e-10)


# --- tables, jobs and whole experiments -----------------------------------------------------------

ENTRY = {
    "name": "toy",
    "file": "toy.csv",
    "target": "y",
    "task": "regression",
    "categorical": ["kind"],
}


def pool(folder, text, **changes):
    (folder / "toy.csv").write_text(text)
    (folder / "manifest.json").write_text(json.dumps({"datasets": [ENTRY | changes]}))
    return Pool(folder)


def test_a_table_becomes_numbers(tmp_path):
    data = pool(tmp_path, "a,kind,y\n1,cat,0.5\n,dog,1\n4, cat ,NA\n3,?,2.5\n").load("toy")
    assert data.columns == ("a", "kind=?", "kind=cat", "kind=dog")
    assert data.attributes == ((0,), (1, 2, 3))
    assert_array_equal(
        data.X, [[1, 0, 1, 0], [2, 0, 0, 1], [3, 1, 0, 0]]
    )  # 2 is the mean of 1 and 3
    assert_array_equal(data.y, [0.5, 1.0, 2.5])
    words = pool(tmp_path, "a,kind,y\n1,u,yes\n2,v,no\n", task="binary").load("toy")
    assert_array_equal(words.y, [1.0, 0.0])


def squares(counted, job):
    counted.append(job.key)
    return {"value": job.arguments["factor"] * job.arguments["i"] ** 2}


def test_a_killed_run_resumes_and_a_job_with_other_arguments_is_another_job(tmp_path):
    def run(factor=1):
        done = []
        jobs = [Job(str(i), {"i": i, "factor": factor, "pair": (1, 2)}) for i in range(4)]
        return run_jobs(jobs, partial(squares, done), record)[0], done

    record = tmp_path / "squares.jsonl"
    results, done = run()
    assert done == ["0", "1", "2", "3"]
    lines = record.read_bytes().splitlines(keepends=True)
    for torn in (
        b"",
        lines[2][:9],
        lines[2][:-1],
    ):  # killed between two lines, in one, before its end
        record.write_bytes(b"".join(lines[:2]) + torn)
        assert run() == (results, ["2", "3"])
    assert sum(each["value"] for each in run(factor=10)[0].values()) == 140
    assert run(factor=10)[1] == []


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    return stand_in(tmp_path_factory.mktemp("papers") / "data")


@pytest.mark.parametrize(
    "name", [name for name in NAMES if name != "snf-labelled"]
)  # snf takes the same path
def test_every_experiment_runs_and_reports(everything, tmp_path, monkeypatch, name):
    """The quick forms with fewer folds and labelled rows; `make papers` runs the experiments
    themselves.
    """
    for module in (corlsr_uci, rademacher):
        monkeypatch.setattr(module, "FOLDS", 3)
    monkeypatch.setattr(corlsr_unlabelled, "LABELLED", 20)
    report = run_experiment(find(name), everything, tmp_path, quick=True)
    assert report.findings
    for table in report.tables:
        assert {len(row) for row in table.rows} == {len(table.header)}
    text = (tmp_path / f"{name}-quick.txt").read_text()
    assert "kernel ridge" in text  # what a practitioner would use today
    assert "Missing sets" not in text
    assert all(table.title in text for table in report.tables)
    full, quick = (find(name).jobs(Pool(everything), quick=each) for each in (False, True))
    assert len({job.key for job in full}) == len(full) > len(quick)
