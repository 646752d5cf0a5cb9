"""The ledger: what it says of every message, which changes are found when it is opened, and the disk that it needs."""

import contextlib
import dataclasses
import errno
import json
import os
from typing import get_args

import numpy as np
import pytest
from agent_files import agent
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_home import chained

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
)
from coreg_core.protocol.plan import Membership, Plan
from coreg_core.protocol.vectors import Vector, Words
from coreg_wire.files.disk import Disk
from coreg_wire.files.locks import is_held
from site_agent.ledger import GENESIS, Ledger, read_ledger, recall, summed_with
from site_agent.machine.memory import Remembered

PLAN = Plan("r", "clinics", Membership(("a", "b", "c"), 3))
EVERYTHING = (
    Hello("north", 2, "0.2.0"),
    PlanRefused("r", "too many rounds"),
    PlanAccepted("r", PLAN.digest, 3, "digest of the ids", "digest of the data", 1.5, 12.25, 1, 1e-9),
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


def write(path, messages=EVERYTHING, **options):
    ledger = Ledger(path, **options)
    try:
        for message in messages:
            told = Remembered(participants=("a", "b")) if isinstance(message, Masked) else None
            ledger.record(message, QUESTION if isinstance(message, Prediction | Fault | Masked) else None, told)
    finally:
        ledger.close()
    return ledger


def opened(path):
    """What a starting agent learns from its ledger."""
    ledger = Ledger(path)
    try:
        ledger.objection("another", 1), ledger.objection(None, 1)
        return ledger.recall(PLAN, "digest of the ids"), ledger.summed_with("digest of the ids")
    finally:
        ledger.close()


# --- what it says -------------------------------------------------------------------------------------------------


def test_every_kind_of_message_has_a_line_with_what_it_disclosed(tmp_path):
    assert {type(message) for message in EVERYTHING} == set(get_args(FromSite))
    sent = write(tmp_path / "l").sent
    lines = list(read_ledger(tmp_path / "l"))
    assert [e["kind"] for e in lines] == [type(m).__name__ for m in EVERYTHING]
    assert (lines[0]["previous"], lines[0]["protocol"], lines[0]["release"]) == (GENESIS, 2, "0.2.0")
    assert (lines[2]["n_unlabelled"], lines[2]["ids_digest"]) == (3, "digest of the ids")
    # b_v, the labels' squared norm and the rounding
    assert [lines[2][name] for name in ("bound", "squared_norm", "rounding", "numbers")] == [1.5, 12.25, 1e-9, 3]
    assert (lines[3]["numbers"], lines[3]["sent"]) == (6, "in clear")
    assert lines[3]["sha256"] == EVERYTHING[3].values.digest
    for entry, message in zip(lines, EVERYTHING, strict=True):
        if isinstance(message, PlanRefused | Fault | Leaving):
            assert entry["text"] == message.reason  # a refusal's words left the machine as well
    assert {kind: s.messages for kind, s in sent.items()} == {type(m).__name__: 1 for m in EVERYTHING}
    assert sum(s.numbers for s in sent.values()) == 9 + 6 + 7
    assert (tmp_path / "l").stat().st_mode & 0o777 == 0o600


def test_an_answer_has_the_question_that_it_answers_and_no_number_that_left(tmp_path):
    """It can be shown to an auditor: it has the digests of answers and targets, and neither answers nor targets."""
    values = Vector(np.array([[0.123456789], [987.654321]]))
    write(tmp_path / "l", [dataclasses.replace(EVERYTHING[3], values=values)])
    [line], text = read_ledger(tmp_path / "l"), (tmp_path / "l").read_text()
    expected = {
        "run": "r", "question": 0, "attempt": 0, "part": "affine", "target": QUESTION.targets.digest,
        "columns": [[0.1, 0.6], [1.0, 6.0]], "is_candidate": True, "sha256": values.digest,
    }  # fmt: skip
    assert {name: line[name] for name in expected} == expected
    for number in ("0.123456789", "987.654321", *(repr(x) for x in QUESTION.targets.values.ravel().tolist()[1:])):
        assert number not in text


def test_the_command_says_what_the_chain_shows_and_what_it_does_not(tmp_path):
    write(tmp_path / "l")
    shown = agent("ledger", tmp_path / "l")
    last = shown.output.splitlines()[-1]
    assert (shown.exit_code, last.startswith("9 entries; the chain is whole up to the last line")) == (0, True)
    for words, texts in (
        (("ledger", "--help"), ["last line", "cut off"]),
        (("--help",), ["how many", "digest of their ids", "b_v", "squares"]),
    ):
        page = " ".join(agent(*words).output.split())
        assert [text for text in texts if text not in page] == []


@pytest.mark.parametrize("run", ["run-1", 'a "quoted" run', "ünï\\cödé"])
def test_the_answers_to_a_plan_are_counted_over_its_runs(tmp_path, run):
    """No text of another line passes for one of them."""
    plan = dataclasses.replace(PLAN, run=run)
    ledger = Ledger(tmp_path / "l")

    def accepted(run, digest):
        ledger.record(PlanAccepted(run, digest, 2, "ids", "data", 1.0, 1.0, 1))

    def answer(run, question):
        asked = dataclasses.replace(QUESTION, run=run, question=question)
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
    found = recall(tmp_path / "l", plan, "ids")
    assert (found.answered, sorted(found.asked)) == (4, [(0, 0), (1, 0), (2, 0)]), "of the plan, and of the run"
    assert recall(tmp_path / "l", plan, "other ids").answered == 0


# --- changes ------------------------------------------------------------------------------------------------------


@given(data=st.data())
def test_one_byte_changed_anywhere_before_the_last_line_is_found_when_the_agent_starts(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("ledger") / "l"
    write(path)
    whole = path.read_bytes()
    at = data.draw(st.integers(0, whole[:-1].rindex(b"\n")))
    path.write_bytes(whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :])
    for read in (Ledger, lambda path: list(read_ledger(path))):
        with pytest.raises(StorageError, match=r"l, line \d+: "):
            read(path)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        pytest.param(lambda lines: [*lines[:2], *lines[3:]], 3, id="a line removed"),
        pytest.param(lambda lines: lines[1:], 1, id="the first line removed"),
        pytest.param(lambda lines: [*lines[:2], lines[1], *lines[2:]], 3, id="a line repeated"),
        pytest.param(lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], 2, id="two lines swapped"),
        pytest.param(lambda lines: [e for e in lines if b'"Prediction"' not in e], 4, id="every answer removed"),
        pytest.param(
            lambda lines: [e.replace(b'"numbers": 3', b'"numbers": 4') for e in lines], 4, id="a changed value"
        ),
        pytest.param(lambda lines: [e.replace(b'"run"', b'"ruN"') for e in lines], 3, id="a changed letter of a key"),
        pytest.param(lambda lines: [*lines[:3], b"a tear\n", *lines[4:]], 5, id="a line that is no JSON"),
    ],
)
def test_an_agent_refuses_to_start_with_a_changed_ledger_and_names_the_first_line_that_does_not_fit(
    tmp_path, change, line
):
    write(tmp_path / "l")
    (tmp_path / "l").write_bytes(b"".join(change((tmp_path / "l").read_bytes().splitlines(keepends=True))))
    for read in (Ledger, lambda path: list(read_ledger(path))):
        with pytest.raises(StorageError, match=f"line {line}: the chain is broken"):
            read(tmp_path / "l")


