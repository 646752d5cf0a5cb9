"""One ledger in many files: the chain, what it remembers and who writes it are what they would be in one."""

import dataclasses
import errno
import hashlib
import json
import os
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coreg_core.agreement.columns import Column
from coreg_core.errors import StorageError
from coreg_core.protocol.messages import Ask, Hello, Leaving, Masked, PlanAccepted, Prediction, Vector, Words
from coreg_core.protocol.plan import Membership, Plan
from site_agent.ledger import GENESIS, Ledger, is_written, read_ledger, recall, summed_with
from site_agent.ledger import files as ledger_files
from site_agent.ledger.files import CONTINUED, archives
from site_agent.ledger.replay import KNOWN_WHOLE
from site_agent.machine.memory import Remembered

SITES = ("a", "b", "c", "d")
PLANS = tuple(dataclasses.replace(Plan("r", "clinics", Membership(SITES, 3)), study=study) for study in ("one", "two"))
IDS = ("ids", "other ids")


def plan_of(run, which):
    return dataclasses.replace(PLANS[which], run=run)


def written(ledger, steps):
    """Answers to questions, as a site gives them: (run, plan, instances, question, sites that it is summed with)."""
    accepted = {}
    for run, which, ids, question, sites in steps:
        name = f"run-{run}"
        if accepted.get(name) != (which, ids):
            accepted[name] = (which, ids)
            ledger.record(PlanAccepted(name, PLANS[which].digest, 2, IDS[ids], "data", 1.0, 1.0, 1))
        ask = Ask(
            name,
            question,
            0,
            "affine",
            (Column(0.1, 0.6),),
            question % 2 == 0,
            Vector(np.full((2, 1), float(question))),
        )
        if sites:
            told = Remembered(participants=sites, may_change=question == 3)
            ledger.record(Masked(name, question, 0, Words(np.arange(3, dtype="<u8"))), ask, told)
        else:
            ledger.record(Prediction(name, question, 0, Vector(np.ones((2, 1)))), ask)


def everything(of):
    """What is remembered of whatever was asked; ``of`` is a ledger, or two functions of a path."""
    asked = [(plan_of(f"run-{run}", which), ids) for run in range(4) for which in (0, 1) for ids in IDS]
    return [of.recall(plan, ids) for plan, ids in asked] + [of.summed_with(ids) for ids in IDS]


@dataclasses.dataclass
class Read:
    """A ledger as another process finds it."""

    path: os.PathLike

    def recall(self, plan, ids):
        return recall(self.path, plan, ids)

    def summed_with(self, ids):
        return summed_with(self.path, ids)


steps = st.lists(
    st.tuples(
        st.integers(0, 3), st.integers(0, 1), st.integers(0, 1), st.integers(0, 4),
        st.sampled_from([(), SITES[:3], SITES[1:], SITES]),
    ),
    max_size=25,
)  # fmt: skip


@given(steps=steps, most=st.integers(1, 4000))
def test_what_is_remembered_does_not_depend_on_how_often_a_file_was_put_aside(tmp_path_factory, steps, most):
    folder = tmp_path_factory.mktemp("ledgers")
    one, many = Ledger(folder / "one"), Ledger(folder / "many", most_bytes=most)
    live = Ledger(folder / "live", most_bytes=most)
    live.summed_with("ids")  # what it remembers is in memory from the first line on
    for ledger in (one, many, live):
        written(ledger, steps)
    expected = everything(one)
    assert everything(many) == everything(live) == everything(Read(folder / "many")) == expected
    for ledger in (one, many, live):
        ledger.close()
    said = [{k: v for k, v in e.items() if k not in ("at", "previous")} for e in read_ledger(folder / "one")]
    again = [
        {k: v for k, v in e.items() if k not in ("at", "previous")}
        for e in read_ledger(folder / "many")
        if e["kind"] != CONTINUED
    ]
    assert again == said
    # Without the files that were put aside: everything but the questions of runs that are long over.
    for archive in archives(folder / "many").values():
        archive.unlink()
    assert everything(Read(folder / "many")) == expected


def test_questions_of_a_run_that_is_long_over_are_found_where_they_stand(tmp_path):
    path, many = tmp_path / "l.jsonl", KNOWN_WHOLE + 4
    ledger = Ledger(path, most_bytes=2000)
    written(ledger, [(run, 0, 0, question, SITES[:3]) for run in range(many) for question in range(3)])
    assert len(archives(path)) > 5
    for run in (0, 3, many - 1):
        for found in (ledger.recall(plan_of(f"run-{run}", 0), "ids"), recall(path, plan_of(f"run-{run}", 0), "ids")):
            assert sorted(found.asked) == [(0, 0), (1, 0), (2, 0)]
            assert len(found.verified) == 2
            assert (found.answered, found.participants) == (3 * many, SITES[:3])
    assert ledger.recall(plan_of("new", 0), "ids").asked == {}
    for archive in list(archives(path).values())[:3]:
        archive.unlink()
    found = ledger.recall(plan_of("run-0", 0), "ids")
    assert (found.asked, found.answered) == ({}, 3 * many)
    ledger.close()


