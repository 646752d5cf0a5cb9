"""The pages show the store, change nothing in it, ask for a token if one is set, and load nothing from elsewhere."""

import asyncio
import json
import re
import socket
import urllib.request
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser

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
from coordinator.store.history import History
from coordinator.store.queue import Queue
from coordinator.store.runs import RunStore
from coordinator.store.status import Status
from coordinator.web import pages as web
from coordinator.web.pages import show
from coreg_core.errors import UsageError
from coreg_wire.files.disk import exclusive

NOW, LAST = "2026-01-01T00:00:00.000+00:00", "2026-01-02T03:04:05.000+00:00"


def write(store, plan, *, steps=None):
    """The records of a run whose sites tell what its plan allows, or of its first steps."""
    store.begin(plan, NOW)
    sites = {name: make_site(name) for name in plan.sites}
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
    write(store, make_plan(run="over"))
    write(store, make_plan(run="live", coupling=(0.1, 2.0)), steps=4)
    sites = FederationSection(name="tiny", sites=("a", "b"))
    queue.submit(
        Study.model_validate({"study": {"name": "queued-study"}, "model": {"objective": "additive"}}).plan(sites), NOW
    )
    status.opened("a", "0.2.0", "2027-01-01T00:00:00+00:00", NOW)
    status.rejected("b", "<b> was revoked", NOW)
    service = {"state": "ready", "federation": "tiny", "sites": ["a", "b", "c"], "runs": ["live"]}
    waits = {"awaited": {"live": ["b"]}, "waiting": {"live": "waiting for b to connect"}}
    status.set_service({**service, **waits}, NOW)
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
    assert all(link.startswith(("/", "#")) for link in page.loads), "nothing from elsewhere"
    return answer.text


def test_the_first_page_shows_sites_queue_and_runs(shown):
    text = get(shown, "/")
    assert "coordinator not running" in text
    assert ">connected</span>" not in text
    with exclusive(shown, "a coordinator"):
        text = get(shown, "/")
    assert re.search(r'>connected</span> <span class="muted">since 2026-01-01 00:00:00', text)
    assert "&lt;b&gt; was revoked" in text, "what a site says is text"
    for run, badge, sentence in (("over", "converged", ""), ("live", "waiting", "waiting for b to connect")):
        row = next(row for row in re.findall(r"<tr>.*?</tr>", text, re.S) if f"/run/{run}" in row)
        assert f">{badge}</span>" in row
        assert sentence in row
    assert re.search(r"queued-study.*?>queued</span>.*?submitted", text, re.S)
    table = text[text.index("<table") :]
    assert table.index("queued-study") < table.index("/run/live") < table.index("/run/over"), "open runs first"
    [card] = [card for card in re.findall(r'<li class="card site">.*?</li>', text, re.S) if "<h3>b</h3>" in card]
    assert re.search(r'>awaited</span> by <a href="/run/live">', card)


def test_a_site_of_a_killed_coordinator_was_seen_when_that_wrote_last(store, status):
    """Nobody wrote down that a's session ended: its last moment is the coordinator's."""
    status.set_service({"state": "ready"}, LAST)
    assert re.search(r'>not connected</span> <span class="muted">last seen 2026-01-02 03:04:05', get(store, "/"))

    def sites(*words):
        return CliRunner().invoke(coordinator_app, ["sites", "--store", str(store), *words]).output.splitlines()

    lines = {line.split()[0]: line for line in sites()}
    assert f"last seen {LAST}, at the coordinator's last status  release 0.2.0" in lines["a"]
    found = {line["site"]: (line["connected"], line["seen"]) for line in map(json.loads, sites("--json"))}
    assert found == {"a": (False, LAST), "b": (False, None), "c": (False, None)}
    status.ended("a", "2026-01-02T03:04:04.000+00:00")
    assert any("disconnected since 2026-01-02T03:04:04" in line for line in sites())


def test_a_status_that_is_older_than_the_run_is_not_its_state(store, status):
    """The coordinator writes its status every few seconds; steps and ends are written at once."""
    waits = dict.fromkeys(("over", "live"), "waiting for approval by b")
    status.set_service({"waiting": waits}, "2025-12-31T23:59:59.000+00:00")
    with exclusive(store, "a coordinator"):
        texts = [get(store, path) for path in ("/", "/run/over", "/run/live")]
        assert not [text for text in texts if "approval by b" in text]
        assert ">running</span>" in texts[2]
        status.set_service({}, LAST)
        assert "approval by b" in get(store, "/run/live")


