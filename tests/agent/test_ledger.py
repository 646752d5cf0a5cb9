"""The ledger: what it says of every message, which changes are found when it is opened, and the disk that it needs."""

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import re
from typing import get_args

import pytest
from agent_files import agent
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_home import answer, chained, offer, told

from coreg_core.errors import StorageError
from coreg_core.objectives.setting import Membership
from coreg_core.protocol.messages import (
    Answer,
    Approval,
    Fault,
    Fetched,
    FromSite,
    Hello,
    Leaving,
    LedgerHead,
    PlanRefused,
    Report,
    Unaligned,
)
from coreg_core.protocol.plan import Plan
from coreg_wire.files.disk import is_held
from site_agent.consent.memory import Memory
from site_agent.ledger import GENESIS, Ledger, read_ledger
from site_agent.ledger.ledger import remember

PLAN = Plan("r", "clinics", Membership(("a", "b", "c"), 3))
PROOF = dataclasses.replace(answer(step=1, words=None), report=Report(3, verified=True, gap=(1e-5,)))
EVERYTHING = (
    Hello("north", 3, "0.2.0"),
    PlanRefused("r", "too many rounds"),
    offer("r", PLAN.digest, "digest of the ids"),
    PROOF,
    answer(step=2, words=range(6)),
    Fault("r", 0, 3, "another target under an old number"),
    Fetched("r"),
    Approval("r", True),
    Unaligned("r"),
    Leaving("over"),
)


def write(path, messages=EVERYTHING, **options):
    ledger = Ledger(path, **options)
    try:
        for message in messages:
            has_words = isinstance(message, Answer) and message.words is not None
            ledger.record(message, told(rows=6) if has_words else None)
    finally:
        ledger.close()
    return ledger


def opened(path):
    """What a starting agent learns from its ledger."""
    ledger = Ledger(path)
    try:
        return ledger.memory.recall(PLAN, "digest of the ids"), ledger.memory.summed_with("digest of the ids")
    finally:
        ledger.close()


# --- what it says -------------------------------------------------------------------------------------------------


def test_every_kind_of_message_has_a_line_with_what_it_disclosed(tmp_path):
    assert {type(message) for message in EVERYTHING} == set(get_args(FromSite))
    sent = write(tmp_path / "l").sent
    lines = list(read_ledger(tmp_path / "l"))
    assert [e["kind"] for e in lines] == [type(m).__name__ for m in EVERYTHING]
    assert (lines[0]["previous"], lines[0]["protocol"], lines[0]["release"]) == (GENESIS, 3, "0.2.0")
    assert (lines[2]["n_unlabelled"], lines[2]["ids_digest"]) == (3, "digest of the ids")
    assert lines[2]["data_digest"] == "data"
    assert lines[3]["report"] == {"round": 3, "verified": True, "gap": [1e-05]}
    for entry, message in zip(lines, EVERYTHING, strict=True):
        if isinstance(message, PlanRefused | Fault | Leaving):
            assert entry["text"] == message.reason  # a refusal's words left the machine as well
    assert {kind: s.messages for kind, s in sent.items()} == {type(m).__name__: 1 for m in EVERYTHING} | {"Answer": 2}
    assert sum(s.numbers for s in sent.values()) == 6
    assert (tmp_path / "l").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("sealed", [True, False])
def test_an_answer_has_what_it_tells_and_no_number_that_left(tmp_path, sealed):
    """It can be shown to an auditor: it has the digest of what left, and not that."""
    ledger, message = Ledger(tmp_path / "l"), answer(step=3, words=(123456789, 987654321, 5))
    ledger.record(message, told(sealed=sealed, may_change=True))
    ledger.close()
    [line], text = read_ledger(tmp_path / "l"), (tmp_path / "l").read_text()
    expected = {
        "run": "r", "attempt": 0, "step": 3, "numbers": 3, "sha256": message.words.digest,
        "sent": "sealed" if sealed else "in clear", "question": "respond affine", "labels": "in the vectors",
        "what": "this site's own predictions for the shared instances", "participants": ["a", "b"] * sealed, "may_change": True,
    }  # fmt: skip
    assert {name: line[name] for name in expected} == expected
    assert not any(number in text for number in ("123456789", "987654321"))


