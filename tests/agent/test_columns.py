"""Which columns are the id and the target: what the site says, else the study, else the usual names, else a question."""

import pytest
from agent_files import write

from site_agent.data.columns import named
from site_agent.data.errors import BadTable
from site_agent.data.inputs import Inputs

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
