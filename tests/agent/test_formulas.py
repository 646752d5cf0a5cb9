"""Ids that a spreadsheet would run are written so that it does not, and are read back as they were."""

import csv
import io
import re

import numpy as np
import polars as pl
from hypothesis import example, given
from hypothesis import strategies as st

from site_agent.data.notation import guarded, unguarded
from site_agent.data.sources import NA_VALUES
from site_agent.data.tables import read_table
from site_agent.models.predictions import write_predictions

IDS = st.text(st.sampled_from(list("=+-@'\t\r 1e.ab,\"é")), max_size=8)


@given(IDS)
@example("'=1")
@example("'-3")
def test_every_text_comes_back(text):
    assert unguarded(guarded(text)) == text


@given(IDS)
def test_nothing_that_runs_begins_a_cell(text):
    cell = guarded(text)
    assert not cell.startswith(("=", "@", "\t", "\r"))
    if cell.startswith(("+", "-")):
        float(cell)  # a number is no formula


def test_plain_ids_and_numbers_stay():
    for text in ("p1", "-3", "+1.5e3", "007", "", "a=b", "'quoted'"):
        assert guarded(text) == text


@given(st.lists(IDS.map(str.strip).filter(lambda text: text not in ("", *NA_VALUES)), min_size=1, max_size=6))
def test_predictions_are_joined_by_the_ids_that_were_given(tmp_path_factory, ids):
    folder = tmp_path_factory.mktemp("f")
    write_predictions(folder / "p.csv", np.zeros(len(ids)), ids=ids, id_column="patient")
    cells = [row[0] for row in csv.reader(io.StringIO((folder / "p.csv").read_bytes().decode(), newline=""))][1:]
    assert not any(re.match(r"[=@\t\r]", cell) for cell in cells)
    if "\r" not in "".join(ids):  # carriage returns alone are refused, wherever they stand
        assert read_table(folder / "p.csv").ids("patient") == ids
    write_predictions(folder / "p.parquet", np.zeros(len(ids)), ids=ids, id_column="patient")
    assert pl.read_parquet(folder / "p.parquet")["patient"].to_list() == ids
