"""One text for one value, whichever container holds it."""

import sqlite3
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal

import pandas as pd
import polars as pl
import pytest
from agent_files import write

from site_agent.data.cell_text import canonical, text_of, texts_of_column
from site_agent.data.sources import source_of
from site_agent.data.tables import read_table

BERLIN = timezone(timedelta(hours=1))
VALUES = {
    "day": (date(2024, 1, 31), "2024-01-31"),
    "midnight": (datetime(2024, 1, 31), "2024-01-31"),
    "moment": (datetime(2024, 1, 31, 10, 20), "2024-01-31T10:20:00"),
    "instant": (datetime(2024, 1, 31, 10, 20, tzinfo=BERLIN), "2024-01-31T09:20:00Z"),
    "microseconds": (datetime(2024, 1, 31, 10, 20, 0, 5000), "2024-01-31T10:20:00.005"),
    "clock": (time(10, 20), "10:20:00"),
    "decimal": (Decimal("2.50"), "2.5"),
    "whole": (2.0, "2"),
    "number": (7, "7"),
    "small": (1e-7, "1e-07"),
    "large": (1.5e16, "1.5e+16"),
    "truth": (True, "true"),
    "text": ("E11.90", "E11.90"),
    "postal": ("01067", "01067"),
}
TEXTS = {name: text for name, (_, text) in VALUES.items()}


def frame():
    columns = {name: [value] for name, (value, _) in VALUES.items()}
    single = pl.Series([0.1], dtype=pl.Float32)
    return pl.DataFrame(columns).with_columns(single=single)


def containers(folder):
    polars = frame()
    polars.write_csv(folder / "t.csv")
    polars.write_parquet(folder / "t.parquet")
    pandas = pd.DataFrame({name: pd.Series(polars[name].to_list()) for name in polars.columns})
    pandas["single"] = pandas["single"].astype("float32")
    plain = pandas.assign(decimal=2.5, clock="10:20:00")
    with sqlite3.connect(folder / "t.sqlite") as connection:
        plain.to_sql("t", connection, index=False, dtype={"truth": "BOOLEAN"})
    connection.close()
    return {
        "csv": folder / "t.csv",
        "parquet": folder / "t.parquet",
        "polars": polars,
        "pandas": pandas,
        "sqlite": source_of(f"sqlite:{folder / 't.sqlite'}", "SELECT * FROM t"),
    }


@pytest.mark.parametrize("container", ["csv", "parquet", "polars", "pandas", "sqlite"])
def test_a_value_has_one_text_in_all_containers(tmp_path, container):
    table = read_table(containers(tmp_path)[container])
    found = {name: table.texts(name)[0] for name in table.columns}
    assert found == TEXTS | {"single": "0.1"}
    assert {name: table.ids(name)[0] for name in table.columns} == found, "ids too"


def test_parts_of_an_id_have_the_same_text(tmp_path):
    table = read_table(frame()).with_id("day+whole+midnight")
    assert table.ids("day+whole+midnight") == ["2024-01-31+2+2024-01-31"]


@pytest.mark.parametrize(
    "text",
    ["007", "2E15", "1e5", "1.2.3", "10:20", "1,5", "31.01.2024", "2024-13-45T10:00:00Z", "+1", ""],
)
def test_a_text_that_shows_no_value_stays(text):
    assert canonical(text) == text


@pytest.mark.parametrize(
    ("text", "decimal", "expected"),
    [
        ("-0.50", ".", "-0.5"),
        ("-0.0", ".", "0"),
        (".5", ".", "0.5"),
        ("2,50", ",", "2.5"),
        ("1.000", ",", "1.000"),
        ("TRUE", ".", "true"),
        ("1.5E+3", ".", "1500"),
        ("2024-01-31 10:20 UTC", ".", "2024-01-31T10:20:00Z"),
        ("2024-01-31T00:30:00.123456789+0100", ".", "2024-01-30T23:30:00.123456789Z"),
    ],
)
def test_texts_that_show_a_value_have_its_text(text, decimal, expected):
    assert canonical(text, decimal) == expected
    mark = "."
    if expected == text:
        mark = decimal
    assert canonical(expected, mark) == expected


def test_a_column_of_codes_keeps_its_decimals(tmp_path):
    codes = ["250.0", "250.00", "401.90"]
    assert texts_of_column(codes) == codes
    assert texts_of_column(["250.0", "401.90"]) == ["250", "401.9"]
    rows = "".join(f"{i},{codes[i % 3]},{i if i < 30 else ''}\n" for i in range(40))
    table = read_table(write(tmp_path, f"id,code,y\n{rows}"))
    assert set(table.texts("code")) == {*codes}


def test_utc_is_utc():
    assert text_of(datetime(2024, 1, 1, tzinfo=UTC)) == "2024-01-01T00:00:00Z"
