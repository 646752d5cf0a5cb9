"""What stands between columns and before decimals: found where the file tells, refused in words where it does not."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coreg_core.errors import BadData
from site_agent.data.errors import BadTable
from site_agent.data.prepare import Inputs, prepare
from site_agent.data.tables import read_table


def write(folder, text, name="t.csv"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def written(rows, separator, comma):
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=separator, lineterminator="\n")
    writer.writerows([[cell.replace(".", ",") if comma else cell for cell in row] for row in rows])
    return text.getvalue()


# Numbers as a spreadsheet writes them; one at least whose decimals show what they are.
NUMBER = st.one_of(
    st.integers(-9999, 9999).map(str), st.floats(-1e6, 1e6, allow_subnormal=False).map(lambda v: f"{v:.4f}")
)
ROWS = st.lists(st.tuples(NUMBER, NUMBER), min_size=1, max_size=8)


@given(ROWS, st.sampled_from([(";", True), (";", False), ("\t", True), ("\t", False)]))
def test_a_table_of_another_country_is_the_same_table(tmp_path_factory, rows, how):
    folder = tmp_path_factory.mktemp("dialect")
    rows = [("12.5", "0.25"), *rows]
    plain = [["id", "a", "y"], *([f"p{i}", a, y] for i, (a, y) in enumerate(rows)), ["q", "1.5", ""]]
    one = prepare(Inputs(write(folder, written(plain, ",", False)), "y", "id"))
    other = prepare(Inputs(write(folder, written(plain, *how), "other.csv"), "y", "id"))
    assert other.data.X.tobytes() == one.data.X.tobytes()
    assert other.data.y.tobytes() == one.data.y.tobytes()
    assert other.data.ids_digest == one.data.ids_digest
    assert one.notes == ()[: len(one.notes)] or "constant" in one.notes[0]
    marks = {";": "; between columns", "\t": "tabs between columns"}[how[0]] + (" and decimal commas" if how[1] else "")
    assert other.notes[0] == f"{folder / 'other.csv'}: read with {marks}"


def test_an_id_is_text_whatever_stands_before_decimals(tmp_path):
    table = read_table(write(tmp_path, "id;a\n1,5;2,5\n2,5;3,5\n"))
    assert table.ids("id") == ["1,5", "2,5"]
    assert table.numbers("a").tolist() == [2.5, 3.5]


READ = {
    "a semicolon in a name": ("id,a;b,y\n1,2,3\n", ",", ["id", "a;b", "y"]),
    "commas in quotes": ('id;"a, b";y\n1;2;3\n', ";", ["id", "a, b", "y"]),
    "commas in some cells": ("id;a, b;y\n1;2,5;3\n2;4;3\n", ";", ["id", "a, b", "y"]),
    "blank lines": ("id;a;y\n\n1;2;3\n \n", ";", ["id", "a", "y"]),
    "one column": ("id\n1\n", ",", ["id"]),
    "nothing fits": ("id,a;b,y\n1;2;3\n1,2\n", ",", None),
}


@pytest.mark.parametrize("why", READ)
def test_what_stands_between_columns(tmp_path, why):
    text, separator, names = READ[why]
    path = write(tmp_path, text)
    if names is None:
        with pytest.raises(BadData, match="the header has 3"):
            read_table(path)
        return
    table = read_table(path)
    assert (table.dialect.separator, table.columns) == (separator, names)


def test_a_file_that_may_be_read_with_two_separators_is_refused(tmp_path):
    path = write(tmp_path, "weight, kg;id\n1,5;p1\n2,5;p2\n")
    with pytest.raises(BadTable, match="may be read with commas or semicolons between columns") as error:
        read_table(path)
    assert "Quote the cells of the header" in str(error.value)


REFUSED = {
    "a slip, or a decimal comma": ('id,a\n1,"1,5"\n2,2\n', "'1,5' is not a finite number: commas stand between", 2),
    "a thousand, or one": ("id;a\n1;1,234\n2;5,678\n", "nothing in the table tells", 2),
    "both in one table": ("id;a;b\n1;1,5;2\n2;2,5;2.5\n", "decimal commas ('1,5' in column 'a') and decimal points", 2),
    "thousands with points": ("id;a;b\n1;1.234;0,5\n", "Decimals have commas in this table", 2),
    "thousands and decimals": ("id;b;a\n1;0,5;1.234,5\n2;0,5;3\n", "without anything between thousands", 2),
    "a unit": ("id,a\n1,70 kg\n2,3\n", "its unit into the column's name", 2),
    "a date": ("id,a\n1,3.4.2024\n2,3\n", "--dates a", 2),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_may_be_read_in_two_ways_is_refused_in_words(tmp_path, why):
    text, said, line = REFUSED[why]
    table = read_table(write(tmp_path, text))
    with pytest.raises(BadTable) as error:
        table.numbers("a")
    assert said in str(error.value)
    assert error.value.faults[0].lines[0] == line
    assert table.is_numeric("a"), "and it does not become text of its own accord"


def test_thousands_are_decimals_where_another_column_shows_it(tmp_path):
    table = read_table(write(tmp_path, "id;a;b\n1;1,234;0,5\n2;5,678;7\n"))
    assert table.numbers("a").tolist() == [1.234, 5.678]


def decimals(separator, mark, slips=()):
    """A table of 40 rows whose decimals have ``mark``, with some cells written over: (line, column, cell)."""
    rows = [
        ["id", "a", "b", "y"],
        *([f"p{i}", f"{i}.25", f"{50 - i}.5", f"{i}.75" if i < 20 else ""] for i in range(40)),
    ]
    rows = [[cell.replace(".", mark) for cell in row] for row in rows]
    for line, column, cell in slips:
        rows[line - 1][rows[0].index(column)] = cell
    return written(rows, separator, False)


SLIPS = [
    (";", ".", "1,5", "decimal comma", "Write it with a point"),
    ("\t", ".", "1,5", "decimal comma", "Write it with a point"),
    (",", ".", "1,5", "decimal comma", "a decimal comma, a thousand or a slip. Write it with a point"),
    (",", ".", "1,234", "decimal comma", "a decimal comma, a thousand or a slip. Write it with a point"),
    (";", ",", "1.5", "decimal point", "this table's decimals have commas ('0,25' in column 'a')"),
    (";", ",", "1.234", "thousands or decimals", "Decimals have commas in this table"),
]


@pytest.mark.parametrize(("separator", "mark", "cell", "kind", "said"), SLIPS)
@pytest.mark.parametrize("column", ["a", "y"])
def test_a_stray_mark_is_one_fault_in_its_own_cell(tmp_path, separator, mark, cell, kind, said, column):
    path = write(tmp_path, decimals(separator, mark, [(18, column, cell)]))
    with pytest.raises(BadTable) as error:
        prepare(Inputs(path, "y", "id"))
    [fault] = error.value.faults
    assert (fault.lines, fault.column, fault.kind) == ((18,), column, kind)
    assert f"t.csv, line 18, column {column!r}: {cell!r} is not a finite number" in str(error.value)
    assert said in str(error.value)


def test_stray_marks_are_told_in_the_order_of_the_file(tmp_path):
    path = write(tmp_path, decimals(";", ".", [(30, "a", "3,5"), (12, "b", "1,5"), (7, "y", "2,5"), (33, "b", "4,5")]))
    with pytest.raises(BadTable) as error:
        prepare(Inputs(path, "y", "id"))
    assert [(f.lines, f.column) for f in error.value.faults] == [((7,), "y"), ((12,), "b"), ((30,), "a"), ((33,), "b")]


def test_a_table_in_two_minds_is_not_decided(tmp_path):
    """20 commas beside 80 points are no slips: neither kind is taken for the other's mistake."""
    path = write(tmp_path, decimals(";", ".", [(line, "y", f"{line},75") for line in range(2, 22)]))
    with pytest.raises(
        BadTable, match=r"decimal commas \('2,75' in column 'y'\) and decimal points \('0.25' in column 'a'\)"
    ):
        prepare(Inputs(path, "y", "id"))
