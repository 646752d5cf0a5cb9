"""All faults of a table at once, as sentences and as fields that hold no cell."""

import json

import pytest
from agent_files import agent, prepared, write

from site_agent.data.errors import BadTable

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
    (8, "age", "text"),
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
    assert str(error).startswith("7 faults in the table:\n  ")
    assert all(fault.text in str(error) for fault in error.faults)
    text = MESSY
    for wrong, right, left in (
        (",70 kg,", ",70,", 6),
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


AGENT = ("--insecure", "--name", "north", "--coordinator", "127.0.0.1:9")


def test_check_prints_fields_without_a_cell(messy):
    found = agent("check", "--data", "messy.csv", "--target", "y", "--id", "id", *AGENT, "--json")
    assert found.exit_code == 6
    wrong = [line for line in map(json.loads, found.stdout.splitlines()) if line["ok"] is False]
    assert len(wrong) == 7
    for line in wrong:
        assert (line["check"], line["file"]) == ("table", "messy.csv")
        fields = json.dumps({key: value for key, value in line.items() if key != "text"})
        assert not any(cell in fields for cell in ("fourty", "six", "70 kg", "unknown", "p5"))
