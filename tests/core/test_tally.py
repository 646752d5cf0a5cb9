"""How many sites have each fingerprint, from a sum of their tables."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from coreg_core.errors import BadData
from coreg_core.secure.tally import COLUMNS, ROWS, read, tally, width_for


def fingerprints(seed, count):
    return np.unique(np.random.default_rng(seed).integers(2**63, size=count, dtype=np.uint64))


def test_a_sum_tells_how_many_sites_have_each_fingerprint():
    everyone = fingerprints(0, 400)
    sites = [everyone[:300], everyone[100:], everyone[50:350]]
    width = width_for(len(everyone))

    counts = read(sum(tally(marks, width) for marks in sites))

    expected = np.sum([np.isin(everyone, marks) for marks in sites], axis=0)
    assert_array_equal(counts.of(everyone), expected)
    assert_array_equal(counts.of(np.array([1], dtype=np.uint64)), [0])


def test_a_table_with_more_fingerprints_than_it_can_hold_is_refused():
    width = width_for(0)
    with pytest.raises(BadData, match="a tally that cannot be read"):
        read(tally(fingerprints(1, 40 * width), width))


@pytest.mark.parametrize("cell", [0, 3])
def test_a_cell_that_no_site_made_is_refused(cell):
    total = tally(fingerprints(2, 50), width_for(50))
    total[cell] += np.arange(1, COLUMNS + 1, dtype=np.uint64)
    assert len(total) % ROWS == 0
    with pytest.raises(BadData, match="a tally that cannot be read"):
        read(total)
