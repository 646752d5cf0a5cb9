"""Everything that is wrong with a table is told at once, as sentences and as fields that hold no cell."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))
from federation import run

from site_agent.data.errors import BadTable, Fault, Faults, some
from site_agent.data.prepare import Inputs, prepare

MESSY = """id,age,weight,ward,yes,y
p1,34,70.5,A,true,1.5
p2,,81.25,B,no,2.5
p3,fourty,66,A,yes,six
p4,12,66,C
p5,44,70 kg,A,no,
p5,45,70,A,no,
,n/a,70,A,no,
"""
FOUND = [  # line, column, kind; as somebody goes through the file
    (4, "y", "text"),
    (4, "age", "text"),
    (5, None, "ragged"),
    (6, "weight", "number with a unit"),
    (6, "id", "duplicate"),
    (8, "id", "missing"),
    (8, "age", "text"),
]


@pytest.fixture
def messy(tmp_path):
    (tmp_path / "messy.csv").write_text(MESSY)
    return tmp_path / "messy.csv"


def test_all_of_them_at_once(messy):
    with pytest.raises(BadTable) as error:
        prepare(Inputs(messy, "y", "id"))
    fields = [fault.fields() for fault in error.value.faults]
    assert [(f["row"], f["column"], f["kind"]) for f in fields] == FOUND
    assert str(error.value).startswith("7 faults in the table:\n  ")
    assert all(fault.text in str(error.value) for fault in error.value.faults)


def test_a_table_with_one_fault_less_has_one_fault_less(messy):
    """Mended one after the other, in any order, nothing new comes to light, and at the end the table is used."""
    text = MESSY
    for wrong, right, left in (
        (",70 kg,", ",70,", 6),
        ("fourty", "40", 5),
        ("n/a", "NA", 4),
        ("p5,45", "p6,45", 3),
        ("\n,NA", "\np7,NA", 2),
        ("six", "6", 1),
    ):
        text = text.replace(wrong, right)
        messy.write_text(text)
        with pytest.raises(BadTable) as error:
            prepare(Inputs(messy, "y", "id"))
        assert len(error.value.faults) == left
    messy.write_text(text.replace("p4,12,66,C\n", "p4,12,66,C,no,\n"))
    assert prepare(Inputs(messy, "y", "id")).data.X.shape[0] == 3


def test_columns_that_are_not_there_and_cells_that_are_wrong(messy):
    with pytest.raises(BadTable) as error:
        prepare(Inputs(messy, "Y", "pat", drop=("nothing",)))
    told = [fault.fields()["column"] for fault in error.value.faults]
    assert told[:3] == ["Y", "pat", "nothing"], "what has no line comes first"
    assert set(told[3:]) == {"age", "weight", None}
    lines = [fault.lines for fault in error.value.faults]
    assert lines == sorted(lines)


def test_check_tells_fields_and_no_cell_in_them(messy):
    words = ("--target", "y", "--id", "id", "--insecure", "--name", "north", "--coordinator", "127.0.0.1:9", "--json")
    code, out, err = run("coreg-agent", "check", "--data", "messy.csv", *words, cwd=messy.parent)
    assert code == 6, err
    wrong = [told for line in out.splitlines() if (told := json.loads(line))["ok"] is False]
    assert len(wrong) == 7
    for told in wrong:
        assert told["check"] == "table"
        assert told["file"] == "messy.csv"
        fields = {key: value for key, value in told.items() if key != "text"}
        assert not any(cell in json.dumps(fields) for cell in ("fourty", "six", "70 kg", "n/a", "p5"))


def test_words():
    assert Fault("t.csv", "x.", lines=(2,)).text == "t.csv, line 2: x."
    assert Fault("t.csv", "x.", "Do y.", column="a", lines=(2, 5)).text == "t.csv, lines 2 and 5, column 'a': x. Do y."
    assert Fault("t.csv", "x.", lines=tuple(range(2, 11))).text == "t.csv, lines 2, 3, 4, 5, 6 and 4 more: x."
    assert some("abcdefg") == "'a', 'b', 'c', 'd', 'e' and 2 more"
    many = BadTable(*(Fault("t.csv", f"{i}.") for i in range(30)))
    assert str(many).endswith("10 more; `coreg-agent check` lists them all")


def test_a_fault_is_told_once():
    found = Faults()
    for _ in range(2):
        with found.caught():
            raise BadTable(Fault("t.csv", "x."))
    assert [fault.what for fault in found] == ["x."]
    with pytest.raises(BadTable):
        found.raise_any()


SERVICE = """coordinator = "127.0.0.1:9"
[data.good]
table = "good.csv"
target = "y"
id = "id"
[data.messy]
table = "messy.csv"
target = "y"
id = "id"
"""


def test_check_reads_every_data_set_of_an_agent_that_serves(messy):
    folder = messy.parent
    (folder / "good.csv").write_text("id,a,y\np1,1,1\np2,2,2\np3,3,\n")
    (folder / "agent.toml").write_text(SERVICE)
    words = ("coreg-agent", "check", "--config", "agent.toml", "--insecure", "--name", "north")
    code, out, err = run(*words, cwd=folder)
    assert code == 6, err
    lines = out.splitlines()
    assert sum(line.startswith("WRONG  table messy: messy.csv") for line in lines) == 7
    assert any(line.startswith("ok     table good: 2 labelled and 1 unlabelled") for line in lines)
    assert any(line.startswith("ok     output: models go to ") for line in lines)
    code, _out, err = run(*words, "--target", "y", cwd=folder)
    assert code == 2
    assert "--target: agent.toml has sections [data.NAME]" in err
