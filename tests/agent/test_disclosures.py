"""What the ledger says of an answer."""

from ledger_home import answer

from coreg_core.computation.question import KINDS, Question
from coreg_core.protocol.plan import OBJECTIVES
from coreg_core.secure.sums import Layout
from site_agent.ledger import Ledger, read_ledger
from site_agent.machine.job import Told

SITES = ("a", "b", "c")


def asked(kind, added=0):
    return Question(kind, Layout(added, min(added, 1), 0), (), (0, 1, 2))


def told(stage, added=0):
    return Told(asked(stage, added=added), SITES, False, True)


def test_every_question_says_what_it_discloses():
    assert all(len(kind.discloses) > 20 for kind in KINDS.values())
    bearing = {"respond affine", "scores", "sums", "private", "parts"}
    assert {name for name, kind in KINDS.items() if kind.labels == "in the vectors"} == bearing
    assert {name for name, kind in KINDS.items() if kind.labels == "in the scalars"} == {"sizes", "summary"}
    assert len(KINDS) == sum(len(objective.questions) for objective in OBJECTIVES.values()), (
        "a kind is of one objective"
    )


def test_a_line_counts_the_words_of_a_stage_without_a_sum(tmp_path):
    ledger = Ledger(tmp_path / "l")
    ledger.record(answer(), told("summary"))
    ledger.record(answer(step=1), told("sums", added=2))
    ledger.close()
    lines = [entry for entry in read_ledger(tmp_path / "l") if entry["kind"] == "Answer"]
    assert [(e["question"], e["numbers"]) for e in lines] == [("summary", 3), ("sums", 2)]
    assert ledger.label_bearing.messages == 1
