r"""How many sites have each fingerprint, and not which: an invertible Bloom lookup table of a sum.

    cell ← Σ over its entries (1, high, low, check)          an entry is in one cell of each of 4
    rows

Each site's cells are words that are only added (mod 2⁶⁴), so a sealed sum opens nothing but the
counts. A cell with one distinct fingerprint, which c sites have, is (c, c·high, c·low, c·check). It
is recognised by its check, read, and removed from its other cells, until none is left (Goodrich and
Mitzenmacher 2011). Fingerprints have 64 bits, so two of 10⁶ ids share one with a probability of
3e-8.
"""

from dataclasses import dataclass
from math import ceil

import numpy as np
from jaxtyping import Int64, UInt64

from coreg_core.arrays import Ints
from coreg_core.errors import BadData

ROWS = 4
COLUMNS = 4
# Cells a fingerprint: 4 rows can be read below 1 / 0.772 (Goodrich and Mitzenmacher 2011, table 1).
# The constant serves few ids.
_CELLS = 1.45
_LEAST = 500
_HALF = np.uint64(32)
_LOW = np.uint64(2**32 - 1)
Marks = UInt64[np.ndarray, " n"]
Cells = UInt64[np.ndarray, "c 4"]


@dataclass(frozen=True, eq=False)
class Counts:
    """Distinct fingerprints in ascending order, and how many sites have each."""

    marks: Marks
    sites: Int64[Ints, " n"]

    def of(self, marks: Marks) -> Int64[Ints, " k"]:
        """The number of sites for each of these fingerprints."""
        if not len(self.marks):
            return np.zeros(len(marks), dtype=np.int64)
        at = np.minimum(np.searchsorted(self.marks, marks), len(self.marks) - 1)
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
    """The cell of each fingerprint in each row."""
    columns = [(_mixed(marks, row) % np.uint64(width)).astype(np.int64) for row in range(ROWS)]
    return np.array([column + row * width for row, column in enumerate(columns)])


def _entries(marks: Marks) -> UInt64[np.ndarray, "n 4"]:
    check = _mixed(marks, ROWS) & _LOW
    return np.column_stack([np.ones_like(marks), marks >> _HALF, marks & _LOW, check])


def tally(marks: Marks, width: int) -> Cells:
    """One site's cells, row after row."""
    cells = np.zeros((ROWS * width, COLUMNS), dtype=np.uint64)
    entries = _entries(marks)
    for places in _places(marks, width):
        np.add.at(cells, places, entries)
    return cells


def _pure(cells: Cells) -> tuple[Marks, Marks]:
    """The fingerprints of cells with one distinct fingerprint, and how often each was added."""
    width = len(cells) // ROWS
    some = np.flatnonzero(cells[:, 0])
    counts = cells[some, 0]
    quotients, rests = np.divmod(cells[some, 1:], counts[:, None])
    fits = ((rests == 0) & (quotients <= _LOW)).all(axis=1)
    some = some[fits]
    counts = counts[fits]
    quotients = quotients[fits]
    marks = (quotients[:, 0] << _HALF) | quotients[:, 1]
    right = (_mixed(marks, ROWS) & _LOW) == quotients[:, 2]
    right &= (_places(marks, width) == some).any(axis=0)
    values, first = np.unique(marks[right], return_index=True)
    return values, counts[right][first]


def read(total: Cells) -> Counts:
    """The fingerprints of a sum of tallies. BadData: the sum is no sum of tallies."""
    cells = total.copy()
    width = len(cells) // ROWS
    values = [np.zeros(0, dtype=np.uint64)]
    times = [np.zeros(0, dtype=np.uint64)]
    # Each pass removes the pure cells. A sum of n tallies has at most log n passes, far below this.
    for _ in range(200):
        marks, counts = _pure(cells)
        if not len(marks):
            break
        removed = _entries(marks) * counts[:, None]
        for places in _places(marks, width):
            np.subtract.at(cells, places, removed)
        values.append(marks)
        times.append(counts)
    if cells.any():
        raise BadData("some site sent a tally that cannot be read.")
    marks = np.concatenate(values)
    order = np.argsort(marks)
    sites = np.minimum(np.concatenate(times), np.uint64(2**62)).astype(np.int64)
    return Counts(marks[order], sites[order])
