"""Files become columns of text: what is read, what is refused, and that neither file order nor a guessed type matters."""

import csv
import hashlib
import io
import json

import numpy as np
import polars as pl
import pytest
from agent_files import inputs, prepared, site_table, table, write
from hypothesis import given
from hypothesis import strategies as st

from coreg_core.errors import BadData
from site_agent.data.preprocessing import Preprocessing
from site_agent.data.shared_set import ids_digest, load_site_tables
from site_agent.data.sources import NA_VALUES
from site_agent.data.tables import read_table

GOOD = "id,a,c,y\np1,1,x,1.5\np2,2,z,2.5\np10,3,x,\np9,4,NA,\n"


def test_rows_without_a_target_are_shared_and_sorted_by_id(tmp_path):
    found = site_table(tmp_path, GOOD)
    assert (found.y.tolist(), found.features) == ([1.5, 2.5], ["a", "c"])
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
    other = prepared(write(folder, ("\ufeff" if bom else "") + moved, "m.csv")).data
    assert one.ids_digest == other.ids_digest
    assert (one.Z.tobytes(), one.X.tobytes()) == (other.Z.tobytes(), other.X.tobytes())


def test_ids_stay_text(tmp_path):
    a, b = (site_table(tmp_path, f"id,a,y\n1,1,1\n{x},2,\n").unlabelled_ids for x in ("007", " 7"))
    assert (a, b) == (("007",), ("7",))
    assert ids_digest(a) != ids_digest(b)
    composed, decomposed = (site_table(tmp_path, f"id,a,y\n1,1,1\n{x},2,\n") for x in ("caf\u00e9", "cafe\u0301"))
    assert composed.unlabelled_ids == decomposed.unlabelled_ids


REFUSED = {
    "empty": (b"", "empty"),
    "ragged, short": (b"id,a,y\n1,2,3\n4,5\n", "line 3: 2 cells, the header has 3"),
    "ragged, long": (b"id,a,y\n1,2,3\n4,5,6,7\n", "line 3: 4 cells"),
    "not UTF-8": (b"id,a,y\n1,\xff,3\n", "line 2: not UTF-8"),
    "no target column": (b"id,a,z\n1,2,3\n", "no column 'y'"),
    "no id column": (b"key,a,y\n1,2,3\n", "no column 'id'"),
    "no labelled row": (b"id,a,y\n1,2,\n", "labelled rows of its own"),
    "no shared row": (b"id,a,y\n1,2,3\n", "no shared unlabelled instances"),
    "a target that is no number": (b"id,a,y\n1,2,3\n4,5,six\n", "line 3, column 'y': 'six'"),
    "an id twice": (b"id,a,y\n1,2,3\nq,5,\nq,6,\n", "lines 3 and 4: the id 'q' occurs twice"),
    "no id": (b"id,a,y\n1,2,3\n,5,\n", "line 3: a shared instance without an id"),
    "a line after a quoted newline": (b'id,a,y\n1,"x\ny",3\n2,5,six\n', "line 4, column 'y': 'six'"),
    "a quote never closed": (b'id,a,y\n1,2,3\n2,"5,4\n3,6,\n', "line 3: not a CSV row"),
    "a quote inside a cell": (b'id,a,y\n1,5" pipe,3\n3,6,\n', "not a CSV table"),
    "an id and its other spelling": ("id,a,y\n1,2,3\ncaf\u00e9,5,\ncafe\u0301 ,6,\n".encode(), "lines 3 and 4"),
    "a column that looks like it": (b"ID,a,y\n1,2,3\n", "Did you mean 'ID' for 'id'?"),
}


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


# What a spreadsheet may put into a cell: separators, quotes, newlines, spaces around, other scripts.
CELLS = st.text(st.sampled_from(list('ab0.,"\n \u00e9\u4e2d')), max_size=6)


@given(
    st.integers(2, 4).flatmap(lambda width: st.lists(st.lists(CELLS, min_size=width, max_size=width), min_size=1)),
    st.sampled_from(["\n", "\r\n"]),
    st.data(),
)
def test_what_a_csv_writer_writes_is_read_with_the_line_of_every_row(tmp_path_factory, rows, newline, data):
    text, lines = io.StringIO(newline=""), []
    writer = csv.writer(text, lineterminator=newline)
    writer.writerow([f"c{i}" for i in range(len(rows[0]))])
    for row in rows:
        text.write(data.draw(st.sampled_from(["", newline, newline * 2])))  # blank lines are no rows
        lines.append(text.getvalue().count("\n") + 1)
        writer.writerow(row)
    text.write(data.draw(st.sampled_from(["", newline, newline * 3])))
    found = table(tmp_path_factory.mktemp("csv"), text.getvalue())
    assert list(zip(*map(found.texts, found.columns), strict=True)) == [
        tuple(None if c.strip() in ("", *NA_VALUES) else c.strip() for c in row) for row in rows
    ]
    assert found.lines.tolist() == lines


