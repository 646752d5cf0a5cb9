"""Scoring together as a job over sessions: what comes out, who gets it, what is refused, and that nothing else is answered."""

import re
from dataclasses import replace

import numpy as np
import pytest
from machine.additive_tiny import additive_plan, job
from machine.additive_tiny import undisturbed as trained
from machine.tiny import Pump, make_site
from numpy.testing import assert_allclose

from coordinator.machine.records import StepTaken
from coreg_core.additive.question_types import NOTHING, Column, Question
from coreg_core.additive.question_types import Ask as Kind
from coreg_core.protocol.messages import Fault, Fetched, Finished, Inquiry, PlanAccepted, PlanRefused, Share
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Membership, Plan, Privacy, Scoring, plan_fault
from coreg_core.protocol.vectors import Vector
from site_agent.machine.scoring import Batch
from site_agent.machine.site import Site, Terms
from site_agent.policy.policy import Policy

SITES = ("a", "b", "c")
M = 5


def plan(**changes):
    terms = replace(Scoring("run-1"), **changes)
    return Plan("score-1", "tiny", Membership(SITES, 3), terms, privacy=Privacy(aggregation="plaintext"))


def batch(name, **changes):
    rng = np.random.default_rng([1, *name.encode()])
    part, none = rng.normal(size=M), np.zeros(M, dtype=np.bool_)
    return replace(Batch(part, none, 0.25, 10.0, "run-1", "additive", SITES, "digest", name.encode()), **changes)


def sites(**changes):
    return {name: Site(name, batch(name, **changes.get(name, {}))) for name in SITES}


def scored(the_plan=None, **changes):
    return Pump(the_plan or plan(), sites(**changes)).join().run()


def test_parts_add_up_in_one_round_and_every_site_adds_the_intercept():
    pump = scored()
    assert pump.end is not None
    assert pump.end.outcome is Outcome.CONVERGED
    assert "5 instances scored together by 3 sites" in pump.end.reason
    assert sum(isinstance(record, StepTaken) for record in pump.records) == 1, "one sum is all"
    total = sum(batch(name).part for name in SITES)
    for site in pump.sites.values():
        assert site.result is not None
        assert_allclose(site.result.scores, 10.0 + total, rtol=1e-15)


def test_agreeing_models_are_averaged():
    changes = {name: {"trained": "agreement", "intercept": 0.0} for name in SITES}
    pump = scored(plan(trained="agreement"), **changes)
    result = pump.sites["a"].result
    assert result is not None
    assert_allclose(result.scores, sum(batch(name).part for name in SITES) / 3, rtol=1e-15)


def test_the_training_instances_score_as_the_training_left_them():
    """a + Σ h_v(Z) of the models is the point that the training ended with, in the labels' units."""
    training = trained(additive_plan(SITES))
    parts = {}
    for name, site in training.sites.items():
        assert site.result is not None
        models = site.result.additive
        assert models is not None
        part = models.part.predict(site._data.Z)
        parts[name] = {"part": part, "missing": np.zeros(len(part), dtype=np.bool_), "intercept": models.intercept}
        assert abs(part.mean()) < 1e-10 * np.abs(part).max(), "centred over Z: an instance that is lacking stands at 0"
    pump = scored(**parts)
    targets = training.models["a"].targets
    result = pump.sites["a"].result
    assert targets is not None
    assert result is not None
    mean, deviation = job(training.sites["a"]).engine._units
    x = targets.values[:, 0]
    m = (len(x) - 1) // 2
    assert_allclose(result.scores, mean + deviation * (x[-1] + x[:m]), atol=1e-7 * deviation)  # solved to 1e-10


def test_scores_go_to_those_who_may_have_them_and_to_nobody_else():
    pump = scored(plan(receivers=("b",)))
    assert {name: m.targets is not None for name, m in pump.models.items()} == {"a": False, "b": True, "c": False}
    for name, site in pump.sites.items():
        assert site.result is not None
        assert (site.result.scores is not None) == (name == "b")
        assert site.result.outcome is Outcome.CONVERGED


def test_a_site_takes_no_scores_that_the_plan_has_for_others():
    site = sites()["a"]
    the_plan = plan(receivers=("b",))
    site.handle(the_plan)
    site.handle(question())
    site.handle(Finished("score-1", Outcome.CONVERGED, "", (), Vector(np.zeros((M, 1)))))
    assert "scores that the plan has for other sites" in (site.breach or "")


LACKING = {"missing": np.array([False, True, False, True, False])}


def test_an_instance_that_one_site_lacks_is_refused_by_name_and_number():
    pump = scored(b=LACKING)
    assert pump.end is not None
    assert pump.end.outcome is Outcome.REFUSED
    assert "b has no record of 2 of 5 instances" in pump.end.reason
    assert 'missing_instances = "mean"' in pump.end.reason, "and what would help"