def test_a_run_is_shown_with_its_convergence_and_the_sites_that_it_waits_for(shown):
    assert "no runs begin with" in get(shown, "/run/nothing", 404)
    with exclusive(shown, "a coordinator"):
        text, over = get(shown, "/run/live"), get(shown, "/run/over")
    assert ("waiting for b to connect" in text, "waiting for" in over) == (True, False)
    charts = [
        re.findall(r"<strong>(.*?)</strong>", figure) for figure in re.findall(r"<figure.*?</figure>", over, re.S)
    ]
    assert charts == [["Residual"], ["Gap"]]
    legends = re.findall(r'<li class="hue-(\d)"><i></i><span>(.*?)</span>', over)
    assert legends == [("0", "λ = 0.1"), ("1", "λ = 1")] * 2, "one line for each coupling"
    for words in ("<th>residual</th>", "objective coupling"):
        assert words in text
        assert words in over


def test_notices_stand_beside_a_run(store):
    told = History(store)
    for notice in (n.access_denied("z", "it was <revoked>"), n.stalled("live", ("b",), 60.0)):
        told.add(notice, LAST)
    told.flush()
    told.close()
    here, run = get(store, "/"), get(store, "/run/live")
    assert "rejected: z: it was &lt;revoked&gt;" in here
    for text in (here, run):
        assert re.search(
            r">[-\d :]{19}</time> <span><span class=\"badge warn\">warning</span> .*?stalled: waiting for b", text
        )
    assert "revoked" not in run


def test_a_certificate_that_expires_soon_is_marked(store, status):
    soon = datetime.now(UTC) + timedelta(days=9, hours=1)
    status.opened("a", "0.2.0", soon.isoformat(), NOW)
    status.opened("b", "0.2.0", (soon + timedelta(days=90)).isoformat(), NOW)
    status.opened("c", "0.1.9", "2001-01-01T00:00:00+00:00", NOW)
    text = get(store, "/")
    assert f'<span class="badge warn">9 days left</span> <span class="muted nb">({soon.date()})' in text
    assert re.search(r"<dd>99 days left <", text)
    assert '<span class="badge bad">expired</span> on 2001-01-01' in text


def test_runs_stand_side_by_side_by_what_differs(shown):
    text = get(shown, "/compare?run=over&run=live")
    assert re.findall(r'<li class="hue-(\d)"><i></i><span>(\w+)</span>', text) == [("0", "over"), ("1", "live")]
    assert len(Page(text).points) == 2, "the gap of each, in one picture"
    assert ("objective coupling" in text, "0.1, 2.0" in text) == (True, True)
    assert "objective kernel" not in text, "it is the same in both"
    assert "Choose runs" in get(shown, "/compare")


def rows(text):
    return [run for run in re.findall(r'<th scope="row">.*?/run/(\w+)"', text, re.S) if run in ("over", "live")]


def test_runs_are_filtered_searched_and_paged(shown, monkeypatch):
    with exclusive(shown, "a coordinator"):
        assert rows(get(shown, "/runs")) == ["live", "over"]
        assert rows(get(shown, "/runs?state=good")) == ["over"]
        assert rows(get(shown, "/runs?state=open")) == ["live"]
        assert rows(get(shown, "/runs?q=CONVERGED+ov")) == ["over"]
        assert rows(get(shown, "/runs?q=waiting+for+b")) == ["live"]
        assert "queued-study" in get(shown, "/runs?study=queued-study")
        assert rows(get(shown, "/runs?study=queued-study")) == []
        assert "0 runs of this filter" in get(shown, "/runs?q=%3Cscript%3E")
        monkeypatch.setattr(web.values, "LATEST", 1)
        assert [rows(get(shown, f"/runs?page={page}")) for page in (2, 3, 99, "x")] == [
            ["live"],
            ["over"],
            ["over"],
            [],
        ]
        assert "state=&amp;study=&amp;q=over&amp;page=" not in get(shown, "/runs?q=over")


def test_an_empty_store_says_what_to_do(tmp_path):
    RunStore(tmp_path / "runs.sqlite").close()
    text = get(tmp_path / "runs.sqlite", "/")
    assert ("coreg-coordinator submit STUDY.toml" in text, "federation.toml" in text) == (True, True)
    for path in ("/runs", "/studies", "/notices"):
        get(tmp_path / "runs.sqlite", path)


def test_looking_changes_nothing(shown):
    before = shown.read_bytes()
    for path in ("/", "/run/over", "/compare?run=over", "/runs", "/studies", "/study/tiny", "/notices"):
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
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/static/live.js", timeout=200) as answer:
            assert b"EventSource" in answer.read()
    finally:
        end()
