"""coordinator/service/deadlines.py: the timers of the runs as dates and reminders."""

from datetime import UTC, datetime
from itertools import pairwise

from machine.stepwise import RUN, joins, planned, started

from coordinator.machine.federation import Federation
from coordinator.service.deadlines import REMINDER_SECONDS, Deadlines
from coordinator.store.status import waits_in


def test_a_wait_has_a_date_and_reminders_more_and_more_seldom() -> None:
    machine, deadlines = started(), Deadlines()
    machine.handle(joins("a"))
    deadlines.follow(machine.federation, 100.0)
    [(name, wait)] = waits_in({"waits": deadlines.status(machine.federation)}).items()
    assert (name, wait.sites) == (RUN, ("b", "c"))
    assert wait.text.startswith("waiting for b, c to connect (timeout in ")
    assert wait.until is not None
    assert abs((datetime.fromisoformat(wait.until) - datetime.now(UTC)).total_seconds()) < 5
    assert list(deadlines.reminders(machine.federation, 101.0)) == []
    later = 100.0 + REMINDER_SECONDS
    deadlines.follow(machine.federation, later)
    [reminder] = deadlines.reminders(machine.federation, later)
    assert (reminder.sites, reminder.phase) == (("b", "c"), "waiting for b, c to connect (timeout in 0 s)")
    told = [t for t in range(1, 86_400) if list(deadlines.reminders(machine.federation, later + t))]
    assert told[:3] == [120, 360, 840], "twice as long each time"
    assert max(b - a for a, b in pairwise(told)) == 3600
    assert len(told) < 32, "a wait for a day does not displace all other notices"


def test_another_timer_begins_another_wait_and_a_federation_that_is_newer_is_no_error() -> None:
    machine, deadlines = planned(), Deadlines()
    assert deadlines.status(machine.federation) == {}, "a thread reads while the loop goes on"
    deadlines.follow(machine.federation, 0.0)
    deadlines.follow(Federation(), 1.0)
    assert deadlines.status(machine.federation) == {}
