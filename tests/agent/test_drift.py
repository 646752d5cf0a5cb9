"""How a table to be predicted differs from those that the model was made of: by column, and counted."""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from agent_files import agent, fitted, table
from hypothesis import given
from hypothesis import strategies as st

import coreg_federation as coreg
from coreg_core.agreement.views import KernelExpansion
from coreg_core.errors import BadData
from coreg_core.kernels.functions import Gaussian, Linear
from site_agent.data.drift import look
from site_agent.data.tables import read_table
from site_agent.models.file import ModelFile, load_model, save_model

ROWS = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("drift")
    rows = [f"p{i},{i},{'xz'[i % 2]},{i if i < ROWS // 2 else ''}" for i in range(ROWS)]
    preprocessing, _ = fitted(path, "\n".join(["id,a,c,y", *rows]))
    points = preprocessing.transform(read_table(path / "t.csv"))[:2]
    function = KernelExpansion(Gaussian(1.0), points, np.array([1.0, 2.0]))
    save_model(path / "m", ModelFile(function, preprocessing, "y", 0.0, 1.0, "n", "r", "CONVERGED", 0.1, {}))
    return path


@pytest.fixture
def preprocessing(folder):
    return load_model(folder / "m").preprocessing


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=30))
def test_the_share_beyond_training(folder, values):
    preprocessing = load_model(folder / "m").preprocessing
    assert preprocessing.ranges == {"a": (0.0, 59.0, ROWS)}
    seen = look(preprocessing, table(folder, "\n".join(["a,c", *(f"{v!r},x" for v in values)])), 0.05)
    numeric = seen.drifts[0]
    outside = sum(v < 0 or v > 59 for v in values)
    assert (numeric.outside, numeric.cells, numeric.share) == (outside, len(values), outside / len(values))
    assert bool(seen.values) == (outside / len(values) > max(0.05, 2 * 2 / 61))


def test_columns_that_are_new_reordered_or_of_another_kind_are_noted(folder, preprocessing):
    seen = look(preprocessing, table(folder, "c,more,a,id\n3,0,1,p\n4,0,2,q\n"), named=("id",))
    assert (seen.extra, seen.reordered, seen.texts_now_numbers) == (("more",), True, ("c",))
    assert any("'more'" in note for note in seen.notes)
    assert any("texts in training, and numbers now" in note for note in seen.notes)
    plain = look(preprocessing, table(folder, "a,c\n1,x\n"))
    assert (plain.extra, plain.reordered, plain.notes) == ((), False, ())


def test_predict_reports_drift_by_column(folder, monkeypatch):
    monkeypatch.chdir(folder)
    table(folder, "id,a,c\n1,100,x\n2,50,never\n3,,x\n")
    words = ("predict", "--model", "m", "--data", "new.csv", "--id", "id", "--json")
    report = json.loads(agent(*words).stdout)
    a, c = report["drift"]
    assert (a["column"], a["cells"], a["outside"], a["share"], a["missing"], a["warns"]) == ("a", 2, 1, 0.5, 1, True)
    assert (a["low"], a["high"]) == (0.0, 59.0)
    assert (c["column"], c["outside"], c["warns"]) == ("c", 1, True)
    assert report["columns"] == {"extra": [], "reordered": False, "texts_now_numbers": []}
    assert any("1 of 2 cells (50 %) are outside the range of training (0 to 59)" in note for note in report["notes"])
    report = json.loads(agent(*words, "--warn-above", 60).stdout)
    assert not report["drift"][0]["warns"]
    assert not any("beyond" in note for note in report["notes"])


def test_a_model_without_rows_keeps_no_ranges(folder, tmp_path, preprocessing):
    """Ranges are cells of the table, so a file that holds no rows holds none; texts are compared all the same."""
    weights = KernelExpansion(Linear(), np.eye(3), np.ones(3))
    save_model(tmp_path / "w", replace(load_model(folder / "m"), function=weights))
    without = load_model(tmp_path / "w").preprocessing
    assert (without.ranges, without.columns) == (None, preprocessing.columns)
    seen = look(without, table(folder, "a,c\n100,x\n"))
    assert (seen.ranged, [d.column for d in seen.drifts]) == (False, ["c"])


# --- the public model -------------------------------------------------------------------------------------------------


def test_the_public_model_warns_as_the_command_does(folder):
    model = coreg.load_model(folder / "m")
    inside = pl.DataFrame({"a": [1.0, 2.0], "c": ["x", "z"]})
    expected = model.predict(inside)  # a warning is an error here
    with pytest.warns(UserWarning, match="column 'a': 2 of 2 cells .* outside the range of training") as heard:
        assert model.predict(inside.with_columns(pl.col("a") * 1000)).shape == expected.shape
    assert [warning.filename for warning in heard] == [__file__], "it points at the call"
    with pytest.warns(UserWarning, match="1 cell.* a text that training never had"):
        model.predict(inside.with_columns(pl.Series("c", ["x", "new"])))


def test_faults_of_a_frame_are_told_by_row_without_advice_for_files(folder):
    model = coreg.load_model(folder / "m")
    with pytest.raises(BadData, match=r"^column 'a', row 1 \(counted from 0\): 'abc' is not a finite number\.$"):
        model.predict(pl.DataFrame({"a": ["1", "abc"], "c": ["x", "z"]}))
    with pytest.raises(BadData, match=r"^column 'a', rows 0, 2 \(counted from 0\): 'p' and similar cells"):
        model.predict(pl.DataFrame({"a": ["p", "1", "q"], "c": ["x", "z", "x"]}))
    with pytest.raises(BadData, match="no column 'c'"):
        model.predict(pl.DataFrame({"a": [1.0]}))
    with pytest.raises(BadData, match="DataFrame with named columns is needed, not a ndarray"):
        model.predict(np.zeros((2, 2)))
    with pytest.raises(BadData, match="no values for intervals"):
        model.interval(pl.DataFrame({"a": [1.0], "c": ["x"]}))
