"""The pages show what the store has, change nothing in it, ask for a token where one is set, and load nothing from outside."""

import asyncio
import json
import re
import socket
import urllib.request
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser

import numpy as np
import pytest
from machine.tiny import Pump, make_plan, make_site
from starlette.testclient import TestClient
from typer.testing import CliRunner

from coordinator.cli.app import app as coordinator_app
from coordinator.config.federation_toml import FederationSection
from coordinator.config.study_toml import Study
from coordinator.driver import Timing
from coordinator.machine import notices as n
from coordinator.machine.records import StepDone
from coordinator.store import history
from coordinator.store.history import History
from coordinator.store.queue import Queue
from coordinator.store.runs import RunStore
from coordinator.store.status import Status
from coordinator.store.summaries import Summaries
from coordinator.web import pages as web
from coordinator.web.charts import convergence
from coordinator.web.server import show
from coreg_core.errors import UsageError
from coreg_core.protocol.messages import Answer, Head, Report
from coreg_core.protocol.words import Words
from coreg_wire.files.locks import exclusive

NOW, LAST = "2026-01-01T00:00:00.000+00:00", "2026-01-02T03:04:05.000+00:00"


def write(store, plan, *, steps=None):
    """The records of a run whose sites tell what its plan allows, or of its first steps."""
    store.begin(plan, NOW)
    sites = {name: make_site(name, exact_report=True) for name in plan.sites}
    for record in Pump(plan, sites).join().run().records:
        store.write(plan.run, record, Timing(0.25, 100, 200), NOW)
        if isinstance(record, StepDone) and record.number == steps:
            return
    assert steps is None


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """A run that converged, one under way that waits for b, one in the queue."""
    path = tmp_path_factory.mktemp("web") / "runs.sqlite"
    store, queue, status = RunStore(path), Queue(path), Status(path)
    write(store, make_plan(run="over", convergence_report="exact"))
    write(store, make_plan(run="live", coupling=(0.1, 2.0)), steps=4)
    sites = FederationSection(name="tiny", sites=("a", "b"))
    queue.submit(Study.model_validate({"study": {"name": "queued-study"}}).plan(sites), NOW)
    status.opened("a", "0.2.0", "2027-01-01T00:00:00+00:00", NOW)
    status.rejected("b", "<b> was revoked", NOW)
    service = {"state": "ready", "federation": "tiny", "sites": ["a", "b", "c"], "runs": ["live"]}
    status.set_service({**service, "awaited": {"live": ["b"]}}, NOW)
    for opened in (store, queue, status):
        opened.close()
    return path


@pytest.fixture
def store(shown, tmp_path):
    """The same, to be changed."""
    (tmp_path / "runs.sqlite").write_bytes(shown.read_bytes())
    return tmp_path / "runs.sqlite"


@pytest.fixture
def status(store):
    made = Status(store)
    yield made
    made.close()


