"""What is said of every notice: one line for a person, which names who and what."""

import math
from typing import get_args

import pytest
from stepwise import RUN

from coordinator.machine import notices as n
from coordinator.machine.wording import worded
from coreg_core.protocol.outcomes import Outcome

SAID: dict[n.Notice, str] = {
    n.RunBegan(RUN, ("a", "b"), 600.0): "run run-1: waiting for a, b, 600 s at most",
    n.RunTakenUp(RUN, 7, ("a",), math.inf): "taking up run run-1 at question 7: waiting for a, for as long as it takes",
    n.DeliveryTakenUp(RUN, ()): "taking up run run-1, which is over",
    n.DeliveryTakenUp(
        RUN, ("b",), 60.0
    ): "taking up run run-1, which is over: waiting for b to fetch models, 60 s at most",
    n.Joined(RUN, "a", 1, 3): "a joined (1 of 3)",
    n.Left(RUN, "a", "its stream ended", lost=True): "a lost: its stream ended",
    n.Left(RUN, "a", "stopped", lost=False): "a left: stopped",
    n.PlanSent(RUN, ("a", "b"), 600.0): "plan sent to a, b, whose answers are waited for 600 s at most",
    n.PlanAcceptedBy(RUN, "a"): "a accepted the plan",
    n.SiteDismissed(RUN, "a", "a: NaN", excluded=True): "a: NaN",
    n.SessionRejected("z", "z: unknown"): "z: unknown",
    n.SessionTurnedAway("z", "revoked"): "turned away: z: revoked",
    n.SessionTurnedAway("", "no certificate"): "turned away: somebody: no certificate",
    n.SessionOpened("a", "0.2.0", "2027-01-01T00:00:00+00:00"): "a is connected, with release 0.2.0",
    n.SessionOpened("a", "", ""): "a is connected",
    n.SessionEnded("a", "its stream ended"): "a is not connected any more: its stream ended",
    n.Stalled(RUN, ("b",), math.inf): "stalled: waiting for b, for as long as it takes",
    n.GoingOnWithout(RUN, ("b", "c"), "join in time"): "going on without b, c, who did not join in time",
    n.MembersAre(RUN, 1, ("a", "b")): "2 sites: a, b",
    n.AnswersInClear(RUN): "answers in the clear: whoever holds this coordinator or its memory ",
    n.KeysChanged(
        RUN, 2, ("b",)
    ): "b came back with new keys: everybody answers the open question again, under other masks",
    n.Stalled(RUN, ("b",), 600.0): "stalled: waiting for b, 600 s at most",
    n.Stalled(RUN, (), 4.0): "stalled: waiting for enough sites, 4 s at most",
    n.SlowLink(RUN, "b", False, 400_000, 800_000, 20.0, 60.0): (
        "b: 0.4 of 0.8 MB of its answer arrived in 20 s: 20 kB/s; its link is slow, and the rest is waited for, 60 s at most"
    ),
    n.SlowLink(RUN, "b", True, 400_000, 800_000, 80.0, 0.0): (
        "b: 0.4 of 0.8 MB of what was sent to it went out in 80 s: 5 kB/s; slower than [timeouts] least_bandwidth allows, and "
        "not waited for any longer"
    ),
    n.QuestionAnswered(RUN, 0, 0, 3, None): "",
    n.NotCountersigned(RUN, "a", "a: the head is another's"): "not countersigned: a: the head is another's",
    n.NotFetched(RUN, ("a", "b")): "a, b did not fetch the run's end in time; ",
    n.RunEnded(RUN, Outcome.STALLED, "b did not come back within 4 s"): "stalled: b did not come back within 4 s. ",
}


@pytest.mark.parametrize(("notice", "words"), SAID.items(), ids=lambda value: type(value).__name__)
def test_a_notice_is_said_in_one_line(notice: n.Notice, words: str) -> None:
    said = worded(notice)
    assert said == words or (words.endswith(" ") and said.startswith(words))
    assert "\n" not in said


def test_every_notice_has_its_words() -> None:
    assert {type(notice) for notice in SAID} == set(get_args(n.Notice))
