"""The ledger against a sceptic: what a change to the file can and cannot hide, and two agents at once."""

import dataclasses
import errno
import json
import os
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from coreg_core.agreement.columns import Column
from coreg_core.errors import StorageError
from coreg_core.protocol.messages import (
    Ask,
    Fault,
    Fetched,
    FromSite,
    Hello,
    Leaving,
    Masked,
    PlanAccepted,
    PlanRefused,
    Prediction,
    Share,
    Vector,
    Words,
)
from coreg_core.protocol.plan import Membership, Plan
from site_agent.cli.app import app
from site_agent.ledger import GENESIS, Ledger, read_ledger, recall

EVERYTHING = (
    Hello("north", 2, "0.2.0"),
    PlanRefused("r", "too many rounds"),
    PlanAccepted("r", "digest of the plan", 3, "digest of the ids", "digest of the data", 1.5, 12.25, 1, 1e-9),
    Prediction("r", 0, 0, Vector(np.arange(6.0).reshape(3, 2))),
    Share("r", 2, 0, (3.0, 4.5), Vector(np.arange(4.0).reshape(4, 1))),
    Masked("r", 3, 0, Words(np.arange(7, dtype="<u8"))),
    Fault("r", 1, 0, "another target under an old number"),
    Fetched("r"),
    Leaving("over"),
)
QUESTION = Ask(
    "r", 0, 0, "affine", (Column(0.1, 0.6), Column(1.0, 6.0)), True, Vector(np.arange(6.0).reshape(3, 2) / 7.0)
)


def write(path, messages=EVERYTHING):
    ledger = Ledger(path)
    try:
        for message in messages:
            ledger.record(message, QUESTION if isinstance(message, Prediction | Fault) else None)
    finally:
        ledger.close()
    return ledger


def test_every_kind_of_message_is_told_with_what_it_disclosed(tmp_path):
    assert {type(message) for message in EVERYTHING} == set(get_args(FromSite))
    sent = write(tmp_path / "l").sent
    told = list(read_ledger(tmp_path / "l"))
    assert [e["kind"] for e in told] == [type(m).__name__ for m in EVERYTHING]
    assert (told[0]["protocol"], told[0]["release"]) == (2, "0.2.0")
    assert (told[2]["n_unlabelled"], told[2]["ids_digest"]) == (3, "digest of the ids")
    # b_v, the labels' squared norm and the rounding
    assert [told[2][name] for name in ("bound", "squared_norm", "rounding")] == [1.5, 12.25, 1e-9]
    assert told[2]["numbers"] == 3
    assert (told[3]["numbers"], told[3]["sent"]) == (6, "in clear")
    for entry, message in zip(told, EVERYTHING, strict=True):
        if isinstance(message, PlanRefused | Fault | Leaving):
            assert entry["text"] == message.reason  # a refusal's words left the machine as well
    assert {kind: s.messages for kind, s in sent.items()} == {type(m).__name__: 1 for m in EVERYTHING}
    assert sum(s.numbers for s in sent.values()) == 9 + 6 + 7
    assert told[0]["previous"] == GENESIS


def test_an_answer_is_told_with_the_question_that_it_answers(tmp_path):
    """What a site remembers over a restart, and what an auditor needs to see what the answers amount to."""
    write(tmp_path / "l")
    told = next(e for e in read_ledger(tmp_path / "l") if e["kind"] == "Prediction")
    assert {name: told[name] for name in ("run", "question", "attempt", "part", "target", "columns", "verifies")} == {
        "run": "r",
        "question": 0,
        "attempt": 0,
        "part": "affine",
        "target": QUESTION.targets.digest,
        "columns": [[0.1, 0.6], [1.0, 6.0]],
        "verifies": True,
    }


@given(data=st.data())
def test_one_byte_changed_anywhere_before_the_last_line_is_found(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("ledger") / "l"
    write(path)
    whole = path.read_bytes()
    before_last = whole[:-1].rindex(b"\n")
    at = data.draw(st.integers(0, before_last))
    other = data.draw(st.integers(1, 255))
    path.write_bytes(whole[:at] + bytes([whole[at] ^ other]) + whole[at + 1 :])
    with pytest.raises(StorageError, match=r"l, line \d+: "):
        list(read_ledger(path))


def test_the_line_that_is_named_is_the_first_that_does_not_fit(tmp_path):
    path = tmp_path / "l"
    write(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], *lines[3:]]))
    found = []
    with pytest.raises(StorageError, match="line 3: the chain is broken"):
        found.extend(read_ledger(path))
    path.write_bytes(b"".join(lines[1:]))  # the first line, too, has something before it
    with pytest.raises(StorageError, match="line 1: the chain is broken"):
        list(read_ledger(path))


@pytest.mark.parametrize(
    "line", [b"", b"\xff\xfe", b"[]", b"3", b"{}", b"[" * 100_000, json.dumps({"previous": GENESIS}).encode()]
)
def test_a_line_that_is_no_entry(tmp_path, line):
    path = tmp_path / "l"
    path.write_bytes(line + b"\n")
    with pytest.raises(StorageError, match="l, line 1: "):
        list(read_ledger(path))