def test_the_command_says_what_the_chain_shows_and_what_it_does_not(tmp_path):
    write(tmp_path / "l")
    shown = agent("ledger", tmp_path / "l")
    last = shown.output.splitlines()[-1]
    assert (shown.exit_code, last.startswith("10 entries, times in UTC; the chain is whole up to the last line")) == (
        0,
        True,
    )
    answers = [line for line in shown.output.splitlines() if " numbers, " in line]
    labels = r"(no label enters|computed from labels too( \(sums\))?)"
    when = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    assert re.fullmatch(rf"{when}  Answer +run \S+ step \d+  \d+ numbers?, .+: .+; {labels}", answers[0])
    assert all(len(line) < 200 for line in shown.output.splitlines()[:-1]), "digests are for --json"
    for words, texts in (
        (("ledger", "--help"), ["last line", "removed last lines"]),
        (("--help",), ["number of shared instances", "digest of their ids"]),
    ):
        page = " ".join(agent(*words).output.split())
        assert [text for text in texts if text not in page] == []


@pytest.mark.parametrize("run", ["run-1", 'a "quoted" run', "ünï\\cödé"])
def test_the_answers_to_a_plan_are_counted_over_its_runs(tmp_path, run):
    """No text of another line passes for one of them."""
    plan = dataclasses.replace(PLAN, run=run)
    ledger = Ledger(tmp_path / "l")
    ledger.record(offer("other", "another plan"))
    ledger.record(offer(run, plan.digest))
    for step in range(3):
        for name in (run, "other"):
            ledger.record(answer(name, step), told())
            ledger.record(answer(name, 9, words=None))  # a proof is no answer
        ledger.record(Fault("other", 0, 9, f'{{"run": {json.dumps(run)}, "kind": "Answer", "numbers": 3}}'))
    ledger.record(offer("earlier", plan.digest))
    ledger.record(answer("earlier"), told())
    ledger.close()
    memory = Memory()
    remember(tmp_path / "l", memory)
    assert [memory.recall(plan, ids).answered for ids in ("ids", "other ids")] == [4, 0]


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
        pytest.param(lambda lines: [e for e in lines if b'"Answer"' not in e], 4, id="every answer removed"),
        pytest.param(
            lambda lines: [e.replace(b'"numbers": 6', b'"numbers": 4') for e in lines], 6, id="a changed value"
        ),
        pytest.param(lambda lines: [e.replace(b'"run"', b'"ruN"') for e in lines], 3, id="a changed letter of a key"),
        pytest.param(lambda lines: [*lines[:3], b"a tear\n", *lines[4:]], 4, id="a line that is no JSON"),
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


@settings(max_examples=50)
@given(data=st.data())
def test_a_ledger_with_other_values_in_a_whole_chain_is_used_or_refused_with_a_sentence(tmp_path_factory, data):
    """An agent of another release, or an attacker who makes the chain anew, can write any JSON."""
    path = tmp_path_factory.mktemp("ledger") / "l"
    write(path)
    entries = list(read_ledger(path))
    for _ in range(data.draw(st.integers(1, 3))):
        entry = data.draw(st.sampled_from(entries))
        key = data.draw(st.sampled_from([*entry, "groups", "numbers", "participants", "instances"]))
        if data.draw(st.booleans()):
            entry.pop(key, None)
        else:
            entry[key] = data.draw(ANYTHING)
    path.write_bytes(chained(entries))
    with contextlib.suppress(StorageError):
        opened(path)


def test_entries_of_the_wrong_type_are_refused_when_the_agent_starts(tmp_path):
    write(tmp_path / "l")
    for changed in ({"participants": [[]]}, {"participants": 7}):
        entries = list(read_ledger(tmp_path / "l"))
        [e for e in entries if e["kind"] == "Answer"][-1].update(changed)
        (tmp_path / "changed").write_bytes(chained(entries))
        with pytest.raises(StorageError, match=r"not an entry of this release.*backup"):
            opened(tmp_path / "changed")


