r"""Private alignment of ids as a federation computes it: lists pass from site to site, and a sum counts the results.

    publish → for each list and block: pass at the owner, pass at each other site, take at the owner → canaries → tally …

Each pass has one answering site, whose words are sealed for the next (`site_agent.id_points`). Before the tally every site
compares what all sites' canaries became: a changed list ends the run before a count is known. The tally is a sealed sum that
tells how many sites have each fingerprint, and not which: an invertible Bloom lookup table.

    cell ← Σ over its entries (1, high, low, check)          an entry is in one cell of each of 4 rows

A cell with one distinct fingerprint, which c sites have, is (c, c·high, c·low, c·check). It is recognised by its check, read,
and removed from its other cells, until none is left (Goodrich and Mitzenmacher 2011). Fingerprints have 64 bits, so two of
10⁶ ids share one with a probability of 3e-8.
"""

from dataclasses import dataclass, replace
from math import ceil

import numpy as np
from jaxtyping import Float64, Int64, UInt64

from coreg_core.agreement.schedules import Progress
from coreg_core.arrays import Arr, Ints
from coreg_core.computation.question import Question
from coreg_core.errors import BadData
from coreg_core.objectives.alignment import Alignment
from coreg_core.outcomes import Outcome
from coreg_core.secure.sums import Layout

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
    return np.array(
        [
            (_mixed(marks, row) % np.uint64(width)).astype(np.int64) + row * width
            for row in range(ROWS)
        ]
    )


def _entries(marks: Marks) -> Float64[Arr, "n 4"]:
    check = _mixed(marks, ROWS) & _LOW
    return np.column_stack([np.ones(len(marks)), marks >> _HALF, marks & _LOW, check]).astype(
        np.float64
    )


def tally(marks: Marks, width: int) -> Float64[Arr, "c 4"]:
    """One site's cells, row after row."""
    cells, entries = np.zeros((ROWS * width, COLUMNS)), _entries(marks)
    for places in _places(marks, width):
        np.add.at(cells, places, entries)
    return cells


def read(total: Float64[Arr, "c 4"]) -> Counts:
    """The fingerprints of a sum of tallies. BadData: the sum is no sum of tallies."""
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


KEY_WORDS = 6  # of 48 bits, for 32 bytes
BLOCK = 32_768  # points of a pass
BLOCK_WORDS = ceil((32 * BLOCK + 16) / 6)
TALLY_CELLS = BLOCK_WORDS // COLUMNS
CANARIES = 64
# Lists are padded to the least of these sizes that holds the largest: members learn the sizes as classes, without names.
SIZES = tuple(ceil(128 * 2 ** (k / 4)) for k in range(64))


def size_class(n_ids: int) -> int:
    """The index in `SIZES` for a list of so many ids and the canaries."""
    return next(k for k, size in enumerate(SIZES) if size >= n_ids + CANARIES)


@dataclass(frozen=True, eq=False)
class AlignmentState:
    """``published``: keys and size classes of the sites, once known. ``step`` counts passes, then blocks of the tally."""

    published: Float64[Arr, "p 1"] | None = None
    step: int = 0
    passing: Float64[Arr, "w 1"] | None = None
    canaries: Float64[Arr, "w 1"] | None = None
    tally: tuple[Float64[Arr, "c 4"], ...] = ()
    counts: Counts | None = None


