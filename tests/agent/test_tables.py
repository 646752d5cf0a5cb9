"""Files, databases and frames become columns of text: what is read, what is refused, all faults at
once.
"""

import csv
import hashlib
import io
import json
import multiprocessing
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import date
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from agent_files import agent, fitted, inputs, prepared, site_table, table, tables_of, write
from hypothesis import example, given
from hypothesis import strategies as st

import coreg_federation as coreg
from coreg_core.agreement.views import KernelExpansion
from coreg_core.errors import BadData
from coreg_core.kernels import Gaussian
from site_agent.data.aligned_ids import read_ids
from site_agent.data.ids import ids_digest
from site_agent.data.inputs import Inputs
from site_agent.data.notation import HEAD, Notation
from site_agent.data.open_columns import named
from site_agent.data.prepare import prepare
from site_agent.data.preprocessing import Preprocessing
from site_agent.data.site_tables import WAITING
from site_agent.data.sources import NA_VALUES, BadTable, DatabaseQuery
from site_agent.data.tables import read_table
from site_agent.models.file import ModelFile, load_model, save_model

GOOD = "id,a,c,y\np1,1,x,1.5\np2,2,z,2.5\np10,3,x,\np9,4,NA,\n"


def test_rows_without_a_target_are_shared_and_sorted_by_id(tmp_path):
    found = site_table(tmp_path, GOOD)
    assert found.y.tolist() == [1.5, 2.5]
    assert found.labelled.columns == ["a", "c"]
    assert found.unlabelled_ids == ("p10", "p9")  # sorted as text, by bytes
    assert found.unlabelled.texts("a") == ["3", "4"]
    assert found.unlabelled.texts("c") == ["x", None]
    assert found.unlabelled.lines.tolist() == [4, 5]


