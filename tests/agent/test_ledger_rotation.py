"""One ledger in many files: the chain, its memory, its quota and its writer are what they would be in one file."""

import datetime as dt
import errno
import json
import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger_home import answer, chained, offer, told

from coreg_core.errors import StorageError
from coreg_core.protocol.messages import Hello, Leaving
from coreg_core.protocol.plan import Membership, Plan
from coreg_wire.files.disk import Disk
from coreg_wire.files.locks import is_held
from site_agent.ledger import GENESIS, Ledger, quota_of, read_ledger, remember
from site_agent.ledger import files as ledger_files
from site_agent.ledger.files import CONTINUED, archives

SITES = ("a", "b", "c", "d")
PLANS = tuple(Plan("r", "clinics", Membership(SITES, 3), study=study) for study in ("one", "two"))
IDS = ("ids", "other ids")
NOON = dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC)


def written(ledger, steps):
    """Answers to questions, as a site gives them: (run, plan, instances, question, sites that it is summed with)."""
    accepted = {}
    for run, which, ids, question, sites in steps:
        name = f"run-{run}"
        if accepted.get(name) != (which, ids):
            accepted[name] = (which, ids)
            ledger.record(offer(name, PLANS[which].digest, IDS[ids]))
        ledger.record(answer(name, question), told(sites, sealed=bool(sites), may_change=question == 3))


def questions(count, run=0, sites=SITES):
    return [(run, 0, 0, question % 5, sites) for question in range(count)]


def of(path, *steps, **options):
    """A ledger to which these steps were written, closed."""
    ledger = Ledger(path, **options)
    written(ledger, steps)
    ledger.close()
    return path


def everything(of):
    """What is remembered of every plan and set of instances; ``of`` is a ledger, or a path as another process finds it."""
    if isinstance(of, Ledger):
        return [of.recall(p, i) for p in PLANS for i in IDS] + [of.summed_with(i) for i in IDS]
    found = remember(of)
    return [found.recall(p, (i,)) for p in PLANS for i in IDS] + [found.summed_with((i,)) for i in IDS]


SETS = st.sampled_from([(), SITES[:3], SITES[1:], SITES])
STEPS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(0, 1), st.integers(0, 4), SETS), max_size=25
)


@given(steps=STEPS, most=st.integers(1, 4000))
def test_the_memory_does_not_depend_on_how_often_a_file_was_put_aside(tmp_path_factory, steps, most):
    folder = tmp_path_factory.mktemp("ledgers")
    one, many = Ledger(folder / "one"), Ledger(folder / "many", max_bytes=most)
    for ledger in (one, many):
        written(ledger, steps)
    expected = everything(one)
    assert everything(many) == everything(folder / "many") == expected
    one.close()
    many.close()

    def plain(path):
        entries = (e for e in read_ledger(path) if e["kind"] != CONTINUED)
        return [{k: v for k, v in e.items() if k not in ("at", "previous")} for e in entries]

    assert plain(folder / "many") == plain(folder / "one")
    for archive in archives(folder / "many").values():
        archive.unlink()
    again = Ledger(folder / "many")
    assert everything(again) == everything(folder / "many") == expected
    again.close()


def test_the_quota_of_a_day_is_counted_over_files_and_restarts(tmp_path):
    path, now = tmp_path / "l.jsonl", [NOON]
    for hour in range(0, 30, 3):  # ten runs of one answer in 30 hours, each by another process
        now[0] = NOON + dt.timedelta(hours=hour)
        of(path, (hour, 0, 0, 0, SITES), max_bytes=700, now=lambda: now[0])
    assert len(archives(path)) > 5
    ledger = Ledger(path, max_bytes=700, now=lambda: now[0])
    read = quota_of(path, now[0])
    assert len(read.runs) == len(read.answers) == 8, "of hours 6 to 27"
    for limit, ends in ((8, "2026-05-02 18:00:00"), (9, None)):
        for text in (ledger.objection("new", limit), ledger.objection(None, limit)):
            assert (text is None) if ends is None else (ends in text), text
    ledger.close()


