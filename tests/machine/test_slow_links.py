"""coordinator/machine/slow_links.py: a site whose vector is on its way is awaited and named, for a bounded time."""

from dataclasses import replace

import pytest
from machine.stepwise import RUN, all_of, answers, joins, offers
from machine.tiny import TIMEOUTS, Machine, make_plan

from coordinator.machine import notices as n
from coordinator.machine.events import DeadlinePassed, Flow, Notify, SetDeadline, SiteLost
from coordinator.machine.phases import Phase
from coordinator.machine.slow_links import UNSEEN, time_left

SLOW = replace(TIMEOUTS, min_bandwidth=1000.0)


def asking(**terms: str) -> Machine:
    """A run at its first step."""
    machine = Machine(make_plan(**terms), SLOW)
    machine.start()
    all_of(machine, [joins(site) for site in "abc"])
    all_of(machine, [offers(machine, site) for site in "abc"])
    return machine


COMING = Flow(False, 2000, 8000, 2.0)


@pytest.mark.parametrize("on_dropout", ["wait", "continue"])
def test_a_site_whose_answer_is_coming_is_waited_for_and_named(on_dropout: str) -> None:
    machine = asking(on_dropout=on_dropout)
    all_of(machine, [answers("a"), answers("c")])
    assert machine.handle(DeadlinePassed(RUN, 3, {"b": COMING})) == [
        Notify(n.SlowLink(RUN, "b", False, 2000, 8000, 2.0, 14.0)),  # 8 000 bytes are given 16 s
        SetDeadline(RUN, 4, SLOW.round),
    ]
    assert (machine.phase, machine.awaited) == (Phase.ASKING, ("b",))
    later = Flow(False, 6000, 8000, 14.5)
    [notice, deadline] = machine.handle(DeadlinePassed(RUN, 4, {"b": later}))
    assert notice == Notify(n.SlowLink(RUN, "b", False, 6000, 8000, 14.5, 1.5))
    assert deadline == SetDeadline(RUN, 5, 1.5)
    machine.handle(answers("b"))
    assert machine.participants == ("a", "b", "c")


def test_a_link_below_the_least_bandwidth_is_named_and_not_waited_for_for_ever() -> None:
    machine = asking()
    all_of(machine, [answers("a"), answers("c")])
    assert machine.handle(DeadlinePassed(RUN, 3, {"b": Flow(False, 6000, 8000, 16.5)})) == [
        Notify(n.SlowLink(RUN, "b", False, 6000, 8000, 16.5, 0.0)),
        Notify(n.Stalled(RUN, ("b",), SLOW.stall)),
        SetDeadline(RUN, 4, SLOW.stall),
    ]
    back = machine.handle(DeadlinePassed(RUN, 4, {"b": Flow(True, 10, 8000, 1.0)}))  # it came back, and is asked again
    assert back == [Notify(n.SlowLink(RUN, "b", True, 10, 8000, 1.0, 15.0)), SetDeadline(RUN, 5, SLOW.round)]
    assert machine.phase is Phase.STALLED


def test_a_step_that_took_long_to_go_out_leaves_its_site_the_rounds_time() -> None:
    machine = asking(on_dropout="continue")
    all_of(machine, [answers("a"), answers("c")])
    assert machine.handle(DeadlinePassed(RUN, 3, {"b": Flow(True, 100, 100, 1.0)})) == [
        SetDeadline(RUN, 4, SLOW.round + 0.2 - 1.0)  # 100 bytes may be on the link unseen, and as many of the answer
    ]
    machine.handle(DeadlinePassed(RUN, 4, {"b": Flow(True, 100, 100, SLOW.round + 0.15)}))
    assert machine.awaited == ("a", "c"), "a little of the round is no reason to wait"


def test_who_answered_or_is_gone_moves_no_deadline() -> None:
    machine = asking(on_dropout="continue")
    all_of(machine, [SiteLost("b", "gone"), answers("a"), answers("c")])
    machine.handle(DeadlinePassed(RUN, 3, {"a": COMING, "b": COMING}))
    assert (machine.phase, machine.awaited) == (Phase.PLANNING, ("a", "c"))


def test_what_a_link_may_hold_unseen_is_bounded() -> None:
    whole = Flow(True, 10 * UNSEEN, 10 * UNSEEN, 0.0)
    assert time_left(whole, SLOW) == SLOW.round + 2 * UNSEEN / 1000.0