@given(st.permutations(range(2, 12)), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_file_order_never_matters(tmp_path_factory, order, newline, bom):
    folder = tmp_path_factory.mktemp("order")
    rows = ["p0,1.5,2", "p1,2.5,3", *(f"p{i},{i / 7!r}," for i in range(2, 12))]
    one = prepared(write(folder, "id,a,y\n" + "\n".join(rows) + "\n")).data
    moved = newline.join(["id,a,y", *(rows[i] for i in order), *rows[:2], ""])
    if bom:
        moved = f"\ufeff{moved}"
    other = prepared(write(folder, moved, "m.csv")).data
    assert one.ids_digest == other.ids_digest
    assert one.Z.tobytes() == other.Z.tobytes()
    assert one.X.tobytes() == other.X.tobytes()


def test_ids_stay_text(tmp_path):
    a, b = (site_table(tmp_path, f"id,a,y\n1,1,1\n{x},2,\n").unlabelled_ids for x in ("007", " 7"))
    assert a == ("007",)
    assert b == ("7",)
    assert ids_digest(a) != ids_digest(b)
    composed, decomposed = (
        site_table(tmp_path, f"id,a,y\n1,1,1\n{x},2,\n") for x in ("caf\u00e9", "cafe\u0301")
    )
    assert composed.unlabelled_ids == decomposed.unlabelled_ids


REFUSED = {
    "empty": (b"", "empty"),
    "ragged, short": (b"id,a,y\n1,2,3\n4,5\n", "line 3: 2 cells, the header has 3"),
    "not UTF-8": (b"id,a,y\n1,\xff,3\n", "line 2: not UTF-8"),
    "no target column": (b"id,a,z\n1,2,3\n", "no column 'y'"),
    "no id column": (b"key,a,y\n1,2,3\n", "no column 'id'"),
    "no labelled row": (b"id,a,y\n1,2,\n", "labelled rows of its own"),
    "no shared row": (b"id,a,y\n1,2,3\n", "no shared unlabelled instances"),
    "a target that is no number": (b"id,a,y\n1,2,3\n4,5,six\n", "line 3, column 'y': 'six'"),
    "a target with a currency": (
        "id,a,y\n1,2,€28.31\n2,2,EUR 3\n3,2,€4\n4,2,\n".encode(),
        "lines 2, 3 and 4, column 'y': '€28.31' and similar cells are not finite numbers. Write the"
        " number only, and the unit into the column's name.",
    ),
    "an id twice": (b"id,a,y\n1,2,3\nq,5,\nq,6,\n", "lines 3 and 4: the id 'q' occurs 2 times"),
    "an id twice, and what to do": (
        b"id,a,y\n1,2,3\nq,5,\nq,6,\n",
        "by a rule such as the latest visit. If each row is an individual of its own, add a column"
        " to the id: --id id+NAME.",
    ),
    "many ids twice": (
        b"id,a,y\n1,2,3\n" + 2 * b"p,5,\nq,5,\nr,5,\ns,5,\nt,5,\nu,5,\n",
        "6 ids occur more than once",
    ),
    "no id": (b"id,a,y\n1,2,3\n,5,\n", "line 3: no id in 'id'"),
    "a line after a quoted newline": (
        b'id,a,y\n1,"x\ny",3\n2,5,six\n',
        "line 4, column 'y': 'six'",
    ),
    "a quote never closed": (b'id,a,y\n1,2,3\n2,"5,4\n3,6,\n', "line 3: not a CSV row"),
    "a quote inside a cell": (b'id,a,y\n1,5" pipe,3\n3,6,\n', "not a CSV table"),
    "two quotes inside cells": (b'id,a,y\n5" pipe,5" pipe,3\n3,6,\n', "not a CSV table"),
    "a space before a quote": (b'id,a,y\n1, "x",3\n3,6,\n', "not a CSV table"),
    "an id and its other spelling": (
        "id,a,y\n1,2,3\ncaf\u00e9,5,\ncafe\u0301 ,6,\n".encode(),
        "lines 3 and 4",
    ),
    "a column that looks like it": (b"ID,a,y\n1,2,3\n", "Did you mean 'ID' for 'id'?"),
}


def test_ids_that_an_alignment_takes_for_the_same_are_refused_with_its_rule(tmp_path):
    table = write(tmp_path, "id,a,y\nP 01,2,3\np 1,5,\np  01,6,\n")
    for rule, times in (("folded", "2 times (compared without case"), ("numbers", "3 times")):
        with pytest.raises(BadTable) as error:
            read_ids(inputs(table), rule)
        assert times in str(error.value)
    assert len(read_ids(inputs(table), "exact")) == 3


@pytest.mark.parametrize("why", REFUSED)
def test_a_faulty_file_is_refused_by_line_and_column(tmp_path, why):
    data, words = REFUSED[why]
    with pytest.raises(BadData) as error:
        site_table(tmp_path, data)
    assert words in str(error.value)
    assert "t.csv" in str(error.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [("none.csv", "none.csv: no such file"), ("none.parquet", "none.parquet: no such file")]
    + [(f"good{ending}", r"neither \.csv nor \.parquet") for ending in (".xlsx", "")]
    + [("good.parquet", "cannot be read as a table")],
)
def test_a_file_that_is_missing_or_of_another_kind_is_refused(tmp_path, name, words):
    if name.startswith("good"):
        write(tmp_path, GOOD, name)
    with pytest.raises(BadData, match=words):
        read_table(tmp_path / name)


# What a spreadsheet may put into a cell: separators, quotes, newlines, spaces around, other
# scripts.
CELLS = st.text(st.sampled_from(list('ab0.,"\n \u00e9\u4e2d')), max_size=6)


@given(
    st.integers(2, 4).flatmap(
        lambda width: st.lists(st.lists(CELLS, min_size=width, max_size=width), min_size=1)
    ),
    st.sampled_from(["\n", "\r\n"]),
    st.data(),
)
def test_what_a_csv_writer_writes_is_read_with_the_line_of_every_row(
    tmp_path_factory, rows, newline, data
):
    text = io.StringIO(newline="")
    lines = []
    writer = csv.writer(text, lineterminator=newline)
    writer.writerow([f"c{i}" for i in range(len(rows[0]))])
    for row in rows:
        text.write(
            data.draw(st.sampled_from(["", newline, newline * 2]))
        )  # blank lines are no rows
        lines.append(text.getvalue().count("\n") + 1)
        writer.writerow(row)
    text.write(data.draw(st.sampled_from(["", newline, newline * 3])))
    found = table(tmp_path_factory.mktemp("csv"), text.getvalue())
    assert list(zip(*map(found.shown, found.columns), strict=True)) == [
        tuple(None if c.strip() in ("", *NA_VALUES) else c.strip() for c in row) for row in rows
    ]
    assert found.lines.tolist() == lines


def test_cells_that_mean_a_missing_value_are_a_list_of_the_operator(tmp_path):
    text = "id,a,c,y\n1,-999,x,1\n2, n/a ,NA,2\n5,6,x,2\n3,4,z,NULL\n4,5,z,\n"
    plain = table(tmp_path, text)
    assert plain.texts("a") == ["-999", None, "6", "4", "5"]
    assert plain.texts("c") == ["x", None, "x", "z", "z"]
    own = prepared(tmp_path / "new.csv", na_values=["-999", "n/a", "NULL"])
    assert [column.indicator for column in own.preprocessing.columns] == [True, False]
    assert own.preprocessing.columns[1].levels == ("NA", "x", "z"), "the list replaces the default"
    assert own.table.unlabelled_ids == ("3", "4")
    again = Preprocessing.from_json(json.loads(json.dumps(own.preprocessing.to_json())))
    assert again.na_values == ("-999", "n/a", "NULL")


def test_a_number_that_means_a_missing_value_is_missing_in_each_notation(tmp_path):
    path = write(tmp_path, "id,a,c\n1,-99.0,-99\n2,-99.00,x\n3,-9.9e1,-99.0\n4,-98,099\n5,2,99\n")
    found = read_table(path, na_values=["-99", "99"])
    assert found.missing("a").tolist() == [True, True, True, False, False]
    assert found.texts("c") == [None, "x", None, "099", None]


def test_the_digest_is_of_lengths_and_bytes():
    # Written out by hand: every site has to arrive at this number, whatever its version.
    data = b"\x02\0\0\0\0\0\0\0p1" + b"\x03\0\0\0\0\0\0\0\xc3\xa9z"
    assert ids_digest(["p1", "\u00e9z"]) == hashlib.sha256(data).hexdigest()
    lists = [["ab"], ["a", "b"], ["b", "a"], ["", "ab"], ["ab", ""], [], ["ab", "c"], ["a", "bc"]]
    assert len({ids_digest(ids) for ids in lists}) == len(lists)


def test_a_file_of_shared_rows_has_the_features_and_replaces_the_rows_without_a_target(tmp_path):
    shared = write(tmp_path, "extra,c,id,a\n0,x,q2,9\n0,z,q1,8\n", "s.csv")
    found = site_table(tmp_path, GOOD, unlabelled=shared)
    assert found.unlabelled_ids == ("q1", "q2")
    assert found.unlabelled.texts("a") == ["8", "9"]
    assert len(found.notes) == 2  # the rows left out, and the column that is not used
    write(tmp_path, "id,a,C\nq1,8,x\n", "s.csv")
    with pytest.raises(
        BadData, match=r"s\.csv: no column 'c'.*Did you mean 'C' for 'c'\?.*'id', 'a', 'C'"
    ):
        site_table(tmp_path, GOOD, unlabelled=shared)
    found = site_table(tmp_path, GOOD, unlabelled=shared, drop=["c"])
    assert found.labelled.columns == found.unlabelled.columns == ["a"]
    for name, words in (("y", "the target and the id"), ("zz", "no column 'zz'")):
        with pytest.raises(BadData, match=words):
            tables_of(inputs(tmp_path / "t.csv", id=name))


def test_parquet_columns_become_text_without_loss(tmp_path):
    single = np.float32(0.1)
    frame = pl.DataFrame(
        {
            "f": [0.1 + 0.2, float("nan"), 5e-324],
            "g": pl.Series([single, None, 2.5], dtype=pl.Float32),
            "i": [2**62 + 1, -1, None],
            "b": [True, False, None],
            "t": [" x ", "NA", ""],
        }
    )
    frame.write_parquet(tmp_path / "t[1].parquet")  # a name, not a pattern
    found = read_table(tmp_path / "t[1].parquet")
    assert {name: found.texts(name) for name in found.columns} == {
        "f": ["0.30000000000000004", None, "5e-324"],
        "g": ["0.1", None, "2.5"],
        "i": ["4611686018427387905", "-1", None],
        "b": ["true", "false", None],
        "t": ["x", None, None],
    }
    # A writer makes floats of an integer column with a hole in it.
    frame = pl.DataFrame(
        {"id": [1.0, 20.0, None, -3.0], "f": pl.Series([1.0, 2.5, 1e16, -0.0], dtype=pl.Float32)}
    )
    frame.write_parquet(tmp_path / "t.parquet")
    found = read_table(tmp_path / "t.parquet")
    assert found.ids("id") == ["1", "20", "", "-3"]
    assert found.texts("f") == ["1", "2.5", "1e+16", "0"]
    pl.DataFrame({"ok": [1], "l": [[1, 2]]}).write_parquet(tmp_path / "n.parquet")
    with pytest.raises(BadData, match=r"n\.parquet, column 'l': holds List"):
        prepared(tmp_path / "n.parquet", target="ok")


def test_a_database_in_wal_mode_in_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    """SQLite would make the file of its shared memory beside the database."""
    database = tmp_path / "clinic.db"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE t AS SELECT 1 AS id, 2 AS a, 3 AS y")
        connection.commit()
    query = DatabaseQuery(database, "SELECT * FROM t")
    assert read_table(query).columns == ["id", "a", "y"]

    def refused(*_arguments, **_options):
        raise sqlite3.OperationalError("unable to open database file")

    monkeypatch.setattr("site_agent.data.databases.sqlite3.connect", refused)
    with pytest.raises(BadTable, match=r"in WAL mode .* Copy it with its -wal file"):
        read_table(query)


def test_a_table_without_labels_is_used_if_the_operator_says_that_there_are_none(tmp_path):
    unlabelled = "id,p,y\nz1,1,\nz2,2,\n"
    path = write(tmp_path, unlabelled)
    with pytest.raises(BadData, match="--no-labels"):
        prepared(path)
    without = prepared(path, labels=False).data
    assert without.X.shape == (0, 1)
    assert without.Z.shape == (2, 1)
    bare = prepared(write(tmp_path, "id,p\nz1,1\nz2,2\n", "bare.csv"), labels=False).data
    assert bare.ids_digest == without.ids_digest
    with pytest.raises(
        BadData, match="If it is the target of the study, give --target y; else leave it out"
    ):
        prepared(path, target=None, labels=False)
    with pytest.raises(BadData, match="although --no-labels is given"):
        prepared(write(tmp_path, unlabelled + "x,3,3\n"), labels=False)


@pytest.mark.parametrize(("second", "positions"), [("z03", [2, 0]), ("other", [2, -1])])
def test_labelled_rows_are_found_among_the_shared_ones_by_id(tmp_path, second, positions):
    shared = write(tmp_path, "id,p\nz03,1\nz05,2\nz07,3\n", "shared.csv")
    own = prepared(write(tmp_path, f"id,p,y\nz07,1,3\n{second},4,6\n"), unlabelled=shared).data
    assert own.positions.tolist() == positions


# --- all faults at once ---------------------------------------------------------------------------


MESSY = """id,age,weight,ward,yes,y
p1,34,70.5,A,true,1.5
p2,,81.25,B,no,2.5
p3,fourty,66,A,yes,six
p4,12,66,C
p5,44,70 kg,A,no,
p5,45,70,A,no,
,unknown,70,A,no,
"""
FOUND = [  # line, column, kind, in the order of the file
    (4, "y", "text"),
    (4, "age", "text"),
    (5, None, "ragged"),
    (6, "weight", "number with a unit"),
    (6, "id", "duplicate"),
    (8, "id", "missing"),
]


@pytest.fixture
def messy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write(tmp_path, MESSY, "messy.csv")


def faults(path, *columns, **options):
    with pytest.raises(BadTable) as error:
        prepared(path, *columns, **options)
    return error.value


def test_all_faults_are_listed_at_once_and_once_they_are_mended_the_table_is_used(messy):
    error = faults(messy)
    fields = [fault.fields() for fault in error.faults]
    assert [(f["row"], f["column"], f["kind"]) for f in fields] == FOUND
    assert str(error).startswith("6 faults in the table:\n  ")
    assert all(fault.text in str(error) for fault in error.faults)
    text = MESSY
    for wrong, right, left in (
        (",70 kg,", ",70,", 5),
        ("fourty", "40", 5),
        ("unknown", "NA", 4),
        ("p5,45", "p6,45", 3),
        ("\n,NA", "\np7,NA", 2),
        ("six", "6", 1),
    ):
        text = text.replace(wrong, right)
        messy.write_text(text)
        assert len(faults(messy).faults) == left, "nothing new comes to light"
    messy.write_text(text.replace("p4,12,66,C\n", "p4,12,66,C,no,\n"))
    assert prepared(messy).data.X.shape[0] == 3


def test_check_prints_fields_without_a_cell(messy):
    found = agent("check", "--data", "messy.csv", "--target", "y", "--id", "id", "--json")
    assert found.exit_code == 6
    *wrong, identity = [
        line for line in map(json.loads, found.stdout.splitlines()) if line["ok"] is False
    ]
    assert len(wrong) == 6
    assert identity["check"] == "identity"
    for line in wrong:
        assert line["check"] == "table"
        assert line["file"] == "messy.csv"
        fields = json.dumps({key: value for key, value in line.items() if key != "text"})
        assert not any(cell in fields for cell in ("fourty", "six", "70 kg", "unknown", "p5"))


# --- columns that a site leaves open --------------------------------------------------------------

# the header; what the site says; the study's target and id; the target and the id that are taken
RULES = {
    "the usual names": ("id,x,y", {}, ("", ""), ("y", "id")),
    "one column that ends in _id": ("patient_id,x,y", {}, ("", ""), ("y", "patient_id")),
    "id before one that ends in _id": ("ward_id,id,y", {}, ("", ""), ("y", "id")),
    "the study before the usual names": ("id,nhs,y,z", {}, ("z", "nhs"), ("z", "nhs")),
    "the site before the study": (
        "id,nhs,y,z,w",
        {"target": "w", "id": "id"},
        ("z", "nhs"),
        ("w", "id"),
    ),
    "one of the two from the site": ("a_id,b_id,y", {"id": "a_id"}, ("", ""), ("y", "a_id")),
    "no target without labels": ("id,x", {"labels": False}, ("", ""), (None, "id")),
}
OPEN = {
    "two usual targets": (
        "id,y,label",
        "which is the column to predict? The columns: 'id', 'y', 'label'",
        "--target",
    ),
    "no usual target": ("id,x,z", "which is the column to predict?", "--target"),
    "two that end in _id": ("a_id,b_id,y", "which is the id column?", "--id"),
    "no id": ("x,y", "which is the id column?", "--id"),
}


def left_open(folder, header, **options):
    cells = ["1"] * header.count(",")
    row = ",".join([*cells, "2"])
    return Inputs(table=write(folder, f"{header}\n{row}\n"), **options)


@pytest.mark.parametrize("rule", RULES)
def test_the_columns_that_a_site_leaves_open(tmp_path, rule):
    header, said, study, taken = RULES[rule]
    found = named(left_open(tmp_path, header, **said), *study)
    assert (found.target, found.id) == taken


@pytest.mark.parametrize("case", OPEN)
def test_a_column_that_is_not_meant_beyond_doubt_is_a_fault_with_its_option(tmp_path, case):
    header, question, option = OPEN[case]
    with pytest.raises(BadTable) as error:
        named(left_open(tmp_path, header))
    [fault] = error.value.faults
    assert question in fault.text
    assert f"Name it with {option}." in fault.text


def test_both_questions_are_asked_at_once_and_a_scoring_needs_no_target(tmp_path):
    with pytest.raises(BadTable) as error:
        named(left_open(tmp_path, "a,b,c"))
    assert len(error.value.faults) == 2
    found = named(left_open(tmp_path, "id,x"), trains=False)
    assert found.target is None
    assert found.id == "id"
    said = Inputs(table=tmp_path / "none.csv", target="y", id="id")
    assert named(said) is said, "the table is not read"


# --- cells as other products hold them, from their public bug reports -----------------------------


def person(i):
    grade = i % 4
    land = "SE"
    x = i / 4
    y = ""
    if i % 3:
        land = "NA"
    if i == 4:
        x = -9
    if i < 30:
        y = i
    return f"p{i}", grade, land, x, y


PEOPLE = [person(i) for i in range(40)]
WITHOUT = ["-9", "unknown"]  # "NA" is Namibia


def model_of(folder, **options):
    """A model of a category of numbers, a text with the level NA, and a number with the code -9."""
    rows = "\n".join(",".join(map(str, row)) for row in PEOPLE)
    options = {"categorical": ["grade"], "na_values": WITHOUT, **options}
    found = prepared(write(folder, f"id,grade,land,x,y\n{rows}\n"), **options)
    points = found.preprocessing.transform(found.table.labelled)[:12]
    function = KernelExpansion(Gaussian(2.0), points, np.linspace(-1, 1, 12))
    save_model(
        folder / "m",
        ModelFile(function, found.preprocessing, "y", 0.0, 1.0, "n", "r", "CONVERGED", 0.1, {}),
    )
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
    csv = "\n".join(
        [
            "grade,land,x",
            *(",".join("" if c is None else repr(c).strip("'") for c in row) for row in rows),
        ]
    )
    yield "csv", write(folder, csv + "\n", "n.csv")
    numbers = [None if v is None else float(v) for v in x]
    frame = pl.DataFrame({"grade": grade, "land": land, "x": numbers}, strict=False)
    frame = frame.cast({"grade": pl.Float64, "land": pl.String, "x": pl.Float64})
    frame.write_parquet(folder / "n.parquet")
    yield "parquet", folder / "n.parquet"
    (folder / "n.db").unlink(missing_ok=True)
    with closing(sqlite3.connect(folder / "n.db")) as connection, connection:
        connection.execute("CREATE TABLE n (grade, land, x)")
        connection.executemany("INSERT INTO n VALUES (?, ?, ?)", rows)
    yield "sqlite", DatabaseQuery(folder / "n.db", "SELECT * FROM n")
    yield "polars", frame
    yield "polars, whole numbers", frame.cast({"grade": pl.Int16})
    floats = pd.DataFrame(
        {"grade": pd.Series(grade, dtype=float), "land": pd.Series(land, dtype=object), "x": x}
    )
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
        if expected is None:
            expected = X
        assert X.tobytes() == expected.tobytes(), form


@given(
    st.lists(st.integers(0, 99).map(str), min_size=3, max_size=12, unique=True),
    st.sampled_from(["99", "NA", "7"]),
)
def test_a_code_for_missing_values_is_a_fine_id(tmp_path_factory, ids, code):
    ids = [*dict.fromkeys([*ids, code])]
    rows = [f"{text},{i},{'' if i else 1}\n" for i, text in enumerate(ids)]
    path = write(tmp_path_factory.mktemp("ids"), "id,x,y\n" + "".join(rows))
    found = prepared(path, na_values=[code])
    assert {*found.table.labelled_ids, *found.table.unlabelled_ids} == set(ids)


# --- texts that are no categories -----------------------------------------------------------------

UNITS = {
    "unit": "{} kg",
    "percent": "{}%",
    "pressure": "{}/80",
    "formula": '"=""{}"""',
    "time": "{}:30",
}


@pytest.mark.parametrize("form", UNITS)
@pytest.mark.parametrize("rows", [90, 4000])
def test_a_column_of_texts_that_are_no_categories_is_a_fault_with_both_options(
    tmp_path, form, rows
):
    cells = [UNITS[form].format(i % (rows // 3)) for i in range(rows)]
    lines = "".join(
        f"p{i},{cell},{i % 7},{i if i < rows // 2 else ''}\n" for i, cell in enumerate(cells)
    )
    path = write(tmp_path, "id,c,x,y\n" + lines)
    with pytest.raises(BadTable) as error:
        prepared(path)
    [fault] = error.value.faults
    assert fault.column == "c"
    assert fault.kind == "text"
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


# --- ids ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", ["1.10105E+17", "1,10105E+17", "1.1e17", "2E+15"])
def test_an_id_that_a_spreadsheet_rounded_is_a_doubt(tmp_path, cell):
    found = site_table(tmp_path, f"id;x;y\np1;1;1\n{cell};2;\n")
    assert any(
        f"{cell!r} in 'id' is a rounded number" in text and "as text" in text
        for text in found.doubts
    )
    assert (
        site_table(tmp_path, "id,x,y\n1E05,1,1\n1.5,2,\n2E15,2,\n110105000000000001,2,\n").doubts
        == ()
    )


@pytest.mark.parametrize("large", [1e15, 1.10105e17, 1e19])
def test_an_id_that_parquet_holds_as_a_large_float_is_a_doubt(tmp_path, large):
    frame = pl.DataFrame({"id": [1.0, large, None], "x": [1, 2, 3], "y": [1.0, None, 2.0]})
    frame.write_parquet(tmp_path / "t.parquet")
    assert any(
        "is a rounded number" in text for text in read_table(tmp_path / "t.parquet").doubts("id")
    )
    small = pl.DataFrame({"id": [1, 10**17], "x": [1e17, 2.0]})
    assert read_table(small).doubts("id") == ()


# --- columns that are not used --------------------------------------------------------------------


def test_columns_that_a_model_does_not_use_cannot_break_it(tmp_path):
    path = model_of(tmp_path)
    model = coreg.load_model(path)
    plain = pd.DataFrame({"grade": [1, 2], "land": ["SE", "NA"], "x": [1.5, 2.0]})
    expected = model.predict(plain).tobytes()
    odd = plain.assign(
        lists=[[1], [2, 3]], when=pd.period_range("2024-01", periods=2), sets=[{1}, None]
    )
    twice = plain[["x"]].rename(columns={"x": "twice"})
    odd = pd.concat([odd, twice, twice], axis=1)
    assert model.predict(odd).tobytes() == expected
    frame = pl.DataFrame(
        {**plain.to_dict("list"), "l": [[1], [2]], "s": [{"a": 1}, {"a": 2}], "b": [b"x", b"y"]}
    )
    assert model.predict(frame).tobytes() == expected
    frame.write_parquet(tmp_path / "n.parquet")
    write(tmp_path, "grade,land,x,twice,twice,\n1,SE,1.5,a,b,c\n2,NA,2.0,a,b,c\n", "n.csv")
    for name in ("n.parquet", "n.csv"):
        done = agent(
            "predict", "--model", path, "--data", tmp_path / name, "--output", tmp_path / "p.csv"
        )
        assert done.exit_code == 0
        assert read_table(tmp_path / "p.csv").numbers("prediction").tobytes() == expected
    for name, values in (("x", [[1], [2]]), ("land", [{1}, {2}])):
        with pytest.raises(BadData, match=f"column '{name}': holds"):
            model.predict(plain.assign(**{name: values}))
    with pytest.raises(BadData, match="'x' twice"):
        model.predict(pd.concat([plain, plain[["x"]]], axis=1))
    with pytest.raises(BadTable, match=r"column 3 has no name|'a' twice"):
        prepared(write(tmp_path, "id,a,a,y\n1,2,3,4\n2,3,4,\n", "twice.csv"))


def test_values_of_every_kind_are_the_texts_of_a_csv_file():
    numbers = [3, np.int64(-4), 2.0, np.float32(0.5), 1e300, Decimal("1.20")]
    values = [True, np.bool_(False), *numbers, date(2024, 2, 3), "x", None]
    expected = ["true", "false", "3", "-4", "2", "0.5", "1e+300", "1.2", "2024-02-03", "x", None]
    assert read_table(pd.DataFrame({"a": pd.Series(values, dtype=object)})).texts("a") == expected
    with pytest.raises(BadData, match="DataFrame with named columns is needed, not a ndarray"):
        read_table(np.zeros((2, 2)))
    with pytest.raises(
        BadTable, match=r"^the frame, row 1 \(from 0\), column 'a': 'x' .*\(na_values\).*: cat"
    ) as error:
        read_table(pd.DataFrame({"a": ["1", "x"]})).numbers("a")
    assert "-" not in str(error.value), "no option of a command"
    twice = pd.DataFrame({"id": ["p", "p", "q"], "x": [1.0, 2.0, 3.0], "y": [1.0, 2.0, None]})
    assert tables_of(inputs(twice)).doubts[0].startswith("the frame: more than one labelled row")
    times = pd.DataFrame({"a": pd.to_datetime(["2024-02-03", None])})
    assert read_table(times).texts("a") == ["2024-02-03", None]


MANY_CELLS = ["", " 4", '"a b"', "1", "-2.5", "3,5", "1.234", "1,234"]
MANY_CELLS += ["x", "NA", "1.234,5", "007", "1e5", "inf", "nan", '"6"']


@given(
    rows=st.lists(
        st.lists(st.sampled_from(MANY_CELLS), min_size=3, max_size=3), min_size=1, max_size=8
    ),
    separator=st.sampled_from(",;\t"),
    decimal=st.sampled_from([None, ".", ","]),
    late=st.booleans(),
)
@example(
    rows=[["", "", ""], ["", "", ""], ["", "", "3,5"]], separator=";", decimal=None, late=False
)
@example(rows=[["1.5", "2.5", "7"]], separator=",", decimal=",", late=False)
def test_a_blank_line_changes_no_cell(tmp_path_factory, rows, separator, decimal, late):
    """polars reads a file without blank lines, and the standard library's reader one with them."""
    quoted = [[f'"{cell}"' if separator in cell else cell for cell in row] for row in rows]
    first = [["1", "2", "3"]] * (HEAD if late else 0)
    body = "\n".join(separator.join(row) for row in [*first, *quoted])
    folder = tmp_path_factory.mktemp("lines")

    def read(blank):
        path = write(folder, separator.join("abc") + blank + body + "\n")
        try:
            found = read_table(path, notation=Notation(separator, decimal))
        except BadTable as error:
            return str(error)
        columns = [
            [found.is_numeric(c), *found.texts(c), *map(repr, found.cells(c).numbers.tolist())]
            for c in "abc"
        ]
        return found.notes, columns

    assert read("\n") == read("\n\n")


@pytest.mark.parametrize("at", [0, 1500, 2999])
@pytest.mark.parametrize("row", ["BAD,1893,95,4,5.5", "BAD,1893,95,4,", "BAD,1893,95"])
def test_a_row_with_another_number_of_cells_is_found_wherever_it_is(tmp_path, at, row):
    """polars sees no cell beyond the last column that it is asked for."""
    rows = [f"r{i},{i}.5,{i},{i}.25" for i in range(3000)]
    rows[at] = row
    with pytest.raises(
        BadTable, match=f"line {at + 2}: {row.count(',') + 1} cells, the header has 4"
    ):
        read_table(write(tmp_path, "\n".join(["id,x,y,z", *rows])))


# --- processes ------------------------------------------------------------------------------------


def _predicted(path):
    frame = pd.DataFrame({"grade": [1, 2], "land": ["SE", "SE"], "x": [1.5, 2.0]})
    return json.dumps(coreg.load_model(path).predict(frame).tolist())


def test_a_frame_is_read_without_threads_that_a_fork_would_lose(tmp_path):
    """predict, then multiprocessing by fork: a thread pool of polars that began before would make
    the child wait for ever.
    """
    path = model_of(tmp_path)
    script = (
        "import multiprocessing, sys, test_tables\n"
        "one = test_tables._predicted(sys.argv[1])\n"
        "pool = multiprocessing.get_context('fork').Pool(1)\n"
        "assert pool.apply_async(test_tables._predicted, (sys.argv[1],)).get(30) == one\n"
        "pool.terminate()\n"
    )
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("no fork here")
    subprocess.run(
        [sys.executable, "-c", script, path], cwd=Path(__file__).parent, check=True, timeout=100
    )


@pytest.mark.parametrize("study", ["outcome", ""])
def test_the_empty_target_of_a_site_without_labels_is_no_feature(tmp_path, study):
    """The study names it, or it has a usual name; a column with values stays a feature."""
    name = study or "y"
    path = write(tmp_path, f"id,p,{name},label\nz1,1,,4\nz2,2,,5\n")
    given = Inputs(table=path, labels=False)
    chosen = named(given, study)
    assert chosen.id == "id"
    assert chosen.target == name
    assert prepare(chosen).preprocessing.sources == ["p", "label"]


def test_a_target_with_values_at_a_site_without_labels_is_a_fault_and_no_feature(tmp_path):
    """Its labels left the site as a feature, and the partners' reports had an AUC of 1."""
    path = write(tmp_path, "id,p,paid\nz1,1,1\nz2,2,0\n")
    given = Inputs(table=path, labels=False)
    with pytest.raises(BadTable, match=r"(?s)2 rows have a value in 'paid'.*--drop paid"):
        prepare(named(given, "paid"))
    dropped = prepare(named(given.model_copy(update={"drop": ("paid",)}), "paid"))
    assert dropped.preprocessing.sources == ["p"]
    assert dropped.table.doubts == ()
    usual = write(tmp_path, "id,p,y\nz1,1,3\nz2,2,4\n")
    [doubt] = prepare(named(Inputs(table=usual, labels=False))).table.doubts
    assert "'y' is a feature here" in doubt


THREE = "id,a,y\np1,1,yes\np2,2,no\np3,3,maybe\np4,4,\n"


def test_a_study_can_mend_texts_as_a_target_and_no_wrong_class(tmp_path):
    with pytest.raises(BadTable) as texts:
        site_table(tmp_path, THREE)
    with pytest.raises(BadTable) as wrong:
        site_table(tmp_path, THREE, positive="yes")
    assert {fault.kind for fault in texts.value.faults} <= WAITING
    assert not {fault.kind for fault in wrong.value.faults} <= WAITING
    path = write(tmp_path, THREE)
    check = ("check", "--data", path, "--id", "id", "--target", "y")
    assert agent(*check, "--positive", "yes").exit_code != 0