def test_what_a_file_carries_does_not_fill_it(tmp_path):
    """A carried line longer than the limit would otherwise make a file a line, each with all of it."""
    path = tmp_path / "l.jsonl"
    ledger = Ledger(path, most_bytes=4000)
    for run in range(6):  # in several processes
        written(ledger, [(run, 0, 0, question, SITES) for question in range(20)])
        ledger.close()
        ledger = Ledger(path, most_bytes=4000)
    ledger.close()
    sizes = [archive.stat().st_size for archive in archives(path).values()]
    carried = [len(archive.read_bytes().splitlines()[0]) for archive in list(archives(path).values())[1:]]
    assert max(carried) > 3 * 4000
    written_by_itself = [size - of for size, of in zip(sizes[1:], carried, strict=True)]
    assert min(written_by_itself) >= 4000
    assert max(written_by_itself) < 2 * 4000


def test_a_process_reads_its_ledger_once(tmp_path, monkeypatch):
    path = tmp_path / "l.jsonl"
    ledger = Ledger(path)
    written(ledger, [(0, 0, 0, 0, SITES)])
    plan = plan_of("run-0", 0)
    assert ledger.recall(plan, "ids").answered == 1
    with monkeypatch.context() as patched:
        patched.setattr("site_agent.ledger.replay.opened", None)
        written(ledger, [(1, 0, 0, 0, SITES)])
        assert [ledger.recall(plan_of(f"run-{run}", 0), "ids").answered for run in range(3)] == [2, 2, 2]
        assert len(ledger.summed_with("ids")) == 1
    ledger.close()


def test_heads_hold_over_files_and_in_the_middle_of_a_run(home):
    kept = home.serve("one", "two", most_bytes=1500)
    names = [path.name for path in archives(home.path).values()]
    assert names == [f"ledger-{number:04d}.jsonl" for number in range(1, len(names) + 1)]
    assert len(names) > 3
    found = home.audit(home.record(kept))
    assert (found.both.run, found.compared, found.files) == ("two", 2, len(names) + 1)
    assert found.both.head.lines == kept[1].receipt.head.lines
    home.serve("three", most_bytes=1500)  # in another process
    assert home.audit().both.run == "three"