def test_or_its_part_stands_at_its_mean_where_the_plan_says_so():
    pump = scored(plan(missing_instances="mean"), b=LACKING)
    assert pump.end is not None
    assert pump.end.outcome is Outcome.CONVERGED
    at_its_mean = np.where(LACKING["missing"], 0.25, batch("b").part)
    result = pump.sites["a"].result
    assert result is not None
    assert_allclose(result.scores, 10.0 + batch("a").part + at_its_mean + batch("c").part, rtol=1e-15)
    told = pump.sites["b"].result
    assert told is not None
    assert "of 2 of these instances" in told.findings[0]
    older = scored(plan(missing_instances="mean"), b={**LACKING, "mean": None})
    assert older.end is not None
    assert older.end.outcome is Outcome.REFUSED, "a model of an older release keeps no mean"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"of_run": "run-0"}, "run-1 \\(additive\\), and b was started with one of run run-0"),
        ({"trained": "agreement"}, "one of run run-1 \\(agreement\\)"),
        ({"sites": ("a", "b")}, "c took no part in run run-1"),
        ({"ids_digest": "another"}, None),
    ],
)
def test_sites_that_cannot_score_together(changes, words):
    pump = Pump(plan(), sites(b=changes)).join().run()
    while pump.end is None:
        pump.out_of_time().run()
    assert pump.end.outcome in (Outcome.REFUSED, Outcome.TOO_FEW_SITES)
    if words is not None:
        assert re.search(words, pump.end.reason), pump.end.reason
    assert all(site.answered == 0 for site in pump.sites.values())


def test_a_trainer_does_not_score_and_a_scorer_does_not_train():
    [refused] = make_site("a").handle(plan())
    assert isinstance(refused, PlanRefused)
    assert "coreg-agent score" in refused.reason
    [refused] = sites()["a"].handle(additive_plan(SITES, run="score-1"))
    assert isinstance(refused, PlanRefused)
    assert "not to train" in refused.reason


def question(number=0, attempt=0, **changes):
    asked = Inquiry.of("score-1", number, attempt, Question(Kind.TOGETHER, NOTHING))
    return replace(asked, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": Kind.SCORE},
        {"part": "affine"},
        {"columns": (Column(),)},
        {"scalars": (1.0,)},
        {"targets": Vector(np.zeros((M, 1)))},
    ],
)
def test_nothing_else_is_answered(changes):
    site = sites()["a"]
    [accepted] = site.handle(plan())
    assert isinstance(accepted, PlanAccepted)
    assert (accepted.n_unlabelled, accepted.bound, accepted.squared_norm) == (M, 0.0, 0.0)
    [answer] = site.handle(question(**changes))
    assert isinstance(answer, Fault)
    [answer] = site.handle(question())
    assert isinstance(answer, Share)
    assert answer.scalars == ()


def test_a_lost_stream_costs_an_answer_more_and_changes_no_bit():
    site = sites()["a"]
    answers = []
    for _session in range(2):
        site.hello()
        site.handle(plan())
        answers += site.handle(question())
    assert answers[0] == answers[1]
    assert site.answered == 2
    for _ in range(20):
        answers += site.handle(question())
    assert sum(isinstance(answer, Share) for answer in answers) == 10, "not for ever"


def test_a_site_that_was_asked_nothing_takes_no_scores():
    site = sites()["a"]
    site.handle(plan())
    assert site.handle(Finished("score-1", Outcome.CONVERGED, "", (), Vector(np.zeros((M, 1))))) == []
    assert "no question was answered" in (site.breach or "")
    site = sites()["a"]
    site.handle(plan())
    site.handle(question())
    assert site.handle(Finished("score-1", Outcome.CONVERGED, "", (), Vector(np.zeros((M, 1))))) == [Fetched("score-1")]


def test_the_policy_has_a_key_and_is_off():
    assert "scoring=false" in (Policy(aggregation="plaintext", objectives=("additive",)).objection(plan()) or "")
    assert "objectives" in (Policy(aggregation="plaintext", scoring=True).objection(plan()) or ""), (
        "what was trained is asked for as well"
    )
    policy = Policy(aggregation="plaintext", scoring=True, objectives=("additive",))
    assert policy.objection(plan()) is None
    site = Site("a", batch("a"), Terms(Policy(aggregation="plaintext").objection))
    assert isinstance(site.handle(plan())[0], PlanRefused)


def test_a_plan_of_fewer_sites_than_it_lists_or_for_strangers_is_none():
    assert plan_fault(plan()) is None
    assert "every site's part" in (plan_fault(replace(plan(), membership=Membership(SITES, 2))) or "")
    assert "none of the sites" in (plan_fault(plan(receivers=("d",))) or "")
