"""The additive objective through both machines: the dense oracle's solution, the same bits, and a site held to the plan."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from machine.additive_tiny import (
    EVERYTHING,
    NAMES,
    UNLABELLED,
    additive_plan,
    additive_sites,
    bits,
    job,
    off_the_oracle,
    private_data,
    restarted,
    undisturbed,
)
from machine.tiny import Pump
from sklearn.datasets import load_diabetes

from coordinator.machine.events import SiteLost
from coordinator.machine.records import MembershipChanged, StepTaken
from coreg_core.additive.model.grouping import ResidualPolicy
from coreg_core.additive.question_rules import max_questions
from coreg_core.additive.question_types import Ask, Column, Operator
from coreg_core.protocol.messages import Ask as AgreementAsk
from coreg_core.protocol.messages import Fault, Finished, FromSite, Inquiry, PlanAccepted, PlanRefused, Share, ToSite
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan
from coreg_core.protocol.vectors import Vector
from coreg_sim.federation.problems import generated
from site_agent.machine.memory import Remembered
from site_agent.machine.site import MOST_FAULTS, Site, Terms
from site_agent.machine.site_data import PrivateData

# --- what comes out -----------------------------------------------------------------------------------------------


def diabetes() -> dict[str, PrivateData]:
    """442 patients, ten columns dealt out to three sites; 60 labelled patients each, the same 200 shared by all."""
    X, y = load_diabetes(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    X, y = np.ascontiguousarray(X[order]), y[order]
    return {
        name: PrivateData(
            np.ascontiguousarray(X[200 + 60 * v : 260 + 60 * v, v::3]),
            y[200 + 60 * v : 260 + 60 * v],
            np.ascontiguousarray(X[:200, v::3]),
            "ids",
        )
        for v, name in enumerate(NAMES)
    }


@pytest.mark.parametrize("data", ["generated", "diabetes"])
def test_messages_alone_equal_the_dense_oracle(data: str) -> None:
    tables = diabetes() if data == "diabetes" else generated(3, 40, 150, 4, 0).sites
    plan = additive_plan(tables, tuning_steps=6, probes=16, landmarks=100, final_tolerance=1e-11)
    pump = Pump(plan, {name: Site(name, table) for name, table in tables.items()}).join().run()
    assert pump.end is not None
    assert pump.end.outcome is Outcome.CONVERGED
    assert off_the_oracle(pump) < 1e-8
    rounds = pump.machine.run.recorded.computation.rounds(pump.machine.run.recorded.state)
    assert rounds <= 60


def test_the_site_predicts_in_its_own_units_from_its_own_columns() -> None:
    pump = undisturbed(additive_plan(tuning_steps=3))
    for name, site in pump.sites.items():
        assert site.result is not None
        model, data = site.result.additive, private_data(name)
        assert model is not None
        assert model.alone is not None
        blended = 0.8 * model.joined.predict(data.X) + 0.2 * model.alone.predict(data.X)
        np.testing.assert_allclose(model.own.predict(data.X), blended, rtol=1e-10)
        assert np.abs(model.own.predict(data.X) - data.y).mean() < np.abs(data.y - data.y.mean()).mean()
        assert any("label noise of this site" in text for text in site.result.findings)


def test_a_site_without_labels_ends_with_a_model() -> None:
    pump = undisturbed(additive_plan(), {"b": 0})
    result = pump.sites["b"].result
    assert result is not None
    assert result.additive is not None
    assert result.additive.alone is None
    assert np.isfinite(result.additive.own.predict(private_data("b").Z)).all()
    assert off_the_oracle(pump) < 1e-6


def test_where_nobody_has_a_label_the_run_ends_with_that_sentence() -> None:
    pump = undisturbed(additive_plan(), dict.fromkeys(NAMES, 0))
    assert pump.end is not None
    assert pump.end.outcome is Outcome.REFUSED
    assert "no site of this federation has a label" in pump.end.reason


def test_a_plan_with_too_little_memory_ends_with_that_sentence() -> None:
    pump = undisturbed(additive_plan(memory=1000))
    assert pump.end is not None
    assert pump.end.outcome is Outcome.REFUSED
    assert "Grant more memory" in pump.end.reason


COMMON: dict[str, dict[str, Any]] = {
    "smoothed": {"rows": "common", "folds": 2, "landmarks": 10},
    "grouped": {"rows": "common", "residuals": "grouped"},
    "open": {"rows": "common", "residuals": "open"},
}


@pytest.mark.parametrize("residuals", COMMON)
def test_common_rows_through_the_same_messages(residuals: str) -> None:
    """Tuned by folds of the joint score where they are smoothed; grouped and open residuals are right as tuned."""
    pump = undisturbed(additive_plan(**COMMON[residuals]), common=True)
    assert pump.end is not None
    assert pump.end.outcome is Outcome.CONVERGED
    assert off_the_oracle(pump) < 1e-8
    phases = [r.phase for r in pump.records if isinstance(r, StepTaken)]
    assert ("grid" in phases) == (residuals == "smoothed")


def test_what_grouped_and_open_residuals_tell_and_no_more() -> None:
    """q of the solution: zero off the labelled instances, constant over groups of three; under "open" every label follows."""
    for residuals in ("grouped", "open"):
        pump = undisturbed(additive_plan(**COMMON[residuals]), common=True)
        targets = pump.models["a"].targets
        assert targets is not None
        x = targets.values[:, 0]
        m = UNLABELLED
        shared = [set(private_data(name, common=True).positions.tolist()) for name in NAMES]  # type: ignore[union-attr]
        assert not x[m : 2 * m][sorted(set(range(m)) - set.union(*shared))].any()
        [alone] = [np.array(sorted(shared[0] - shared[1] - shared[2]))]
        q, site = x[m : 2 * m], job(pump.sites["a"]).engine
        if residuals == "open":
            mean, deviation = site._units
            told = mean + deviation * (x[-1] + x[:m] + site.hypers[-1].noise * q)
            labels = dict(zip(site._positions.tolist(), site._y, strict=True))  # type: ignore[union-attr]
            np.testing.assert_allclose(told[alone], [labels[i] for i in alone], rtol=1e-6)
        else:
            for group in site.groups(site._positions.astype(str).tolist()):  # type: ignore[union-attr]
                mine = [int(i) for i in group if int(i) in alone]
                assert len(group) == 3
                assert np.ptp(q[mine]) <= 1e-12 * np.abs(q).max() if mine else True


# --- the same bits ------------------------------------------------------------------------------------------------


QUICK = {"tuning_steps": 1, "probes": 1, "landmarks": 5, "tolerance": 1e-2, "final_tolerance": 1e-5}


def test_a_run_killed_after_any_record_ends_on_the_same_bits() -> None:
    plan = additive_plan(**QUICK)
    whole = undisturbed(plan)
    expected = bits(whole)
    assert len(whole.records) > 20
    for kill in range(1, len(whole.records)):
        first = Pump(plan, additive_sites(plan), kill_after=kill).join().run()
        assert first.killed
        # Both sides die: sites know what their ledgers say, the coordinator what its store says.
        again = {name: restarted(site) for name, site in first.sites.items()}
        second = Pump(plan, again, first.records).join().run()
        if second.end is None:  # it was over, and everybody had it
            continue
        assert second.end.outcome is Outcome.CONVERGED
        if any(site.result is None for site in second.sites.values()):
            continue  # delivered before the kill: the site's file is on its disk
        assert bits(second) == expected, f"killed after record {kill}"


def test_a_site_that_is_killed_at_any_question_goes_on_where_it_was() -> None:
    plan = additive_plan(**QUICK)
    whole = undisturbed(plan)
    expected, questions = bits(whole), sum(isinstance(r, StepTaken) for r in whole.records)
    for stop in range(questions):
        pump = Pump(plan, additive_sites(plan)).join().steps(stop)
        pump.carry_out(pump.machine.handle(SiteLost("b", "killed")))
        pump.events = type(pump.events)(e for e in pump.events if getattr(e, "site", None) != "b")
        pump.sites["b"] = restarted(pump.sites["b"])
        pump.join("b").run()
        assert bits(pump) == expected, f"killed at question {stop}"


def test_the_order_of_arrival_changes_no_bit() -> None:
    plan = additive_plan(**QUICK)
    expected = bits(undisturbed(plan))
    for seed in range(5):
        pump = Pump(plan, additive_sites(plan), shuffle=random.Random(seed)).join().run()
        assert bits(pump) == expected


# --- sites that come and go ---------------------------------------------------------------------------------------


def test_a_lost_site_costs_the_training_its_beginning_and_the_others_go_on() -> None:
    plan = additive_plan(on_dropout="continue")
    pump = Pump(plan, additive_sites(plan)).join().steps(8)
    pump.carry_out(pump.machine.handle(SiteLost("c", "gone")))
    pump.sites["c"].handle = lambda message: []  # type: ignore[method-assign]
    pump.events = type(pump.events)(e for e in pump.events if getattr(e, "site", None) != "c")
    pump.out_of_time().run()
    assert pump.end is not None
    assert pump.end.outcome is Outcome.CONVERGED
    first, second = [r for r in pump.records if isinstance(r, MembershipChanged)]
    assert (first.participants, second.participants) == (NAMES, ("a", "b"))
    alone = undisturbed(additive_plan(("a", "b")))
    targets, expected = pump.models["a"].targets, alone.models["a"].targets
    assert targets is not None
    assert targets == expected


def test_a_lost_site_is_taken_back_once_it_accepts_the_plan_again() -> None:
    plan = additive_plan(on_dropout="continue")
    sites = additive_sites(plan)
    pump = Pump(plan, sites).join().steps(8)
    pump.carry_out(pump.machine.handle(SiteLost("c", "gone")))
    pump.events = type(pump.events)(e for e in pump.events if getattr(e, "site", None) != "c")
    pump.out_of_time()
    while pump.machine.participants == NAMES:
        pump.step()
    pump.sites["c"] = restarted(sites["c"])
    pump.join("c").run()
    assert pump.end is not None
    assert pump.end.outcome is Outcome.CONVERGED


# --- held to the plan ---------------------------------------------------------------------------------------------


def at_question(stop: int) -> tuple[Site, Inquiry]:
    """A site, and the question that it is to be asked now."""
    plan = additive_plan()
    sites = additive_sites(plan)
    asked: list[Inquiry] = []
    answers = sites["a"].handle

    def silent(message: ToSite) -> list[FromSite]:
        """Site a falls silent at that question, which it has not seen."""
        if isinstance(message, Inquiry) and message.question == stop:
            asked.append(message)
            return []
        return answers(message)

    sites["a"].handle = silent  # type: ignore[method-assign]
    Pump(plan, sites).join().run()
    site = restarted(sites["a"])
    site.hello()
    [accepted] = site.handle(plan)
    assert isinstance(accepted, PlanAccepted)
    return site, asked[0]


def vector(ask: Inquiry, *, rows: int = 0, columns: int = 0) -> Vector:
    m, k = (0, 1) if ask.targets is None else ask.targets.shape
    return Vector(np.ones((m + rows, k + columns)))


STEP = Column(operator=Operator(noise=0.5))
# (how many questions were answered, what is changed of the next one, what the site says of it)
WRONG = {
    "a training begins at its beginning": (
        0,
        {"kind": Ask.SCORE, "scalars": (0.0, 1.0), "columns": (Column(),)},
        "at the",
    ),
    "no kind out of its turn": (5, {"kind": Ask.MODEL}, "not what comes"),
    "no step before its turn": (5, {"step": 1, "scalars": (1.0,)}, "not what comes"),
    "no forecast that the plan does not have": (5, {"kind": Ask.FORECAST}, "not what comes"),
    "no fold": (5, {"columns": (Column(operator=Operator(fold=0)),) * 3}, "not what comes"),
    "no other noise": (5, {"columns": (STEP,) * 3}, "never ask"),
    "labels once a solve": (5, {"part": "affine"}, "labels would be told once more"),
    "no column twice": (5, {"columns": (Column(), Column(), Column("probe", 0))}, "never ask together"),
    "no scalars beside a direction": (5, {"scalars": (1.0,)}, "scalars"),
    "no deviation of zero": (2, {"scalars": (0.0, 0.0)}, "scalars"),
    "no other attempt than there can be": (5, {"attempt": 10**6}, "no membership"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_site_answers_nothing_that_the_plan_never_asks(what: str) -> None:
    stop, changed, said = WRONG[what]
    site, ask = at_question(stop)
    [fault] = site.handle(replace(ask, question=ask.question + 1, **changed))
    assert isinstance(fault, Fault), fault
    assert said in fault.reason
    [answer] = site.handle(ask)
    assert isinstance(answer, Share)


def test_shapes_are_the_plans() -> None:
    site, ask = at_question(5)
    for targets in (vector(ask, rows=1), vector(ask, columns=1), None):
        [fault] = site.handle(replace(ask, question=ask.question + 1, targets=targets))
        assert isinstance(fault, Fault)


def test_a_question_of_the_agreement_is_none_of_this_plan_and_the_tenth_fault_ends_the_session() -> None:
    site, ask = at_question(5)
    other = AgreementAsk(ask.run, 99, 0, "linear", (), False, Vector(np.zeros((30, 1))))
    for _ in range(MOST_FAULTS):
        [fault] = site.handle(other)
        assert isinstance(fault, Fault)
        assert "agreement" in fault.reason
    assert site.breach is not None


def test_a_repeated_question_gets_its_answer_and_another_under_its_number_none() -> None:
    site, ask = at_question(5)
    [first] = site.handle(ask)
    assert site.handle(ask) == [first]
    other = restarted(site)
    other.hello()
    other.handle(additive_plan())
    assert other.handle(ask) == [first]
    [fault] = site.handle(replace(ask, targets=vector(ask)))
    assert isinstance(fault, Fault)
    assert "only the first was answered" in fault.reason


def test_answers_are_counted_over_restarts() -> None:
    site, ask = at_question(5)
    job_before = job(site)
    assert job_before.remembered.answered == 5
    site.runs["run-1"] = replace(job_before, most=5)
    [fault] = site.handle(ask)
    assert isinstance(fault, Fault)
    assert "max_questions" in fault.reason
    assert max_questions(job_before.terms) > 2 * 5


def test_a_model_is_taken_at_the_point_that_was_asked_for_and_nowhere_else() -> None:
    pump = undisturbed(additive_plan())
    end = pump.models["a"]
    assert end.targets is not None
    for site in (pump.sites["a"], restarted(pump.sites["a"])):
        site.runs = {run: replace(j, result=None) for run, j in site.runs.items()}
        site.hello()
        site.handle(additive_plan())
        other = Finished(end.run, end.outcome, "", (), Vector(end.targets.values + 1.0))
        assert site.handle(other) == []
        assert site.breach is not None
        site.breach = None
        assert site.handle(end)
        assert site.breach is None
        assert site.result is not None
        assert site.result.additive is not None


@pytest.mark.parametrize("residuals", COMMON)
def test_common_rows_are_held_to_their_plan_and_killed_they_end_on_the_same_bits(residuals: str) -> None:
    plan = additive_plan(**(QUICK | COMMON[residuals]))
    whole = undisturbed(plan, common=True)
    expected = bits(whole)
    for kill in range(2, len(whole.records), 7):
        first = Pump(plan, additive_sites(plan, common=True), kill_after=kill).join().run()
        second = Pump(plan, {n: restarted(s) for n, s in first.sites.items()}, first.records).join().run()
        if second.end is not None and all(site.result is not None for site in second.sites.values()):
            assert bits(second) == expected, f"killed after record {kill}"
    site = whole.sites["a"]
    [fault] = restarted(site).handle(Inquiry(plan.run, 99, 0, Ask.JOINT, "affine", 1, (), (), None))
    assert isinstance(fault, Fault)


def test_common_rows_need_every_labelled_row_among_the_shared_ones() -> None:
    plan = additive_plan(rows="common")
    [refusal] = Site("a", private_data("a")).handle(plan)
    assert isinstance(refusal, PlanRefused)
    assert "rows=" in refusal.reason


# --- groups -------------------------------------------------------------------------------------------------------


def later(pump: Pump, plan: Plan, *, rows: int = 9) -> PlanAccepted | PlanRefused:
    """Site a in another process, with a table of so many rows, asked for another run of another plan."""
    known = Remembered(groups=job(pump.sites["a"], pump.machine.plan.run).remembered.groups)
    site = Site("a", private_data("a", rows, common=True), Terms(recall=lambda *_: known, residuals=EVERYTHING))
    [answer] = site.handle(plan)
    assert isinstance(answer, PlanAccepted | PlanRefused)
    return answer


def test_no_label_goes_out_in_two_groups_whatever_the_run() -> None:
    """Another group size, or a table with one row more: the difference of two means would be one label."""
    grouped = COMMON["grouped"]
    pump = undisturbed(additive_plan(**grouped), common=True)
    assert isinstance(later(pump, additive_plan(run="run-2", tuning_steps=1, **grouped)), PlanAccepted)
    for plan, rows in (
        (additive_plan(run="run-2", group_size=4, **grouped), 9),
        (additive_plan(run="run-2", **grouped), 10),
    ):
        refusal = later(pump, plan, rows=rows)
        assert isinstance(refusal, PlanRefused)
        assert "went out in other groups before" in refusal.reason
    for other in ("smoothed", "open"):
        assert isinstance(later(pump, additive_plan(run="run-2", **COMMON[other])), PlanAccepted)


def test_groups_that_never_went_out_bind_nobody() -> None:
    plan = additive_plan(**COMMON["grouped"])
    pump = Pump(plan, additive_sites(plan, common=True)).join().steps(3)  # accepted, and asked for no mean yet
    assert isinstance(later(pump, additive_plan(run="run-2", group_size=4, **COMMON["grouped"])), PlanAccepted)


def test_groups_are_never_smaller_than_the_largest_that_a_site_asks_for() -> None:
    """Here site b asks for four, and the plan has three."""
    plan = additive_plan(min_sites=3, **COMMON["grouped"])
    sites = additive_sites(plan, common=True)
    terms = Terms(residuals=ResidualPolicy(grouped_at_least=4))
    sites["b"] = Site("b", private_data("b", common=True), terms)
    pump = Pump(plan, sites).join().run()
    assert pump.end is not None
    assert pump.end.outcome is Outcome.REFUSED
    assert "grouped_at_least = 4" in pump.end.reason
    sites["b"] = Site("b", private_data("b", common=True), terms)
    pump = Pump(additive_plan(run="run-2", group_size=4, **COMMON["grouped"]), sites).join().run()
    assert pump.end is not None
    assert pump.end.outcome is Outcome.CONVERGED
    assert off_the_oracle(pump) < 1e-8


def test_an_instance_that_is_labelled_twice_is_no_group() -> None:
    data = private_data("a", common=True)
    assert data.positions is not None
    twice = replace(data, positions=np.concatenate([data.positions[:-1], data.positions[:1]]))
    [refusal] = Site("a", twice, Terms(residuals=EVERYTHING)).handle(additive_plan(**COMMON["grouped"]))
    assert isinstance(refusal, PlanRefused)
    assert "labelled twice" in refusal.reason


# --- answers that cannot be used ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"values": None}, "expected"),
        ({"values": Vector(np.ones((30, 1)))}, "expected"),
        ({"scalars": (1.0,)}, "expected"),
        ({"values": Vector(np.full((61, 3), np.nan))}, "NaN or infinity"),
        ({"values": Vector(np.full((61, 3), 1e308))}, "larger than any"),
    ],
)
def test_a_share_that_cannot_be_used_excludes_its_site_by_name(changed: dict[str, Any], said: str) -> None:
    plan = additive_plan()
    sites = additive_sites(plan)
    sites["b"].handle = lying(sites["b"].handle, changed)  # type: ignore[method-assign]
    pump = Pump(plan, sites).join().run()
    assert pump.end is not None
    assert pump.end.outcome is Outcome.SITE_FAULT
    assert said in pump.end.reason
    assert pump.end.reason.startswith("b: ")


def lying(handle: Any, changed: dict[str, Any]) -> Any:
    def lie(message: ToSite) -> list[FromSite]:
        answers = handle(message)
        if isinstance(message, Inquiry) and message.kind is Ask.FIXED_POINT:
            return [replace(answer, **changed) for answer in answers]
        return answers

    return lie
