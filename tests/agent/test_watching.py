"""A long plan phase is not silent: lines in a pipe, a spinner with its seconds on a terminal."""

import asyncio
import io
import time

import pytest
from rich.console import Console

from coreg_core.protocol.plan import Membership, Plan
from site_agent.service.console import Watching
from site_agent.session import progress
from site_agent.session.progress import told_while, work_on

PLAN = Plan("r1", "clinics", Membership(("a", "b"), 2))


def test_what_is_done_and_for_how_long(monkeypatch):
    monkeypatch.setattr(progress, "FIRST_WORD", 0.01)
    told = []
    work = asyncio.to_thread(lambda: time.sleep(0.2) or 7)
    assert asyncio.run(told_while(work, "factoring", told.append)) == 7
    assert told
    assert all(text == "factoring: 0 s so far" for text in told)
    assert len(told) <= 5  # after 10, 30, 70, 150 ms: twice as long each time


def test_work_that_is_short_says_nothing():
    told = []
    assert asyncio.run(told_while(asyncio.sleep(0, 7), "factoring", told.append)) == 7
    assert told == []


def test_what_the_work_raises_comes_through_and_its_end_ends_it(monkeypatch):
    monkeypatch.setattr(progress, "FIRST_WORD", 0.01)

    async def fails():
        await asyncio.sleep(0.03)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        asyncio.run(told_while(fails(), "factoring", lambda _text: None))

    async def cancelled():
        task = asyncio.ensure_future(told_while(asyncio.sleep(60), "factoring", lambda _text: None))
        await asyncio.sleep(0.02)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())


def test_words():
    assert work_on(PLAN) == "checking the plan and factoring the data"


@pytest.mark.parametrize("terminal", [True, False])
def test_a_plan_is_seen_to_be_worked_on(terminal):
    out = io.StringIO()
    watching = Watching(as_json=False, console=Console(file=out, force_terminal=terminal, width=200))
    watching.message(PLAN)
    time.sleep(0.3)  # a frame is drawn every tenth of a second
    watching.close()
    assert "plan of run r1" in out.getvalue()
    assert ("factoring the data" in out.getvalue()) is terminal