@pytest.mark.parametrize(
    "line", [b"", b"\xff\xfe", b"[]", b"3", b"{}", b"[" * 100_000, json.dumps({"previous": GENESIS}).encode()]
)
def test_a_line_that_is_no_entry_is_refused(tmp_path, line):
    (tmp_path / "l").write_bytes(line + b"\n")
    for read in (Ledger, lambda path: list(read_ledger(path))):
        with pytest.raises(StorageError, match="l, line 1: "):
            read(tmp_path / "l")


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("2026-01-01T00:00:00"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=200)
@given(data=st.data())
def test_a_ledger_with_other_values_in_a_whole_chain_is_used_or_refused_with_a_sentence(tmp_path_factory, data):
    """An agent of another release, or an attacker who makes the chain anew, can write any JSON."""
    path = tmp_path_factory.mktemp("ledger") / "l"
    write(path)
    entries = list(read_ledger(path))
    for _ in range(data.draw(st.integers(1, 3))):
        entry = data.draw(st.sampled_from(entries))
        key = data.draw(st.sampled_from([*entry, "kept", "groups", "question_kind", "instances"]))
        if data.draw(st.booleans()):
            entry.pop(key, None)
        else:
            entry[key] = data.draw(ANYTHING)
    path.write_bytes(chained(entries))
    with contextlib.suppress(StorageError):
        opened(path)


