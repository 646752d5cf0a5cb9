"""Dates become features on request, are read one way, and in the same way when the model is asked."""

from datetime import date, timedelta

import numpy as np
import pytest
from agent_files import fitted, table
from hypothesis import given
from hypothesis import strategies as st

from coreg_core.agreement.views import KernelExpansion
from coreg_core.errors import BadData
from coreg_core.kernels.functions import Gaussian
from site_agent.data.dates import DateColumn
from site_agent.data.errors import BadTable
from site_agent.models.file import ModelFile, load_model, save_model

EPOCH = date(1970, 1, 1)
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


def dated(folder, cells, *dates, extra=""):
    """A table of these dates, the last one unlabelled."""
    rows = [f"p{i},{cell},{i},{i if i < len(cells) - 1 else ''}" for i, cell in enumerate(cells)]
    return fitted(folder, "\n".join(["id,d,a,y", *rows, extra]), dates=dates, scale=False)


@given(st.lists(st.dates(date(1900, 1, 1), date(2100, 1, 1)), min_size=3, max_size=6))
def test_the_parts_of_a_date(tmp_path_factory, days):
    cells = [d.isoformat() for d in days]
    preprocessing, found = dated(tmp_path_factory.mktemp("d"), cells, "d:days+year+month+weekday")
    X = np.concatenate([preprocessing.transform(found.labelled), preprocessing.transform(found.unlabelled)])
    names = preprocessing.feature_names
    assert X[:, names.index("d (days)")].tolist() == [(d - EPOCH).days for d in days]
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
    preprocessing, found = dated(tmp_path, [STYLES[style](d) for d in days], "d")
    assert preprocessing.dates == (DateColumn("d", ("days",), style if style in ("dmy", "mdy") else ""),)
    assert preprocessing.transform(found.labelled)[:, 0].tolist() == [(d - EPOCH).days for d in days[:-1]]


REFUSED = {
    "either way": (["3/4/2024", "5/6/2024", "1/2/2023"], "can have the day or the month first", [2]),
    "both ways": (["13/4/2024", "5/16/2024", "1/2/2023"], "day first, and another cell has the month first", [2, 3]),
    "no such day": (["2024-02-30", "2024-02-28", "2023-02-29"], "'2024-02-30' is not a date", [2]),
    "two figures": (["1.2.24", "2.3.24", "2024-01-01"], "'1.2.24' is not a date", [2, 3]),
    "a time zone": (["2024-01-01T00:00:00+02:00", "2024-01-02", "2024-01-03"], "without a time zone", [2]),
    "a text": (["soon", "2024-01-01", "2024-01-01"], "'soon' is not a date", [2]),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_cell_that_is_no_date_or_two_dates_is_refused(tmp_path, why):
    cells, words, lines = REFUSED[why]
    with pytest.raises(BadTable, match=words) as error:
        dated(tmp_path, cells, "d")
    assert list(error.value.faults[0].lines) == lines


def test_dates_that_were_not_asked_for_are_noted(tmp_path):
    preprocessing, _ = dated(tmp_path, ["2024-01-01", "2024-01-02", "2024-01-03"])
    [note] = preprocessing.notes
    assert note.startswith(
        "column 'd' makes 3 of 4 features, one for each text. Its texts look like dates: dates = [\"d\"] in agent.toml"
    )
    assert len(dated(tmp_path, ["2024-01-01", "unknown", "2024-01-03", "2024-01-04"])[0].notes) == 1
    assert dated(tmp_path, ["north", "2024-01-02", "south", "east"])[0].notes == ()
    assert fitted(tmp_path, "id,d,y\np,2024-01-01,1\nq,2024-01-02,\n", categorical=["d"])[0].notes == ()
    many = [(date(2020, 1, 1) + timedelta(days=i)).isoformat() for i in range(201)]
    with pytest.raises(
        BadData, match=r"Make features of its dates \(dates = .* or --dates d\), or leave the column out"
    ):
        dated(tmp_path, many)


def test_a_model_reads_dates_as_it_did_in_training(tmp_path):
    preprocessing, found = dated(tmp_path, ["13/1/2024", "", "2/1/2024", "4/1/2024"], "d:days+weekday")
    points = preprocessing.transform(found.labelled)
    function = KernelExpansion(Gaussian(1e4), points, np.arange(1.0, len(points) + 1))
    save_model(tmp_path / "m", ModelFile(function, preprocessing, "y", 0.0, 1.0, "north", "r", "CONVERGED", 0.1, {}))
    model = load_model(tmp_path / "m")
    assert model.preprocessing.dates == preprocessing.dates
    assert model.preprocessing.sources == ["d", "a"]
    expected = model.predict(table(tmp_path, "a,d\n1,5/1/2024\n2,\n")).tolist()
    assert model.predict(table(tmp_path, "a,d\n1,2024-01-05\n2,\n")).tolist() == expected
    with pytest.raises(BadTable, match="no column 'd'"):
        model.predict(table(tmp_path, "a\n1\n"))


def test_a_date_that_is_written_otherwise_than_in_training_is_refused(tmp_path):
    preprocessing, _ = dated(tmp_path, ["2024-01-01", "2024-01-02", "2024-01-03"], "d")
    with pytest.raises(BadTable, match="is not a date in the order of day and month that the model was trained with"):
        preprocessing.transform(table(tmp_path, "a,d\n1,13/1/2024\n"))
