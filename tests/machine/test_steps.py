"""coordinator/machine/steps.py: words are added, parts are passed on, reports are compared; answers that are late or false."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine.stepwise import (
    CONVERGED,
    RUN,
    all_of,
    answer,
    answers,
    begun,
    comes_back,
    dismissed,
    fetches,
    joins,
    offers,
    planned,
    sends,
    started,
    steps_sent,
    told,
    words,
    written,
)
from machine.tiny import SCHEDULES, Machine, Pump, make_plan, make_sites, offer_of, sealed, undisturbed

from coordinator.machine import events as e
from coordinator.machine import notices as n
from coordinator.machine.records import AttemptBegan, Begun, Ended, Phase, StepDone
from coreg_core.objectives.additive import Additive
from coreg_core.protocol import messages as m
from coreg_core.protocol.outcomes import Outcome


def test_a_run_from_its_first_event_to_its_last() -> None:
    plan = make_plan(sites=("a", "b"))
    machine = Machine(plan)
    clear = e.Notify(n.answers_in_clear(RUN))
    assert machine.start() == [clear, e.Notify(n.run_began(RUN, "", 0, ("a", "b"), 1.0)), e.SetDeadline(RUN, 1, 1.0)]
    assert machine.handle(joins("b")) == [e.Notify(n.joined(RUN, "b", 1, 2))]
    assert machine.handle(joins("a")) == [
        e.Notify(n.joined(RUN, "a", 2, 2)),
        e.Notify(n.plan_sent(RUN, ("a", "b"), 2.0)),
        e.SetDeadline(RUN, 2, 2.0),
        *(e.Send(s, m.Proposal(RUN, 0, plan)) for s in "ab"),
    ]
    assert machine.handle(offers(machine, "b")) == [
        e.Expect(RUN, plan.most_words(6)),
        e.Notify(n.plan_accepted(RUN, "b")),
    ]
    roster = tuple(offer_of(s, plan) for s in "ab")
    assert machine.handle(offers(machine, "a")) == [
        e.Notify(n.plan_accepted(RUN, "a")),
        e.Persist(RUN, AttemptBegan(0, ("a", "b"))),
        e.Notify(n.members_are(RUN, 0, ("a", "b"))),
        e.SetDeadline(RUN, 3, 3.0),
        *(e.Send(s, m.Step(RUN, 0, 0, roster)) for s in "ab"),
    ]
    assert machine.handle(answers("b", said=words(1, 2))) == []
    assert machine.handle(answers("a", said=words(10, 20))) == [
        e.Persist(RUN, StepDone(0, 0, 2, m.Report())),
        e.Notify(n.step_answered(RUN, 0, 0, 2, m.Report())),
        e.SetDeadline(RUN, 4, 3.0),
        *(e.Send(s, m.Step(RUN, 0, 1, words=words(11, 22))) for s in "ab"),
    ]
    machine.handle(answers("a", 1, report=CONVERGED))
    assert machine.handle(answers("b", 1, report=CONVERGED)) == [
        e.Persist(RUN, StepDone(1, 0, 0, CONVERGED)),
        e.Notify(n.step_answered(RUN, 1, 0, 0, CONVERGED)),
        e.Persist(RUN, Ended(Outcome.CONVERGED, "")),
        e.Notify(n.run_ended(RUN, Outcome.CONVERGED, "")),
        *(e.Send(s, m.Finished(RUN, Outcome.CONVERGED, "")) for s in "ab"),
        e.SetDeadline(RUN, 5, 3.0),
    ]
    assert machine.handle(fetches("a")) == []
    assert machine.handle(e.Received("a", m.Leaving("over"))) == [e.Notify(n.left(RUN, "a", "over", lost=False))]
    assert machine.awaited == ("b",)
    assert machine.handle(fetches("b")) == [e.Finish(RUN, Outcome.CONVERGED, "")]
    assert machine.phase is Phase.DONE


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("secure", [False, True])
def test_the_order_of_arrival_changes_no_bit(schedule: str, secure: bool) -> None:
    plan = make_plan(schedule=schedule)
    plan, expected = sealed(plan) if secure else plan, undisturbed(plan)
    assert set(expected.bits) == set(plan.sites)
    for seed in range(2):
        shuffled = Pump(plan, make_sites(plan.sites), shuffle=random.Random(seed)).join().run()
        assert shuffled.bits == expected.bits
        assert not shuffled.breaches


# --- what follows from the answers --------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(0, 2**64 - 1), min_size=3, max_size=3), min_size=3, max_size=3))
def test_words_are_added_modulo_two_to_the_64_whatever_they_mean(rows: list[list[int]]) -> None:
    machine = begun()
    actions = all_of(machine, [answers(s, said=words(*row)) for s, row in zip("abc", rows, strict=True)])
    total = words(*(sum(column) % 2**64 for column in zip(*rows, strict=True)))
    assert {s: step.words for s, step in steps_sent(actions).items()} == dict.fromkeys("abc", total)


def test_the_sum_is_of_those_who_have_words_and_what_they_said_is_left_as_it_is() -> None:
    machine, said = begun(), words(5)
    actions = all_of(machine, [answers("a", said=said), answers("b"), answers("c", said=words(7))])
    assert steps_sent(actions)["b"].words == words(12)
    assert said == words(5)
    assert [r.answered for r in written(actions) if isinstance(r, StepDone)] == [2]


def test_parts_reach_the_one_they_are_for_with_their_senders_name_and_nobody_else() -> None:
    machine = begun()
    for_one = all_of(
        machine, [answers(s, parts=[(t, f"{s}{t}") for t in "abc" if t != s] + [("z", "x")]) for s in "abc"]
    )
    found = {s: {p.site: p.data for p in step.parts} for s, step in steps_sent(for_one).items()}
    assert found == {t: {s: f"{s}{t}" for s in "abc" if s != t} for t in "abc"}
    for_all = all_of(machine, [answers(s, 1, parts=[("", f"proof of {s}")]) for s in "abc"])
    found = {s: {p.site: p.data for p in step.parts} for s, step in steps_sent(for_all).items()}
    assert found == {t: {s: f"proof of {s}" for s in "abc" if s != t} for t in "abc"}


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        ({"report": m.Report(round=1)}, "b: reports something else"),
        ({"report": CONVERGED}, "b: reports something else"),
        ({"said": words(1, 2)}, "answers of different lengths: a: 1 words, b: 2 words, c: 1 words"),
    ],
)
def test_answers_that_do_not_fit_together_end_the_run_and_the_minority_is_named(odd: Any, reason: str) -> None:
    plain = {"said": words(1)}
    actions = all_of(begun(), [answers("a", **plain), answers("b", **{**plain, **odd}), answers("c", **plain)])
    [ended] = [r for r in written(actions) if isinstance(r, Ended)]
    assert ended.outcome is Outcome.SITE_FAULT
    assert reason in ended.reason


def test_an_outcome_of_no_name_ends_the_run() -> None:
    actions = all_of(begun(), [answers(s, report=m.Report(outcome="WON")) for s in "abc"])
    [ended] = [r for r in written(actions) if isinstance(r, Ended)]
    assert ended.outcome is Outcome.SITE_FAULT
    assert "'WON'" in ended.reason


@pytest.mark.parametrize("terms", [{"max_rounds": 3}, {"tolerance": 0.0, "prediction_tolerance": 0.0}])
def test_an_end_without_convergence_has_models_too(terms: dict[str, Any]) -> None:
    pump = undisturbed(make_plan(**terms))
    assert pump.outcome is (Outcome.MAX_ROUNDS if "max_rounds" in terms else Outcome.STAGNATED)
    assert set(pump.bits) == set("abc")


# --- late, repeated, false ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stray",
    [
        answers("a", 1),
        answers("a", 0, 1),
        e.Received("a", replace(answer(), run="run-0")),
        answers("stranger"),
        e.Received("b", m.Fault(RUN, 1, 0, "x")),
        e.Received("b", m.Fault("run-2", 0, 0, "x")),
        e.DeadlinePassed(RUN, 2),
        e.DeadlinePassed("run-0", 3),
        e.SiteLost("stranger", ""),
    ],
)
def test_what_belongs_to_no_open_step_changes_nothing(stray: e.Event) -> None:
    machine = begun()
    before = machine.federation
    assert machine.handle(stray) == []
    assert machine.federation == before


def test_the_first_answer_counts_and_its_repetition_does_not() -> None:
    machine = begun()
    assert (
        all_of(machine, [answers("a", said=words(1)), answers("a", said=words(9)), answers("b", said=words(1))]) == []
    )
    assert steps_sent(machine.handle(answers("c", said=words(1))))["a"].words == words(3)
    assert machine.handle(answers("a")) == []


def test_a_lost_session_with_the_same_keys_goes_on_in_the_same_attempt() -> None:
    """It is sent the open step again, unless it has answered it: what it answered before it was lost counts."""
    machine = begun()
    all_of(machine, [answers("b"), e.SiteLost("a", "gone"), e.SiteLost("b", "gone")])
    assert machine.awaited == ("a", "c")
    step = m.Step(RUN, 0, 0, tuple(offer_of(s, machine.plan) for s in "abc"))
    for site in "ab":
        assert all_of(machine, [joins(site)])[-1] == e.Send(site, m.Proposal(RUN, 0, machine.plan))
        assert machine.handle(answers(site)) == [], "it has not offered in this session"
        sent = sends(machine.handle(offers(machine, site)))
        assert sent == ([e.Send(site, step)] if site == "a" else []), "b has answered it"
    assert steps_sent(all_of(machine, [answers("a"), answers("c")])).keys() == set("abc")
    assert machine.attempt == 0


def test_a_step_that_went_out_while_a_site_was_away_reaches_it_when_it_is_back() -> None:
    machine = begun()
    all_of(machine, [answers("b", said=words(1)), e.SiteLost("b", "gone"), answers("a", said=words(1))])
    assert steps_sent(machine.handle(answers("c", said=words(1)))).keys() == set("ac")
    assert steps_sent(all_of(machine, comes_back(machine, "b"))) == {"b": m.Step(RUN, 0, 1, words=words(3))}


def test_a_site_in_another_process_begins_another_attempt_of_everybody() -> None:
    machine = begun()
    all_of(machine, [answers("a"), e.SiteLost("b", "killed"), joins("b")])
    actions = machine.handle(offers(machine, "b", key="new"))
    assert n.keys_changed(RUN, 1, "b") in told(actions)
    assert sends(actions) == [e.Send(s, m.Proposal(RUN, 1, machine.plan)) for s in "abc"]
    assert machine.handle(answers("a")) == [], "of the attempt before"
    actions = all_of(machine, [offers(machine, s) for s in "abc"])
    assert steps_sent(actions)["a"].roster == tuple(offer_of(s, machine.plan, 1) for s in "abc")
    assert written(actions)[0].attempt == machine.attempt == 1


def test_records_that_are_older_than_the_sites_attempts_go_past_them() -> None:
    machine = planned()
    actions = machine.handle(e.Received("a", offer_of("a", machine.plan, 7)))
    assert sends(actions) == [e.Send(s, m.Proposal(RUN, 8, machine.plan)) for s in "abc"]
    all_of(machine, [offers(machine, s) for s in "abc"])
    assert (machine.phase, machine.attempt) == (Phase.ASKING, 8)


# --- attempts that are interrupted --------------------------------------------------------------------------------


def restarts(machine: Machine, site: str, key: str) -> list[e.Action]:
    """A participant comes back as a new process, and everybody offers again."""
    actions = all_of(machine, [joins(site), offers(machine, site, key=key)])
    if machine.phase is not Phase.PLANNING:
        return actions
    return actions + all_of(machine, [offers(machine, s) for s in "abc"])


@pytest.mark.parametrize("dropout", ["wait", "continue"])
def test_every_attempt_has_the_same_sites_and_ten_begin(dropout: str) -> None:
    machine = begun(make_plan(on_dropout=dropout))
    for attempt in range(1, 10):
        all_of(machine, [answers(s, 0, attempt - 1) for s in "abc"])
        records = written(restarts(machine, "b", f"key {attempt}"))
        assert records == [AttemptBegan(attempt, ("a", "b", "c"))]
        assert machine.run.done == attempt, "steps are counted over the attempts"
    reason = "10 attempts were interrupted; the last one because b restarted"
    actions = restarts(machine, "b", "another key")
    assert written(actions) == [Ended(Outcome.STALLED, reason)], "for good"
    assert sends(actions)[-3:] == [e.Send(s, m.Finished(RUN, Outcome.STALLED, reason)) for s in "abc"]


@pytest.mark.parametrize("last", [1, 2, 5])
def test_of_an_additive_training_three_attempts_begin_over_all_processes(last: int) -> None:
    machine = started(replace(sealed(make_plan()), objective=Additive()), Begun(last, ("a", "b", "c"), 7))
    actions = all_of(machine, [joins(s) for s in "abc"])
    if last == 1:
        assert sends(actions) == [e.Send(s, m.Proposal(RUN, 2, machine.plan)) for s in "abc"]
        return
    [ended] = written(actions)
    assert (ended.outcome, machine.run.final) == (Outcome.STALLED, True)
    assert ended.reason.startswith("3 attempts were interrupted; the last one because the coordinator restarted")


def test_an_offer_for_an_attempt_beyond_the_limit_ends_the_run() -> None:
    machine = planned()
    [ended] = written(machine.handle(e.Received("a", offer_of("a", machine.plan, 9))))
    assert "because a had already taken part in attempt 9" in ended.reason


# --- faults -------------------------------------------------------------------------------------------------------

FULL = e.Received("b", m.Fault(RUN, 0, 0, "the disk is full"))


def test_a_fault_ends_a_run_whose_plan_waits() -> None:
    machine, reason = begun(), "b: the disk is full"
    actions = machine.handle(FULL)
    assert written(actions) == [Ended(Outcome.SITE_FAULT, reason)]
    assert told(actions) == [
        n.site_dismissed(RUN, "b", reason, excluded=True),
        n.run_ended(RUN, Outcome.SITE_FAULT, reason),
    ]
    assert sends(actions) == [
        e.Send("b", m.Dismissed(RUN, Outcome.SITE_FAULT, reason)),
        *(e.Send(s, m.Finished(RUN, Outcome.SITE_FAULT, reason)) for s in "ac"),
    ]
    assert machine.awaited == ("a", "c"), "nobody waits for the site at fault"


def test_a_fault_is_borne_by_a_plan_that_continues() -> None:
    machine = begun(make_plan(on_dropout="continue"))
    actions = all_of(machine, [answers("a"), FULL])
    assert sends(actions)[1:] == [e.Send(s, m.Proposal(RUN, 1, machine.plan)) for s in "ac"]
    reason = dismissed(machine, joins("b"), Outcome.SITE_FAULT, excluded=True)
    assert reason == "b: no longer in this run: b: the disk is full"
    assert machine.handle(offers(machine, "b")) == []
    all_of(machine, [offers(machine, s) for s in "ac"])
    assert machine.participants == ("a", "c")


def test_a_fault_of_a_session_that_has_not_offered_changes_nothing() -> None:
    machine = begun()
    machine.handle(joins("b"))
    assert machine.handle(FULL) == []
    assert steps_sent(machine.handle(offers(machine, "b"))).keys() == {"b"}


@pytest.mark.parametrize("stalled", [False, True])
def test_an_interruption_is_no_end_of_the_run(stalled: bool) -> None:
    machine = begun()  # nothing is persisted: it is resumed
    machine.handle(machine.deadline) if stalled else None
    assert machine.phase is (Phase.STALLED if stalled else Phase.ASKING)
    assert machine.handle(e.Interrupted()) == [e.Finish(RUN, Outcome.INTERRUPTED, "")]
    assert machine.handle(e.Interrupted()) == []


def test_the_coordinator_sends_no_number_of_one_site_to_another() -> None:
    """Of sealed runs, all that any site is sent: rosters, sealed parts, sums."""
    plan = sealed(make_plan())
    pump, said = Pump(plan, make_sites(plan.sites)).join(), list[m.Answer]()
    while pump.events and pump.end is None:
        if isinstance(event := pump.events[0], e.Received) and isinstance(event.message, m.Answer):
            said.append(event.message)
        pump.step()
    rows = {row.words.digest for row in said if row.words is not None}
    steps = [s.message for s in pump.sent if isinstance(s.message, m.Step)]
    assert len(rows) > 20
    assert not rows & {step.words.digest for step in steps if step.words is not None}
    numbers = np.concatenate([row.words.values for row in said if row.words is not None]).view(np.uint8)
    counts, expected = np.bincount(numbers, minlength=256), len(numbers) / 256
    assert abs(float(np.sum((counts - expected) ** 2) / expected) - 255) < 6 * np.sqrt(2 * 255), "and no byte tells"
