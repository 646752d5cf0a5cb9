"""The page shows what `status --json` prints, changes nothing, asks for a token if one is set,
loads nothing from elsewhere.
"""

import json
import re
import socket
import sqlite3
import urllib.request
from contextlib import closing
from html import unescape

import pytest
from machine.tiny import Pump, make_plan, make_site
from starlette.testclient import TestClient
from store.filled import noticed
from typer.testing import CliRunner

from coordinator.cli.app import app as coordinator_app
from coordinator.config.federation_toml import FederationSection
from coordinator.config.study_toml import Study
from coordinator.machine import notices as n
from coordinator.machine.notices import NoticeName
from coordinator.machine.records import StepDone, Timing
from coordinator.store.runs import RunStore
from coordinator.store.status import ROWS, Status, overview
from coordinator.web import server
from coreg_core.errors import StorageError, UsageError
from coreg_wire.files.disk import exclusive

NOW = "2026-01-01T00:00:00.000+00:00"
LAST = "2026-01-02T03:04:05.000+00:00"


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
    with (
        closing(RunStore(path)) as store,
        closing(RunStore(path)) as queue,
        closing(Status(path)) as status,
    ):
        write(store, make_plan(run="over"))
        write(store, make_plan(run="live", coupling=(0.1, 2.0)), steps=4)
        study = {"study": {"name": "queued-study"}, "model": {"objective": "additive"}}
        queue.submit(
            Study.model_validate(study).plan(FederationSection(name="tiny", sites=("a", "b"))), NOW
        )
        opened = n.session_opened("a", "0.2.0", "2027-01-01T00:00:00+00:00")
        noticed(
            status,
            NOW,
            opened,
            n.notice(NoticeName.SESSION_REJECTED, site="b", reason="<b> was revoked"),
        )
        service = {
            "state": "ready",
            "federation": "tiny",
            "sites": ["a", "b", "c"],
            "runs": ["live"],
        }
        waits = {"awaited": {"live": ["b"]}, "waiting": {"live": "waiting for b to connect"}}
        status.set_service({**service, **waits}, NOW)
    return path


@pytest.fixture
def store(shown, tmp_path):
    """The same, to be changed."""
    (tmp_path / "runs.sqlite").write_bytes(shown.read_bytes())
    return tmp_path / "runs.sqlite"


@pytest.fixture
def status(store):
    with closing(Status(store)) as made:
        yield made


def command(*words):
    return CliRunner().invoke(coordinator_app, [str(word) for word in words]).stdout


def plain(path):
    return json.loads(json.dumps(overview(path)))


def latest(path):
    return {run["run"]: run for run in overview(path)["latest"]}


def sites(path):
    return {site["site"]: site for site in overview(path)["sites"]}


# --- the state ------------------------------------------------------------------------------------


def test_the_json_of_the_page_is_that_of_the_command(shown):
    with TestClient(server.application(shown), base_url="http://localhost") as client:
        assert client.get("/status.json").json() == json.loads(command("status", "--json", shown))
        with exclusive(shown, "a coordinator"):
            found = client.get("/status.json").json()
            assert found == json.loads(command("status", "--json", shown))
    assert found["connected"] == ["a"]
    assert found["of"] == ["a", "b", "c"]


def test_runs_have_a_state_a_phase_and_their_convergence(shown):
    before = shown.read_bytes()
    assert latest(shown)["live"]["state"] == "not running"
    with exclusive(shown, "a coordinator"):
        found = overview(shown)
    queued, live, over = found["latest"]
    assert queued["study"] == "queued-study"
    assert queued["state"] == "queued"
    assert live["run"] == "live"
    assert live["state"] == "waiting"
    assert live["text"] == "waiting for b to connect"
    assert over["run"] == "over"
    assert over["state"] == "converged"
    assert over["text"] == ""
    assert sum(phase["steps"] for phase in over["phases"]) == over["steps"]
    assert over["phases"][0]["longest"] == 0.25
    rounds = [row["round"] for row in over["convergence"]]
    assert rounds == sorted(rounds)
    assert {len(row["gap"]) for row in over["convergence"]} == {2}, "one figure for each coupling"
    assert over["convergence"][-1]["round"] == over["rounds"]
    assert "this site's own predictions for the shared instances" in over["discloses"].values()
    assert shown.read_bytes() == before, "looking changes nothing"
    [study] = found["studies"]
    assert study["study"] == "tiny"
    assert study["runs"] == 2
    assert study["converged"] == 1
    assert study["open"] == 1


