"""coordinator/machine/notices.py and wording.py: one sample of every notice, its line for a person, and its fields."""

import json
import math
from dataclasses import fields
from typing import get_args

import pytest
from machine.stepwise import RUN

from coordinator.machine import notices as n
from coordinator.machine.wording import is_warning, message_for
from coreg_core.protocol.messages import Report
from coreg_core.protocol.outcomes import Outcome

# Of each notice, the words that its line has; those of a warning come second.
LINES: dict[n.Notice, list[str]] = {
    n.Listening("127.0.0.1", 7600, "9.9"): ["listening on 127.0.0.1:7600"],
    n.RunStarted(RUN, "weight", False): ["run run-1 of study weight started"],
    n.RunStarted(RUN, "", True): ["run run-1 begins again"],
    n.Reloaded(("a", "b"), 3): ["2 sites", "max_concurrent_runs = 3"],
    n.ServiceDraining((RUN,)): ["draining: run-1"],
    n.ServiceDraining(()): ["draining"],
    n.Stopped(): [],
    n.RunBegan(RUN, ("a", "b"), 600.0): ["run run-1", "a, b", "timeout 600 s"],
    n.AnswersInClear(RUN): ["in the clear", 'aggregation = "secure"'],
    n.RunTakenUp(RUN, 2, ("a", "b")): [
        "run run-1 begins again after 2 attempts",
        "waiting for a, b to connect",
        "no timeout",
    ],
    n.RunTakenUp(RUN, 1, ("a",), 60.0): ["after 1 attempt: waiting for a to connect", "timeout 60 s"],
    n.Joined(RUN, "a", 1, 3): ["a joined (1 of 3)"],
    n.Left(RUN, "a", "its stream ended", lost=True): ["a lost: its stream ended"],
    n.Left(RUN, "a", "stopped", lost=False): ["a left: stopped"],
    n.PlanSent(RUN, ("a", "b"), 600.0): ["plan sent to a, b", "timeout 600 s"],
    n.PlanAcceptedBy(RUN, "a"): ["a is ready: its policy allows the plan"],
    n.Approved(RUN, "a"): ["the operator of a approved the plan"],
    n.SessionOpened("a", "0.2.0", "2027-01-01T00:00:00+00:00"): ["a is connected, with release 0.2.0"],
    n.SessionOpened("a", "", ""): ["a is connected"],
    n.SessionEnded("a", "its stream ended"): ["a disconnected: its stream ended"],
    n.MembersAre(RUN, 1, ("a", "b")): ["2 sites: a, b"],
    n.KeysChanged(RUN, 2, ("b",)): ["b restarted", "interrupts this attempt"],
    n.StepAnswered(RUN, 0, 0, 3, Report()): [],
    n.RunEnded(RUN, Outcome.STALLED, "b did not reconnect within 4 s"): ["stalled: b did not reconnect within 4 s."],
}
WARNINGS: dict[n.Notice, list[str]] = {
    n.ApprovalAwaited(RUN, ("a",), 2, 3, 86_400.0): ["approval by a", "2 of 3 approved", "timeout 86400 s"],
    n.CertificateExpires("coordinator.pem expires in 20 days"): ["coordinator.pem expires in 20 days"],
    n.NotReloaded("federation.toml: no such file."): ["configuration not reloaded: federation.toml: no such file."],
    n.SiteDismissed(RUN, "a", "a: NaN", excluded=True): ["a: NaN"],
    n.SessionRejected("z", "z: unknown"): ["z: unknown"],
    n.AccessDenied("z", "revoked"): ["rejected: z: revoked"],
    n.AccessDenied("", "no certificate"): ["rejected: unknown peer: no certificate"],
    n.GoingOnWithout(RUN, ("b", "c"), "join in time"): ["continuing without b, c", "did not join in time"],
    n.Stalled(RUN, ("b",), math.inf): ["stalled: waiting for b", "no timeout"],
    n.Stalled(RUN, (), 4.0): ["waiting for enough sites", "timeout 4 s"],
    n.LedgerDoubtful(RUN, "a", "a: the head is another's"): ["a: the head is another's"],
}
EVERY = LINES | WARNINGS


@pytest.mark.parametrize(("notice", "words"), EVERY.items(), ids=lambda value: type(value).__name__)
def test_a_notice_is_one_line_with_its_words(notice: n.Notice, words: list[str]) -> None:
    line = message_for(notice)
    assert bool(line) is bool(words)
    assert all(word in line for word in words), line
    assert "\n" not in line
    assert is_warning(notice) is (notice in WARNINGS)


@pytest.mark.parametrize(
    "notice", [x for x in EVERY if not isinstance(x, n.StepAnswered)], ids=lambda x: type(x).__name__
)
def test_a_notice_comes_back_from_json(notice: n.Notice) -> None:
    again = n.from_fields(type(notice).__name__, json.loads(json.dumps(n.to_fields(notice))))
    assert again == notice
    assert [getattr(again, f.name) for f in fields(notice)] == [getattr(notice, f.name) for f in fields(notice)]


def test_every_notice_has_a_sample_here() -> None:
    assert {type(notice) for notice in EVERY} == set(get_args(n.Notice))


def test_a_step_is_stored_with_the_rounds_and_a_notice_of_another_release_is_passed_over() -> None:
    plain = n.to_fields(n.StepAnswered(RUN, 3, 1, 2, Report(phase="grid")))
    assert plain == {"run": RUN, "number": 3, "attempt": 1, "answered": 2}
    assert n.from_fields("StepAnswered", plain) is None
    assert n.from_fields("NewerNotice", {"run": RUN}) is None
