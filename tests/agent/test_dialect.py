"""What stands between columns and before decimals: found where the file shows it, refused in words where it does not."""

import csv
import io

import pytest
from agent_files import prepared, table, write
from hypothesis import given
from hypothesis import strategies as st

from coreg_core.errors import BadData
from site_agent.data.errors import BadTable


def as_csv(rows, separator, mark="."):
    text = io.StringIO(newline="")
    rows = [[cell.replace(".", mark) for cell in row] for row in rows]
    csv.writer(text, delimiter=separator, lineterminator="\n").writerows(rows)
    return text.getvalue()


# Numbers as a spreadsheet writes them; one at least whose decimals show what they are.
NUMBER = st.one_of(
    st.integers(-9999, 9999).map(str), st.floats(-1e6, 1e6, allow_subnormal=False).map(lambda v: f"{v:.4f}")
)


@given(st.lists(st.tuples(NUMBER, NUMBER), min_size=1, max_size=8), st.sampled_from(";\t"), st.sampled_from([".", ","]))
def test_a_table_of_another_country_is_the_same_table(tmp_path_factory, rows, separator, mark):
    folder = tmp_path_factory.mktemp("dialect")
    rows = [("12.5", "0.25"), *rows]
    plain = [["id", "a", "y"], *([f"p{i}", a, y] for i, (a, y) in enumerate(rows)), ["q", "1.5", ""]]
    one = prepared(write(folder, as_csv(plain, ","))).data
    other = prepared(write(folder, as_csv(plain, separator, mark), "other.csv"))
    assert (other.data.X.tobytes(), other.data.y.tobytes()) == (one.X.tobytes(), one.y.tobytes())
    assert other.data.ids_digest == one.ids_digest
    marks = {";": "; between columns", "\t": "tabs between columns"}[separator] + " and decimal commas" * (mark == ",")
    assert other.notes[0] == f"{folder / 'other.csv'}: read with {marks}"


@pytest.mark.parametrize(
    ("text", "separator", "names"),
    [
        pytest.param("id,a;b,y\n1,2,3\n", ",", ["id", "a;b", "y"], id="a semicolon in a name"),
        pytest.param('id;"a, b";y\n1;2;3\n', ";", ["id", "a, b", "y"], id="commas in quotes"),
        pytest.param("id;a, b;y\n1;2,5;3\n2;4;3\n", ";", ["id", "a, b", "y"], id="commas in some cells"),
        pytest.param("id;a;y\n\n1;2;3\n \n", ";", ["id", "a", "y"], id="blank lines"),
        pytest.param("id\n1\n", ",", ["id"], id="one column"),
    ],
)
def test_the_separator_is_found(tmp_path, text, separator, names):
    found = table(tmp_path, text)
    assert (found.dialect.separator, found.columns) == (separator, names)


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("id,a;b,y\n1;2;3\n1,2\n", BadData, ["the header has 3"]),
        (
            "weight, kg;id\n1,5;p1\n2,5;p2\n",
            BadTable,
            ["can be read with commas or semicolons between columns", "Quote the names in the header"],
        ),
    ],
)
def test_a_file_that_no_separator_or_two_fit_is_refused(tmp_path, text, kind, words):
    with pytest.raises(kind) as error:
        table(tmp_path, text)
    assert [word for word in words if word not in str(error.value)] == []


REFUSED = {
    "a slip, or a decimal comma": ('id,a\n1,"1,5"\n2,2\n', "'1,5' is not a finite number: commas separate"),
    "a thousand, or one": ("id;a\n1;1,234\n2;5,678\n", "no cell of the table shows"),
    "both in one table": ("id;a;b\n1;1,5;2\n2;2,5;2.5\n", "decimal commas ('1,5' in column 'a') and decimal points"),
    "thousands with points": ("id;a;b\n1;1.234;0,5\n", "Write this column with decimal commas"),
    "thousands and decimals": ("id;b;a\n1;0,5;1.234,5\n2;0,5;3\n", "without a mark for thousands"),
    "a unit": ("id,a\n1,70 kg\n2,3\n", "the unit into the column's name"),
    "a date": ("id,a\n1,3.4.2024\n2,3\n", "--dates a"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_number_that_can_be_read_in_two_ways_is_refused_in_words(tmp_path, why):
    text, words = REFUSED[why]
    found = table(tmp_path, text)
    with pytest.raises(BadTable) as error:
        found.numbers("a")
    assert words in str(error.value)
    assert error.value.faults[0].lines[0] == 2
    assert found.is_numeric("a"), "and it does not become text of its own accord"


def faults_of(folder, separator, mark, slips):
    """What is found in a table of 40 rows whose decimals have ``mark``, some cells replaced: (line, column, cell)."""
    rows = [["id", "a", "b", "y"]]
    rows += [[f"p{i}", f"{i}.25", f"{50 - i}.5", f"{i}.75" if i < 20 else ""] for i in range(40)]
    rows = [[cell.replace(".", mark) for cell in row] for row in rows]
    for line, column, cell in slips:
        rows[line - 1][rows[0].index(column)] = cell
    with pytest.raises(BadTable) as error:
        prepared(write(folder, as_csv(rows, separator)))
    return error.value


@pytest.mark.parametrize(
    ("separator", "mark", "cell", "kind", "words"),
    [
        (";", ".", "1,5", "decimal comma", "Write it with a point"),
        ("\t", ".", "1,5", "decimal comma", "Write it with a point"),
        (",", ".", "1,5", "decimal comma", "a decimal comma, a thousand or a mistake. Write it with a point"),
        (",", ".", "1,234", "decimal comma", "a decimal comma, a thousand or a mistake. Write it with a point"),
        (";", ",", "1.5", "decimal point", "this table's decimals have commas ('0,25' in column 'a')"),
        (";", ",", "1.234", "thousands or decimals", "Write this column with decimal commas"),
    ],
)
@pytest.mark.parametrize("column", ["a", "y"])
def test_a_stray_mark_is_one_fault_in_its_own_cell(tmp_path, separator, mark, cell, kind, words, column):
    error = faults_of(tmp_path, separator, mark, [(18, column, cell)])
    [fault] = error.faults
    assert (fault.lines, fault.column, fault.kind) == ((18,), column, kind)
    assert f"t.csv, line 18, column {column!r}: {cell!r} is not a finite number" in str(error)
    assert words in str(error)