def test_a_carried_memory_does_not_count_as_size(tmp_path):
    """A carried line longer than the limit would otherwise make a file a line, each with all of it."""
    path = tmp_path / "l.jsonl"
    of(path, *[(run, 0, 0, 0, SITES) for run in range(90)], max_bytes=1500)
    sizes = [archive.stat().st_size for archive in archives(path).values()]
    carried = [len(archive.read_bytes().splitlines()[0]) for archive in list(archives(path).values())[1:]]
    assert max(carried) > 3 * 1500
    own = [size - of for size, of in zip(sizes[1:], carried, strict=True)]
    assert (min(own) >= 1500, max(own) < 2 * 1500) == (True, True)


# --- signatures, and changes --------------------------------------------------------------------------------------


def test_heads_hold_over_files_and_in_the_middle_of_a_run(home):
    kept = home.serve("one", "two", max_bytes=1500)
    names = [path.name for path in archives(home.path).values()]
    assert names == [f"ledger-{number:04d}.jsonl" for number in range(1, len(names) + 1)]
    assert len(names) > 3
    found = home.audit(home.record(kept))
    assert (found.both.run, found.compared, found.files) == ("two", 2, len(names) + 1)
    assert found.both.head.lines == kept[1].receipt.head.lines
    home.serve("three", max_bytes=1500)  # in another process
    assert home.audit().both.run == "three"


def test_a_file_that_is_missing_or_was_changed_is_missed(home):
    home.serve("one", "two", max_bytes=1500)
    first, second = list(archives(home.path).values())[:2]
    for archive, why in ((first, r"lines 1 to \d+ are missing"), (second, "a file between them is missing")):
        whole = archive.read_bytes()
        archive.unlink()
        with pytest.raises(StorageError, match=why):
            home.audit()
        archive.write_bytes(whole[:-30] + b"x" + whole[-29:])
        with pytest.raises(StorageError, match=r"the chain is broken|The ledger was changed"):
            home.audit()
        archive.write_bytes(whole)
    home.audit()
    first.unlink()
    assert next(read_ledger(home.path))["kind"] == CONTINUED, "what is here is shown, from the line that goes on"
    last = archives(home.path)[max(archives(home.path))]
    whole = last.read_bytes()
    last.write_bytes(b"".join(whole.splitlines(keepends=True)[:-1]))
    with pytest.raises(StorageError, match="continues line"):
        list(read_ledger(home.path))
    with pytest.raises(StorageError, match="one of the two was changed"):
        Ledger(home.path)


def test_the_carried_memory_is_held_to_the_files_before_it(home):
    """An attacker who lets the agent forget has to write all of it anew, and then has no signature for it."""
    of(home.path, *questions(8, sites=SITES[:3]), max_bytes=1500)
    home.audit()
    entries = home.lines
    entries[0]["carried"]["summed"] = []
    home.path.write_bytes(chained(entries, entries[0]["previous"]))
    list(read_ledger(home.path))
    with pytest.raises(StorageError, match="its summary of the earlier files does not match those files"):
        home.audit()


def test_a_carried_memory_of_another_release_is_read_from_the_older_files_and_a_damaged_one_is_refused(tmp_path):
    path = of(tmp_path / "l.jsonl", *questions(8, sites=SITES[:3]), max_bytes=1500)
    expected, [first, *rest] = everything(path), map(json.loads, path.read_bytes().splitlines())

    def carrying(**changes):
        path.write_bytes(chained([first | {"carried": first["carried"] | changes}, *rest], first["previous"]))

    carrying(version=0)
    ledger = Ledger(path)
    assert everything(ledger) == everything(path) == expected
    ledger.close()
    carrying(runs=[3])
    with pytest.raises(StorageError, match="line 1: the memory of earlier files cannot be read"):
        Ledger(path)


# --- killed while a file is put aside -----------------------------------------------------------------------------