def test_a_long_run_has_few_rows_and_its_last_one(store):
    with closing(RunStore(store)) as runs:
        runs.begin(make_plan(run="long"), NOW)
    rest = ("", 1, "[0.1]", "[0.1]", 0.1, 1, 1, NOW)
    of_this_attempt = [("long", i, 0, 3, i, *rest) for i in range(10 * ROWS + 1)]
    of_an_earlier_one = [("long", 9999 + i, -1, 3, i, *rest) for i in range(5)]
    places = ", ".join("?" * 13)
    with closing(sqlite3.connect(store)) as database, database:
        database.executemany(
            f"insert into rounds values ({places})", of_this_attempt + of_an_earlier_one
        )
    rows = latest(store)["long"]["convergence"]
    assert len(rows) <= ROWS
    assert rows[-1]["round"] == 10 * ROWS, "and none of an earlier attempt"


@pytest.mark.parametrize(
    ("stop", "text", "stalled", "label"),
    [
        (None, "", [], "running"),
        (None, "waiting for a, b to answer", [], "running"),
        (None, "waiting for b to connect and for a to answer", [], "waiting"),
        (None, "waiting for b to connect", ["live"], "stalled"),
        (None, "waiting for approval by b", [], "approval pending"),
        ("MAX_ROUNDS", "", [], "max rounds"),
        ("SITE_FAULT", "", [], "site fault"),
    ],
)
def test_the_state_of_a_run_is_a_word_and_a_sentence(store, status, stop, text, stalled, label):
    waiting = {}
    if text:
        waiting = {"live": text}
    status.set_service({"stalled": stalled, "waiting": waiting}, LAST)
    ended = None
    if stop:
        ended = NOW
    with closing(sqlite3.connect(store)) as database, database:
        database.execute("update runs set stop = ?, ended = ? where run = 'live'", (stop, ended))
    with exclusive(store, "a coordinator"):
        run = latest(store)["live"]
    assert run["state"] == label
    assert run["text"].startswith(text)
    if stop:
        assert run["text"], "what to do"


def test_a_status_that_is_older_than_the_run_is_not_its_state(store, status):
    """The coordinator writes its status every few seconds; steps and ends are written at once."""
    waits = dict.fromkeys(("over", "live"), "waiting for approval by b")
    status.set_service({"waiting": waits}, "2025-12-31T23:59:59.000+00:00")
    with exclusive(store, "a coordinator"):
        assert [run["state"] for run in overview(store)["latest"]] == [
            "queued",
            "running",
            "converged",
        ]
        status.set_service({}, LAST)
        assert latest(store)["live"]["state"] == "approval pending"


def test_a_site_of_a_killed_coordinator_was_seen_when_that_wrote_last(store, status):
    """The store has no end of a's session.

    So the site was last seen when the coordinator last wrote its status.
    """
    status.set_service({"state": "ready"}, LAST)
    lines = {line.split()[0]: line for line in command("status", store).splitlines()}
    assert f"last seen {LAST}, at the coordinator's last status  release 0.2.0" in lines["a"]
    found = {name: (site["connected"], site["seen"]) for name, site in sites(store).items()}
    assert found == {"a": (False, LAST), "b": (False, None), "c": (False, None)}
    with exclusive(store, "a coordinator"):
        assert sites(store)["b"]["awaited"] == ["live"]
    noticed(
        status,
        "2026-01-02T03:04:04.000+00:00",
        n.notice(NoticeName.SESSION_ENDED, site="a", reason="gone"),
    )
    assert "disconnected since 2026-01-02T03:04:04" in command("status", store)


# --- the server -----------------------------------------------------------------------------------


def test_the_page_loads_only_from_this_server_and_writes_no_markup(shown):
    with TestClient(server.application(shown), base_url="http://localhost") as client:
        for path in ("/", "/status.json", "/static/page.css", "/static/icon.svg"):
            answer = client.get(path)
            assert answer.status_code == 200
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
        html = client.get("/").text
        for method in ("post", "put", "delete"):
            assert getattr(client, method)("/").status_code == 405
    loads = re.findall(r'(?:src|href)="([^"]*)"', html)
    assert all(link.startswith(("/static/", "#")) for link in loads)
    assert not re.search(r"<style|<script|\sstyle=|\son\w+=", html), "the policy would block it"
    assert '<meta http-equiv="refresh" content="5">' in html, "it updates by itself"


