r"""Private alignment of ids as a federation computes it: lists pass from site to site, and a sum counts the results.

    publish → for each list and block: pass at the owner, pass at each other site, take at the owner → canaries → tally …

Each pass has one answering site. Its words are sealed for the next site (`site_agent.alignment.hops`), so a state holds one
block that its site cannot read, unless it is the next. The tally is a sealed sum (`coreg_core.alignment.tally`): every member
reads how many sites have each fingerprint, and no one reads a site's own. Before it every site compares what all sites'
canaries became: a changed list ends the run before a count is known. The coordinator reads nothing.
"""

from dataclasses import dataclass, replace
from math import ceil

import numpy as np
from jaxtyping import Float64

from coreg_core.agreement.schedules.schedule import Progress
from coreg_core.alignment.tally import COLUMNS, ROWS, Counts, read, width_for
from coreg_core.computation.question import Question
from coreg_core.errors import BadData
from coreg_core.masking.words import Layout
from coreg_core.numerics.arrays import Arr
from coreg_core.objectives.alignment import Alignment
from coreg_core.protocol.outcomes import Outcome

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
            carried = state.published if state.passing is None else np.concatenate([state.published, state.passing])
            kind, rows = ("take", 0) if hop == M else ("pass", ceil((32 * count + 16) / 6))
            layout, place = Layout(rows, 1, 0 if rows else 1), (owner, block, hop, count, self.size(state))
            return Question(kind, layout, (0,), ((owner + hop) % M,), targets=carried, place=place)
        if state.canaries is None:
            return Question("canaries", Layout(KEY_WORDS * M, 1, 0), (0,), every, targets=state.published)
        start = (state.step - self._passes(state)) * TALLY_CELLS
        cells = min(TALLY_CELLS, ROWS * self.width(state) - start)
        known = np.concatenate([state.published, state.canaries])
        where = (start, cells, self.width(state))
        return Question("tally", Layout(cells, COLUMNS, 0), (0,) * COLUMNS, every, targets=known, place=where)

    def step(self, state: AlignmentState, asked: Question, values: Arr, scalars: tuple[float, ...]) -> AlignmentState:  # noqa: ARG002
        """The state after the sum.

        Raises
        ------
        BadData
            honest sites cannot give this sum.
        """
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
                return replace(state, step=state.step + 1, tally=() if done else blocks, counts=counts)

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
        return 0 if state.counts is None else int((state.counts.sites == self.n_sites).sum()) - CANARIES

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
