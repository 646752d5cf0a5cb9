r"""A sum that tells how many sites have each fingerprint, and not which: an invertible Bloom lookup table.

    cell ← Σ over its entries (1, high, low, check)          an entry is in one cell of each of 4 rows

A cell with one distinct fingerprint, which c sites have, is (c, c·high, c·low, c·check). It is recognised by its check, read,
and removed from its other cells, until none is left (Goodrich and Mitzenmacher 2011). Fingerprints have 64 bits, so two of
10⁶ ids share one with a probability of 3e-8.
"""

from dataclasses import dataclass
from math import ceil

import numpy as np
from jaxtyping import Float64, Int64, UInt64

from coreg_core.errors import BadData
from coreg_core.numerics.arrays import Arr, Ints

ROWS, COLUMNS = 4, 4
# Cells a fingerprint: 4 rows can be read below 1 / 0.772 (Goodrich and Mitzenmacher 2011, table 1). The constant serves few ids.
_CELLS, _LEAST = 1.45, 500
_HALF = np.uint64(32)
_LOW = np.uint64(2**32 - 1)
Marks = UInt64[np.ndarray, " n"]


@dataclass(frozen=True, eq=False)
class Counts:
    """Distinct fingerprints in ascending order, and how many sites have each."""

    marks: Marks
    sites: Int64[Ints, " n"]

    def of(self, marks: Marks) -> Int64[Ints, " k"]:
        """The number of sites for each of these fingerprints."""
        at = np.minimum(np.searchsorted(self.marks, marks), max(len(self.marks) - 1, 0))
        if not len(self.marks):
            return np.zeros(len(marks), dtype=np.int64)
        return np.where(self.marks[at] == marks, self.sites[at], 0)


def width_for(n_marks: int) -> int:
    """Cells of a row, for at most so many distinct fingerprints."""
    return ceil(_CELLS * n_marks / ROWS) + _LEAST


def _mixed(marks: Marks, salt: int) -> Marks:
    """splitmix64."""
    with np.errstate(over="ignore"):
        x = marks + np.uint64(0x9E3779B97F4A7C15 * (salt + 1) % 2**64)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _places(marks: Marks, width: int) -> Int64[Ints, "4 n"]:
    return np.array([(_mixed(marks, row) % np.uint64(width)).astype(np.int64) + row * width for row in range(ROWS)])


def _entries(marks: Marks) -> Float64[Arr, "n 4"]:
    check = _mixed(marks, ROWS) & _LOW
    return np.column_stack([np.ones(len(marks)), marks >> _HALF, marks & _LOW, check]).astype(np.float64)


def tally(marks: Marks, width: int) -> Float64[Arr, "c 4"]:
    """One site's cells, row after row."""
    cells, entries = np.zeros((ROWS * width, COLUMNS)), _entries(marks)
    for places in _places(marks, width):
        np.add.at(cells, places, entries)
    return cells


def read(total: Float64[Arr, "c 4"]) -> Counts:
    """The fingerprints of a sum of tallies.

    Raises
    ------
    BadData
        the sum is no sum of tallies.
    """
    cells, width, known, sites = total.copy(), len(total) // ROWS, list[Marks](), list[Arr]()
    # Each pass reads the pure cells. A sum of n tallies has at most log n passes, far below this.
    for _ in range(200):
        count = cells[:, 0]
        some = np.flatnonzero(count > 0.5)
        if not len(some):
            break
        whole = cells[some, 1:] / count[some, None]
        fits = ((whole == np.rint(whole)) & (whole >= 0.0) & (whole < 2.0**32)).all(axis=1)
        some, whole = some[fits], whole[fits].astype(np.uint64)
        marks = (whole[:, 0] << _HALF) | whole[:, 1]
        pure = (_mixed(marks, ROWS) & _LOW) == whole[:, 2]
        pure &= (_places(marks, width) == some).any(axis=0)
        found, first = np.unique(marks[pure], return_index=True)
        if not len(found):
            break
        times = count[some[pure][first]]
        removed = _entries(found) * times[:, None]
        for places in _places(found, width):
            np.subtract.at(cells, places, removed)
        known.append(found)
        sites.append(times)
    if cells.any():
        raise BadData("some site sent a tally that cannot be read.")
    if not known:
        return Counts(np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int64))
    marks, times = np.concatenate(known), np.concatenate(sites).astype(np.int64)
    order = np.argsort(marks)
    return Counts(marks[order], times[order])
