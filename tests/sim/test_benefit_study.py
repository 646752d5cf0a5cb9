"""The benefit study of benchmarks/: what each regime deals, the methods of a federation, and the report."""

import json

import numpy as np
import pytest
from benefit_table import table
from stand_in import stand_in

from benchmarks.benefit.__main__ import run
from benchmarks.benefit.partition import REGIMES, partition
from benchmarks.benefit.report import figure
from benchmarks.benefit.study import CHOSEN_ON, JUDGED_ON, BenefitStudy, table_named
from benchmarks.benefit.trial import trial
from coreg_core.errors import UsageError


def test_every_site_has_the_change_of_every_method():
    sites = trial(partition(table(), REGIMES["n50"], (3,)), 3)
    json.dumps(sites, allow_nan=False)
    for site in sites:
        assert {"score", "joined", "private score", "default score", "score, one missing"} <= set(site["change"])
        assert 0.5 < site["inside"]["score"] <= 1.0
        assert site["recommended"] == "score"
        assert site["forecast"]["score"] == pytest.approx(site["change"]["score"], abs=0.35)
    whole, missing = (np.mean([site["change"][name] for site in sites]) for name in ("score", "score, one missing"))
    assert whole < missing < 0.0, "three parts are better than two"
    few = trial(partition(table(500), REGIMES["n20"], (3,)), 3)
    assert not any("default score" in site["change"] for site in few), "the rules want 150 labelled individuals"


def test_a_study_writes_its_tables(tmp_path):
    folder = stand_in(tmp_path / "data", ["mg", "sarcos_test"], rows=300)
    run(BenefitStudy(folder, ("mg", "diabetes"), ("n10", "one"), 1), tmp_path, 1)
    page, text = json.loads((tmp_path / "benefit.json").read_text()), (tmp_path / "benefit.md").read_text()
    heading, *rows = page["changes"]
    assert [row[0] for row in rows] == ["n10", "one"]
    assert rows[0][heading.index("default score")] == "", "too few labels for a federation"
    assert "| n10 | 2 |" in text
    assert "4 federations" in text
    plain = len(table_named(folder, "sarcos_test").attributes)
    assert plain == 6, "two of its eight columns are other targets"
    with pytest.raises(UsageError, match="no data sets nothing"):
        BenefitStudy(folder, ("nothing",))
    with pytest.raises(UsageError, match="unknown regimes n11"):
        BenefitStudy(folder, ("mg",), ("n11",))


def test_the_two_groups_share_no_set():
    assert not set(CHOSEN_ON) & set(JUDGED_ON)


def test_each_set_counts_once_and_sites_without_labels_or_with_shuffled_ones_do_not():
    site = {"honest": True, "labels": 20, "change": {"score": -0.1}}
    sets = {
        "a": [site] * 8 + [site | {"labels": 0, "change": {"score": 9.0}}],
        "b": [site | {"change": {"score": 0.3}}],
    }
    sets["b"].append(site | {"honest": False, "change": {"score": 9.0}})
    assert figure(sets, lambda each: each["change"]["score"]) == pytest.approx(0.1)
