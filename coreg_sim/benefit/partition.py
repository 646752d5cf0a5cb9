"""Partition a table over the sites of a federation: columns by site, labelled rows, shared rows and
test rows.

Columns go to the sites at random, unless the sites' columns are given. Every site has its own
labelled rows. The target is centred and scaled over the table, and clipped at its quantiles 0.002
and 0.998, so that no single row dominates a mean of squares. Each draw has its own rows.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float64, Int64

from coreg_core.arrays import Arr, Ints
from coreg_core.errors import UsageError
from coreg_core.spread import constant, mean_and_deviation

MOST_TEST = 2000
LEAST_TEST = 45
MOST_SHARED = 1000
# Largest share of a table's rows that is shared; the other rows are needed for labels and tests.
SHARED_PART = 0.45
_CLIP = (0.002, 0.998)


@dataclass(frozen=True)
class Regime:
    """A way to partition a table: its name (a value of --regimes), a description, and the number of
    labels of each site.
    """

    name: str
    about: str
    labels: tuple[int, ...]

    def with_sites(self, count: int) -> "Regime":
        """The regime with that many sites: the first one's labels, and the second one's for each of
        the others.
        """
        if count == len(self.labels):
            return self
        first, others = self.labels[:2]
        about = re.sub(r"^\d+", str(count), self.about)
        if first != others:
            about = f"{first} labels at the first site by name, {others} at each of the others"
        return replace(self, labels=(first, *(others,) * (count - 1)), about=about)

    @property
    def least_rows(self) -> int:
        """Rows that a table needs."""
        apart = LEAST_TEST + sum(self.labels)
        rows = apart
        while rows - _shared_of(rows) < apart:
            rows += 1
        return rows


_BY_LABELS = [
    Regime(f"n{n}", f"3 sites of {n} labels", (n,) * 3) for n in (10, 20, 50, 100, 200, 1000)
]
_BY_SITES = [Regime(f"M{M}", f"{M} sites of 50 labels", (50,) * M) for M in (2, 5, 8)]
_RICH = Regime("rich", "one site of 200 labels, two of 10", (200, 10, 10))
_ONE = Regime("one", "100 labels at one site, none at two", (100, 0, 0))
REGIMES = {regime.name: regime for regime in (*_BY_LABELS, *_BY_SITES, _RICH, _ONE)}
SITES = ("M2", "M5", "M8")  # about the number of sites: not for a division that is given


@dataclass(frozen=True, eq=False)
class AttributeTable:
    """One matrix an attribute, the scaled target, and ``groups``: each site's attributes, () if
    draws divide them.
    """

    attributes: tuple[Float64[Arr, "N _"], ...]
    y: Float64[Arr, " N"]
    groups: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, eq=False)
class Partition:
    """One federation: X_v of each site over all rows of the table, and the row numbers of each
    part.
    """

    columns: list[Float64[Arr, "N _"]]
    labelled: list[Int64[Ints, " _"]]
    labels: list[Float64[Arr, " _"]]  # of the rows in ``labelled``
    shared: Int64[Ints, " m"]  # without labels; with the labelled rows they are the common rows
    test: Int64[Ints, " t"]
    y_test: Float64[Arr, "*M t"]  # one vector, or one for each site
    yes_no: bool = False  # labels are 0 and 1, and both are among the test rows


def table_of(
    blocks: Sequence[Float64[Arr, "N _"]],
    y: Float64[Arr, " N"],
    groups: Sequence[Sequence[int]] = (),
) -> AttributeTable:
    """The table without constant attributes.

    UsageError if all of a site's ``groups`` (positions) are constant.
    """
    kept = [j for j, block in enumerate(blocks) if not constant(block).all()]
    divided = [tuple(kept.index(j) for j in group if j in kept) for group in groups]
    if not all(divided):
        raise UsageError("all columns of a site are constant.")
    mean, deviation = mean_and_deviation(y[:, None])
    scaled = (y - mean) / deviation
    if len(np.unique(scaled)) > 2:
        scaled = np.clip(scaled, *np.quantile(scaled, _CLIP))
    return AttributeTable(tuple(blocks[j] for j in kept), scaled, tuple(divided))


def _shared_of(rows: int) -> int:
    """How many of a table's rows are shared."""
    return min(MOST_SHARED, int(SHARED_PART * rows))


def partition(table: AttributeTable, regime: Regime, seed: tuple[int, ...]) -> Partition:
    """One draw from a table that `fits`. It depends only on the table and the seed."""
    rng = np.random.default_rng(list(seed))
    rows = rng.permutation(len(table.y))
    m = _shared_of(len(rows))
    t = min(MOST_TEST, len(rows) - m - sum(regime.labels))
    n_sites = len(regime.labels)
    groups: Sequence[Sequence[int]] = table.groups
    if not groups:
        order = rng.permutation(len(table.attributes)).tolist()
        groups = [order[v::n_sites] for v in range(n_sites)]
    columns = []
    for group in groups:
        blocks = [table.attributes[j] for j in group]
        columns.append(np.concatenate(blocks, axis=1))
    shared, test, rest = np.split(rows, [m, m + t])
    *labelled, _ = np.split(rest, np.cumsum(regime.labels))
    y = table.y
    yes_no = len(np.unique(y)) == 2
    if yes_no:
        y = (y > y.min()).astype(np.float64)
    labels = [y[own] for own in labelled]
    y_test = y[test]
    judged = yes_no and 0.0 < y_test.mean() < 1.0
    return Partition(columns, labelled, labels, shared, test, y_test, judged)


def fits(table: AttributeTable, regime: Regime) -> bool:
    """Whether the table has the rows and columns that the regime needs."""
    enough = bool(table.groups) or len(table.attributes) >= len(regime.labels)
    return enough and len(table.y) >= regime.least_rows


def needs(regime: Regime, *, divided: bool) -> str:
    """What a table needs for the regime, as a phrase; ``divided``: the sites' columns are given."""
    columns = ""
    if not divided:
        columns = f"{len(regime.labels)} columns and "
    return f"{regime.name} needs {columns}{regime.least_rows} rows with a target"
