"""All faults of a table at once, as sentences and as fields that hold no cell."""

import json

import pytest
from agent_files import agent, prepared, write

from coreg_core.errors import UsageError
from site_agent.data.errors import BadTable, Fault, Faults, some

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


def test_missing_columns_come_before_faulty_cells(messy):
    found = faults(messy, "Y", id="pat", drop=("nothing",)).faults
    columns = [fault.fields()["column"] for fault in found]
    assert columns[:3] == ["Y", "pat", "nothing"]
    assert set(columns[3:]) == {"age", "weight", None}
    assert [fault.lines for fault in found] == sorted(fault.lines for fault in found)


def test_the_words_of_faults():
    assert Fault("t.csv", "x.", lines=(2,)).text == "t.csv, line 2: x."
    assert Fault("t.csv", "x.", "Do y.", column="a", lines=(2, 5)).text == "t.csv, lines 2 and 5, column 'a': x. Do y."
    assert Fault("t.csv", "x.", lines=tuple(range(2, 11))).text == "t.csv, lines 2, 3, 4, 5, 6 and 4 more: x."
    assert some("abcdefg") == "'a', 'b', 'c', 'd', 'e' and 2 more"
    many = BadTable(*(Fault("t.csv", f"{i}.") for i in range(30)))
    assert str(many).endswith("10 more; `coreg-agent check` lists them all")


def test_a_fault_is_listed_once():
    found = Faults()
    for _ in range(2):
        with found.caught():
            raise BadTable(Fault("t.csv", "x."))
    assert [fault.what for fault in found] == ["x."]
    with pytest.raises(BadTable):
        found.raise_any()


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


def test_check_reads_every_data_set_of_a_serving_agent(messy):
    write(messy.parent, "id,a,y\np1,1,1\np2,2,2\np3,3,\n", "good.csv")
    sections = "".join(f'[data.{n}]\ntable = "{n}.csv"\ntarget = "y"\nid = "id"\n' for n in ("good", "messy"))
    write(messy.parent, f'coordinator = "127.0.0.1:9"\n{sections}', "agent.toml")
    words = ("check", "--config", "agent.toml", *AGENT[:3])
    found = agent(*words)
    assert found.exit_code == 6
    lines = found.stdout.splitlines()
    assert sum(line.startswith("WRONG  table messy: messy.csv") for line in lines) == 7
    assert any(line.startswith("ok     table good: 2 labelled and 1 shared") for line in lines)
    assert any(line.startswith("ok     output: models go to ") for line in lines)
    with pytest.raises(UsageError, match=r"--target: agent\.toml has sections \[data\.NAME\]"):
        agent(*words, "--target", "y")