class Page(HTMLParser):
    """What a page loads, and what of it would be an inline script or style."""

    def __init__(self, text):
        super().__init__()
        self.loads, self.inline, self.points, self._in = [], [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        self.loads += [value or "" for key, value in attrs if key in ("src", "href", "action") and value]
        self.inline += [key for key, _ in attrs if key == "style" or key.startswith("on")]
        self.points += [named["points"] or ""] if "points" in named else []
        self._in = tag if tag in ("script", "style") else None

    def handle_data(self, data):
        if self._in and data.strip():
            self.inline.append(data)


def get(store, path, status=200):
    with TestClient(web.pages(store), base_url="http://localhost") as client:
        answer = client.get(path)
    assert answer.status_code == status, answer.text
    policy = answer.headers["content-security-policy"]
    assert ("default-src 'none'" in policy, "unsafe" in policy) == (True, False)
    page = Page(answer.text)
    assert page.inline == []
    assert all(link.startswith("/") for link in page.loads), "nothing from elsewhere"
    return answer.text


def test_the_first_page_shows_sites_queue_and_runs(shown):
    text = get(shown, "/")
    assert "no coordinator serves this store" in text
    assert "connected since" not in text
    with exclusive(shown, "a coordinator"):
        text = get(shown, "/")
    assert "connected since 2026-01-01 00:00:00" in text
    assert "&lt;b&gt; was revoked" in text, "what a site says is text"
    assert "queued-study" in text
    assert re.search(r'run <a href="/run/live">live</a> waits for b', text)
    for run, end in (("over", "converged"), ("live", "under way")):
        assert re.search(rf'/run/{run}">{run}</a></td>.*?{end}', text, re.S)


def test_a_site_of_a_killed_coordinator_was_seen_when_that_wrote_last(store, status):
    """Nobody wrote down that a's session ended: its last moment is the coordinator's."""
    status.set_service({"state": "ready"}, LAST)
    assert "last seen 2026-01-02 03:04:05" in get(store, "/")

    def sites(*words):
        return CliRunner().invoke(coordinator_app, ["sites", "--store", str(store), *words]).output.splitlines()

    lines = {line.split()[0]: line for line in sites()}
    assert f"last seen {LAST}, at the coordinator's last status  release 0.2.0" in lines["a"]
    found = {line["site"]: (line["connected"], line["seen"]) for line in map(json.loads, sites("--json"))}
    assert found == {"a": (False, LAST), "b": (False, None), "c": (False, None)}
    status.ended("a", "2026-01-02T03:04:04.000+00:00")
    assert any("disconnected since 2026-01-02T03:04:04" in line for line in sites())


def test_the_next_coordinator_closes_the_sessions_of_the_killed_one(status):
    status.set_service({"state": "ready"}, LAST)
    late = "2026-01-02T03:04:06.000+00:00"
    status.opened("late", "0.2.0", "", late)  # after the last status, and before the kill
    status.all_ended(status.service()["updated_at"])  # as it starts
    assert {each.site: each.ended for each in status.sites()} == {"a": LAST, "b": LAST, "late": late}


def test_a_run_is_shown_with_its_convergence_and_the_sites_that_it_waits_for(shown):
    assert "no run" not in get(shown, "/run/nothing", 404)
    with exclusive(shown, "a coordinator"):
        text, over = get(shown, "/run/live"), get(shown, "/run/over")
    assert ("waiting for b" in text, "waiting for" in over) == (True, False)
    assert Page(text).points
    for words in ("gap over tolerance 1, certified", "objective coupling"):
        assert words in text
        assert words in over
    for words in ("gap 1, certified", "gap 2, estimated", "bound 1, certified"):
        assert (words in over, words in text) == (True, False), "shown where the sites' operators agreed to tell it"


def test_notices_and_disclosures_stand_beside_a_run(store):
    assert "Disclosed so far" not in get(store, "/run/live"), "of a coordinator that counted nothing"
    told, told_of = History(store), [(LAST, n.AccessDenied("z", "it was <revoked>"))] * 3
    parts = 0, 0, Head("a", "", "", "", ""), Report(), ()
    words = {"a": Words(np.zeros(12, "u8")), "b": None, "d": Words(np.zeros(12345, "u8"))}
    sent = {site: Answer("live", *parts, carried) for site, carried in words.items()}
    messages = {("live", site, type(message).__name__): 1 for site, message in sent.items()} | {("", "c", "Hello"): 1}
    numbers = {("live", site, type(message).__name__): history.numbers_in(message) for site, message in sent.items()}
    told.write([*told_of, (LAST, n.Stalled("live", ("b",), 60.0))], messages, {**numbers, ("", "c", "Hello"): 0})
    told.close()
    here, run = get(store, "/"), get(store, "/run/live")
    assert "rejected: z: it was &lt;revoked&gt; (3 times)" in here, "the same words are written once"
    for text in (here, run):
        assert re.search(r'class="bad"><time>[-\d :]{19}</time> stalled: waiting for b', text)
    assert "revoked" not in run
    cells = [re.findall("<td>(.*?)</td>", line) for line in re.findall(r"<tr>.*</tr>", run)]
    assert [row for row in cells if row and row[0] in "abd"] == [
        ["a", "1", "12"],
        ["b", "1", "0"],
        ["d", "1", "12\u202f345"],
    ]
    assert not [row for row in cells if row[:1] == ["c"]], "a greeting is of no run"
    assert re.search(r"<tr><td>c</td>(\s|.)*?<td>1</td><td>0</td>", here)


def test_a_certificate_that_expires_soon_is_marked(store, status):
    soon = datetime.now(UTC) + timedelta(days=9, hours=1)
    status.opened("a", "0.2.0", soon.isoformat(), NOW)
    status.opened("c", "0.1.9", "2001-01-01T00:00:00+00:00", NOW)
    text = get(store, "/")
    assert re.search(rf'class="bad">{soon.date()}, 9 days left</td>', text)
    assert 'class="bad">2001-01-01, over</td>' in text


def test_runs_stand_side_by_side_by_what_differs(shown):
    text = get(shown, "/compare?run=over&run=live")
    assert re.findall(r'<li class="(run-\d)">(\w+): ', text) == [("run-0", "over"), ("run-1", "live")]
    assert len(Page(text).points) == 2, "the gap over the tolerance of each, in one picture"
    assert ("objective coupling" in text, "0.1, 2.0" in text) == (True, True)
    assert "objective kernel" not in text, "it is the same in both"


def test_the_chart_is_in_powers_of_ten_from_left_to_right(shown):
    _, rounds = Summaries(shown, read_only=True).show("over")
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


def test_looking_changes_nothing(shown):
    before = shown.read_bytes()
    for path in ("/", "/run/over", "/compare?run=over"):
        get(shown, path)
    with TestClient(web.pages(shown), base_url="http://127.0.0.1") as client:
        for method in ("post", "put", "delete"):
            assert getattr(client, method)("/").status_code == 405
    assert shown.read_bytes() == before


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example"])
def test_without_a_token_the_pages_answer_under_no_name_of_somebody_elses(shown, host):
    """A page of theirs whose name is made to lead here would read them (DNS rebinding)."""
    with TestClient(web.pages(shown), base_url=f"http://{host}:7601") as client:
        answer = client.get("/run/over")
        assert (answer.status_code, "over" in answer.text) == (421, False)
    for own in ("localhost", "127.0.0.1", "[::1]"):
        with TestClient(web.pages(shown), base_url=f"http://{own}:7601") as client:
            assert client.get("/run/over").status_code == 200


def test_a_token_is_asked_for_where_one_is_set(shown):
    token = "correct-horse-battery"
    with TestClient(web.pages(shown, token), base_url="http://testserver") as client:
        for path in ("/", "/run/over", "/events", "/static/live.js", "/?token=wrong"):
            assert client.get(path).status_code == 401
        assert client.get("/", headers={"Authorization": f"Bearer {token}"}).status_code == 200
        answer = client.get(f"/?token={token}", follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, "/"), "the token leaves the address"
        assert "httponly" in answer.headers["set-cookie"].lower()
        assert client.get("/").status_code == 200


def test_a_browser_hears_of_a_change_and_of_nothing_else(store, status, monkeypatch):
    class Browser:
        looks = 0

        async def is_disconnected(self):
            self.looks += 1
            if self.looks == 3:
                status.all_ended(NOW)
            return self.looks > 5

    async def heard():
        return [word async for word in web._changes(store, Browser())]

    monkeypatch.setattr(web, "LOOK", 0.01)
    assert asyncio.run(heard()) == ["retry: 2000\n\n", "data: changed\n\n"]


def test_it_is_served_in_a_thread_that_ends_and_beyond_loopback_with_a_token_alone(shown):
    with pytest.raises(UsageError, match="set a token"):
        show("0.0.0.0:0", shown, None)
    with pytest.raises(UsageError, match="expected HOST:PORT"):
        show("127.0.0.1", shown, None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=rf"another program listens on port {port}.*with --web \(`ss -ltnp"):
            show(f"127.0.0.1:{port}", shown, None)
    end = show(f"127.0.0.1:{port}", shown, None)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/static/live.js", timeout=20) as answer:
            assert b"EventSource" in answer.read()
    finally:
        end()
