"""coordinator/machine/notices.py: one sample of every notice, its line for a person, and its fields."""

import json
import math
from inspect import getmembers, isfunction

import pytest
from machine.stepwise import RUN

from coordinator.machine import notices as n
from coreg_core.messages import Report
from coreg_core.outcomes import Notice, Outcome

# Each notice, and the words that its line has; those of a warning come second.
LINES: list[tuple[Notice, list[str]]] = [
    (n.listening("127.0.0.1", 7600, "9.9"), ["listening on 127.0.0.1:7600"]),
    (n.reloaded(("a", "b"), 3), ["2 sites", "max_concurrent_runs = 3"]),
    (n.draining((RUN,)), ["draining: run-1"]),
    (n.draining(()), ["draining"]),
    (n.stopped(), []),
    (
        n.run_began(RUN, "weight", 0, ("a", "b"), 600.0),
        ["run run-1 of study weight: waiting for a, b", "timeout 600 s"],
    ),
    (n.run_began(RUN, "", 2, ("a",), math.inf), ["run run-1 begins again after 2 attempts: waiting for", "no timeout"]),
    (n.run_began(RUN, "", 1, ("a",), 60.0), ["after 1 attempt: waiting for a to connect", "timeout 60 s"]),
    (n.answers_in_clear(RUN), ["in the clear", 'aggregation = "secure"']),
    (n.joined(RUN, "a", 1, 3), ["a joined (1 of 3)"]),
    (n.left(RUN, "a", "its stream ended", lost=True), ["a lost: its stream ended"]),
    (n.left(RUN, "a", "stopped", lost=False), ["a left: stopped"]),
    (n.plan_sent(RUN, ("a", "b"), 600.0), ["plan sent to a, b", "timeout 600 s"]),
    (n.plan_accepted(RUN, "a"), ["a is ready: its policy allows the plan"]),
    (n.approved(RUN, "a"), ["the operator of a approved the plan"]),
    (n.aligning(RUN, ("a", "b")), ["the sites find the ids that all of them have: a, b"]),
    (n.session_opened("a", "0.2.0", "2027-01-01T00:00:00+00:00"), ["a is connected, with release 0.2.0"]),
    (n.session_opened("a", "", ""), ["a is connected"]),
    (n.enrolled("a"), ["a has enrolled"]),
    (n.session_ended("a", "its stream ended"), ["a disconnected: its stream ended"]),
    (n.members_are(RUN, 1, ("a", "b")), ["2 sites: a, b"]),
    (n.keys_changed(RUN, 2, "b"), ["b restarted", "interrupts this attempt"]),
    (n.step_answered(RUN, 0, 0, 3, Report()), []),
    (n.run_ended(RUN, Outcome.STALLED, "b did not reconnect within 4 s"), ["stalled: b did not reconnect within 4 s."]),
]
WARNINGS: list[tuple[Notice, list[str]]] = [
    (n.approval_awaited(RUN, ("a",), 2, 3, 86_400.0), ["approval by a", "2 of 3 approved", "timeout 86400 s"]),
    (n.certificate_warning("coordinator.pem expires in 20 days"), ["coordinator.pem expires in 20 days"]),
    (n.not_reloaded("federation.toml: no such file."), ["configuration not reloaded: federation.toml: no such file."]),
    (n.site_dismissed(RUN, "a", "a: NaN", excluded=True), ["a: NaN"]),
    (n.session_rejected("z", "z: unknown"), ["z: unknown"]),
    (n.access_denied("z", "revoked"), ["rejected: z: revoked"]),
    (n.access_denied("", "no certificate"), ["rejected: unknown peer: no certificate"]),
    (n.enrolment_refused("a", "the invitation of a has expired"), ["rejected: the invitation of a has expired"]),
    (n.enrolment_closed("127.0.0.1:7601", "in use"), ["no site can enrol: 127.0.0.1:7601", "Choose another port"]),
    (n.going_on_without(RUN, ("b", "c"), "join in time"), ["continuing without b, c", "did not join in time"]),
    (n.stalled(RUN, ("b",), math.inf), ["stalled: waiting for b", "no timeout"]),
    (n.stalled(RUN, (), 4.0), ["waiting for enough sites", "timeout 4 s"]),
    (n.ledger_doubtful(RUN, "a", "a: the head is another's"), ["a: the head is another's"]),
]
EVERY = [*LINES, *WARNINGS]


@pytest.mark.parametrize(("notice", "words"), EVERY, ids=[notice.name for notice, _ in EVERY])
def test_a_notice_is_one_line_with_its_words_and_one_json_object(notice: Notice, words: list[str]) -> None:
    assert bool(notice.text) is bool(words)
    assert all(word in notice.text for word in words), notice.text
    assert "\n" not in notice.text
    assert (notice.level == "warning") is ((notice, words) in WARNINGS)
    told = json.loads(json.dumps(notice.to_dict(), allow_nan=False))
    assert (told["event"], told["level"], told.get("text", "")) == (notice.name, notice.level, notice.text)
    assert (told.get("run", ""), told.get("site", "")) == (notice.run, notice.site)
    assert set(notice.fields) <= set(told)
    assert not {"event", "level", "run", "site", "text"} & set(notice.fields)


def test_every_notice_has_a_sample_here_and_the_name_of_its_function() -> None:
    functions = {name for name, f in getmembers(n, isfunction) if f.__module__ == n.__name__ and name[0] != "_"}
    named = {notice.name for notice, _ in EVERY}
    assert functions - {"step_answered"} == named - {"round"}


def test_a_step_has_the_figures_of_its_worst_column() -> None:
    step = n.step_answered(RUN, 3, 1, 2, Report(4, "grid", True, (0.1, 1.0), (-1.0,))).fields
    assert step == {
        "step": 3, "attempt": 1, "round": 4, "answered": 2, "phase": "grid", "verified": True, "residual": 1.0, "gap": None
    }  # fmt: skip
