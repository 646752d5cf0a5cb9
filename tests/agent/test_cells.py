"""Cells as files, databases and frames hold them, from public bug reports of other products: one reader for all of them."""

import json
import multiprocessing
import sqlite3
import subprocess
import sys
import warnings
from contextlib import closing
from datetime import date
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from agent_files import agent, fitted, prepared, site_table, write
from hypothesis import given
from hypothesis import strategies as st

import coreg_federation as coreg
from coreg_core.agreement.views import KernelExpansion
from coreg_core.errors import BadData
from coreg_core.kernels.functions import Gaussian
from site_agent.data.errors import BadTable
from site_agent.data.sources import Query
from site_agent.data.tables import read_table
from site_agent.models.file import ModelFile, load_model, save_model

ROWS = [(f"p{i}", i % 4, "NA" if i % 3 else "SE", -9 if i == 4 else i / 4, i if i < 30 else "") for i in range(40)]
WITHOUT = ["-9", "unknown"]  # "NA" is Namibia


def model_of(folder, **options):
    """A model of a category of numbers, a text with the level NA, and a number with the code -9."""
    rows = "\n".join(",".join(map(str, row)) for row in ROWS)
    options = {"categorical": ["grade"], "na_values": WITHOUT, **options}
    found = prepared(write(folder, f"id,grade,land,x,y\n{rows}\n"), **options)
    points = found.preprocessing.transform(found.table.labelled)[:12]
    function = KernelExpansion(Gaussian(2.0), points, np.linspace(-1, 1, 12))
    save_model(folder / "m", ModelFile(function, found.preprocessing, "y", 0.0, 1.0, "n", "r", "CONVERGED", 0.1, {}))
    return folder / "m"


# A category of whole numbers, a text and a number, each also missing.
CELL = st.tuples(
    st.one_of(st.none(), st.integers(0, 3)),
    st.one_of(st.none(), st.sampled_from(["NA", "SE", "unknown"])),
    st.one_of(st.none(), st.just(-9), st.integers(0, 9), st.floats(0, 9)),
)


def every_form(folder, rows):
    """The same rows as files, a query, and frames of both libraries."""
    grade, land, x = ([row[i] for row in rows] for i in range(3))
    csv = "\n".join(["grade,land,x", *(",".join("" if c is None else repr(c).strip("'") for c in row) for row in rows)])
    yield "csv", write(folder, csv + "\n", "n.csv")
    frame = pl.DataFrame(
        {"grade": grade, "land": land, "x": [None if v is None else float(v) for v in x]}, strict=False
    )
    frame = frame.cast({"grade": pl.Float64, "land": pl.String, "x": pl.Float64})
    frame.write_parquet(folder / "n.parquet")
    yield "parquet", folder / "n.parquet"
    (folder / "n.db").unlink(missing_ok=True)
    with closing(sqlite3.connect(folder / "n.db")) as connection, connection:
        connection.execute("CREATE TABLE n (grade, land, x)")
        connection.executemany("INSERT INTO n VALUES (?, ?, ?)", rows)
    yield "sqlite", Query(folder / "n.db")
    yield "polars", frame
    yield "polars, whole numbers", frame.cast({"grade": pl.Int16})
    floats = pd.DataFrame({"grade": pd.Series(grade, dtype=float), "land": pd.Series(land, dtype=object), "x": x})
    yield "pandas", floats
    yield "pandas, nullable", floats.astype({"grade": "Int64"})
    yield "pandas, objects", pd.DataFrame({"grade": grade, "land": land, "x": x}, dtype=object)
    yield "pandas, categories", floats.astype({"land": "category", "grade": "category"})