def test_a_last_line_cut_at_any_byte_is_removed_at_the_next_start(tmp_path):
    path = tmp_path / "l"
    write(path, EVERYTHING[:2])
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(first, len(whole)):
        path.write_bytes(whole[:cut])
        assert len(list(read_ledger(path))) == 1, "a reader leaves it"
        assert write(path, []).torn == cut - first
        assert path.read_bytes() == whole[:first]
        assert write(path, [Leaving("later")]).torn == 0
        assert [e.get("text") for e in read_ledger(path)] == [None, "later"]


# --- files --------------------------------------------------------------------------------------------------------


def test_a_ledger_is_new_until_it_was_opened_once_and_goes_on_with_one_chain(tmp_path):
    assert write(tmp_path / "l", EVERYTHING[:2]).new
    assert not write(tmp_path / "l", EVERYTHING[2:]).new
    assert len(list(read_ledger(tmp_path / "l"))) == len(EVERYTHING)


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


@pytest.mark.parametrize("room", [20, 10_000], ids=["a part of the line", "a line that is not synced"])
def test_after_a_failed_write_no_other_line_follows_in_this_process(tmp_path, monkeypatch, room):
    """Another run's answer would stand behind a line of unknown length: the chain would be broken for ever."""
    ledger = Ledger(tmp_path / "l")
    ledger.record(Leaving("before"))
    write_all = ledger._file.write

    def write(data):
        write_all(data[:room])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ledger._file, "write", write)
    for _ in range(2):
        with pytest.raises(StorageError, match=r"No space left on device.*nothing was sent"):
            ledger.record(Leaving("one run"))
        monkeypatch.undo()  # there is room again
    ledger.close()
    with contextlib.closing(Ledger(tmp_path / "l")) as again:
        again.record(Leaving("later"))
    kinds = [entry["kind"] for entry in read_ledger(tmp_path / "l")]
    assert kinds == ["Leaving", "Leaving"] + ["Leaving"] * (room != 20)


def test_an_entry_is_on_the_disk_when_it_is_recorded(tmp_path, monkeypatch):
    """Not in the system's memory alone: a power cut can come after the message left."""
    path, synced = tmp_path / "l", []
    ledger = Ledger(path)
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(path.read_bytes().count(b"\n")))
    for count, message in enumerate(EVERYTHING, start=1):
        ledger.record(message, told() if count == 5 else None)
        assert synced == list(range(1, count + 1))

    def fails(descriptor):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fails)
    sent = dict(ledger.sent)
    with pytest.raises(StorageError, match="nothing was sent"):
        ledger.record(Leaving("over"))
    assert ledger.sent == sent
    ledger.close()
    memory = Memory()
    remember(path, memory)
    assert len(memory.summed_with("digest of the ids")) == 1


def test_an_older_copy_and_another_ledger_are_found_by_the_last_countersigned_head(tmp_path):
    path = tmp_path / "l"
    write(path, [Leaving("1"), Leaving("2"), Leaving("3")])
    whole = path.read_bytes().splitlines(keepends=True)
    head = LedgerHead(2, hashlib.sha256(whole[1].rstrip(b"\n")).hexdigest(), "2026-01-01T00:00:00.000+00:00")
    ledger = Ledger(path)
    ledger.compare(head)
    ledger.compare(dataclasses.replace(head, lines=0, last=""))
    with pytest.raises(StorageError, match=r"it has 3 lines, and the coordinator countersigned 4"):
        ledger.compare(dataclasses.replace(head, lines=4))
    with pytest.raises(StorageError, match=r"its line 2 is not the one that the coordinator countersigned"):
        ledger.compare(dataclasses.replace(head, last="0" * 64))
    ledger.close()
    path.write_bytes(whole[0])  # restored, and grown again
    write(path, [Leaving("other"), Leaving("3")])
    ledger = Ledger(path)
    with pytest.raises(StorageError, match=r"an older copy of this site's ledger, or another one"):
        ledger.compare(head)
    ledger.close()
