"""coordinator/machine/dispatch.py and run.py: words are added, parts passed on, reports compared;
false answers; the end.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine.stepwise import (
    CONVERGED,
    ROUND,
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
    sends,
    started,
    steps_sent,
    told,
    words,
    written,
)
from machine.tiny import Machine, Pump, make_plan, make_sites, offer_of, sealed

from coordinator.machine import notices as n
from coordinator.machine.events import (
    Action,
    Breached,
    Cancelled,
    CountersignHead,
    DeadlinePassed,
    Event,
    Expect,
    Finish,
    HeadCountersigned,
    Interrupted,
    NotifyObservers,
    Persist,
    Received,
    SendToSite,
    SetDeadline,
    SiteLost,
)
from coordinator.machine.records import AttemptBegan, Begun, Ended, HeadSigned, Phase, StepDone
from coreg_core.messages import (
    Answer,
    Countersigned,
    Dismissed,
    Fault,
    Fetched,
    Finished,
    Leaving,
    LedgerHead,
    Part,
    Proposal,
    Report,
    Step,
    Words,
)
from coreg_core.objectives.additive import Additive
from coreg_core.objectives.scoring import Scoring
from coreg_core.outcomes import Outcome
from coreg_core.plan import Plan
from coreg_core.shapes import TAG_WORDS
from coreg_core.terms import Membership


def test_a_run_from_its_first_event_to_its_last() -> None:
    plan = make_plan(sites=("a", "b"))
    machine = Machine(plan)
    clear = NotifyObservers(n.notice(n.NoticeName.ANSWERS_IN_CLEAR, RUN))
    assert machine.start() == [
        clear,
        NotifyObservers(n.run_began(RUN, "", 0, ("a", "b"), 1.0)),
        SetDeadline(RUN, 1, 1.0),
    ]
    assert machine.handle(joins("b")) == [
        NotifyObservers(n.notice(n.NoticeName.JOINED, RUN, "b", here=1, of=2))
    ]
    assert machine.handle(joins("a")) == [
        NotifyObservers(n.notice(n.NoticeName.JOINED, RUN, "a", here=2, of=2)),
        NotifyObservers(n.notice(n.NoticeName.PLAN_SENT, RUN, sites=("a", "b"), seconds=2.0)),
        SetDeadline(RUN, 2, 2.0),
        *(SendToSite(s, Proposal(RUN, 0, plan)) for s in "ab"),
    ]
    assert machine.handle(offers(machine, "b")) == [
        NotifyObservers(n.notice(n.NoticeName.PLAN_ACCEPTED, RUN, "b")),
    ]
    roster = tuple(offer_of(s, plan) for s in "ab")
    assert machine.handle(offers(machine, "a")) == [
        NotifyObservers(n.notice(n.NoticeName.PLAN_ACCEPTED, RUN, "a")),
        Persist(RUN, AttemptBegan(0, ("a", "b"))),
        NotifyObservers(n.members_are(RUN, 0, ("a", "b"))),
        Expect(RUN, plan.most_bytes(6, ("a", "b"))),
        SetDeadline(RUN, 3, 3.0),
        *(SendToSite(s, Step(RUN, 0, 0, roster)) for s in "ab"),
    ]
    assert machine.handle(answers("b", summed=words(1, 2))) == []
    assert machine.handle(answers("a", summed=words(10, 20))) == [
        Persist(RUN, StepDone(0, 0, 2, ROUND)),
        SetDeadline(RUN, 4, 3.0),
        *(SendToSite(s, Step(RUN, 0, 1, summed=words(11, 22))) for s in "ab"),
    ]
    machine.handle(answers("a", 1, report=CONVERGED))
    assert machine.handle(answers("b", 1, report=CONVERGED)) == [
        Persist(RUN, StepDone(1, 0, 0, CONVERGED)),
        Persist(RUN, Ended(Outcome.CONVERGED, "")),
        NotifyObservers(n.run_ended(RUN, Outcome.CONVERGED, "")),
        *(SendToSite(s, Finished(RUN, Outcome.CONVERGED, "")) for s in "ab"),
        SetDeadline(RUN, 5, 3.0),
    ]
    assert machine.handle(fetches("a")) == []
    assert machine.handle(Received("a", Leaving("over"))) == [
        NotifyObservers(n.left(RUN, "a", "over", lost=False))
    ]
    assert machine.awaited == ("b",)
    assert machine.handle(fetches("b")) == [Finish(RUN, Outcome.CONVERGED, "")]
    assert machine.phase is Phase.DONE


# --- what follows from the answers ----------------------------------------------------------------


@given(
    st.lists(st.lists(st.integers(0, 2**64 - 1), min_size=3, max_size=3), min_size=3, max_size=3)
)
def test_words_are_added_modulo_two_to_the_64_whatever_they_mean(rows: list[list[int]]) -> None:
    machine = begun()
    actions = all_of(
        machine, [answers(s, summed=words(*row)) for s, row in zip("abc", rows, strict=True)]
    )
    total = words(*(sum(column) % 2**64 for column in zip(*rows, strict=True)))
    assert {s: step.summed for s, step in steps_sent(actions).items()} == dict.fromkeys(
        "abc", total
    )


def test_where_one_site_is_asked_the_sum_is_its_words_and_a_repetition_does_not_count() -> None:
    machine = begun()
    said = words(5)
    asked = {"report": replace(ROUND, asked="a")}
    actions = all_of(
        machine,
        [
            answers("a", summed=said, **asked),
            answers("a", summed=words(9), **asked),
            answers("b", **asked),
        ],
    )
    assert actions == [], "the first answer counts, and its repetition does not"
    actions = machine.handle(answers("c", **asked))
    assert steps_sent(actions)["b"].summed == said
    assert [r.answered for r in written(actions) if isinstance(r, StepDone)] == [1]
    assert machine.handle(answers("a")) == []


SCORES = Report(question="scores")
RECORDS = Report(question="records")


def scoring(**terms: Any) -> Machine:
    objective = Scoring("run-0", receivers=("a", "b"), **terms)
    return begun(Plan(RUN, "tiny", Membership(tuple("abc"), 3), objective))


def part(sender: str, receiver: str, size: int) -> Part:
    return Part(sender, receiver, bytes([ord(sender)]) * (size + 16))


def test_a_part_reaches_the_one_it_is_for_and_one_for_all_reaches_all() -> None:
    machine = scoring()
    keys = {s: [part(s, t, 32) for t in "abc" if t != s] for s in "abc"}
    report = Report(question="keys")
    actions = all_of(machine, [answers(s, parts=keys[s], report=report) for s in "abc"])
    received = {s: step.parts for s, step in steps_sent(actions).items()}
    assert received == {t: tuple(part(s, t, 32) for s in "abc" if s != t) for t in "abc"}
    records = [part(s, "", 35) for s in "abc"]
    actions = all_of(machine, [answers(p.sender, 1, parts=[p], report=RECORDS) for p in records])
    steps = list(steps_sent(actions).values())
    assert {step.parts for step in steps} == {tuple(records)}
    assert steps[0] is steps[1], "it is encoded once"


BOUNDS = {
    "more parts for all": (RECORDS, [part("b", "", 35)] * 2, "several are for the same receiver"),
    "a part for all that is too large": (
        RECORDS,
        [part("b", "", 36)],
        "a part of 36 bytes for all members, where at most 35 fit",
    ),
    "a part for one where all read": (RECORDS, [part("b", "a", 1)], "for a, where none is sent"),
    "a part for no receiver of the plan": (
        SCORES,
        [part("b", "c", 48)],
        "for c, where none is sent",
    ),
    "a part for itself": (SCORES, [part("b", "b", 48)], "for b, where none is sent"),
    "a part for a stranger": (SCORES, [part("b", "z", 48)], "for z, where none is sent"),
    "a part in another's name": (SCORES, [part("a", "b", 48)], "names a as its sender"),
    "another objective's question": (Report(question="sums"), [], "does not have ('sums')"),
    "a question to a stranger": (Report(question="scores", asked="z"), [], "which is no member"),
    "an outcome that there is not": (Report(outcome="WON"), [], "'WON'"),
    "a payload beside the end": (CONVERGED, [part("b", "a", 48)], "where none is sent"),
    "an answer where another is asked": (
        Report(question="scores", asked="a"),
        [part("b", "a", 48)],
        "where none is sent",
    ),
}


@pytest.mark.parametrize("what", BOUNDS)
def test_what_the_plan_does_not_allow_is_refused_before_another_site_hears_of_it(what: str) -> None:
    report, parts, words_of_it = BOUNDS[what]
    machine = scoring()
    actions = machine.handle(answers("b", parts=parts, report=report))
    [ended] = [r for r in written(actions) if isinstance(r, Ended)]
    assert ended.outcome is Outcome.SITE_FAULT
    assert ended.reason.startswith("b: ")
    assert words_of_it in ended.reason
    assert not steps_sent(actions)


@pytest.mark.parametrize(
    ("report", "receiver", "most"), [(RECORDS, "", 35), (SCORES, "a", 8 * 6 * 3)]
)
def test_scores_of_three_classes_have_room_for_three_and_no_byte_more(
    report: Report, receiver: str, most: int
) -> None:
    machine = scoring(columns=3)
    assert machine.handle(answers("b", parts=[part("b", receiver, most)], report=report)) == []
    actions = machine.handle(answers("c", parts=[part("c", receiver, most + 1)], report=report))
    [ended] = [r for r in written(actions) if isinstance(r, Ended)]
    assert ended.outcome is Outcome.SITE_FAULT
    assert f"where at most {most} fit" in ended.reason


def test_words_beyond_the_plan_are_refused_and_a_plan_that_may_drop_a_site_goes_on() -> None:
    plan = sealed(make_plan(on_dropout="continue", membership_changes=True))
    machine = begun(plan)
    most = 6 * len(plan.couplings) + TAG_WORDS
    too_many = Words(np.zeros(most + 1, dtype="<u8"))
    actions = machine.handle(answers("b", summed=too_many, report=ROUND))
    assert not [r for r in written(actions) if isinstance(r, Ended)]
    [proposal, *_] = [s.message for s in sends(actions) if isinstance(s.message, Proposal)]
    assert proposal.attempt == 1
    assert machine.members == ("a", "c")
    assert f"has {most + 1} words, where at most {most} are summed" in machine.dismissed["b"]


def test_a_fault_of_what_a_site_received_ends_the_run_and_blames_no_one() -> None:
    machine = begun()
    fault = Fault(RUN, 0, 0, "the sum does not match the answers.", received=True)
    actions = machine.handle(Received("a", fault))
    [ended] = [r for r in written(actions) if isinstance(r, Ended)]
    assert ended.outcome is Outcome.SITE_FAULT
    assert ended.reason == ("the sum does not match the answers (found by a, which received it)")
    assert machine.excluded == {}


@pytest.mark.parametrize(
    ("odd", "sites", "reason"),
    [
        ({"report": replace(ROUND, round=1)}, "b", "b: reports something else"),
        (
            {"summed": words(1, 2)},
            "b",
            "answers of different lengths: b: 2 words; the other sites sent another number",
        ),
    ],
)
def test_answers_that_do_not_fit_together_end_the_run_and_name_the_minority(
    odd: Any, sites: str, reason: str
) -> None:
    plain = {"summed": words(1)}
    actions = all_of(
        begun(), [answers(s, **{**plain, **(odd if s in sites else {})}) for s in "abc"]
    )
    [ended] = [r for r in written(actions) if isinstance(r, Ended)]
    assert ended.outcome is Outcome.SITE_FAULT
    assert reason in ended.reason


def test_two_sites_that_differ_are_both_named() -> None:
    machine = begun(make_plan(sites="ab"))
    machine.handle(answers("a", summed=words(1)))
    actions = machine.handle(answers("b", summed=words(1, 2)))
    [ended] = [r for r in written(actions) if isinstance(r, Ended)]
    assert ended.reason == "answers of different lengths: a: 1 words, b: 2 words."


@pytest.mark.parametrize("n_words", [0, 1])
def test_words_of_a_site_that_is_not_asked_are_refused(n_words: int) -> None:
    """Rows of two lengths do not add: an empty one would end the coordinator."""
    machine = begun()
    asked = {"report": replace(ROUND, asked="a")}
    machine.handle(answers("a", summed=words(9, 9), **asked))
    empty = Words(np.zeros(n_words, dtype="<u8"))
    actions = all_of(machine, [answers("b", summed=empty, **asked), answers("c", **asked)])
    [ended] = [r for r in written(actions) if isinstance(r, Ended)]
    assert ended.outcome is Outcome.SITE_FAULT
    assert ended.reason.startswith("b: ")
    assert "where none are summed" in ended.reason


# --- late, repeated, false ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stray",
    [
        answers("a", 1),
        answers("a", 0, 1),
        Received("a", replace(answer(), run="run-0")),
        answers("stranger"),
        Received("b", Fault(RUN, 1, 0, "x")),
        Received("b", Fault("run-2", 0, 0, "x")),
        DeadlinePassed(RUN, 2),
        DeadlinePassed("run-0", 3),
        SiteLost("stranger", ""),
    ],
)
def test_what_belongs_to_no_open_step_changes_nothing(stray: Event) -> None:
    machine = begun()
    before = machine.federation
    assert machine.handle(stray) == []
    assert machine.federation == before


def test_a_lost_session_with_the_same_keys_goes_on_in_the_same_attempt() -> None:
    """It is sent the open step again, unless it has answered it: what it answered before it was
    lost counts.
    """
    machine = begun()
    all_of(
        machine,
        [answers("b", summed=words(1)), SiteLost("a", "gone"), SiteLost("b", "gone")],
    )
    assert machine.awaited == ("a", "c")
    step = Step(RUN, 0, 0, tuple(offer_of(s, machine.plan) for s in "abc"))
    for site in "ab":
        assert all_of(machine, [joins(site)])[-1] == SendToSite(
            site, Proposal(RUN, 0, machine.plan)
        )
        assert machine.handle(answers(site)) == [], "it has not offered in this session"
        sent = sends(machine.handle(offers(machine, site)))
        expected = []
        if site == "a":
            expected = [SendToSite(site, step)]
        assert sent == expected, "b has answered it"
    all_of(machine, [SiteLost("b", "gone"), answers("a", summed=words(1))])
    assert steps_sent(machine.handle(answers("c", summed=words(1)))).keys() == set("ac")
    assert steps_sent(all_of(machine, comes_back(machine, "b"))) == {
        "b": Step(RUN, 0, 1, summed=words(3))
    }
    assert machine.attempt == 0


def test_a_site_in_another_process_begins_another_attempt_of_everybody() -> None:
    machine = begun()
    all_of(machine, [answers("a"), SiteLost("b", "killed"), joins("b")])
    actions = machine.handle(offers(machine, "b", key="new"))
    assert n.notice(n.NoticeName.KEYS_CHANGED, RUN, "b", attempt=1) in told(actions)
    assert sends(actions) == [SendToSite(s, Proposal(RUN, 1, machine.plan)) for s in "abc"]
    assert machine.handle(answers("a")) == [], "of the attempt before"
    actions = all_of(machine, [offers(machine, s) for s in "abc"])
    assert steps_sent(actions)["a"].roster == tuple(offer_of(s, machine.plan, 1) for s in "abc")
    assert written(actions)[0].attempt == machine.attempt == 1


@pytest.mark.parametrize("dropout", ["wait", "continue"])
def test_every_attempt_has_the_same_sites_and_ten_begin(dropout: str) -> None:
    machine = begun(make_plan(on_dropout=dropout))
    for attempt in range(1, 10):
        all_of(machine, [answers(s, 0, attempt - 1) for s in "abc"])
        all_of(machine, [joins("b"), offers(machine, "b", key=f"key {attempt}")])
        records = written(all_of(machine, [offers(machine, s) for s in "abc"]))
        assert records == [AttemptBegan(attempt, ("a", "b", "c"))]
        assert machine.done == attempt, "steps are counted over the attempts"
    reason = "10 attempts were interrupted; the last one because b restarted"
    actions = all_of(machine, [joins("b"), offers(machine, "b", key="another key")])
    assert written(actions) == [Ended(Outcome.STALLED, reason)], "for good"
    assert sends(actions)[-3:] == [
        SendToSite(s, Finished(RUN, Outcome.STALLED, reason)) for s in "abc"
    ]
    # Of an additive training three begin, over all processes.
    plan = replace(sealed(make_plan()), objective=Additive())
    third, fourth = (started(plan, Begun(n, tuple("abc"), 7)) for n in (1, 2))
    all_of(third, [joins(s) for s in "abc"])
    assert third.phase == Phase.PLANNING
    assert third.attempt == 2
    [ended] = written(all_of(fourth, [joins(s) for s in "abc"]))
    assert ended.outcome is Outcome.STALLED
    assert ended.reason.startswith(
        "3 attempts were interrupted; the last one because the coordinator restarted"
    )


# --- faults ---------------------------------------------------------------------------------------

FULL = Received("b", Fault(RUN, 0, 0, "the disk is full"))


def test_a_fault_ends_a_run_whose_plan_waits() -> None:
    machine = begun()
    reason = "b: the disk is full"
    actions = machine.handle(FULL)
    assert written(actions) == [Ended(Outcome.SITE_FAULT, reason)]
    assert told(actions) == [
        n.notice(n.NoticeName.SITE_DISMISSED, RUN, "b", reason=reason, excluded=True),
        n.run_ended(RUN, Outcome.SITE_FAULT, reason),
    ]
    assert sends(actions) == [
        SendToSite("b", Dismissed(RUN, Outcome.SITE_FAULT, reason)),
        *(SendToSite(s, Finished(RUN, Outcome.SITE_FAULT, reason)) for s in "ac"),
    ]
    assert machine.awaited == ("a", "c"), "nobody waits for the site at fault"


def test_a_fault_is_borne_by_a_plan_that_continues() -> None:
    machine = begun(make_plan(on_dropout="continue"))
    actions = all_of(machine, [answers("a"), FULL])
    assert sends(actions)[1:] == [SendToSite(s, Proposal(RUN, 1, machine.plan)) for s in "ac"]
    reason = dismissed(machine, joins("b"), Outcome.SITE_FAULT, excluded=True)
    assert reason == "b: no longer in this run: b: the disk is full"
    machine = begun()
    machine.handle(joins("b"))
    assert machine.handle(FULL) == [], "it has not offered in this session"


@pytest.mark.parametrize("stalled", [False, True])
def test_an_interruption_is_no_end_of_the_run(stalled: bool) -> None:
    machine = begun()  # nothing is persisted: it is resumed
    phase = Phase.ASKING
    if stalled:
        machine.handle(machine.deadline)
        phase = Phase.STALLED
    assert machine.phase is phase
    assert machine.handle(Interrupted()) == [Finish(RUN, Outcome.INTERRUPTED, "")]
    assert machine.handle(Interrupted()) == []


def test_the_coordinator_sends_no_number_of_one_site_to_another() -> None:
    """Of sealed runs, all that any site is sent: rosters, sealed parts, sums."""
    plan = sealed(make_plan())
    pump = Pump(plan, make_sites(plan.sites)).join()
    said = list[Answer]()
    while pump.events and pump.end is None:
        if isinstance(event := pump.events[0], Received) and isinstance(event.message, Answer):
            said.append(event.message)
        pump.step()
    rows = {row.summed.digest for row in said if row.summed is not None}
    steps = [s.message for s in pump.sent if isinstance(s.message, Step)]
    assert len(rows) > 20
    assert not rows & {step.summed.digest for step in steps if step.summed is not None}
    numbers = np.concatenate([row.summed.values for row in said if row.summed is not None]).view(
        np.uint8
    )
    counts = np.bincount(numbers, minlength=256)
    expected = len(numbers) / 256
    assert abs(float(np.sum((counts - expected) ** 2) / expected) - 255) < 6 * np.sqrt(2 * 255), (
        "and no byte tells"
    )


# --- the end: every site hears how its run ended, also after an absence ---------------------------


END = Finished(RUN, Outcome.CONVERGED, "")
OVER = Finish(RUN, Outcome.CONVERGED, "")


def test_a_plan_that_waits_ends_stalled_and_names_the_site() -> None:
    machine = begun()
    all_of(machine, [answers("a"), answers("c"), SiteLost("b", "gone")])
    stalled = n.stalled(RUN, ("b",), "waiting for b to connect", 4.0)
    assert machine.handle(machine.deadline) == [
        NotifyObservers(stalled),
        SetDeadline(RUN, 4, 4.0),
    ]
    assert machine.phase is Phase.STALLED
    reason = "b did not reconnect within 4 s"
    assert machine.handle(machine.deadline) == [
        Persist(RUN, Ended(Outcome.STALLED, reason)),
        NotifyObservers(n.run_ended(RUN, Outcome.STALLED, reason)),
        *(SendToSite(s, Finished(RUN, Outcome.STALLED, reason)) for s in "ac"),
        SetDeadline(RUN, 5, 3.0),
    ]
    assert machine.handle(fetches("a")) == []
    assert machine.handle(machine.deadline) == [Finish(RUN, Outcome.STALLED, reason)]


def ending(*sites: str) -> Machine:
    """A run of one step that has converged; ``sites`` are those that are here."""
    machine = begun()
    all_of(machine, [answers(s, report=CONVERGED) for s in "ab"])
    all_of(machine, [SiteLost(s, "gone") for s in "ab" if s not in sites])
    machine.handle(answers("c", report=CONVERGED))
    if "c" not in sites:
        machine.handle(SiteLost("c", "gone"))
    return machine


@pytest.mark.parametrize(
    "event", [SiteLost("c", "gone"), Received("c", Leaving("gone")), Breached("c", "10 MB")]
)
def test_a_site_that_goes_is_not_waited_for(event: Event) -> None:
    machine = ending("a", "b", "c")
    for _ in range(2):
        assert machine.handle(fetches("a")) == [], "twice is once"
    assert machine.handle(fetches("b")) == []
    actions = machine.handle(event)
    assert written(actions) == []
    assert actions[-1] == OVER


def test_a_site_that_connects_before_the_run_is_over_has_the_end_at_once_and_is_waited_for() -> (
    None
):
    machine = ending("a", "b")
    assert machine.handle(joins("c")) == [
        NotifyObservers(n.notice(n.NoticeName.JOINED, RUN, "c", here=3, of=3)),
        SendToSite("c", END),
    ]
    assert machine.awaited == ("a", "b", "c")
    all_of(machine, [fetches("a")])
    assert SendToSite("a", END) in machine.handle(joins("a"))
    assert machine.awaited == ("b", "c"), "it has said that it has it"
    assert all_of(machine, [fetches(s) for s in "bc"]) == [OVER]


def test_an_interruption_keeps_the_outcome() -> None:
    machine = ending("a", "b", "c")
    machine.handle(fetches("a"))
    assert machine.handle(Interrupted()) == [OVER]
    assert ending("a").handle(Cancelled(RUN, "enough")) == [], "it is over"


# --- the heads of ledgers -------------------------------------------------------------------------

HEAD = LedgerHead(7, "ab", "2026-01-01")
FETCHED = Fetched(RUN, HEAD, "03")


def signed_by(site: str, signature: str = "05", reason: str = "") -> HeadSigned:
    return HeadSigned(
        site, "03", "04", Countersigned(RUN, HEAD, "2026-01-02", signature, "06", reason)
    )


def head_of(machine: Machine, site: str, *signed: str) -> tuple[HeadSigned, list[Action]]:
    """`Fetched` with the ledger's head, which is countersigned beside the loop: the record, and
    what follows from it.
    """
    assert machine.handle(Received(site, FETCHED)) == [CountersignHead(site, FETCHED)]
    record = signed_by(site, *signed)
    return record, machine.handle(HeadCountersigned(RUN, record))


def test_a_head_is_on_record_before_the_site_hears_of_it_and_before_the_run_is_over() -> None:
    machine = ending("a", "b", "c")
    for _ in range(2):
        signed, actions = head_of(machine, "a")
        assert actions == [Persist(RUN, signed), SendToSite("a", signed.message)]
        assert machine.handle(Received("a", FETCHED)) == [], "each head is kept: one a session"
        machine.handle(SiteLost("a", "gone"))
        machine.handle(joins("a"))  # it can have missed the countersignature
    machine.handle(fetches("b"))
    signed, actions = head_of(machine, "c")
    assert actions == [Persist(RUN, signed), SendToSite("c", signed.message), OVER]
    assert machine.handle(HeadCountersigned(RUN, signed)) == [], (
        "of a run that is over nothing is kept any more"
    )


def test_a_site_that_leaves_while_its_head_is_signed_loses_no_signature() -> None:
    machine = ending("a")
    machine.handle(Received("a", FETCHED))
    assert told(machine.handle(Received("a", Leaving("done")))) == [
        n.left(RUN, "a", "done", lost=False)
    ]
    signed = signed_by("a")
    told_last = [Persist(RUN, signed), SendToSite("a", signed.message), OVER]
    assert machine.handle(HeadCountersigned(RUN, signed)) == told_last
    doubtful, actions = head_of(ending("a", "b", "c"), "a", "", "a: of another key")
    assert actions == [
        NotifyObservers(
            n.notice(n.NoticeName.LEDGER_DOUBTFUL, RUN, "a", reason="a: of another key")
        ),
        SendToSite("a", doubtful.message),
    ]
