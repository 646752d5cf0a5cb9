"""coordinator/store/history.py: what happened, and what each site disclosed."""

from collections import Counter
from pathlib import Path

import pytest
from machine.stepwise import RUN, answer, begun, words
from machine.tiny import hello, make_plan, offer_of
from store.filled import NOW

from coordinator.machine import notices as n
from coordinator.machine.events import Event, Received, SiteJoined, SiteLost
from coordinator.store import history
from coordinator.store.history import Disclosed, History, HistoryRecorder, NoticeRow, numbers_in
from coreg_core.protocol.messages import Fetched, FromSite, Leaving, PlanRefused, Report


@pytest.fixture
def tables(tmp_path: Path) -> History:
    return History(tmp_path / "runs.sqlite")


def test_notices_come_back_typed_the_last_first_and_a_repeated_one_is_counted(tables: History) -> None:
    stalled, joined = n.Stalled(RUN, ("b",), 600.0), n.Joined("run-2", "a", 1, 3)
    recorder = HistoryRecorder()
    for at, notice in ((1, stalled), (2, joined), (3, stalled), (4, n.StepAnswered(RUN, 0, 0, 3, Report()))):
        recorder.add(notice, f"2026-01-0{at}")
    recorder.flush(tables)
    recorder.flush(tables)  # nothing is new
    again = [NoticeRow("2026-01-03", stalled, 2), NoticeRow("2026-01-02", joined, 1)]
    assert tables.notices() == again
    assert tables.notices(run=RUN) == again[:1]
    assert tables.notices(limit=1) == again[:1]
    tables.write([(NOW, n.SessionEnded("a", f"reason {i}")) for i in range(history.RECENT)], {}, {})
    tables.write([("2027-01-01", stalled)], {}, {})
    assert tables.notices(limit=1) == [NoticeRow("2027-01-01", stalled, 1)], "long ago is another time"


def test_the_oldest_notices_go(tables: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_NOTICES", 3)
    for i in range(8):
        tables.write([(f"2026-01-0{i + 1}", n.SessionEnded("a", f"{i}"))], {}, {})
    assert [row.notice.reason for row in tables.notices()] == ["7", "6", "5"]


def test_a_notice_of_another_release_is_passed_over(tables: History) -> None:
    tables._db.execute("insert into notices (run, at, kind, fields, times) values ('', '', 'Newer', '{}', 1)")
    assert tables.notices() == []


@pytest.mark.parametrize(
    ("message", "numbers"),
    [
        (answer("a", said=words(1, 2, 3)), 3),
        (answer("a", parts=[("", "proof")]), 0),
        (offer_of("a", make_plan()), 0),
        (PlanRefused(RUN, "no"), 0),
    ],
)
def test_the_words_of_a_message_are_counted(message: FromSite, numbers: int) -> None:
    assert numbers_in(message) == numbers


def test_messages_of_known_runs_are_counted_used_or_not(tables: History) -> None:
    federation, recorder = begun().federation, HistoryRecorder()
    counted: list[Event] = [
        SiteJoined(hello("a")),
        Received("a", answer("a", said=words(1, 2, 3))),
        Received("a", answer("a", 9, 9, words(1, 2, 3))),
        Received("b", Fetched(RUN)),
        Received("b", Leaving("it names no run")),
    ]
    assert all(recorder.heard(federation, event) for event in counted)
    assert not recorder.heard(federation, SiteLost("a", "gone"))
    recorder.flush(tables)
    of_run = [Disclosed("a", "Answer", 2, 6), Disclosed("b", "Fetched", 1, 0)]
    assert tables.disclosed() == [of_run[0], Disclosed("a", "Hello", 1, 0), of_run[1], Disclosed("b", "Leaving", 1, 0)]
    assert tables.disclosed(run=RUN) == of_run
    recorder.heard(federation, counted[1])
    recorder.flush(tables)
    assert tables.disclosed(run=RUN)[0] == Disclosed("a", "Answer", 3, 9)


def test_an_answer_time_runs_from_the_step_until_the_sites_first_answer(tables: History) -> None:
    now = [100.0]
    federation, recorder = begun().federation, HistoryRecorder(clock=lambda: now[0])
    first, late = Received("a", answer("a", said=words(1))), Received("a", answer("a", 9, 9, words(1)))
    recorder.heard(federation, first)  # of a coordinator that resumed a run within a step
    recorder.add(n.MembersAre(RUN, 0, ("a", "b")), NOW)
    now[0] += 0.25
    recorder.heard(federation, first)
    recorder.heard(federation, late)
    recorder.flush(tables)
    assert [d.seconds for d in tables.disclosed(RUN)] == [(0.25,)]
    recorder.add(n.StepAnswered(RUN, 0, 0, 3, Report()), NOW)
    for _ in range(history.MAX_TIMES):
        now[0] += 1.0
        recorder.heard(federation, first)
    recorder.flush(tables)
    assert [d.seconds for d in tables.disclosed(RUN)] == [tuple(float(i + 1) for i in range(history.MAX_TIMES))]
    tables.write([], Counter({("run-2", "a", "Answer"): 1}), Counter(), {("run-2", "a", "Answer"): [7.0]})
    [over_all_runs] = tables.disclosed()
    assert (over_all_runs.messages, over_all_runs.seconds) == (history.MAX_TIMES + 4, (7.0,)), "of the latest run"


def test_run_names_that_a_site_invents_are_not_counted(tables: History) -> None:
    """Each would be a row for good: 10,000 characters a message, on the coordinator's disk."""
    federation, recorder = begun(None, "a", "b").federation, HistoryRecorder()
    for run, site in (("invented", "a"), ("x" * 10_000, "a"), (RUN, "z")):
        assert not recorder.heard(federation, Received(site, Fetched(run)))
    recorder.flush(tables)
    assert tables.disclosed() == []
