"""The papers' data sets and job runner; and every experiment from one end to the other, on rows that are made up."""

import json
from functools import partial

import numpy as np
import pytest
from stand_in import stand_in

from benchmarks.papers import corlsr_uci, corlsr_unlabelled, rademacher
from benchmarks.papers.jobs import Job, run_jobs
from benchmarks.papers.pool import Pool
from benchmarks.papers.runner import NAMES, find, run_experiment

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
    words = pool(tmp_path, "a,kind,y\n1,u,yes\n2,v,no\n", task="binary").load("toy")
    np.testing.assert_array_equal(words.y, [1.0, 0.0])


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
    for torn in (b"", lines[2][:9], lines[2][:-1]):  # killed between two lines, in one, before its end
        record.write_bytes(b"".join(lines[:2]) + torn)
        assert run() == (results, ["2", "3"])
    assert sum(each["value"] for each in run(factor=10)[0].values()) == 140
    assert run(factor=10)[1] == []


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    return stand_in(tmp_path_factory.mktemp("papers") / "data")


@pytest.mark.parametrize("name", [name for name in NAMES if name != "snf-labelled"])  # snf takes the same path
def test_every_experiment_runs_and_reports(everything, tmp_path, monkeypatch, name):
    """The quick forms with fewer folds and labelled rows; `make papers` runs the experiments themselves."""
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