@given(st.lists(CELL, min_size=1, max_size=6))
def test_a_row_is_the_same_features_however_it_is_held(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("forms")
    known = load_model(model_of(folder)).preprocessing
    expected = None
    for form, source in every_form(folder, rows):
        X = known.transform(read_table(source, na_values=known.na_values))
        expected = X if expected is None else expected
        assert X.tobytes() == expected.tobytes(), form


@given(st.lists(CELL, min_size=1, max_size=6))
def test_the_library_predicts_as_the_command_does(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("library")
    path = model_of(folder)
    forms = dict(every_form(folder, rows))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        told = {
            form: coreg.load_model(path).predict(source)
            for form, source in forms.items()
            if form.startswith("p") and form != "parquet"
        }
    given_ = ("--model", path, "--data", folder / "n.csv", "--output", folder / "p.csv", "--json")
    assert agent("predict", *given_).exit_code == 0
    written = read_table(folder / "p.csv").numbers("prediction")
    for form, values in told.items():
        assert values.tobytes() == written.tobytes(), form


@given(st.lists(st.integers(0, 99).map(str), min_size=3, max_size=12, unique=True), st.sampled_from(["99", "NA", "7"]))
def test_a_code_for_missing_values_is_a_fine_id(tmp_path_factory, ids, code):
    ids = [*dict.fromkeys([*ids, code])]
    path = write(
        tmp_path_factory.mktemp("ids"),
        "id,x,y\n" + "".join(f"{text},{i},{'' if i else 1}\n" for i, text in enumerate(ids)),
    )
    found = prepared(path, na_values=[code])
    assert {*found.table.labelled_ids, *found.table.unlabelled_ids} == set(ids)


# --- texts that are no categories -------------------------------------------------------------------------------------

UNITS = {
    "unit": "{} kg",
    "percent": "{}%",
    "currency": "EUR {}",
    "pressure": "{}/80",
    "formula": '"=""{}"""',
    "time": "{}:30",
    "name": "person {}",
}


@pytest.mark.parametrize("form", UNITS)
@pytest.mark.parametrize("rows", [90, 400, 4000])
def test_a_column_of_texts_that_are_no_categories_is_a_fault_with_both_options(tmp_path, form, rows):
    cells = [UNITS[form].format(i % (rows // 3)) for i in range(rows)]
    lines = "".join(f"p{i},{cell},{i % 7},{i if i < rows // 2 else ''}\n" for i, cell in enumerate(cells))
    path = write(tmp_path, "id,c,x,y\n" + lines)
    with pytest.raises(BadTable) as error:
        prepared(path)
    [fault] = error.value.faults
    assert (fault.column, fault.kind) == ("c", "text")
    assert "--drop c" in fault.todo
    few = rows // 3 <= 200
    assert ("--categorical c" in fault.todo) == few
    if few:
        assert prepared(path, categorical=["c"]).preprocessing.columns[0].kind == "text"
    assert prepared(path, drop=["c"]).data.X.shape[1] == 1


@pytest.mark.parametrize(("rows", "levels"), [(6, 6), (20, 20), (60, 20), (400, 40), (3000, 200)])
def test_true_categories_and_tiny_tables_stay(tmp_path, rows, levels):
    lines = "".join(f"p{i},level {i % levels},{i if i < rows // 2 else ''}\n" for i in range(rows))
    assert len(fitted(tmp_path, "id,c,y\n" + lines)[0].columns[0].levels) == levels


# --- ids --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", ["1.10105E+17", "1,10105E+17", "1.1e17", "2E+15"])
def test_an_id_that_a_spreadsheet_rounded_is_a_doubt(tmp_path, cell):
    found = site_table(tmp_path, f"id;x;y\np1;1;1\n{cell};2;\n")
    assert any(f"{cell!r} in 'id' is a rounded number" in text and "as text" in text for text in found.doubts)
    assert site_table(tmp_path, "id,x,y\n1E05,1,1\n1.5,2,\n2E15,2,\n110105000000000001,2,\n").doubts == ()


@pytest.mark.parametrize("large", [1e15, 1.10105e17, 1e19])
def test_an_id_that_parquet_holds_as_a_large_float_is_a_doubt(tmp_path, large):
    pl.DataFrame({"id": [1.0, large, None], "x": [1, 2, 3], "y": [1.0, None, 2.0]}).write_parquet(
        tmp_path / "t.parquet"
    )
    assert any("is a rounded number" in text for text in read_table(tmp_path / "t.parquet").doubts(["x"], "id"))
    small = pl.DataFrame({"id": [1, 10**17], "x": [1e17, 2.0]})
    assert read_table(small).doubts(["x"], "id") == ()


# --- columns that are not used ------------------------------------------------------------------------------------------


def test_columns_that_a_model_does_not_use_cannot_break_it(tmp_path):
    path = model_of(tmp_path)
    model = coreg.load_model(path)
    plain = pd.DataFrame({"grade": [1, 2], "land": ["SE", "NA"], "x": [1.5, 2.0]})
    expected = model.predict(plain).tobytes()
    odd = plain.assign(lists=[[1], [2, 3]], when=pd.period_range("2024-01", periods=2), sets=[{1}, None])
    odd = pd.concat(
        [odd, plain[["x"]].rename(columns={"x": "twice"}), plain[["x"]].rename(columns={"x": "twice"})], axis=1
    )
    assert model.predict(odd).tobytes() == expected
    frame = pl.DataFrame({**plain.to_dict("list"), "l": [[1], [2]], "s": [{"a": 1}, {"a": 2}], "b": [b"x", b"y"]})
    assert model.predict(frame).tobytes() == expected
    frame.write_parquet(tmp_path / "n.parquet")
    write(tmp_path, "grade,land,x,twice,twice,\n1,SE,1.5,a,b,c\n2,NA,2.0,a,b,c\n", "n.csv")
    for name in ("n.parquet", "n.csv"):
        assert (
            agent("predict", "--model", path, "--data", tmp_path / name, "--output", tmp_path / "p.csv").exit_code == 0
        )
        assert read_table(tmp_path / "p.csv").numbers("prediction").tobytes() == expected
    for name, values in (("x", [[1], [2]]), ("land", [{1}, {2}])):
        with pytest.raises(BadData, match=f"column '{name}': holds"):
            model.predict(plain.assign(**{name: values}))
    with pytest.raises(BadData, match="'x' twice"):
        model.predict(pd.concat([plain, plain[["x"]]], axis=1))
    with pytest.raises(BadTable, match=r"column 3 has no name|'a' twice"):
        prepared(write(tmp_path, "id,a,a,y\n1,2,3,4\n2,3,4,\n", "twice.csv"))


def test_values_of_every_kind_are_the_texts_of_a_csv_file():
    values = [
        True,
        np.bool_(False),
        3,
        np.int64(-4),
        2.0,
        np.float32(0.5),
        1e300,
        Decimal("1.20"),
        date(2024, 2, 3),
        "x",
        None,
    ]
    expected = ["true", "false", "3", "-4", "2", "0.5", "1e+300", "1.20", "2024-02-03", "x", None]
    assert read_table(pd.DataFrame({"a": pd.Series(values, dtype=object)})).texts("a") == expected
    times = pd.DataFrame({"a": pd.to_datetime(["2024-02-03", None])})
    assert read_table(times).texts("a") == ["2024-02-03T00:00:00", None]


# --- processes ------------------------------------------------------------------------------------------------------


def _predicted(path):
    frame = pd.DataFrame({"grade": [1, 2], "land": ["SE", "SE"], "x": [1.5, 2.0]})
    return json.dumps(coreg.load_model(path).predict(frame).tolist())


def test_a_frame_is_read_without_threads_that_a_fork_would_lose(tmp_path):
    """predict, then multiprocessing by fork: a thread pool of polars that began before would make the child wait for ever."""
    path = model_of(tmp_path)
    script = (
        "import multiprocessing, sys, test_cells\n"
        "one = test_cells._predicted(sys.argv[1])\n"
        "pool = multiprocessing.get_context('fork').Pool(1)\n"
        "assert pool.apply_async(test_cells._predicted, (sys.argv[1],)).get(30) == one\n"
        "pool.terminate()\n"
    )
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("no fork here")
    subprocess.run([sys.executable, "-c", script, path], cwd=Path(__file__).parent, check=True, timeout=100)
