"""What the ledger says of an answer under the additive objective, and what it remembers of groups of labels."""

import numpy as np
import pytest
from machine.additive_tiny import EVERYTHING, additive_plan, additive_sites, private_data
from machine.tiny import Pump

from coreg_core.additive.question_types import Ask
from coreg_core.protocol.messages import Inquiry
from site_agent.ledger import Ledger, read_ledger, recall
from site_agent.ledger.disclosures import labels_in, words
from site_agent.machine.memory import Remembered
from site_agent.machine.site import Site, Terms
from site_agent.machine.site_data import row_keys


def ledgered(path, plan, max_bytes=1 << 26, **options):
    """A run in which site a writes its ledger, as its agent does; the ledger, the site, and the lines of its answers."""
    ledger, sites = Ledger(path, max_bytes=max_bytes), additive_sites(plan, **options)
    handle, site = sites["a"].handle, sites["a"]

    def writing(message):
        answers = handle(message)
        for answer in answers:
            asked = message if isinstance(message, Inquiry) else None
            ledger.record(answer, asked, None if asked is None else site.kept(asked.run))
        return answers

    site.handle = writing
    Pump(plan, sites).join().run()
    ledger.close()
    assert site.result is not None
    return ledger, site, [entry for entry in read_ledger(path) if entry["kind"] == "Share"]


def test_labels_are_in_one_vector_per_solve_and_in_the_score(tmp_path):
    """7 at the default, and the site's own score, once; scalars are told apart."""
    ledger, _, lines = ledgered(tmp_path / "l", additive_plan(tuning_steps=6))
    assert ledger.label_bearing.messages == 8
    affine = [e for e in lines if e["question_kind"] == "FIXED_POINT" and e["labels"] == "in the vectors"]
    assert [e["step"] for e in affine] == list(range(7))
    assert {e["question_kind"] for e in lines if e["labels"] == "in the scalars"} == {"LABELS", "SPREAD", "TRACES"}
    assert all(e["what"] for e in lines)


@pytest.mark.parametrize("max_bytes", [1 << 26, 3000], ids=["in one file", "in many"])
@pytest.mark.parametrize("residuals", ["smoothed", "grouped"])
def test_the_ledger_remembers_what_the_site_remembers(tmp_path, residuals, max_bytes):
    plan = additive_plan(rows="common", residuals=residuals, landmarks=10, folds=2)
    _, site, _ = ledgered(tmp_path / "l", plan, max_bytes, common=True)
    assert (tmp_path / "l-0001").exists() == (max_bytes == 3000)
    assert recall(tmp_path / "l", plan, "ids") == site.runs[plan.run].remembered


@pytest.mark.parametrize("residuals", ["grouped", "open"])
def test_the_lines_say_what_grouped_and_open_residuals_disclose(tmp_path, residuals):
    _, _, lines = ledgered(tmp_path / "l", additive_plan(rows="common", residuals=residuals), common=True)
    affine = [e for e in lines if e["question_kind"] == "FIXED_POINT" and e["part"] == "affine"]
    assert len(affine) == 3
    word = "group means" if residuals == "grouped" else "every label can be computed"
    assert all(word in e["what"] and e["labels"] == "in the vectors" for e in affine)
    assert all("labelled" in e["what"] for e in lines if e["question_kind"] == "SMOOTHER")
    assert not any("smoothed" in e["what"] for e in lines)


def test_groups_that_went_out_are_remembered_by_every_plan_and_name_no_row(tmp_path):
    _, _, lines = ledgered(tmp_path / "l", additive_plan(rows="common", residuals="grouped"), common=True)
    [groups] = [entry["groups"] for entry in lines if "groups" in entry]  # with the first answer of their means, once
    data = private_data("a", common=True)
    assert sorted(key for group in groups for key in group) == sorted(data.row_keys)
    other = additive_plan(run="run-2", group_size=4, rows="common", residuals="grouped")
    known = recall(tmp_path / "l", other, "other ids")
    assert known == Remembered(groups=frozenset(map(tuple, groups)), residuals="grouped")
    [refusal] = Site("a", data, Terms(recall=lambda *_: known, residuals=EVERYTHING)).handle(other)
    assert "went out in other groups before" in refusal.reason


def test_a_labels_name_is_of_its_id_its_value_and_the_sites_salt():
    keyed = [("p1", 1.5, b"salt"), ("p2", 1.5, b"salt"), ("p1", 1.6, b"salt"), ("p1", 1.5, b"pepper")]
    names = [row_keys([name], np.array([label]), salt) for name, label, salt in [*keyed, keyed[0]]]
    assert (len(set(names)), names[-1]) == (4, names[0])


def test_every_kind_of_question_has_its_words():
    for kind in Ask:
        for part in ("affine", "linear"):
            inquiry = Inquiry("r", 0, 0, kind, part, 0, (), (), None)
            assert len(words(inquiry)) > 20
            assert labels_in(inquiry) in ("none", "in the scalars", "in the vectors")
    assert labels_in(Inquiry("r", 0, 0, Ask.FIXED_POINT, "linear", 0, (), (), None)) == "none"