def rows(html, heading):
    """The rows of the table below this heading, by the names of its columns."""
    table = html.partition(f"<h2>{heading}</h2>")[2].partition("</table>")[0]
    names, *others = (
        [unescape(cell) for cell in re.findall(r"<t[dh]>(.*?)</t[dh]>", row)]
        for row in table.splitlines()
        if row.startswith("<tr>")
    )
    return [dict(zip(names, row, strict=True)) for row in others]


def test_the_page_has_the_sites_the_runs_and_the_notices_with_words_of_the_store_as_text(shown):
    with (
        TestClient(server.application(shown), base_url="http://localhost") as client,
        exclusive(shown, "a coordinator"),
    ):
        html = client.get("/").text
    assert "<title>tiny</title>" in html
    assert "<b>" not in html
    a, b, c = rows(html, "Sites")
    assert a["site"] == "a"
    assert a["connected"] == "True"
    assert a["since"] == NOW
    assert a["release"] == "0.2.0"
    assert b["connected"] == "False"
    assert b["awaited"] == "live"
    assert b["refusal"] == "<b> was revoked"
    assert c["site"] == "c"
    assert c["seen"] == ""
    queued, live, over = rows(html, "Runs")
    assert queued["study"] == "queued-study"
    assert queued["state"] == "queued"
    assert live["run"] == "live"
    assert live["text"] == "waiting for b to connect"
    assert over["run"] == "over"
    assert over["state"] == "converged"
    assert [row["level"] for row in rows(html, "Notices")] == ["warning", "info"]


def test_a_store_or_value_that_cannot_be_read_is_one_sentence(store, status, tmp_path):
    noticed(status, NOW, n.session_opened("a", "0.2.0", "no date"))
    with pytest.raises(StorageError, match="cannot be read"):
        overview(store)
    (tmp_path / "none.sqlite").write_bytes(b"no database" * 1000)
    with TestClient(
        server.application(tmp_path / "none.sqlite"), base_url="http://localhost"
    ) as client:
        answer = client.get("/status.json")
    assert answer.status_code == 503
    assert "none.sqlite" in answer.text


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example"]
)
def test_without_a_token_the_page_answers_under_no_name_of_somebody_elses(shown, host):
    """A page of theirs whose name is made to lead here would read it (DNS rebinding)."""
    with TestClient(server.application(shown), base_url=f"http://{host}:7601") as client:
        answer = client.get("/status.json")
        assert answer.status_code == 421
        assert "over" not in answer.text
    for own in ("localhost", "127.0.0.1", "[::1]"):
        with TestClient(server.application(shown), base_url=f"http://{own}:7601") as client:
            assert client.get("/status.json").status_code == 200


def test_a_token_is_asked_for_where_one_is_set(shown):
    token = "correct-horse-battery"
    words = [token]
    with TestClient(
        server.application(shown, lambda: words[0]), base_url="http://testserver"
    ) as client:
        for path in ("/", "/status.json", "/static/page.css", "/?token=wrong"):
            assert client.get(path).status_code == 401
        assert client.get("/", headers={"Authorization": f"Bearer {token}"}).status_code == 200
        answer = client.get(f"/?token={token}", follow_redirects=False)
        assert answer.status_code == 303, "the token leaves the address"
        assert answer.headers["location"] == "/", "the token leaves the address"
        assert "httponly" in answer.headers["set-cookie"].lower()
        assert client.get("/").status_code == 200
        words[0] = "a-new-one-in-the-file"
        assert client.get("/").status_code == 401


def test_it_is_served_in_a_thread_that_ends_and_beyond_loopback_with_a_token_alone(shown):
    with pytest.raises(UsageError, match="set a token"):
        server.show("0.0.0.0:0", shown, None)
    with pytest.raises(UsageError, match="expected HOST:PORT"):
        server.show("127.0.0.1", shown, None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            UsageError, match=rf"another program listens on port {port}.*with --web \(`ss -ltnp"
        ):
            server.show(f"127.0.0.1:{port}", shown, None)
    end = server.show(f"127.0.0.1:{port}", shown, None)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/status.json", timeout=200) as answer:
            assert json.loads(answer.read()) == plain(shown)
    finally:
        end()