def test_entries_of_the_wrong_type_are_refused_when_the_agent_starts(tmp_path):
    write(tmp_path / "l")
    for kind, key, value in (
        ("Prediction", "columns", 7),
        ("Masked", "question", []),
        ("PlanAccepted", "at", "2026-01-01T00:00:00"),  # a time without a zone
        ("Masked", "at", "9999-12-31T23:59:59+00:00"),  # a day later there is no date
    ):
        entries = list(read_ledger(tmp_path / "l"))
        next(e for e in entries if e["kind"] == kind)[key] = value
        (tmp_path / "changed").write_bytes(chained(entries))
        with pytest.raises(StorageError, match=r"not an entry that an agent of this release writes.*backup"):
            opened(tmp_path / "changed")


def test_torn_at_any_byte_the_agent_writes_on_and_the_rest_can_be_read(tmp_path):
    path = tmp_path / "l"
    write(path, EVERYTHING[:2])
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(first, len(whole) + 1):
        path.write_bytes(whole[:cut])
        write(path, [Leaving("later")])
        read, lines = list(read_ledger(path)), path.read_bytes().splitlines(keepends=True)
        assert read[-1]["text"] == "later"
        if torn := [e["line"] for e in read if e["kind"] == "torn"]:
            assert (torn, len(lines)) == ([2], 3), "marked, and the next line is chained to it as it stands"
            assert whole[first:].startswith(lines[1].rstrip(b"\n"))


# --- files --------------------------------------------------------------------------------------------------------


def test_a_ledger_is_new_until_it_was_opened_once_and_goes_on_with_one_chain(tmp_path):
    assert write(tmp_path / "l", EVERYTHING[:2]).new
    assert not write(tmp_path / "l", EVERYTHING[2:]).new
    assert len(list(read_ledger(tmp_path / "l"))) == len(EVERYTHING)


def test_a_line_longer_than_one_reading_is_chained_whole(tmp_path):
    for length in (65_000, 65_536, 70_000, 600_000):
        write(tmp_path / "l", [PlanRefused("r", "x" * length)])
    write(tmp_path / "l", [Leaving("over")])
    assert len(list(read_ledger(tmp_path / "l"))) == 5


def test_two_agents_never_write_one_chain(tmp_path):
    path = tmp_path / "l"
    first = Ledger(path)
    with pytest.raises(StorageError, match="another agent of this site is running"):
        Ledger(path)
    assert is_held(path)
    first.record(Leaving("over"))
    first.close()
    assert not is_held(path)
    write(path, [Leaving("again")])
    assert len(list(read_ledger(path))) == 2


def test_places_where_no_ledger_can_be_are_refused(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, match="nothing was sent"):
        Ledger(tmp_path / "folder")
    assert not is_held(tmp_path / "folder")
    with pytest.raises(StorageError, match="cannot be read"):
        list(read_ledger(tmp_path / "none"))


class FullDisk(Disk):
    """What fits is written, and then there is no space: twenty bytes."""

    def append_to(self, path):
        file = super().append_to(path)
        write_all = file.write

        def write(data):
            write_all(data[:20])
            raise OSError(errno.ENOSPC, "No space left on device")

        file.write = write
        return file


def test_a_full_disk_stops_the_message_and_leaves_a_torn_line(tmp_path):
    with pytest.raises(StorageError, match=r"No space left on device.*nothing was sent"):
        write(tmp_path / "l", [Leaving("over")], disk=FullDisk())
    write(tmp_path / "l", [Leaving("later")])
    assert [e["kind"] for e in read_ledger(tmp_path / "l")] == ["torn", "Leaving"]


def test_an_entry_is_on_the_disk_when_it_is_recorded(tmp_path, monkeypatch):
    """Not in the system's memory alone: a power cut can come after the message left."""
    path, synced = tmp_path / "l", []
    ledger = Ledger(path)
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(path.read_bytes().count(b"\n")))
    for count, message in enumerate(EVERYTHING, start=1):
        ledger.record(message)
        assert synced == list(range(1, count + 1))

    def fails(descriptor):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fails)
    sent = dict(ledger.sent)
    with pytest.raises(StorageError, match="nothing was sent"):
        ledger.record(Leaving("over"))
    assert ledger.sent == sent
    ledger.close()
    assert len(summed_with(path, "digest of the ids")) == 1
