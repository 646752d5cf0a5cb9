"""Dates become features on request, are read one way, and in the same way when the model is asked."""

from datetime import date, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from coreg_core.agreement.views import KernelExpansion
from coreg_core.errors import BadData, UsageError
from coreg_core.kernels.functions import Gaussian
from site_agent.data.dates import MONTHS, WEEKDAYS, DateColumn, asked
from site_agent.data.errors import BadTable
from site_agent.data.preprocessing import Preprocessing
from site_agent.data.shared_set import load_site_tables
from site_agent.data.tables import read_table
from site_agent.models.file import SiteModel, load_model, save_model

ALL = "d:days+year+month+weekday"


def fitted(folder, cells, *dates, extra=""):
    rows = [f"p{i},{cell},{i},{i if i < len(cells) - 1 else ''}" for i, cell in enumerate(cells)]
    (folder / "t.csv").write_text("\n".join(["id,d,a,y", *rows, extra]))
    table = load_site_tables(folder / "t.csv", "y", "id")
    return Preprocessing.fit(table, dates=dates, scale=False), table


def new(folder, text):
    (folder / "new.csv").write_text(text)
    return read_table(folder / "new.csv")


@given(st.lists(st.dates(date(1900, 1, 1), date(2100, 1, 1)), min_size=3, max_size=6))
def test_the_parts_of_a_date(tmp_path_factory, days):
    preprocessing, table = fitted(tmp_path_factory.mktemp("d"), [d.isoformat() for d in days], ALL)
    X = np.concatenate([preprocessing.transform(table.labelled), preprocessing.transform(table.unlabelled)])
    names = preprocessing.feature_names
    assert X[:, names.index("d (days)")].tolist() == [(d - date(1970, 1, 1)).days for d in days]
    assert X[:, names.index("d (year)")].tolist() == [d.year for d in days]
    for part, words, of in (("month", MONTHS, lambda d: d.month - 1), ("weekday", WEEKDAYS, date.weekday)):
        for row, day in zip(X, days, strict=True):
            ones = [name for name, value in zip(names, row, strict=True) if name.startswith(f"d ({part})=") and value]
            assert ones == [f"d ({part})={words[of(day)]}"]


STYLES = {
    "": lambda d: d.isoformat(),
    "dots": lambda d: f"{d.day}.{d.month}.{d.year}",
    "dmy": lambda d: f"{d.day}/{d.month:02}/{d.year}",
    "mdy": lambda d: f"{d.month}/{d.day}/{d.year}",
    "time": lambda d: f"{d.isoformat()}T10:30:00.5",
}


@pytest.mark.parametrize("style", STYLES)
def test_every_way_of_writing_is_the_same_day(tmp_path, style):
    days = [date(2024, 1, 3) + timedelta(days=9 * i) for i in range(8)]
    preprocessing, table = fitted(tmp_path, [STYLES[style](d) for d in days], "d")
    assert preprocessing.dates == (DateColumn("d", ("days",), style if style in ("dmy", "mdy") else ""),)
    assert preprocessing.transform(table.labelled)[:, 0].tolist() == [(d - date(1970, 1, 1)).days for d in days[:-1]]


REFUSED = {
    "either way": (["3/4/2024", "5/6/2024", "1/2/2023"], "may have the day or the month first", [2]),
    "both ways": (["13/4/2024", "5/16/2024", "1/2/2023"], "day first here, and the month first there", [2, 3]),
    "no such day": (["2024-02-30", "2024-02-28", "2023-02-29"], "'2024-02-30' is no date", [2]),
    "two figures": (["1.2.24", "2.3.24", "2024-01-01"], "'1.2.24' is no date", [2, 3]),
    "a time zone": (["2024-01-01T00:00:00+02:00", "2024-01-02", "2024-01-03"], "without a time zone", [2]),
    "a text": (["soon", "2024-01-01", "2024-01-01"], "'soon' is no date", [2]),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_no_date_or_two(tmp_path, why):
    cells, said, lines = REFUSED[why]
    with pytest.raises(BadTable, match=said) as error:
        fitted(tmp_path, cells, "d")
    assert list(error.value.faults[0].lines) == lines


def test_faults_of_dates_are_told_with_the_others(tmp_path):
    with pytest.raises(BadTable) as error:
        fitted(tmp_path, ["soon", "2024-01-01", "2024-01-01"], "d", extra="p9,never,x,\n")
    assert [(f.column, f.lines) for f in error.value.faults] == [("d", (2,)), ("d", (5,)), ("a", (5,))]


def test_what_is_asked():
    assert asked(["d", "e:year+days", "f:g"], ["d", "e", "f:g"]) == (
        DateColumn("d"),
        DateColumn("e", ("days", "year")),
        DateColumn("f:g"),
    )
    for texts, said in (
        (["x"], "no such feature"),
        (["d:hours"], "days, year, month or weekday"),
        (["d", "d:year"], "twice"),
    ):
        with pytest.raises(UsageError, match=said):
            asked(texts, ["d"])


def test_dates_that_nobody_asked_for_are_said(tmp_path):
    preprocessing, _ = fitted(tmp_path, ["2024-01-01", "2024-01-02", "2024-01-03"])
    assert "--dates d makes numbers of them" in preprocessing.notes[0]
    many = [(date(2020, 1, 1) + timedelta(days=i)).isoformat() for i in range(201)]
    with pytest.raises(BadData, match="Dates: --dates d, or leave the column out"):
        fitted(tmp_path, many)


def test_a_model_reads_dates_as_it_did(tmp_path):
    preprocessing, table = fitted(tmp_path, ["13/1/2024", "", "2/1/2024", "4/1/2024"], "d:days+weekday")
    points = preprocessing.transform(table.labelled)
    function = KernelExpansion(Gaussian(1e4), points, np.arange(1.0, len(points) + 1))
    save_model(tmp_path / "m", SiteModel(function, preprocessing, "y", 0.0, 1.0, "north", "r", "CONVERGED", 0.1, {}))
    with safe_open(tmp_path / "m", framework="numpy") as file:
        assert file.metadata()["format"] == "coreg-model/5"  # a release that knows no dates must not guess
    model = load_model(tmp_path / "m")
    assert model.preprocessing.dates == preprocessing.dates
    assert model.preprocessing.sources == ["d", "a"]
    ours = new(tmp_path, "a,d\n1,5/1/2024\n2,\n")
    expected = model.predict(ours)
    assert model.predict(new(tmp_path, "a,d\n1,2024-01-05\n2,\n")).tolist() == expected.tolist()
    with pytest.raises(BadTable, match="no column 'd'"):
        model.predict(new(tmp_path, "a\n1\n"))


def test_a_model_of_days_written_otherwise_does_not_guess(tmp_path):
    preprocessing, _ = fitted(tmp_path, ["2024-01-01", "2024-01-02", "2024-01-03"], "d")
    with pytest.raises(BadTable, match="is no date as the dates were written when the model was made"):
        preprocessing.transform(new(tmp_path, "a,d\n1,13/1/2024\n"))


def test_a_table_with_decimal_commas_has_days_too(tmp_path):
    (tmp_path / "t.csv").write_text("id;d;a;y\n1;1.2.2024;1,5;1\n2;2.2.2024;2,5;2\n3;3.2.2024;0,5;\n")
    table = load_site_tables(tmp_path / "t.csv", "y", "id")
    X = Preprocessing.fit(table, dates=["d"], scale=False).transform(table.labelled)
    assert X[:, 0].tolist() == [19754.0, 19755.0]