def test_torn_at_any_byte_the_agent_writes_on_and_the_rest_can_be_read(tmp_path):
    path = tmp_path / "l"
    write(path, EVERYTHING[:2])
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(first, len(whole) + 1):
        path.write_bytes(whole[:cut])
        write(path, [Leaving("later")])
        told = list(read_ledger(path))
        assert told[-1]["text"] == "later"
        torn = [e["line"] for e in told if e["kind"] == "torn"]
        lines = path.read_bytes().splitlines(keepends=True)
        if torn:  # marked, and passed: what was written after it is chained to it as it stands
            assert torn == [2]
            assert len(lines) == 3
            assert whole[first:].startswith(lines[1].rstrip(b"\n"))


def test_a_line_longer_than_one_reading_is_chained_whole(tmp_path):
    path = tmp_path / "l"
    for length in (65_000, 65_536, 70_000, 600_000):
        write(path, [PlanRefused("r", "x" * length)])
    write(path, [Leaving("over")])
    assert len(list(read_ledger(path))) == 5


def test_two_agents_never_write_one_chain(tmp_path):
    path = tmp_path / "l"
    first = Ledger(path)
    with pytest.raises(StorageError, match="another agent of this site is running"):
        Ledger(path)
    first.record(Leaving("over"))
    first.close()
    write(path, [Leaving("again")])
    assert len(list(read_ledger(path))) == 2


def test_places_where_no_ledger_can_be(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, match="nothing was sent"):
        Ledger(tmp_path / "folder")
    with pytest.raises(StorageError, match="nothing was sent"):
        Ledger(tmp_path / "none" / "l")
    with pytest.raises(StorageError, match="cannot be read"):
        list(read_ledger(tmp_path / "none"))


def test_a_full_disk_stops_the_message(tmp_path):
    ledger = Ledger(tmp_path / "l")
    ledger.close()
    with open("/dev/full", "ab", buffering=0) as ledger._file, pytest.raises(StorageError, match="nothing was sent"):  # noqa: PTH123
        ledger.record(Leaving("over"))
    assert ledger.sent == {}


def test_an_entry_is_on_the_disk_when_it_is_recorded(tmp_path, monkeypatch):
    """Not in the system's memory alone: a power failure may come after the message left."""
    path, synced = tmp_path / "l", []

    def fsync(descriptor):
        if os.path.sameopenfile(descriptor, ledger._file.fileno()):
            synced.append(path.read_bytes().count(b"\n"))

    ledger = Ledger(path)
    monkeypatch.setattr(os, "fsync", fsync)
    for count, message in enumerate(EVERYTHING, start=1):
        ledger.record(message)
        assert synced == list(range(1, count + 1))

    def fails(descriptor):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(StorageError, match="nothing was sent"):
        ledger.record(Leaving("over"))
    ledger.close()


def test_what_the_chain_shows_and_what_it_does_not_is_said(tmp_path):
    write(tmp_path / "l")
    told = CliRunner().invoke(app, ["ledger", str(tmp_path / "l")])
    assert told.exit_code == 0
    last = told.output.splitlines()[-1]
    assert last.startswith("9 entries; the chain is whole up to the last line")
    assert "cut off" in last
    for words in (["ledger", "--help"], ["--help"]):
        page = " ".join(CliRunner().invoke(app, words).output.split())
        told = (
            ["last line", "cut off"] if words[0] == "ledger" else ["how many", "digest of their ids", "b_v", "squares"]
        )
        assert [text for text in told if text not in page] == []


def test_no_number_that_left_stands_in_the_ledger(tmp_path):
    """The ledger may be shown to an auditor: it has the answers' digest, and neither answers nor targets."""
    path = tmp_path / "l"
    values = Vector(np.array([[0.123456789], [987.654321]]))
    write(path, [dataclasses.replace(EVERYTHING[3], values=values)])
    text = path.read_text()
    assert values.digest in text
    assert QUESTION.targets.digest in text
    for number in ("0.123456789", "987.654321", *(repr(x) for x in QUESTION.targets.values.ravel().tolist()[1:])):
        assert number not in text


@pytest.mark.parametrize("run", ["run-1", 'a "quoted" run', "ünï\\cödé"])
def test_of_many_runs_the_ledger_counts_the_answers_to_one_plan(tmp_path, run):
    """Lines of other plans are told by their run without being read; nothing that stands in a text may pass for one."""
    plan = Plan(run, "clinics", Membership(("a", "b"), 2))
    ask = Ask(run, 0, 0, "affine", (Column(0.01, 0.04),), True, Vector(np.ones((2, 1))))
    ledger = Ledger(tmp_path / "ledger.jsonl")

    def accepted(run, digest):
        ledger.record(PlanAccepted(run, digest, 2, "ids", "data", 1.0, 1.0, 1))

    def answer(run, question):
        asked = dataclasses.replace(ask, run=run, question=question)
        ledger.record(Prediction(run, question, 0, Vector(np.ones((2, 1)))), asked)

    accepted("other", "another plan")
    accepted(run, plan.digest)
    for question in range(3):
        answer(run, question)
        answer("other", question)
        ledger.record(Fault("other", 9, 0, f'{{"run": {json.dumps(run)}, "kind": "Prediction"}}'))
    accepted("earlier", plan.digest)
    answer("earlier", 0)
    ledger.close()
    found = recall(tmp_path / "ledger.jsonl", plan, "ids")
    assert found.answered == 4, "of the plan, over its runs"
    assert sorted(found.asked) == [(0, 0), (1, 0), (2, 0)], "of the run"
    assert recall(tmp_path / "ledger.jsonl", plan, "other ids").answered == 0
