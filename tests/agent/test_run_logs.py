"""What a run is resumed from: the sums as they were, or so many of them as are right, whatever became of the file."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from coreg_core.errors import StorageError, UsageError
from coreg_core.protocol.messages import Head
from site_agent.machine.run_log import REACHABLE, Ended, Kept, Sum
from site_agent.service.run_logs import RunLogs

NUMBERS = st.floats(width=64, allow_nan=False)  # an exact sum is a number, or beyond all of them
SUMS = st.lists(
    st.builds(
        Sum,
        st.none() | arrays.arrays(np.float64, st.tuples(st.integers(0, 4), st.integers(0, 3)), elements=NUMBERS),
        st.lists(NUMBERS, max_size=3).map(tuple),
    ),
    max_size=5,
)


def ended_after(position):
    return Ended(Head("a", "chain", "state"), ("a", "b"), position)


def written(folder, sums=(), *, ended=False, begun=0):
    """The log of a run and what it was told; the first ``begun`` sums came of an earlier attempt."""
    log, kept = RunLogs(folder).of("r1"), Kept(("a", "b"), "data", b"a key of the members")
    for total in sums[:begun]:
        kept = kept.with_sum(total)
    log.begin(kept)
    for total in sums[begun:]:
        kept = log.append(kept.with_sum(total))
    if ended:
        log.end(ended_after(len(kept.sums)))
    return log, kept


def told(kept):
    """Everything of it, equal only when every bit is."""
    sums = [
        (None if s.values is None else (s.values.shape, s.values.tobytes()), np.array(s.scalars).tobytes())
        for s in kept.sums
    ]
    return kept.sites, kept.data, kept.key, kept.digests, sums, kept.ended


@given(sums=SUMS, begun=st.integers(0, 5), ended=st.booleans())
def test_what_is_written_is_read_bit_by_bit(tmp_path_factory, sums, begun, ended):
    folder = tmp_path_factory.mktemp("log") / "runs"
    log, kept = written(folder, sums, begun=begun, ended=ended)
    assert told(log.load("data")) == told(replace(kept, ended=ended_after(len(sums)) if ended else None))
    assert log.load("data of other rows") is None
    log.begin(kept.upto(0))
    assert told(log.load("data")) == told(kept.upto(0)), "another attempt leaves nothing of the one before"
    RunLogs(folder).forget("r1")
    assert list(folder.iterdir()) == []
    assert log.load("data") is None


@given(cut=st.integers(0, 2000), flip=st.integers(0, 255))
def test_a_file_that_was_cut_or_changed_gives_the_first_sums_as_they_were_or_nothing(tmp_path_factory, cut, flip):
    sums = [Sum(np.arange(6.0).reshape(3, 2) + i, (0.5, float(i))) for i in range(3)]
    folder = tmp_path_factory.mktemp("log")
    log, kept = written(folder, sums)
    path = folder / "r1.sums"
    whole = path.read_bytes()
    cut %= len(whole)
    path.write_bytes(whole[:cut] + (bytes([whole[cut] ^ flip]) + whole[cut + 1 :] if flip else b""))
    found = log.load("data")
    head = whole.index(b"\n")
    if cut > head:
        # All three are there if the damage changes no number: 0x0.0p+0 and 0x0.0p30 are both zero.
        assert told(found) == told(kept.upto(len(found.sums)))
    elif found is not None:  # in the head: other sites, or another key, under which no other member has these digests
        assert found.sums == () or found.sites != kept.sites


def test_a_site_that_was_killed_goes_on_writing_where_the_sums_are_right(tmp_path):
    sums = [Sum(np.ones((2, 1)) * i, ()) for i in range(4)]
    log, _ = written(tmp_path, sums[:3])
    path = tmp_path / "r1.sums"
    path.write_bytes(path.read_bytes()[:-5])  # torn in the last one
    found = log.load("data")
    assert len(found.sums) == 2
    log.begin(found)
    more = log.append(found.with_sum(sums[3]))
    assert told(log.load("data")) == told(more)


def test_a_log_on_a_disk_keeps_no_vector_in_memory_and_says_when_it_is_gone(tmp_path):
    """An agent grew by a vector a round: 800 kB for 100,000 instances."""
    sums = [Sum(np.full((100_000, 1), float(i)), ()) for i in range(8)]
    tracemalloc.start()
    try:
        log, kept = written(tmp_path, sums)
        found = log.load("data")
        assert tracemalloc.get_traced_memory()[0] < sums[0].values.nbytes
    finally:
        tracemalloc.stop()
    assert told(found) == told(kept)
    log.begin(found.upto(3))
    assert [total.values[0, 0] for total in log.load("data").sums] == [0.0, 1.0, 2.0]
    (tmp_path / "r1.sums").unlink()
    with pytest.raises(StorageError, match=r"r1\.sums: the sums of this run can no longer be read"):
        _ = found.sums[0].values


def test_only_the_agent_reads_a_log_and_a_name_leads_nowhere_else(tmp_path):
    written(tmp_path / "runs", [Sum(None, (1.0,))], ended=True)
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "runs").iterdir()} == {0}
    for name in ("../r1", "a/b", ""):
        with pytest.raises(UsageError):
            RunLogs(tmp_path).of(name)


def test_states_are_named_to_members_alone_and_as_far_back_as_sites_can_differ():
    kept = [Kept(("a", "b"), "data", key) for key in (b"of the members", b"of somebody else")]
    for i in range(5):
        kept = [k.with_sum(Sum(np.full((1, 1), float(i)), ())) for k in kept]
    mine, other = ([(r.position, r.digest) for r in k.resume] for k in kept)
    assert [position for position, _ in mine] == [3, 4, 5]
    assert len(mine) == REACHABLE
    assert not {digest for _, digest in mine} & {digest for _, digest in other}
    assert Kept(("a", "b"), "data", b"").resume == (), "before the first sum there is nothing to go on from"
    assert "members" not in repr(kept[0])
