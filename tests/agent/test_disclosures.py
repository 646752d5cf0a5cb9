"""What the ledger says of an answer under the additive objective, and what it remembers of groups of labels."""

import numpy as np
import pytest
from machine.additive_tiny import EVERYTHING, additive_plan, additive_sites, job, private_data
from machine.tiny import Pump, site_with

from coreg_core.additive.question_types import NOTHING, Question
from coreg_core.additive.question_types import Ask as Kind
from coreg_core.computation.rounds import Ask, Round
from coreg_core.masking.words import Layout
from coreg_core.protocol.messages import Proposal
from site_agent.ledger import Ledger, read_ledger, remember
from site_agent.ledger.disclosures import kind_of, labels_in, words
from site_agent.machine.memory import Remembered
from site_agent.machine.site_data import row_keys


def ledgered(path, plan, **options):
    """A run in which site a writes its ledger, as its agent does; the ledger, the site, and the lines of its answers."""
    ledger, sites = Ledger(path), additive_sites(plan, **options)
    handle, site = sites["a"].handle, sites["a"]

    def writing(message):
        return [ledger.record(answer, site.told) for answer in handle(message)]

    site.handle = writing
    Pump(plan, sites).join().run()
    ledger.close()
    assert site.result is not None
    return ledger, site, [entry for entry in read_ledger(path) if entry.get("numbers")]


def test_labels_are_in_one_vector_per_solve_and_in_the_score(tmp_path):
    """7 at the default, and the site's own score, once; scalars are told apart."""
    ledger, _, lines = ledgered(tmp_path / "l", additive_plan(tuning_steps=6))
    assert ledger.label_bearing.messages == 8
    affine = [e for e in lines if e["question"] == "FIXED_POINT affine" and e["labels"] == "in the vectors"]
    assert len(affine) == 7
    in_scalars = {e["question"].split()[0] for e in lines if e["labels"] == "in the scalars"}
    assert in_scalars == {"LABELS", "SPREAD", "TRACES"}
    assert all(e["what"] for e in lines)


@pytest.mark.parametrize("residuals", ["smoothed", "grouped"])
def test_the_ledger_remembers_what_the_site_remembers(tmp_path, residuals):
    plan = additive_plan(rows="common", residuals=residuals, landmarks=10, folds=2)
    _, site, lines = ledgered(tmp_path / "l", plan, common=True)
    groups = frozenset(job(site).groups)
    assert bool(groups) == (residuals == "grouped")
    assert remember(tmp_path / "l")[0].recall(plan, "ids") == Remembered(len(lines), groups)


def test_groups_that_went_out_are_remembered_by_every_plan_and_name_no_row(tmp_path):
    _, _, lines = ledgered(tmp_path / "l", additive_plan(rows="common", residuals="grouped"), common=True)
    [groups] = [entry["groups"] for entry in lines if "groups" in entry]  # with the first answer of their means, once
    data = private_data("a", common=True)
    assert sorted(key for group in groups for key in group) == sorted(data.row_keys)
    other = additive_plan(run="run-2", group_size=4, rows="common", residuals="grouped")
    known = remember(tmp_path / "l")[0].recall(other, "other ids")
    assert known == Remembered(groups=frozenset(map(tuple, groups)))
    site = site_with("a", data, recall=lambda *_: known, residuals=EVERYTHING)
    [refusal] = site.handle(Proposal(other.run, 0, other))
    assert "went out in other groups before" in refusal.reason


def test_a_labels_name_is_of_its_id_its_value_and_the_sites_salt():
    keyed = [("p1", 1.5, b"salt"), ("p2", 1.5, b"salt"), ("p1", 1.6, b"salt"), ("p1", 1.5, b"pepper")]
    names = [row_keys([name], np.array([label]), salt) for name, label, salt in [*keyed, keyed[0]]]
    assert (len(set(names)), names[-1]) == (4, names[0])


def test_every_kind_of_question_has_its_words():
    def asked(question):
        return Round(question, Layout(0, 0, 0), (), ())

    questions = [Question(kind, NOTHING, part=part) for kind in Kind for part in ("affine", "linear")]
    questions += [Ask(stage, part=part) for stage in ("sizes", "respond", "score") for part in ("affine", "linear")]
    found = {kind_of(asked(question)): labels_in(asked(question)) for question in questions}
    assert set(found.values()) == {"none", "in the scalars", "in the vectors"}
    assert all(len(words(asked(question))) > 20 for question in questions)
    assert (found["FIXED_POINT linear"], found["respond linear"]) == ("none", "none")
    assert {found[name] for name in ("FIXED_POINT affine", "respond affine", "score linear")} == {"in the vectors"}
    assert found["sizes linear"] == "in the scalars"
