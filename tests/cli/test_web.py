"""The pages show what the store tells, change nothing in it, ask for a token where one is set, and load nothing from outside."""

import asyncio
import json
import re
import socket
import urllib.request
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from machine import additive_tiny
from machine.tiny import make_plan, undisturbed
from starlette.testclient import TestClient
from typer.testing import CliRunner

from coordinator.cli.app import app as coordinator_app
from coordinator.config.federation_toml import FederationSection
from coordinator.config.study_toml import Study
from coordinator.driver import Lap
from coordinator.machine import notices as n
from coordinator.machine.events import Received, SiteJoined
from coordinator.machine.records import Ended, Record, StepTaken
from coordinator.machine.state import resume
from coordinator.store import history as chronicles
from coordinator.store.history import Chronicle, Chronicler
from coordinator.store.queue import Queue
from coordinator.store.runs import RunStore
from coordinator.store.schema import exclusive
from coordinator.web import pages as web
from coordinator.web.charts import convergence
from coordinator.web.server import show
from coreg_core.errors import UsageError
from coreg_core.protocol.messages import Hello, Masked, Prediction, Vector, Words
from coreg_core.protocol.plan import Plan

NOW = "2026-01-01T00:00:00.000+00:00"


def write(store: RunStore, plan: Plan, *, questions: int | None = None, run: Any = undisturbed) -> None:
    store.begin(plan, NOW)
    written: list[Record] = []
    for record in run(plan).records:
        if questions is not None and (
            isinstance(record, Ended) or sum(isinstance(r, StepTaken) for r in written) >= questions
        ):
            return
        written.append(record)
        shown = resume(plan, written).progress if isinstance(record, StepTaken) else None
        store.write(plan.run, record, shown, Lap(0.25, 100, 200), NOW)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A run that converged, one under way that waits for b, one in the queue."""
    path = tmp_path / "runs.sqlite"
    opened, queue = RunStore(path), Queue(path)
    write(opened, make_plan(run="over"))
    write(opened, make_plan(run="live", coupling=(0.1, 2.0)), questions=4)
    plan = Study.model_validate({"study": {"name": "queued-study"}}).plan(
        FederationSection(name="tiny", sites=("a", "b"))
    )
    queue.submit(plan, NOW)
    queue.opened("a", "0.2.0", "2027-01-01T00:00:00+00:00", NOW)
    queue.turned_away("b", "<b> was revoked", NOW)
    queue.say(
        {
            "state": "ready",
            "federation": "tiny",
            "sites": ["a", "b", "c"],
            "awaited": {"live": ["b"]},
            "runs": ["live"],
        },
        NOW,
    )
    queue.close()
    opened.close()
    return path


class Page(HTMLParser):
    """What a page loads, and what of it would be an inline script or style."""

    def __init__(self, text: str):
        super().__init__()
        self.loads: list[str] = []
        self.inline: list[str] = []
        self.points: list[str] = []
        self._in: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.loads += [value or "" for key, value in attrs if key in ("src", "href", "action") and value]
        self.inline += [key for key, _ in attrs if key == "style" or key.startswith("on")]
        self.points += [named["points"] or ""] if "points" in named else []
        self._in = tag if tag in ("script", "style") else None

    def handle_data(self, data: str) -> None:
        if self._in and data.strip():
            self.inline.append(data)


def get(client: TestClient, path: str, status: int = 200) -> str:
    answer = client.get(path)
    assert answer.status_code == status, answer.text
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    page = Page(answer.text)
    assert page.inline == []
    assert all(link.startswith("/") for link in page.loads), "nothing from elsewhere"
    return str(answer.text)


def test_the_first_page_tells_sites_queue_and_runs(store: Path) -> None:
    with exclusive(store), TestClient(web.pages(store)) as client:
        text = get(client, "/")
    assert "connected since 2026-01-01 00:00:00" in text
    assert "&lt;b&gt; was revoked" in text, "what a site says is text"
    assert "queued-study" in text
    assert re.search(r'run <a href="/run/live">live</a> waits for b', text)
    for run, end in (("over", "converged"), ("live", "under way")):
        assert re.search(rf'/run/{run}">{run}</a></td>.*?{end}', text, re.S)


def test_without_a_coordinator_nobody_is_connected(store: Path) -> None:
    with TestClient(web.pages(store)) as client:
        text = get(client, "/")
    assert "no coordinator serves this store" in text
    assert "connected since" not in text


def test_the_next_coordinator_knows_when_a_site_was_last_seen_under_the_one_that_was_killed(store: Path) -> None:
    queue, last = Queue(store), "2026-01-02T03:04:05.000+00:00"
    queue.say({"state": "ready"}, last)
    queue.all_ended(queue.said()["told"])  # as it starts
    assert {each.site: each.ended for each in queue.attendance()}["a"] == last
    queue.opened("late", "0.2.0", "", "2026-01-02T03:04:06.000+00:00")  # after the last word, and before the kill
    queue.all_ended(last)
    assert {each.site: each.ended for each in queue.attendance()}["late"] == "2026-01-02T03:04:06.000+00:00"
    queue.close()


def test_a_site_of_a_coordinator_that_was_killed_was_seen_when_that_spoke_last(store: Path) -> None:
    """Nobody wrote down that a's session ended: its last moment is the coordinator's."""
    queue, last = Queue(store), "2026-01-02T03:04:05.000+00:00"
    queue.say({"state": "ready"}, last)
    queue.close()
    with TestClient(web.pages(store)) as client:
        assert "last seen 2026-01-02 03:04:05" in get(client, "/")
    command = ["sites", "--store", str(store)]
    said = {line.split()[0]: line for line in CliRunner().invoke(coordinator_app, command).output.splitlines()}
    assert f"last seen {last}, when the coordinator was last heard of  release 0.2.0" in said["a"]
    told = [json.loads(line) for line in CliRunner().invoke(coordinator_app, [*command, "--json"]).output.splitlines()]
    assert {t["site"]: (t["connected"], t["seen"]) for t in told} == {
        "a": (False, last),
        "b": (False, None),
        "c": (False, None),
    }
    queue = Queue(store)
    queue.ended("a", "2026-01-02T03:04:04.000+00:00")
    queue.close()
    assert "away since 2026-01-02T03:04:04" in CliRunner().invoke(coordinator_app, command).output


def test_a_run_is_shown_with_its_convergence_and_who_is_awaited(store: Path) -> None:
    with exclusive(store), TestClient(web.pages(store)) as client:
        text, over = get(client, "/run/live"), get(client, "/run/over")
        assert "no run" not in get(client, "/run/nothing", 404)
    assert "waiting for b" in text
    assert "waiting for" not in over
    assert Page(text).points
    assert "gap 1, certified" in over, "a line a column, certified and estimated apart"
    assert "gap 2, estimated" in over
    assert "objective coupling" in over


def test_what_was_told_and_what_was_disclosed_stand_beside_it(store: Path) -> None:
    chronicle, chronicler = Chronicle(store), Chronicler()
    with TestClient(web.pages(store)) as client:
        assert "Disclosed so far" not in get(client, "/run/live"), "of a coordinator that counted nothing"
        for _ in range(3):
            chronicler.notice(n.SessionTurnedAway("z", "it was <revoked>"), Lap())
        chronicler.notice(n.Stalled("live", ("b",), 60.0), Lap())
        chronicler.notice(n.QuestionAnswered("live", 1, 0, 3, None), Lap())
        sums = Words(np.zeros(12345, dtype=np.uint64))
        for site, message in {
            "a": Prediction("live", 0, 0, Vector(np.zeros((6, 2)))),
            "b": Masked("live", 0, 0, sums),
        }.items():
            chronicler.heard(Received(site, message))
            chronicler.flush(chronicle)
        chronicler.heard(SiteJoined(Hello("c", 1)))
        chronicler.flush(chronicle)
        chronicle.close()
        here, run = get(client, "/"), get(client, "/run/live")
    assert "turned away: z: it was &lt;revoked&gt; (3 times)" in here, "the same words are said once"
    for text in (here, run):
        assert re.search(r'class="bad"><time>[-\d :]{19}</time> stalled: waiting for b, 60 s at most', text)
    assert "revoked" not in run
    cells = [re.findall("<td>(.*?)</td>", line) for line in re.findall(r"<tr>.*</tr>", run)]
    assert ["a", "1", "12", "0"] in cells
    assert ["b", "1", "0", "12\u202f345"] in cells
    assert not [row for row in cells if row[:1] == ["c"]], "a greeting is of no run"
    assert re.search(r"<tr><td>c</td>(\s|.)*?<td>1</td><td>0</td><td>0</td>", here)


def test_the_latest_notices_are_kept(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chronicles, "KEPT", 3)
    chronicle, chronicler = Chronicle(store), Chronicler()
    for number in range(9):
        chronicler.notice(n.SessionEnded("a", f"reason {number}"), Lap())
        chronicler.flush(chronicle)
    texts = [told.text for told in chronicle.told()]
    chronicle.close()
    assert texts == [f"a is not connected any more: reason {number}" for number in (8, 7, 6)]


def test_who_gained_is_shown_where_the_sites_told_it(store: Path) -> None:
    opened = RunStore(store)
    plan = additive_tiny.additive_plan(run="gain", forecast=True, folds=3)
    write(opened, plan, run=additive_tiny.undisturbed)
    opened.close()
    with TestClient(web.pages(store)) as client:
        text, other = get(client, "/run/gain"), get(client, "/run/over")
        beside = get(client, "/compare?run=gain&run=over")
    [change] = re.findall(r"joining changed the error by <strong>([-+][\d.]+) %</strong> over 27 left-out labels", text)
    assert f"forecast: error {change} % over 27" in text, "as the run's own end has it"
    assert re.search(rf"error by joining</th><td>{re.escape(change)} %</td><td></td>", beside)
    assert "Who gained" not in other


def test_a_certificate_that_ends_soon_is_pointed_at(store: Path) -> None:
    queue, soon = Queue(store), datetime.now(UTC) + timedelta(days=9, hours=1)
    queue.opened("a", "0.2.0", soon.isoformat(), NOW)
    queue.opened("c", "0.1.9", "2001-01-01T00:00:00+00:00", NOW)
    queue.close()
    with TestClient(web.pages(store)) as client:
        text = get(client, "/")
    assert re.search(rf'class="bad">{soon.date()}, 9 days left</td>', text)
    assert 'class="bad">2001-01-01, over</td>' in text


def test_runs_stand_side_by_side_by_what_differs(store: Path) -> None:
    with TestClient(web.pages(store)) as client:
        text = get(client, "/compare?run=over&run=live")
    assert re.findall(r'<li class="(run-\d)">(\w+): ', text) == [("run-0", "over"), ("run-1", "live")]
    assert len(Page(text).points) == 2, "the gap of each, in one picture"
    assert "objective coupling" in text
    assert "0.1, 2.0" in text
    assert "objective kernel" not in text, "it is the same in both"


def test_the_chart_is_in_powers_of_ten_from_left_to_right(store: Path) -> None:
    _, rounds = RunStore(store, read_only=True).show("over")
    drawn = convergence(rounds)
    for line in drawn.lines:
        xs, ys = zip(*([float(n) for n in point.split(",")] for point in line.points.split()), strict=True)
        assert list(xs) == sorted(xs)
        assert all(0 <= x <= drawn.width for x in xs)
        assert all(0 <= y <= drawn.height for y in ys)
    residual = next(line for line in drawn.lines if line.name == "residual 1, estimated")
    heights = [float(p.split(",")[1]) for p in residual.points.split()]
    assert heights[-1] > heights[0], "it falls: down is more on a screen"
    assert convergence([]).lines == ()


def test_looking_changes_nothing(store: Path) -> None:
    before = store.read_bytes()
    with TestClient(web.pages(store)) as client:
        for path in ("/", "/run/over", "/compare?run=over"):
            get(client, path)
        for method in ("post", "put", "delete"):
            assert getattr(client, method)("/").status_code == 405
    assert store.read_bytes() == before


def test_a_token_is_asked_for_where_one_is_set(store: Path) -> None:
    token = "correct-horse-battery"
    with TestClient(web.pages(store, token), base_url="http://testserver") as client:
        for path in ("/", "/run/over", "/events", "/static/live.js", "/?token=wrong"):
            assert client.get(path).status_code == 401
        assert client.get("/", headers={"Authorization": f"Bearer {token}"}).status_code == 200
        answer = client.get(f"/?token={token}", follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, "/"), "the token leaves the address"
        assert "httponly" in answer.headers["set-cookie"].lower()
        assert client.get("/").status_code == 200


def test_a_browser_hears_of_a_change_and_of_nothing_else(store: Path) -> None:
    class Browser:
        looks = 0

        async def is_disconnected(self) -> bool:
            self.looks += 1
            if self.looks == 3:
                queue = Queue(store)
                queue.all_ended(NOW)
                queue.close()
            return self.looks > 5

    async def heard() -> list[str]:
        browser: Any = Browser()
        return [word async for word in web._changes(store, browser)]

    web.LOOK, before = 0.01, web.LOOK
    try:
        assert asyncio.run(heard()) == ["retry: 2000\n\n", "data: changed\n\n"]
    finally:
        web.LOOK = before


def test_it_is_served_in_a_thread_that_ends_and_beyond_loopback_with_a_token_alone(store: Path) -> None:
    with pytest.raises(UsageError, match="set a token"):
        show("0.0.0.0:0", store, None)
    with pytest.raises(UsageError, match="expected HOST:PORT"):
        show("127.0.0.1", store, None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            UsageError, match=rf"cannot listen there: another program listens on port {port}.*with --web \(`ss -ltnp"
        ):
            show(f"127.0.0.1:{port}", store, None)
    end = show(f"127.0.0.1:{port}", store, None)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/static/live.js", timeout=20) as answer:
            assert b"EventSource" in answer.read()
    finally:
        end()
