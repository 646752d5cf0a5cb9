"""Separators, decimal marks and dates: given as options, found where the cells show them, refused
in words where they do not.
"""

import csv
import io
from datetime import date, timedelta
from operator import methodcaller

import numpy as np
import pytest
from agent_files import fitted, inputs, prepared, table, write
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from coreg_core.errors import BadData, UsageError
from site_agent.data.dates import day_of
from site_agent.data.inputs import Inputs
from site_agent.data.notation import Notation
from site_agent.data.sources import BadTable
from site_agent.data.tables import read_table


def as_csv(rows, separator, mark="."):
    text = io.StringIO(newline="")
    rows = [[cell.replace(".", mark) for cell in row] for row in rows]
    csv.writer(text, delimiter=separator, lineterminator="\n").writerows(rows)
    return text.getvalue()


# Numbers as a spreadsheet writes them; one at least whose decimals show what they are.
NUMBER = st.one_of(
    st.integers(-9999, 9999).map(str),
    st.floats(-1e6, 1e6, allow_subnormal=False).map(lambda v: f"{v:.4f}"),
)
WORDS = {";": "semicolons", "\t": "tabs"}


@given(
    st.lists(st.tuples(NUMBER, NUMBER), min_size=1, max_size=8),
    st.sampled_from(";\t"),
    st.sampled_from([".", ","]),
)
def test_a_table_of_another_country_is_the_same_table(tmp_path_factory, rows, separator, mark):
    folder = tmp_path_factory.mktemp("dialect")
    rows = [("12.5", "0.25"), *rows]
    plain = [
        ["id", "a", "y"],
        *([f"p{i}", a, y] for i, (a, y) in enumerate(rows)),
        ["q", "1.5", ""],
    ]
    one = prepared(write(folder, as_csv(plain, ","))).data
    path = write(folder, as_csv(plain, separator, mark), "other.csv")
    other = prepared(path)
    assert other.data.X.tobytes() == one.X.tobytes()
    assert other.data.y.tobytes() == one.y.tobytes()
    assert other.data.ids_digest == one.ids_digest
    assert other.notes[0] == f"{path}: columns separated by {WORDS[separator]}"
    found = [note for note in other.notes if "decimal commas" in note]
    assert bool(found) == (mark == ",")
    if found:
        assert (
            f"{path}: numbers with decimal commas, such as '12,5' in 'a' and '0,25' in 'y'"
            == found[0]
        )
    told = prepared(path, separator=separator, decimal=mark)
    assert told.data.X.tobytes() == one.X.tobytes()
    assert not any("commas" in note or "separated" in note for note in told.notes), (
        "no note on what was given"
    )


@pytest.mark.parametrize(
    ("text", "names"),
    [
        pytest.param("id,a;b,y\n1,2,3\n", ["id", "a;b", "y"], id="a semicolon in a name"),
        pytest.param('id;"a, b";y\n1;2;3\n', ["id", "a, b", "y"], id="commas in quotes"),
        pytest.param("id;a, b;y\n1;2,5;3\n2;4;3\n", ["id", "a, b", "y"], id="commas in some cells"),
        pytest.param("id;a;y\n\n1;2;3\n \n", ["id", "a", "y"], id="blank lines"),
        pytest.param("id\n1\n", ["id"], id="one column"),
        pytest.param("id|a|y\n1|2,5|3\n2||\n", ["id", "a", "y"], id="vertical bars"),
        pytest.param('id|a|y\n1|"2|5"|3\n', ["id", "a", "y"], id="a bar in quotes"),
    ],
)
def test_the_separator_is_found(tmp_path, text, names):
    assert table(tmp_path, text).columns == names


def test_a_file_that_no_separator_or_two_fit_is_refused_unless_it_is_given(tmp_path):
    with pytest.raises(BadData, match="the header has 3"):
        table(tmp_path, "id,a;b,y\n1;2;3\n1,2\n")
    both = write(tmp_path, "weight, kg;id\n1,5;p1\n2,5;p2\n")
    with pytest.raises(
        BadTable, match=r"with commas or semicolons between columns.* --separator ,"
    ):
        read_table(both)
    assert read_table(both, notation=Notation(";")).numbers("weight, kg").tolist() == [1.5, 2.5]
    assert read_table(both, notation=Notation(",")).columns == ["weight", "kg;id"]
    with pytest.raises(ValueError, match="separator"):
        inputs(both, separator="#")
    bars = write(tmp_path, "id|a, b|y\n1|2,5|3\n")
    assert read_table(bars, notation=Notation(inputs(bars, separator="|").separator)).columns == [
        "id",
        "a, b",
        "y",
    ]
    assert inputs(both, separator="tab").separator == "\t"