def test_a_file_that_is_missing_or_was_changed_is_missed(home):
    home.serve("one", "two", most_bytes=1500)
    first, second = list(archives(home.path).values())[:2]
    for archive, why in ((first, r"lines 1 to \d+ are not here"), (second, "a file is missing between them")):
        whole = archive.read_bytes()
        archive.unlink()
        with pytest.raises(StorageError, match=why):
            home.audit()
        archive.write_bytes(whole[:-30] + b"x" + whole[-29:])
        with pytest.raises(StorageError, match=r"the chain is broken|is not the ledger that was written"):
            home.audit()
        archive.write_bytes(whole)
    home.audit()
    first.unlink()
    assert next(read_ledger(home.path))["kind"] == CONTINUED, "what is here is shown, from the line that goes on"
    last = archives(home.path)[max(archives(home.path))]
    last.write_bytes(b"".join(last.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(StorageError, match="goes on after line"):
        list(read_ledger(home.path))


def test_what_a_file_carries_is_held_to_the_files_before_it(home):
    """An attacker who lets the agent forget has to write all of it anew, and then has no signature for it."""
    ledger = Ledger(home.path, most_bytes=1500)
    written(ledger, [(0, 0, 0, question, SITES[:3]) for question in range(8)])
    ledger.close()
    home.audit()
    lines = home.path.read_bytes().splitlines()
    entry = json.loads(lines[0])
    entry["carried"]["summed"] = []
    first = json.dumps(entry, sort_keys=True).encode()
    rest, previous = [first], hashlib.sha256(first).hexdigest()
    for line in lines[1:]:
        rest.append(json.dumps({**json.loads(line), "previous": previous}, sort_keys=True).encode())
        previous = hashlib.sha256(rest[-1]).hexdigest()
    home.path.write_bytes(b"".join(line + b"\n" for line in rest))
    list(read_ledger(home.path))
    with pytest.raises(StorageError, match="what it carries of the files before it is not what these say"):
        home.audit()


def test_a_first_line_that_is_damaged_makes_nothing_forgotten(tmp_path):
    path = tmp_path / "l.jsonl"
    ledger = Ledger(path, most_bytes=1500)
    written(ledger, [(0, 0, 0, question, SITES[:3]) for question in range(8)])
    expected = everything(ledger)
    ledger.close()
    lines = path.read_bytes().splitlines(keepends=True)
    for damaged in (b"{torn\n", lines[0].replace(b'"version": 1', b'"version": 0')):
        path.write_bytes(b"".join([damaged, *lines[1:]]))
        assert everything(Read(path)) == expected


# --- killed while a file is put aside -------------------------------------------------------------------------------


def left_behind(path):
    """A ledger of two lines, whose writer was killed while it put it aside."""
    ledger = Ledger(path)
    written(ledger, [(0, 0, 0, 0, SITES)])
    ledger.close()
    return path.read_bytes()


@pytest.mark.parametrize("named", [False, True], ids=["before its second name", "before the first name changed hands"])
@pytest.mark.parametrize("whole", [False, True])
def test_killed_while_it_is_put_aside_the_ledger_is_what_it_was(tmp_path, named, whole):
    path = tmp_path / "l.jsonl"
    before = left_behind(path)
    (tmp_path / "l.jsonl.next").write_bytes(b'{"kind": "Continued"}\n' if whole else b'{"ki')
    if named:
        os.link(path, tmp_path / "l-0001.jsonl")
    assert len(list(read_ledger(path))) == 2, "readers see one file"
    ledger = Ledger(path, most_bytes=1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["l.jsonl"]
    assert path.read_bytes() == before
    ledger.record(Leaving("over"))
    ledger.close()
    assert [e["kind"] for e in read_ledger(path)] == ["PlanAccepted", "Masked", CONTINUED, "Leaving"]
    assert (tmp_path / "l-0001.jsonl").read_bytes() == before


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSPC])
def test_a_file_that_cannot_be_put_aside_grows_and_the_next_process_tries_again(tmp_path, monkeypatch, number):
    path = tmp_path / "l.jsonl"

    def fails(*_arguments, **_options):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", fails)
        ledger = Ledger(path, most_bytes=1000)
        written(ledger, [(0, 0, 0, question, SITES) for question in range(6)])
        ledger.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["l.jsonl"]
    ledger = Ledger(path, most_bytes=1000)
    ledger.record(Leaving("over"))
    ledger.close()
    assert list(archives(path)) == [1]
    assert len(list(read_ledger(path))) == 7 + 2


def test_a_line_that_was_torn_last_is_closed_before_the_file_is_put_aside(tmp_path):
    path = tmp_path / "l.jsonl"
    path.write_bytes(left_behind(path) + b'{"at": "2026-1')
    ledger = Ledger(path, most_bytes=1)
    ledger.record(Leaving("over"))
    ledger.close()
    assert [e["kind"] for e in read_ledger(path)] == ["PlanAccepted", "Masked", "torn", CONTINUED, "Leaving"]


# --- who writes, and who reads meanwhile ----------------------------------------------------------------------------


def test_a_second_agent_is_kept_out_while_files_change_names(tmp_path):
    path = tmp_path / "l.jsonl"
    ledger, refused, tried = Ledger(path, most_bytes=600), [], threading.Event()

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
        written(ledger, [(0, 0, 0, question % 5, SITES) for question in range(60)])
        assert is_written(path)
    finally:
        tried.set()
        intruder.join()
    ledger.close()
    assert len(archives(path)) > 20
    assert refused
    assert all(refused)
    assert not is_written(path)
    assert len(list(read_ledger(path))) == 61 + len(archives(path))


def test_reading_beside_an_agent_that_puts_files_aside_is_reading_one_chain(tmp_path, monkeypatch):
    path = tmp_path / "l.jsonl"
    ledger = Ledger(path, most_bytes=600)
    written(ledger, [(0, 0, 0, 0, SITES)])
    looked = ledger_files.archives

    def meanwhile(of):
        with monkeypatch.context() as patched:
            patched.setattr(ledger_files, "archives", looked)
            written(ledger, [(0, 0, 0, question, SITES) for question in (1, 2)])
        return looked(of)

    monkeypatch.setattr(ledger_files, "archives", meanwhile)
    for _ in range(5):
        reading = read_ledger(path)
        next(reading)
        ledger.record(Hello("north", 2, "0.2.0"))
        list(reading)
    monkeypatch.undo()
    ledger.close()
    assert next(read_ledger(path))["previous"] == GENESIS
    assert summed_with(path, "ids")