@pytest.mark.parametrize("named", [False, True], ids=["before its second name", "before the first name changed hands"])
@pytest.mark.parametrize("whole", [False, True])
def test_killed_while_a_file_is_put_aside_the_ledger_is_what_it_was(tmp_path, named, whole):
    path = of(tmp_path / "l.jsonl", *questions(1))
    before = path.read_bytes()
    (tmp_path / "l.jsonl.next").write_bytes(b'{"kind": "Continued"}\n' if whole else b'{"ki')
    if named:
        os.link(path, tmp_path / "l-0001.jsonl")
    assert len(list(read_ledger(path))) == 2, "readers see one file"
    ledger = Ledger(path, max_bytes=1)
    assert sorted(p.name for p in tmp_path.iterdir() if p.suffix != ".lock") == ["l.jsonl"]
    assert path.read_bytes() == before
    ledger.record(Leaving("over"))
    ledger.close()
    assert [e["kind"] for e in read_ledger(path)] == ["Offer", "Answer", CONTINUED, "Leaving"]
    assert (tmp_path / "l-0001.jsonl").read_bytes() == before


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSPC])
def test_a_file_that_cannot_be_put_aside_grows_and_the_next_process_tries_again(tmp_path, number):
    class NoLinks(Disk):
        def link(self, path, name):
            raise OSError(number, os.strerror(number))

    path = of(tmp_path / "l.jsonl", *questions(6), max_bytes=1000, disk=NoLinks())
    assert sorted(p.name for p in tmp_path.iterdir() if p.suffix != ".lock") == ["l.jsonl"]
    ledger = Ledger(path, max_bytes=1000)
    ledger.record(Leaving("over"))
    ledger.close()
    assert (list(archives(path)), len(list(read_ledger(path)))) == ([1], 7 + 2)


def test_a_torn_last_line_is_closed_before_the_file_is_put_aside(tmp_path):
    path = of(tmp_path / "l.jsonl", *questions(1))
    path.write_bytes(path.read_bytes() + b'{"at": "2026-1')
    ledger = Ledger(path, max_bytes=1)
    ledger.record(Leaving("over"))
    ledger.close()
    assert [e["kind"] for e in read_ledger(path)] == ["Offer", "Answer", "torn", CONTINUED, "Leaving"]


# --- other processes meanwhile ------------------------------------------------------------------------------------


def test_a_second_agent_is_kept_out_while_files_change_names(tmp_path, monkeypatch):
    monkeypatch.setattr("coreg_wire.files.locks.ACQUIRE_SECONDS", 0.01)
    path = tmp_path / "l.jsonl"
    ledger, refused, tried = Ledger(path, max_bytes=600), [], threading.Event()

    def intrude():
        while not tried.is_set():
            try:
                Ledger(path).close()
            except StorageError as error:
                refused.append("another agent" in str(error))
            else:
                refused.append(False)

    intruder = threading.Thread(target=intrude)
    intruder.start()
    try:
        written(ledger, questions(60))
        assert is_held(path)
    finally:
        tried.set()
        intruder.join()
    ledger.close()
    assert len(archives(path)) > 20
    assert refused
    assert all(refused)
    assert not is_held(path)
    assert len(list(read_ledger(path))) == 61 + len(archives(path))


def test_reading_beside_an_agent_that_puts_files_aside_is_reading_one_chain(tmp_path, monkeypatch):
    path = tmp_path / "l.jsonl"
    ledger = Ledger(path, max_bytes=600)
    written(ledger, questions(1))
    looked = ledger_files.archives

    def meanwhile(of):
        with monkeypatch.context() as patched:
            patched.setattr(ledger_files, "archives", looked)
            written(ledger, questions(3)[1:])
        return looked(of)

    monkeypatch.setattr(ledger_files, "archives", meanwhile)
    for _ in range(5):
        reading = read_ledger(path)
        next(reading)
        ledger.record(Hello("north", 3, "0.2.0"))
        list(reading)
    monkeypatch.undo()
    ledger.close()
    assert next(read_ledger(path))["previous"] == GENESIS
    assert remember(path).summed_with(("ids",))
