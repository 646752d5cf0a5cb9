"""The Python report: the numbers of the text."""

import pandas as pd
import polars as pl
import pytest

from coreg_federation.report import report_of
from coreg_federation.site import in_kind_of
from site_agent.models.findings import Findings

FOUND = {
    "labels": 40,
    "recommended": "joined",
    "mean": {"rmse": 9.0, "se": 0.5, "rows": 40},
    "local": {"rmse": 4.0, "se": 0.4, "rows": 40},
    "joined": {"rmse": 3.0, "se": 0.3, "rows": 40, "change": -0.25, "change_se": 0.1},
    "auc": {"local": 0.7, "joined": None},
}


def test_the_report_has_fields_and_prints_its_text():
    report = report_of("r1", "y", Findings.from_json(FOUND), "the text")
    assert str(report) == "the text"
    assert report.labels == 40
    assert report.recommended == "joined"
    assert list(report.errors) == ["mean", "local", "joined"]
    joined = report.errors["joined"]
    assert joined.error == 3.0
    assert joined.change == -0.25
    assert joined.change_interval == pytest.approx((-0.446, -0.054))
    assert report.errors["local"].change_interval is None
    assert report.areas == {"local": 0.7}
    assert report.elsewhere == {}


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame])
def test_scores_come_in_the_callers_kind_of_frame(kind):
    scored = pl.DataFrame({"id": [1, 2], "score": [0.5, None]})
    found = in_kind_of(kind({"id": [1, 2]}), scored)
    assert isinstance(found, kind)
    assert list(found.columns) == ["id", "score"]
    assert found["score"].to_list()[0] == 0.5
    assert in_kind_of("t.csv", scored) is scored
