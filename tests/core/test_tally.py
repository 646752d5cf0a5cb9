"""coreg_core/computation/alignment.py: a sum tells every count, and a sum of no tallies is noticed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from coreg_core.computation.alignment import COLUMNS, ROWS, read, tally, width_for
from coreg_core.errors import BadData

MARKS = st.integers(0, 2**64 - 1)


@given(st.lists(st.frozensets(MARKS, max_size=40), min_size=1, max_size=6))
def test_a_sum_tells_how_many_have_each_mark(sites):
    everything = sorted(set().union(*sites))
    width = width_for(len(everything))
    found = read(sum(tally(np.array(sorted(site), dtype=np.uint64), width) for site in sites))
    assert found.marks.tolist() == everything
    assert found.sites.tolist() == [sum(mark in site for site in sites) for mark in everything]


@pytest.mark.parametrize("n", [0, 10, 1_000, 50_000])
def test_tables_of_any_size_are_read(n):
    rng = np.random.default_rng(n)
    marks = rng.integers(0, 2**64, size=n, dtype=np.uint64)
    sites = [marks[rng.random(n) < 0.6] for _ in range(4)]
    found = read(sum(tally(site, width_for(n)) for site in sites))
    assert_array_equal(found.of(marks), sum(np.isin(marks, site).astype(int) for site in sites))
    assert_array_equal(found.of(np.arange(5, dtype=np.uint64)), 0)


def test_a_sum_that_is_none_is_noticed():
    total = tally(np.arange(30, dtype=np.uint64), width_for(30))
    changed = total.copy()
    changed[np.flatnonzero(changed[:, 0])[0], 2] += 1.0
    full = np.ones((ROWS * width_for(3), COLUMNS))
    crowded = tally(np.arange(9_000, dtype=np.uint64), width_for(30))
    for wrong in (changed, full, crowded):
        with pytest.raises(BadData, match="a tally that cannot be read"):
            read(wrong)
