"""Files to columns of text: what is read, what is refused, and that neither file order nor a guessed type matters."""

import csv
import hashlib
import io
import itertools
import unicodedata

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coreg_core.errors import BadData, UsageError
from site_agent.data.prepare import Inputs, prepare
from site_agent.data.preprocessing import Preprocessing
from site_agent.data.shared_set import ids_digest, load_site_tables
from site_agent.data.tables import read_table

GOOD = "id,a,c,y\np1,1,x,1.5\np2,2,z,2.5\np10,3,x,\np9,4,NA,\n"


def write(folder, text, name="t.csv"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_labelled_and_shared_rows(tmp_path):
    table = load_site_tables(write(tmp_path, GOOD), "y", "id")
    assert table.y.tolist() == [1.5, 2.5]
    assert table.features == ["a", "c"]
    assert table.unlabelled_ids == ("p10", "p9")  # sorted as text, by bytes
    assert table.unlabelled.frame["a"].to_list() == ["3", "4"]
    assert table.unlabelled.frame["c"].to_list() == ["x", None]
    assert table.unlabelled.lines.tolist() == [4, 5]


@given(st.permutations(range(2, 12)), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_file_order_never_matters(tmp_path_factory, order, newline, bom):
    folder = tmp_path_factory.mktemp("order")
    rows = ["p0,1.5,2", "p1,2.5,3", *(f"p{i},{i / 7!r}," for i in range(2, 12))]
    one = prepare(Inputs(write(folder, "id,a,y\n" + "\n".join(rows) + "\n"), "y", "id"))
    moved = newline.join(["id,a,y", *(rows[i] for i in order), *rows[:2], ""])
    other = prepare(Inputs(write(folder, ("\ufeff" if bom else "") + moved, "m.csv"), "y", "id"))
    assert one.data.ids_digest == other.data.ids_digest
    assert one.data.Z.tobytes() == other.data.Z.tobytes()
    assert one.data.X.tobytes() == other.data.X.tobytes()


def test_ids_stay_text(tmp_path):
    a = load_site_tables(write(tmp_path, "id,a,y\n1,1,1\n007,2,\n"), "y", "id")
    b = load_site_tables(write(tmp_path, "id,a,y\n1,1,1\n 7,2,\n"), "y", "id")
    assert a.unlabelled_ids == ("007",)
    assert b.unlabelled_ids == ("7",)
    assert ids_digest(a.unlabelled_ids) != ids_digest(b.unlabelled_ids)
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    tables = [load_site_tables(write(tmp_path, f"id,a,y\n1,1,1\n{x},2,\n"), "y", "id") for x in (composed, decomposed)]
    assert tables[0].unlabelled_ids == tables[1].unlabelled_ids
    assert ids_digest(["ab", "c"]) != ids_digest(["a", "bc"])


def test_a_named_unlabelled_file(tmp_path):
    shared = write(tmp_path, "extra,c,id,a\n0,x,q2,9\n0,z,q1,8\n", "s.csv")
    table = load_site_tables(write(tmp_path, GOOD), "y", "id", unlabelled=shared)
    assert table.unlabelled_ids == ("q1", "q2")
    assert table.unlabelled.frame["a"].to_list() == ["8", "9"]
    assert len(table.notes) == 2  # the rows left out, and the column that is not used


def test_parquet_and_csv_give_the_same_bits(tmp_path):
    rng = np.random.default_rng(0)
    frame = pl.DataFrame(
        {
            "id": [f"p{i}" for i in range(30)],
            "a": rng.normal(size=30),
            "n": rng.integers(0, 9, 30),
            "b": rng.normal(size=30) > 0,
            "c": [["x", "y", None][i % 3] for i in range(30)],
            "y": [float(i) if i < 10 else None for i in range(30)],
        }
    )
    frame.write_csv(tmp_path / "t.csv")
    frame.write_parquet(tmp_path / "t.parquet")
    one, other = (prepare(Inputs(tmp_path / f"t.{kind}", "y", "id")) for kind in ("csv", "parquet"))
    assert one.data.X.tobytes() == other.data.X.tobytes()
    assert one.data.Z.tobytes() == other.data.Z.tobytes()
    assert one.preprocessing.columns == other.preprocessing.columns


REFUSED = {
    "empty": (b"", "empty"),
    "no rows": (b"id,a,y\n", "no rows"),
    "a column twice": (b"id,a,a,y\n1,2,3,4\n", "'a' stands there twice"),
    "no name": (b"id,,y\n1,2,3\n", "column 2 has no name"),
    "ragged, short": (b"id,a,y\n1,2,3\n4,5\n", "line 3: 2 cells, the header has 3"),
    "ragged, long": (b"id,a,y\n1,2,3\n4,5,6,7\n", "line 3: 4 cells"),
    "not UTF-8": (b"id,a,y\n1,\xff,3\n", "line 2: not UTF-8"),
    "NUL": (b"id,a,y\n1,\0,3\n", "line 2: a NUL byte"),
    "no target column": (b"id,a,z\n1,2,3\n", "no column 'y'"),
    "no id column": (b"key,a,y\n1,2,3\n", "no column 'id'"),
    "no labelled row": (b"id,a,y\n1,2,\n", "labelled rows of its own"),
    "no shared row": (b"id,a,y\n1,2,3\n", "no shared unlabelled instances"),
    "a target that is no number": (b"id,a,y\n1,2,3\n4,5,six\n", "line 3, column 'y': 'six'"),
    "an infinite target": (b"id,a,y\n1,2,inf\n4,5,\n", "line 2, column 'y'"),
    "an id twice": (b"id,a,y\n1,2,3\nq,5,\nq,6,\n", "lines 3 and 4: the id 'q' stands twice"),
    "no id": (b"id,a,y\n1,2,3\n,5,\n", "line 3: a shared instance without an id"),
    "no feature": (b"id,y\n1,3\n2,\n", "no feature column"),
    "a line after a quoted newline": (b'id,a,y\n1,"x\ny",3\n2,5,six\n', "line 4, column 'y': 'six'"),
    "a line after a blank one": (b"\r\nid,a,y\r\n\r\n1,2,3\r\n2,5,six\r\n", "line 5, column 'y': 'six'"),
    "a quote never closed": (b'id,a,y\n1,2,3\n2,"5,4\n3,6,\n', "line 3: not a CSV row"),
    "a quote inside a cell": (b'id,a,y\n1,5" pipe,3\n3,6,\n', "not a CSV table"),
    "carriage returns alone": (b"id,a,y\r1,2,3\r3,6,\r", "not a CSV table"),
    "a cell without end": (b"id,a,y\n1," + b"x" * 200_000 + b",3\n", "line 2: not a CSV row"),
    "an id and its other spelling": ("id,a,y\n1,2,3\ncaf\u00e9,5,\ncafe\u0301 ,6,\n".encode(), "lines 3 and 4"),
    "a target beyond the numbers": (b"id,a,y\n1,2,1e400\n4,5,\n", "'1e400' is not a finite number"),
    "a target that is not a number": (b"id,a,y\n1,2,nan\n4,5,\n", "line 2, column 'y': 'nan'"),
    "a column that looks like it": (b"ID,a,y\n1,2,3\n", "Did you mean 'ID' for 'id'?"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_refused_by_file_line_and_column(tmp_path, why):
    data, said = REFUSED[why]
    path = write(tmp_path, data)
    with pytest.raises(BadData) as error:
        load_site_tables(path, "y", "id")
    assert said in str(error.value)
    assert "t.csv" in str(error.value)


def test_a_quoted_newline_is_one_cell(tmp_path):
    table = read_table(write(tmp_path, 'id,a,y\n1,"x\ny, z",3\n'))
    assert table.frame["a"].to_list() == ["x\ny, z"]


# What a spreadsheet may put into a cell: separators, quotes, newlines, spaces around, other scripts.
CELLS = st.text(st.sampled_from(list('ab0.,"\n \u00e9\u4e2d')), max_size=6)


@given(
    st.integers(2, 4).flatmap(lambda width: st.lists(st.lists(CELLS, min_size=width, max_size=width), min_size=1)),
    st.sampled_from(["\n", "\r\n"]),
    st.data(),
)
def test_what_a_csv_writer_writes_is_read_with_the_line_of_every_row(tmp_path_factory, rows, newline, data):
    folder = tmp_path_factory.mktemp("csv")
    text, lines = io.StringIO(newline=""), []
    writer = csv.writer(text, lineterminator=newline)
    writer.writerow([f"c{i}" for i in range(len(rows[0]))])
    for row in rows:
        text.write(data.draw(st.sampled_from(["", newline, newline * 2])))  # blank lines are no rows
        lines.append(text.getvalue().count("\n") + 1)
        writer.writerow(row)
    text.write(data.draw(st.sampled_from(["", newline, newline * 3])))
    table = read_table(write(folder, text.getvalue()))
    expected = [tuple(None if cell.strip() in ("", "NA") else cell.strip() for cell in row) for row in rows]
    assert table.frame.rows() == expected
    assert table.lines.tolist() == lines


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_in_one_column_a_blank_line_is_a_missing_cell_but_not_at_the_end(tmp_path, newline):
    table = read_table(write(tmp_path, newline.join(["a", "1", "", "3", "", ""])))
    assert table.frame["a"].to_list() == ["1", None, "3"]
    assert table.lines.tolist() == [2, 3, 4]


def test_the_digest_is_of_lengths_and_bytes():
    # Written out by hand: every site has to arrive at this number, whatever its version.
    data = b"\x02\0\0\0\0\0\0\0p1" + b"\x03\0\0\0\0\0\0\0\xc3\xa9z"
    assert ids_digest(["p1", "\u00e9z"]) == hashlib.sha256(data).hexdigest()
    lists = [["ab"], ["a", "b"], ["b", "a"], ["", "ab"], ["ab", ""], []]
    assert len({ids_digest(ids) for ids in lists}) == len(lists)


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1), min_size=1, max_size=8))
def test_ids_are_sorted_by_their_bytes_and_digested_alike_in_any_order(tmp_path_factory, texts):
    folder = tmp_path_factory.mktemp("ids")
    normal = {unicodedata.normalize("NFC", t).strip() for t in texts} - {"", "NA"}
    ids = sorted((t for t in normal if "\0" not in t), key=lambda t: t.encode())
    if not ids:
        return
    found = []
    for order in itertools.islice(itertools.permutations(ids), 3):
        frame = pl.DataFrame({"id": ["l", *order], "a": ["1"] * (len(ids) + 1), "y": ["1", *[None] * len(ids)]})
        frame.write_parquet(folder / "t.parquet")
        found.append(load_site_tables(folder / "t.parquet", "y", "id").unlabelled_ids)
    assert found == [tuple(ids)] * len(found)


def test_the_shared_file_must_hold_the_features_and_only_them(tmp_path):
    shared = write(tmp_path, "id,a,C\nq1,8,x\n", "s.csv")
    with pytest.raises(BadData, match=r"s\.csv: no column 'c'.*Did you mean 'C' for 'c'\?.*'id', 'a', 'C'"):
        load_site_tables(write(tmp_path, GOOD), "y", "id", unlabelled=shared)
    table = load_site_tables(write(tmp_path, GOOD), "y", "id", unlabelled=shared, drop=["c"])
    assert table.features == ["a"]
    assert table.unlabelled.columns == ["a"]
    for name, said in (("y", "target and as id"), ("zz", "no column 'zz'")):
        with pytest.raises(BadData, match=said):
            load_site_tables(write(tmp_path, GOOD), "y", name)


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
    table = read_table(tmp_path / "t[1].parquet")
    assert table.frame.to_dict(as_series=False) == {
        "f": ["0.30000000000000004", None, "5e-324"],
        "g": [repr(float(single)), None, "2.5"],
        "i": ["4611686018427387905", "-1", None],
        "b": ["true", "false", None],
        "t": ["x", None, None],
    }
    pl.DataFrame({"ok": [1], "l": [[1, 2]]}).write_parquet(tmp_path / "n.parquet")
    with pytest.raises(BadData, match=r"n\.parquet, column 'l': holds List"):
        read_table(tmp_path / "n.parquet")


def test_whole_numbers_that_parquet_keeps_as_floats_are_the_ids_of_a_csv_file(tmp_path):
    """A writer makes floats of an integer column with a hole in it."""
    frame = pl.DataFrame({"id": [1.0, 20.0, None, -3.0], "f": pl.Series([1.0, 2.5, 1e16, -0.0], dtype=pl.Float32)})
    frame.write_parquet(tmp_path / "t.parquet")
    table = read_table(tmp_path / "t.parquet")
    assert table.ids("id") == ["1", "20", "", "-3"]
    assert table.frame["f"].to_list() == ["1", "2.5", repr(float(np.float32(1e16))), "-0"]
    assert table.numbers("f").tobytes() == frame["f"].cast(pl.Float64).to_numpy().tobytes()


@pytest.mark.parametrize("name", ["none.csv", "none.parquet"])
def test_a_file_that_is_not_there(tmp_path, name):
    with pytest.raises(BadData, match=f"{name}: no such file"):
        read_table(tmp_path / name)


@pytest.mark.parametrize("name", ["t.xlsx", "t"])
def test_another_kind_of_file(tmp_path, name):
    with pytest.raises(BadData, match=r"neither \.csv nor \.parquet"):
        read_table(write(tmp_path, GOOD, name))


def test_a_parquet_file_that_is_none(tmp_path):
    with pytest.raises(BadData, match="cannot be read as a table"):
        read_table(write(tmp_path, "hello", "t.parquet"))


def fitted(tmp_path, text, **options):
    table = load_site_tables(write(tmp_path, text), "y", "id", drop=options.pop("drop", ()))
    return Preprocessing.fit(table, **options), table


def test_one_typo_does_not_turn_a_column_into_one_hot(tmp_path):
    text = "id,a,y\n1,1.5,1\n2,l.5,2\n3,3,\n"
    with pytest.raises(BadData, match=r"line 3, column 'a': 'l\.5' is not a finite number"):
        fitted(tmp_path, text)
    preprocessing, _ = fitted(tmp_path, text, categorical=["a"])
    assert preprocessing.columns[0].levels == ("1.5", "3", "l.5")
    with pytest.raises(UsageError, match="no such feature"):
        fitted(tmp_path, text, categorical=["b"])


def test_as_scikit_learn_encodes(tmp_path):
    from sklearn.impute import MissingIndicator, SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    text = "id,a,c,y\n1,1.5,x,1\n2,NA,z,2\n3,4,x,3\n4,0.25,w,\n5,,z,\n"
    preprocessing, table = fitted(tmp_path, text)
    a, c = np.array([[1.5], [np.nan], [4.0]]), np.array([["x"], ["z"], ["x"]])
    shared_a, shared_c = np.array([[0.25], [np.nan]]), np.array([["w"], ["z"]])
    numbers = make_pipeline(SimpleImputer(), StandardScaler()).fit(a)  # the labelled rows alone
    indicator = make_pipeline(MissingIndicator(), StandardScaler()).fit(a)
    levels = OneHotEncoder(sparse_output=False).fit(np.concatenate([c, shared_c]))
    for rows, (x, t) in ((table.labelled, (a, c)), (table.unlabelled, (shared_a, shared_c))):
        expected = np.column_stack([numbers.transform(x), indicator.transform(x), levels.transform(t)])
        # The same operations on the same numbers; the order of a subtraction and a division may differ by an ulp.
        np.testing.assert_allclose(preprocessing.transform(rows), expected, rtol=1e-14, atol=1e-14)
    assert preprocessing.feature_names == ["a", "a is missing", "c=w", "c=x", "c=z"]


def test_booleans_levels_and_their_limit(tmp_path):
    preprocessing, table = fitted(tmp_path, "id,b,y\n1,Yes,1\n2,no,2\n3,yes,\n", scale=False)
    assert preprocessing.columns[0].kind == "boolean"
    assert preprocessing.transform(table.labelled)[:, 0].tolist() == [1.0, 0.0]
    many = "id,c,y\n" + "".join(f"{i},level {i},{i if i < 9 else ''}\n" for i in range(201))
    with pytest.raises(BadData, match="column 'c': 201 different texts; at most 200"):
        fitted(tmp_path, many)
    assert fitted(tmp_path, many.replace("level 200", "level 199"))[0].columns[0].kind == "text"


def test_empty_columns_and_constant_ones(tmp_path):
    with pytest.raises(BadData, match="--drop a"):
        fitted(tmp_path, "id,a,b,y\n1,,1,1\n2,NA,2,\n")
    with pytest.raises(BadData, match="no labelled row has a value"):
        fitted(tmp_path, "id,a,b,y\n1,,1,1\n2,5,2,\n")
    preprocessing, table = fitted(tmp_path, "id,a,b,y\n1,7,1,1\n2,7,2,2\n3,7,1,\n")
    assert preprocessing.transform(table.labelled)[:, 0].tolist() == [0.0, 0.0]
    assert "a" in preprocessing.notes[0]


def test_what_training_never_saw(tmp_path):
    preprocessing, _ = fitted(tmp_path, "id,a,c,y\n1,1,x,1\n2,3,z,2\n3,2,x,\n")
    new = read_table(write(tmp_path, "c,a\nunseen,NA\n", "new.csv"))
    assert preprocessing.transform(new).tolist() == [[0.0, 0.0, 0.0]]  # the mean, and no level
    with pytest.raises(BadData, match="no column 'c'"):
        preprocessing.transform(read_table(write(tmp_path, "a\n1\n", "less.csv")))