def test_cells_that_mean_a_missing_value_are_a_list_of_the_operator(tmp_path):
    text = "id,a,c,y\n1,-999,x,1\n2, n/a ,NA,2\n5,6,x,2\n3,4,z,NULL\n4,5,z,\n"
    plain = table(tmp_path, text)
    assert (plain.texts("a"), plain.texts("c")) == (["-999", None, "6", "4", "5"], ["x", None, "x", "z", "z"])
    own = prepared(tmp_path / "new.csv", na_values=["-999", "n/a", "NULL"])
    assert [column.indicator for column in own.preprocessing.columns] == [True, False]
    assert own.preprocessing.columns[1].levels == ("NA", "x", "z"), "the list replaces the default"
    assert own.table.unlabelled_ids == ("3", "4")
    again = Preprocessing.from_json(json.loads(json.dumps(own.preprocessing.to_json())))
    assert again.na_values == ("-999", "n/a", "NULL")


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
    with pytest.raises(BadData, match=r"s\.csv: no column 'c'.*Did you mean 'C' for 'c'\?.*'id', 'a', 'C'"):
        site_table(tmp_path, GOOD, unlabelled=shared)
    found = site_table(tmp_path, GOOD, unlabelled=shared, drop=["c"])
    assert found.features == found.unlabelled.columns == ["a"]
    for name, words in (("y", "the target and the id"), ("zz", "no column 'zz'")):
        with pytest.raises(BadData, match=words):
            load_site_tables(inputs(tmp_path / "t.csv", id=name))


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
        "g": [repr(float(single)), None, "2.5"],
        "i": ["4611686018427387905", "-1", None],
        "b": ["true", "false", None],
        "t": ["x", None, None],
    }
    pl.DataFrame({"ok": [1], "l": [[1, 2]]}).write_parquet(tmp_path / "n.parquet")
    with pytest.raises(BadData, match=r"n\.parquet, column 'l': holds List"):
        prepared(tmp_path / "n.parquet", target="ok")


def test_whole_numbers_that_parquet_keeps_as_floats_are_the_ids_of_a_csv_file(tmp_path):
    """A writer makes floats of an integer column with a hole in it."""
    frame = pl.DataFrame({"id": [1.0, 20.0, None, -3.0], "f": pl.Series([1.0, 2.5, 1e16, -0.0], dtype=pl.Float32)})
    frame.write_parquet(tmp_path / "t.parquet")
    found = read_table(tmp_path / "t.parquet")
    assert found.ids("id") == ["1", "20", "", "-3"]
    assert found.texts("f") == ["1", "2.5", repr(float(np.float32(1e16))), "0"]
    assert found.numbers("f").tobytes() == frame["f"].cast(pl.Float64).to_numpy().tobytes()


def test_a_table_without_labels_is_used_if_the_operator_says_that_there_are_none(tmp_path):
    unlabelled = "id,p,y\nz1,1,\nz2,2,\n"
    path = write(tmp_path, unlabelled)
    with pytest.raises(BadData, match="--no-labels"):
        prepared(path)
    without = prepared(path, labels=False).data
    assert (without.X.shape, without.Z.shape) == ((0, 1), (2, 1))
    bare = prepared(write(tmp_path, "id,p\nz1,1\nz2,2\n", "bare.csv"), labels=False).data
    assert bare.ids_digest == without.ids_digest
    with pytest.raises(BadData, match="although --no-labels is given"):
        prepared(write(tmp_path, unlabelled + "x,3,3\n"), labels=False)


@pytest.mark.parametrize(("second", "positions"), [("z03", [2, 0]), ("other", [2, -1])])
def test_labelled_rows_are_found_among_the_shared_ones_by_id(tmp_path, second, positions):
    shared = write(tmp_path, "id,p\nz03,1\nz05,2\nz07,3\n", "shared.csv")
    own = prepared(write(tmp_path, f"id,p,y\nz07,1,3\n{second},4,6\n"), unlabelled=shared).data
    assert own.positions.tolist() == positions
