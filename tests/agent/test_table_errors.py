"""All faults of a table at once, as sentences and as fields that hold no cell."""

import json

import pytest
from agent_files import agent, prepared, write

from site_agent.data.errors import BadTable
from site_agent.data.inputs import Inputs
from site_agent.data.prepare import named

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


# --- columns that a site leaves open ----------------------------------------------------------------------------------

# the header; what the site says; the study's target and id; the target and the id that are taken
RULES = {
    "the usual names": ("id,x,y", {}, ("", ""), ("y", "id")),
    "the other usual targets": ("id,x,target", {}, ("", ""), ("target", "id")),
    "and the third one": ("id,x,label", {}, ("", ""), ("label", "id")),
    "one column that ends in _id": ("patient_id,x,y", {}, ("", ""), ("y", "patient_id")),
    "id before one that ends in _id": ("ward_id,id,y", {}, ("", ""), ("y", "id")),
    "the study before the usual names": ("id,nhs,y,z", {}, ("z", "nhs"), ("z", "nhs")),
    "the study where several are usual": ("a_id,b_id,y,label", {}, ("label", "b_id"), ("label", "b_id")),
    "the site before the study": ("id,nhs,y,z,w", {"target": "w", "id": "id"}, ("z", "nhs"), ("w", "id")),
    "one of the two from the site": ("a_id,b_id,y", {"id": "a_id"}, ("", ""), ("y", "a_id")),
    "no target without labels": ("id,x", {"labels": False}, ("", ""), (None, "id")),
}
OPEN = {
    "two usual targets": ("id,y,label", "which is the column to predict? The columns: 'id', 'y', 'label'", "--target"),
    "no usual target": ("id,x,z", "which is the column to predict?", "--target"),
    "two that end in _id": ("a_id,b_id,y", "which is the id column?", "--id"),
    "no id": ("x,y", "which is the id column?", "--id"),
    "another case": ("ID,y", "which is the id column?", "--id"),
}


def inputs(folder, header, **said):
    return Inputs(table=write(folder, f"{header}\n{'1,' * header.count(',')}2\n"), **said)


@pytest.mark.parametrize("rule", RULES)
def test_the_columns_that_a_site_leaves_open(tmp_path, rule):
    header, said, study, taken = RULES[rule]
    found = named(inputs(tmp_path, header, **said), *study)
    assert (found.target, found.id) == taken


@pytest.mark.parametrize("case", OPEN)
def test_a_column_that_is_not_meant_beyond_doubt_is_a_fault_with_its_option(tmp_path, case):
    header, question, option = OPEN[case]
    with pytest.raises(BadTable) as error:
        named(inputs(tmp_path, header))
    [fault] = error.value.faults
    assert question in fault.text
    assert f"Name it with {option}." in fault.text


def test_both_questions_are_asked_at_once_and_a_scoring_needs_no_target(tmp_path):
    with pytest.raises(BadTable) as error:
        named(inputs(tmp_path, "a,b,c"))
    assert len(error.value.faults) == 2
    found = named(inputs(tmp_path, "id,x"), trains=False)
    assert (found.target, found.id) == (None, "id")
    said = Inputs(table=tmp_path / "none.csv", target="y", id="id")
    assert named(said) is said, "the table is not read"
