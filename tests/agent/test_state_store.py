"""What a serving agent keeps: a whole file at every instant, and decisions of what was seen."""

import sqlite3
from dataclasses import replace
from threading import Thread

import pytest

from coreg_core.errors import UsageError
from coreg_core.objectives.additive import Additive
from coreg_core.plan import Plan
from coreg_core.terms import Membership
from site_agent.service.state_store import Decision, StateStore

PLAN = Plan("r1", "tests", Membership(("a", "b"), 2), Additive())


@pytest.fixture
def store(tmp_path):
    made = StateStore(tmp_path / "service")
    made.open()
    return made


def test_a_command_that_looks_while_the_agent_begins_finds_nothing_or_all(tmp_path):
    """`coreg-agent pending` in that instant must not advise to move the file away."""
    faults = []

    def looks(store):
        while not store.path.exists():
            pass
        try:
            store.pending()
            store.history()
        except Exception as error:  # noqa: BLE001 - of a thread
            faults.append(error)

    for number in range(50):
        store = StateStore(tmp_path / str(number))
        command = Thread(target=looks, args=(store,))
        command.start()
        store.open()
        command.join()

    assert faults == []
    assert store.path.stat().st_mode & 0o777 == 0o600


def test_an_agent_that_begins_again_waits_for_nothing_yet_and_keeps_decisions(store):
    store.request_approval(PLAN, {"labels": "60"})
    name, request = store.pending_run("r1")
    store.record_decision(name, request, Decision(True, ""))
    store.open()
    assert store.pending() == []
    assert store.decision("r1").approved


def test_a_decision_is_about_what_the_operator_saw(store):
    """The agent judged the plan again while `approve` asked for the eight words."""
    store.request_approval(PLAN, {"labels": "60"})
    name, request = store.pending_run("r1")
    store.request_approval(PLAN, {"labels": "90"})
    store.record_decision(name, request, Decision(True, ""))
    assert store.decision("r1").about == {"labels": "60"}


def test_a_file_of_an_earlier_build_gets_its_columns(tmp_path):
    store = StateStore(tmp_path / "service")
    store.open()
    with store.database() as db:
        for column in ("decided_by", "decided_at", "noted"):
            db.execute(f"alter table requests drop column {column}")
    store.open()
    store.request_approval(PLAN, {})
    store.record_decision(*store.pending_run("r1"), Decision(True, "", by="anna"))
    assert store.decision("r1").by == "anna"


def test_a_request_that_no_longer_waits_takes_no_decision(store):
    store.request_approval(PLAN, {"labels": "60"})
    name, request = store.pending_run("r1")
    store.clear("r1")
    with pytest.raises(UsageError, match="does not wait any more, and nothing was decided"):
        store.record_decision(name, request, Decision(True, ""))
    assert store.decision("r1") is None


def test_words_that_were_confirmed_for_another_run_are_asked_no_more(store):
    """The second of two waiting runs was refused for it, after its approval."""
    assert store.request_approval(PLAN, {"labels": "60"}, words="eight words")
    assert store.request_approval(PLAN, {"labels": "90"}, words="")
    [entry] = store.pending()
    assert (entry["words"], entry["about"]) == ("", {"labels": "90"})
    assert not store.request_approval(PLAN, {}, words="other words")


def test_a_name_stands_for_one_plan(store):
    assert store.request_approval(PLAN, {})
    assert not store.request_approval(replace(PLAN, study="another"), {})
    with sqlite3.connect(store.path) as db:
        assert db.execute("select count(*) from requests").fetchone() == (1,)