REFUSED = {  # the text, the words, and the first line of the fault
    "a slip, or a decimal comma": (
        'id,a\n1,"1,5"\n2,2\n',
        "commas separate this table's columns too",
        2,
    ),
    "decimal commas beside commas": (
        "\n".join(["id,a", *['1,"1,5"'] * 5, ""]),
        "can be a decimal comma, a thousand or a",
        None,
    ),
    "a thousand, or one": ("id;a\n1;1,234\n2;5,678\n", "separate decimals or thousands", None),
    "both in one table": (
        "id;a;b\n1;1,5;2\n2;2,5;2.5\n",
        "decimal commas ('1,5' in 'a') and decimal points",
        None,
    ),
    "points alone": ("id;a\n1;80.157\n2;643\n", "--decimal ,; or a point", None),
    "points beside commas": (
        "id;a;b\n1;1.234;0,5\n",
        "this table's decimals have commas ('0,5' in 'b')",
        2,
    ),
    "a unit": ("id,a\n1,70 kg\n2,3\n", "the unit into the column's name", 2),
    "a date": ("id,a\n1,3.4.2024\n2,3\n", "--dates a=%d.%m.%Y", 2),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_number_that_can_be_read_in_two_ways_is_refused_in_words(tmp_path, why):
    text, words, line = REFUSED[why]
    found = table(tmp_path, text)
    with pytest.raises(BadTable) as error:
        found.numbers("a")
    assert words in str(error.value)
    lines = ()
    if line is not None:
        lines = (line,)
    assert error.value.faults[0].lines == lines
    assert found.is_numeric("a"), "and it does not become text of its own accord"


def test_an_open_decimal_mark_is_one_fault_of_the_whole_table(tmp_path):
    with pytest.raises(BadTable, match="separate decimals or thousands") as error:
        prepared(
            write(tmp_path, "id;a;b;y\n1;1.234;2.345;3.456\n2;1.234;2.345;4.567\n3;1.234;2.345;\n")
        )
    assert [fault.kind for fault in error.value.faults] == ["decimal mark"]


@pytest.mark.parametrize("cell", ["1.234,5", "1,234.5", "1.234.567", "1 234"])
@pytest.mark.parametrize("decimal", [None, ".", ","])
def test_a_mark_between_thousands_is_refused_in_any_notation(tmp_path, cell, decimal):
    path = write(tmp_path, f"id;a\n1;{cell}\n2;7\n")
    with pytest.raises(BadTable, match=r"line 2, column 'a'.* without a mark for thousands") as one:
        read_table(path, notation=Notation(";", decimal)).numbers("a")
    assert [fault.kind for fault in one.value.faults] == ["thousands separators"]


def faults_of(folder, separator, mark, slips):
    """What is found in a table of 40 rows whose decimals have ``mark``, some cells replaced: (line,
    column, cell).
    """
    rows = [["id", "a", "b", "y"]]
    rows += [[f"p{i}", f"{i}.25", f"{50 - i}.5", f"{i}.75" if i < 20 else ""] for i in range(40)]
    rows = [[cell.replace(".", mark) for cell in row] for row in rows]
    for line, column, cell in slips:
        rows[line - 1][rows[0].index(column)] = cell
    with pytest.raises(BadTable) as error:
        prepared(write(folder, as_csv(rows, separator)))
    return error.value


@pytest.mark.parametrize(
    ("separator_and_mark", "cell", "kind", "words"),
    [
        (";.", "1,5", "decimal comma", "Write it with a point"),
        (",.", "1,5", "decimal comma", "Write it with a point"),
        (",.", "1,234", "decimal comma", "Write it with a point"),
        (";,", "1.5", "decimal point", "this table's decimals have commas ('0,25' in 'a')"),
        (";,", "1.234", "decimal point", "without a mark for thousands"),
    ],
)
@pytest.mark.parametrize("column", ["a", "y"])
def test_a_stray_mark_is_one_fault_in_its_own_cell(
    tmp_path, separator_and_mark, cell, kind, words, column
):
    separator, mark = separator_and_mark
    error = faults_of(tmp_path, separator, mark, [(18, column, cell)])
    [fault] = error.faults
    assert fault.lines == (18,)
    assert fault.column == column
    assert fault.kind == kind
    assert f"t.csv, line 18, column {column!r}: {cell!r} is " in str(error)
    assert words in str(error)


# --- dates ----------------------------------------------------------------------------------------

EPOCH = date(1970, 1, 1)
LAYOUTS = {
    "%Y-%m-%d": lambda d: d.isoformat(),
    "%d.%m.%Y": lambda d: f"{d.day}.{d.month}.{d.year}",
    "%d/%m/%Y": lambda d: f"{d.day}/{d.month:02}/{d.year}",
    "%m/%d/%Y": lambda d: f"{d.month}/{d.day}/{d.year}",
}
GIVEN = LAYOUTS | {each: methodcaller("strftime", each) for each in ("%d %b %Y", "%Y%m%d")}


def dated(folder, cells, **dates):
    """A table of these dates, the last one unlabelled."""
    cells = [*cells]
    rows = [f"p{i},{cell},{i},{i if i < len(cells) - 1 else ''}" for i, cell in enumerate(cells)]
    return fitted(folder, "\n".join(["id,d,a,y", *rows, ""]), dates=dates, scale=False)


def days(preprocessing, found):
    both = np.concatenate(
        [preprocessing.transform(found.labelled), preprocessing.transform(found.unlabelled)]
    )
    return both[:, 0].tolist()


@given(
    st.lists(st.dates(date(1970, 1, 1), date(2060, 1, 1)), min_size=2, max_size=6),
    st.sampled_from([*GIVEN]),
)
def test_a_date_is_its_day_in_the_format_that_is_given(tmp_path_factory, chosen, layout):
    preprocessing, found = dated(tmp_path_factory.mktemp("d"), map(GIVEN[layout], chosen), d=layout)
    assert preprocessing.columns[0].layout == layout
    assert days(preprocessing, found) == [(d - EPOCH).days for d in chosen]
    assert not any("dates of the format" in note for note in preprocessing.notes)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("time", ["", "T10:30:00.5", " 08:15"])
def test_the_format_is_found_and_noted(tmp_path, layout, time):
    chosen = [date(2024, 1, 3) + timedelta(days=9 * i) for i in range(8)]
    cells = [LAYOUTS[layout](d) + time for d in chosen]
    preprocessing, found = dated(tmp_path, cells)
    assert preprocessing.columns[0].kind == "date"
    assert preprocessing.columns[0].layout == layout
    assert days(preprocessing, found) == [(d - EPOCH).days for d in chosen]
    note = f"{tmp_path / 't.csv'}: read as dates of the format {layout}, as their numbers show: "
    note += f"{cells[0]!r} and {cells[1]!r} in 'd'"
    notes = ()
    if "/" in layout:
        notes = (note,)
    assert preprocessing.notes == notes, "other dates are clear"
    assert (
        fitted(tmp_path, "id,d,y\np,2024-01-01,1\nq,2024-01-02,\n", categorical=["d"])[0]
        .columns[0]
        .kind
        == "text"
    )


REFUSED_DATES = {
    "either way": (
        ["3/4/2024", "5/6/2024", "1/2/2023"],
        "has the day or the month first.*--dates d=%d/%m/%Y",
        [2],
    ),
    "both ways": (
        ["13/4/2024", "5/16/2024", "1/2/2023"],
        "'13/4/2024' and '5/16/2024' have the day and",
        [2, 3],
    ),
    "no such day": (
        ["2024-02-30", "2024-02-28", "2023-02-29"],
        "'2024-02-30' is not a date",
        [2, 4],
    ),
    "two figures": (["1.2.24", "2.3.24", "3.4.24"], "unknown notation.*%d.%m.%y", [2]),
    "a time zone": (
        ["2024-01-01T00:00:00+02:00", "2024-01-02", "2024-01-03"],
        "without time zone. Write local times or dates without a zone.*--drop d",
        [2],
    ),
    "all with a time zone": (
        ["2024-01-01T23:30:00Z", "2024-01-02 23:30+02:00", "2024-01-03T23:30:00Z"],
        "'2024-01-01T23:30:00Z' is a time with a zone. Write local times or dates without.*drop d",
        [2],
    ),
    "a text": (["soon", "2024-01-01", "2024-01-01"], "'soon' is not a date", [2]),
}


@pytest.mark.parametrize("why", REFUSED_DATES)
def test_a_cell_that_is_no_date_or_two_dates_is_refused(tmp_path, why):
    cells, words, lines = REFUSED_DATES[why]
    with pytest.raises(BadTable, match=words) as error:
        dated(tmp_path, cells)
    assert list(error.value.faults[0].lines) == lines
    if why == "either way":
        assert dated(tmp_path, cells, d="%m/%d/%Y")[0].columns[0].layout == "%m/%d/%Y"


@pytest.mark.parametrize("layout", ["%Y", "%d/%m", "d.m.Y", "%H:%M", ""])
def test_a_format_without_a_day_is_refused(tmp_path, layout):
    with pytest.raises(UsageError, match="needs a day, a month and a year"):
        dated(tmp_path, ["2024-01-01", "2024-01-02"], d=layout)
    with pytest.raises(UsageError, match="no such feature column"):
        dated(tmp_path, ["2024-01-01", "2024-01-02"], e="%Y-%m-%d")
    with pytest.raises(ValueError, match="needs COLUMN=FORMAT"):
        inputs(tmp_path / "t.csv", dates=["d"])


def test_the_operators_decimal_mark_holds_for_all_cells(tmp_path):
    alone = write(tmp_path, "id;a\n1;80.157\n2;643\n")
    assert read_table(alone, notation=Notation(decimal=".")).numbers("a").tolist() == [80.157, 643]
    with pytest.raises(BadTable, match=r"line 2, column 'a': '80\.157' .* decimal commas") as error:
        read_table(alone, notation=Notation(decimal=",")).numbers("a")
    assert error.value.faults[0].kind == "decimal point"


# --- years of two digits --------------------------------------------------------------------------

SHORT_YEARS = ["01.02.30", "31.12.68", "01.01.69", "28.11.09", "29.02.00"]


def test_years_of_two_digits_need_the_latest_date(tmp_path):
    rows = [f"{i},{text},{i},{i if i < 3 else ''}" for i, text in enumerate(SHORT_YEARS)]
    with pytest.raises(BadData, match=r"unknown notation.*born=%d\.%m\.%y,latest=YYYY-MM-DD"):
        fitted(tmp_path, "\n".join(["id,born,a,y", *rows, ""]))
    with pytest.raises(UsageError, match=r"30 can be 1930 or 2030.*latest=YYYY-MM-DD"):
        dated(tmp_path, SHORT_YEARS, d="%d.%m.%y")
    for wrong in ("%d.%m.%y,latest=28.11.2026", "%d.%m.%Y,latest=2026-11-28"):
        with pytest.raises(UsageError, match="latest is"):
            dated(tmp_path, SHORT_YEARS, d=wrong)


@pytest.mark.parametrize(
    ("latest", "years"),
    [
        ("2026-11-28", [1930, 1968, 1969, 2009, 2000]),
        ("2068-12-30", [2030, 1968, 1969, 2009, 2000]),
        ("2068-12-31", [2030, 2068, 1969, 2009, 2000]),
    ],
)
def test_a_date_is_the_last_one_up_to_the_latest(latest, years):
    layout = f"%d.%m.%y,latest={latest}"
    found = [date(1970, 1, 1) + timedelta(days=day_of(text, layout)) for text in SHORT_YEARS]
    assert [day.year for day in found] == years


def test_agent_toml_has_a_table_for_a_format_with_a_latest_date(tmp_path):
    given = {"born": {"format": "%d.%m.%y", "latest": "2026-11-28"}, "seen": "%d/%m/%Y"}
    assert Inputs(table="t.csv", dates=given).dates == {
        "born": "%d.%m.%y,latest=2026-11-28",
        "seen": "%d/%m/%Y",
    }
    with pytest.raises(ValidationError, match="needs a format"):
        Inputs(table="t.csv", dates={"born": {"latest": "2026-11-28"}})


def test_dates_after_today_are_reported(tmp_path):
    rows = ["01.02.2024", "03.04.2199", "05.06.2010", "28.02.1999"]
    notes = dated(tmp_path, rows, d="%d.%m.%Y")[0].notes
    assert any("dates after today in 'd': 1, up to 2199-04-03" in note for note in notes), notes
