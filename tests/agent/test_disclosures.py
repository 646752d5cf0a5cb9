"""What the ledger says of an answer."""

from dataclasses import replace
from typing import get_args

import pytest
from ledger_home import answer

from coreg_core.computation.rounds import Ask, Round, Stage
from coreg_core.errors import Refused
from coreg_core.masking.words import Layout
from site_agent.ledger import Ledger, read_ledger
from site_agent.ledger.disclosures import kind_of, labels_in, words
from site_agent.ledger.row_sets import RowSetFiles
from site_agent.machine.memory import Told
from site_agent.machine.row_sets import row_set
from site_agent.policy.guards import rules_of
from site_agent.policy.policy import Policy

SITES = ("a", "b", "c")


def asked(stage, part="linear", added=0):
    return Round(Ask(stage, part=part), Layout(added, min(added, 1), 0), (), (0, 1, 2))


def told(stage, added=0):
    return Told(asked(stage, added=added), SITES, False, True)


def test_every_question_has_its_words():
    questions = [asked(stage) for stage in get_args(Stage)] + [asked("respond", "affine")]
    found = {kind_of(each): labels_in(each) for each in questions}
    assert all(len(words(each)) > 20 for each in questions)
    bearing = {"respond affine", "scores", "sums", "private", "parts"}
    assert {kind for kind, labels in found.items() if labels == "in the vectors"} == bearing
    assert {kind for kind, labels in found.items() if labels == "in the scalars"} == {"sizes", "summary"}


def test_a_line_counts_the_words_of_a_stage_without_a_sum(tmp_path):
    ledger = Ledger(tmp_path / "l")
    ledger.record(answer(), told("summary"))
    ledger.record(answer(step=1), told("sums", added=2))
    ledger.close()
    lines = [entry for entry in read_ledger(tmp_path / "l") if entry["kind"] == "Answer"]
    assert [(e["question"], e["numbers"]) for e in lines] == [("summary", 3), ("sums", 2)]
    assert ledger.label_bearing.messages == 1


def test_a_site_opens_the_same_rows_as_often_as_its_policy_says(tmp_path):
    ledger = Ledger(tmp_path / "l")
    rules = rules_of(Policy(openings=2), ledger).row_rules
    now = row_set(b"secret", [b"p1", b"p2"], {0: 1.5}, [b"a", b""])
    for _ in range(2):
        rules.open(now, "run", 10, 100)
    with pytest.raises(Refused, match="opened 2 times, and openings = 2"):
        replace(rules, record=RowSetFiles(tmp_path / "l.rows")).open(now, "run", 10, 100)
    ledger.close()