@dataclass(frozen=True)
class AlignmentComputation:
    """See the package's docstring. Every site takes part."""

    terms: Alignment
    n_sites: int

    def start(self) -> AlignmentState:
        return AlignmentState()

    # --- sizes ----------------------------------------------------------------------------------------------------

    def _classes(self, state: AlignmentState) -> list[int]:
        """Sites in each size class."""
        assert state.published is not None
        return [round(x) for x in state.published[KEY_WORDS * self.n_sites :, 0].tolist()]

    def size(self, state: AlignmentState) -> int:
        """The length of every padded list."""
        return SIZES[max(k for k, sites in enumerate(self._classes(state)) if sites)]

    def _blocks(self, state: AlignmentState) -> int:
        return -(-self.size(state) // BLOCK)

    def _passes(self, state: AlignmentState) -> int:
        return self.n_sites * self._blocks(state) * (self.n_sites + 1)

    def width(self, state: AlignmentState) -> int:
        """Cells of a row of the tally: for distinct ids at all sites."""
        ids = sum(sites * SIZES[k] for k, sites in enumerate(self._classes(state)))
        return width_for(ids)

    def _tally_blocks(self, state: AlignmentState) -> int:
        return -(-ROWS * self.width(state) // TALLY_CELLS)

    # --- steps ----------------------------------------------------------------------------------------------------

    def round(self, state: AlignmentState) -> Question:
        every, M = tuple(range(self.n_sites)), self.n_sites
        if state.published is None:
            return Question("publish", Layout(KEY_WORDS * M + len(SIZES), 1, 0), (0,), every)
        if state.step < self._passes(state):
            block, hop = divmod(state.step, M + 1)
            owner, block = divmod(block, self._blocks(state))
            count = min(BLOCK, self.size(state) - block * BLOCK)
            carried = (
                state.published
                if state.passing is None
                else np.concatenate([state.published, state.passing])
            )
            kind, rows = ("take", 0) if hop == M else ("pass", ceil((32 * count + 16) / 6))
            layout, place = (
                Layout(rows, 1, 0 if rows else 1),
                (owner, block, hop, count, self.size(state)),
            )
            return Question(kind, layout, (0,), ((owner + hop) % M,), targets=carried, place=place)
        if state.canaries is None:
            return Question(
                "canaries", Layout(KEY_WORDS * M, 1, 0), (0,), every, targets=state.published
            )
        start = (state.step - self._passes(state)) * TALLY_CELLS
        cells = min(TALLY_CELLS, ROWS * self.width(state) - start)
        known = np.concatenate([state.published, state.canaries])
        where = (start, cells, self.width(state))
        return Question(
            "tally", Layout(cells, COLUMNS, 0), (0,) * COLUMNS, every, targets=known, place=where
        )

    def step(
        self,
        state: AlignmentState,
        asked: Question,
        values: Arr,
        scalars: tuple[float, ...],  # noqa: ARG002
    ) -> AlignmentState:
        """The state after the sum. BadData: honest sites cannot give this sum."""
        match asked.kind:
            case "publish":
                state = replace(state, published=values)
                classes = self._classes(state)
                if (
                    sum(classes) != self.n_sites
                    or min(classes) < 0
                    or self.size(state) > SIZES[size_class(self.terms.max_ids)]
                ):
                    raise BadData("some site stated a number of ids that the plan does not allow.")
                return state
            case "pass":
                return replace(state, step=state.step + 1, passing=values)
            case "take":
                return replace(state, step=state.step + 1, passing=None)
            case "canaries":
                return replace(state, canaries=values)
            case _:
                blocks = (*state.tally, values)
                done = len(blocks) == self._tally_blocks(state)
                counts = read(np.concatenate(blocks)) if done else None
                if counts is not None and (counts.sites > self.n_sites).any():
                    raise BadData("some site counted an id more than once.")
                return replace(
                    state, step=state.step + 1, tally=() if done else blocks, counts=counts
                )

    # --- results --------------------------------------------------------------------------------------------------

    def portion(self, state: AlignmentState) -> float:
        """The part of the passes and tally blocks that are done; 0 before their number is known."""
        if state.published is None:
            return 0.0
        return state.step / (self._passes(state) + self._tally_blocks(state))

    def rounds(self, state: AlignmentState) -> int:
        """Passes and blocks of the tally."""
        return state.step

    def shared(self, state: AlignmentState) -> int:
        """Ids that every site has. Every site has the canaries too, which are none."""
        return (
            0
            if state.counts is None
            else int((state.counts.sites == self.n_sites).sum()) - CANARIES
        )

    def progress(self, state: AlignmentState) -> Progress | None:  # noqa: ARG002
        return None

    def outcome(self, state: AlignmentState) -> tuple[Outcome, str] | None:
        """The coordinator reads it, so it has no number."""
        if state.counts is None:
            return None
        return (
            (Outcome.CONVERGED, "every site has its list of shared ids")
            if self.shared(state)
            else (Outcome.NOTHING_SHARED, "")
        )
