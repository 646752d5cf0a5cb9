"""Columns that `coreg-agent check` asks about: known with the target, nearly the target, slips."""

import pytest
from agent_files import agent, prepared, write

from site_agent.data.suspects import suspects


def sentences(folder, header, rows, **options):
    lines = [",".join(map(str, row)) for row in rows]
    source = write(folder, "\n".join([header, *lines]) + "\n")
    found = prepared(source, **options)
    return [
        text.removeprefix(f"{source}, ")
        for text in suspects(found.table, found.preprocessing, options.get("target", "y"))
    ]


def rows_of(*columns):
    """Forty rows, of which every fourth has no target."""
    for i in range(40):
        label = (7 * i) % 40
        if i % 4 == 0:
            label = ""
        yield [f"p{i}", label, *(column(i, label) for column in columns)]


def test_a_column_that_is_filled_exactly_where_the_target_is_filled(tmp_path):

    def outcome(i, label):
        if label == "":
            return ""
        return i % 3

    def other(i, _):
        return i % 5

    def rare(i, label):
        if i == 1:
            return ""
        return outcome(i, label)

    rows = rows_of(outcome, other, rare)
    found = sentences(tmp_path, "id,y,outcome,other,rare", rows)
    [sentence] = found
    assert sentence.startswith("column 'outcome': it is filled exactly where the target 'y' is (30")
    assert sentence.endswith("--drop outcome")


@pytest.mark.parametrize(
    ("copy", "told"),
    [
        (lambda _, label: label, "it equals the target 'y'"),
        (lambda i, label: 7 if label == "" else label + 5 * (i % 2), "rank correlation 0.9"),
        (lambda i, label: 7 if label == "" else -(label**3), "rank correlation -1.000"),
        (lambda i, label: "" if label == "" or i == 1 else 2 * label, "rank correlation 1.000"),
    ],
)
def test_a_near_copy_of_the_target(tmp_path, copy, told):
    found = sentences(tmp_path, "id,y,a copy,other", rows_of(copy, lambda i, _: i % 5))
    [sentence] = [text for text in found if "filled exactly" not in text]
    assert sentence.startswith("column 'a copy': it ")
    assert told in sentence
    assert sentence.endswith("--drop 'a copy'")


def test_a_text_with_two_levels_can_be_a_copy_of_a_yes_no_target(tmp_path):
    rows = []
    for i in range(40):
        label = "no"
        state = "well"
        if i % 3:
            label = "yes"
            state = "ill"
        if i % 4 == 0:
            label = ""
        rows.append([f"p{i}", label, state, i % 5])
    [sentence] = sentences(tmp_path, "id,y,state,other", rows, positive="yes")
    assert "column 'state': it has the rank correlation -1.000 with the target 'y'" in sentence


def test_levels_that_differ_by_case_or_white_space_and_levels_that_occur_once(tmp_path):
    def city(i, _label):
        if i:
            return ["Bonn", "bonn ", "Köln", "New York", "new  york"][i % 5]
        return "Trier"

    found = sentences(tmp_path, "id,y,city", rows_of(city))
    assert found == [
        "column 'city': 'Bonn' and 'bonn' (and 1 more) differ only by case or white space, and"
        " count as different levels. Write them in one way, or leave the column out: --drop city",
        "column 'city': 1 of 6 levels occurs once ('Trier'), which is too few to learn from."
        " Merge them, or leave the column out: --drop city",
    ]


def test_ordinary_columns_are_not_asked_about(tmp_path):
    def partly(i, _label):
        if i % 6 == 0:
            return ""
        return i % 5

    def city(i, _label):
        return ["Bonn", "Köln"][i % 2]

    assert not sentences(tmp_path, "id,y,u,city", rows_of(partly, city))


def test_check_warns_with_file_column_and_option(tmp_path):
    lines = "".join(f"p{i},{i % 7},{i % 7},{i % 4}\n" for i in range(30)) + "p30,,3,1\np31,,2,0\n"
    source = write(tmp_path, f"id,y,again,u\n{lines}")
    done = agent("check", "--data", source)
    [warning] = [line for line in done.stdout.splitlines() if "--drop" in line]
    assert warning.startswith(f"WARN   {source}, column 'again': it equals the target 'y'.")


def test_copies_of_rows_and_not_rows_of_few_levels_that_are_equal_by_chance(tmp_path):
    rows = [[f"p{i}", (i * i) % 97, i % 30 + 0.5, i % 7] for i in range(30)]
    copied = [[f"{name}-again", *values] for name, *values in rows]
    [sentence] = sentences(tmp_path, "id,y,a,b", [*rows, *copied, ["s1", "", 1, 2]])
    assert "30 of 60 labelled rows repeat all values of another one" in sentence
    few = [[f"p{i}", i % 2, i % 3, i % 4] for i in range(60)]
    assert sentences(tmp_path, "id,y,a,b", [*few, ["s1", "", 1, 2], ["s2", "", 1, 3]]) == []


def test_numbers_that_stand_for_missing_values(tmp_path):
    def value(i, _):
        return -999 if i % 8 == 1 else 50 + i

    def honest(i, _):
        return 99 if i % 8 == 1 else 90 + i

    found = sentences(tmp_path, "id,y,a,b", rows_of(value, honest))
    [sentence] = found
    assert sentence == (
        "column 'a': -999 occurs 5 times, far from all other values. If it means a missing value:"
        " --na-values=-999"
    )
    in_target = [[f"p{i}", 9999 if i < 3 else i, i % 5] for i in range(40)]
    [sentence] = sentences(tmp_path, "id,y,a", [*in_target, ["s1", "", 1]])
    assert sentence.startswith("column 'y': 9999 occurs 3 times")
