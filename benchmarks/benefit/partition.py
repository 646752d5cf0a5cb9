r"""Partition a real table over the sites of a federation: columns by site, labelled rows, shared
rows and test rows.

| kind of regime | partition |
|---|---|
| columns | "dealt" at random, "core" (a third at every site, the rest at random), "parts" |
| | (three groups that belong together, such as history, signs and laboratory of a medical table) |
| rows | own labelled rows for each site, or the same ones everywhere; with an ``overlap``, the next
site also labels so many rows of each |
| labels | as they are; with an ``offset`` of this sd for each site; in a unit of its own; the last
site's sign flipped, or |
| | its labels in random order (``shuffled``) |
| ids | with ``mislinked``, this share of a site's shared rows are in random order |
| columns added | ``noise``: so many columns of noise at each site |
| target | a number; with ``yes_no`` whether it is above the median. A target of two values becomes
0 and 1 in each regime |

The columns of an attribute stay together; a nominal attribute has a column for each level. The
target is centred and scaled over the table, and clipped at its quantiles 0.002 and 0.998, so that
no single row dominates a mean of squares. Each draw has its own shared and test rows. A table with
too few rows for a regime is left out.
"""

import itertools
import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from benchmarks.papers.pool import NumericDataSet
from coreg_core.arrays import Arr, Ints
from coreg_core.errors import UsageError
from coreg_sim.benefit.partition import LEAST_TEST, MOST_TEST, SHARED_PART, AttributeTable
from coreg_sim.benefit.partition import Partition as OwnPartition
from coreg_sim.benefit.partition import table_of as table_of_blocks

Columns: TypeAlias = Literal["dealt", "core", "parts"]

# A nominal attribute with more levels is an identifier. Its levels would be most of the table's
# columns.
MOST_LEVELS = 12


@dataclass(frozen=True)
class Regime:
    """A way to partition a table; see the module's docstring.

    ``name`` is a value of --regimes. ``labels`` has n_v of each site, and ``shared`` is m.
    ``positive`` is the share of 1 in a yes/no target.
    """

    name: str
    about: str
    labels: tuple[int, ...]
    shared: int = 1000
    columns: Columns = "dealt"
    same_rows: bool = False
    overlap: int = 0
    shuffled: bool = False
    offset: float = 0.0
    units: bool = False
    flipped: bool = False
    mislinked: float = 0.0
    noise: int = 0
    yes_no: bool = False
    positive: float = 0.5
    grouped: bool = False  # for tables with such groups only

    @property
    def sizes(self) -> bool:
        """Whether it is about the number of shared rows: a table that has fewer is left out
        of it.
        """
        return re.fullmatch(r"m\d+", self.name) is not None


def _alike(name: str, sites: int, labels: int, about: str = "", **rest: object) -> Regime:
    return Regime(name, about or f"{sites} sites of {labels} labels", (labels,) * sites, **rest)  # type: ignore[arg-type]


REGIMES: dict[str, Regime] = {
    each.name: each
    for each in (
        _alike("n10", 3, 10),
        _alike("n20", 3, 20),
        _alike("n50", 3, 50),
        _alike("n100", 3, 100),
        _alike("n200", 3, 200),
        _alike("M2", 2, 50),
        _alike("M5", 5, 50),
        _alike("M8", 8, 50),
        _alike("core20", 3, 20, "3 of 20, a third of the columns at every site", columns="core"),
        _alike("core50", 3, 50, "3 of 50, a third of the columns at every site", columns="core"),
        _alike(
            "parts50", 3, 50, "3 of 50, columns that belong together", columns="parts", grouped=True
        ),
        _alike("mixed50", 3, 50, "3 of 50, random columns of the same tables", grouped=True),
        Regime("rich", "one site of 200 labels, two of 10", (200, 10, 10)),
        Regime("one", "100 labels at one site, none at two", (100, 0, 0)),
        Regime("one200", "200 labels at one site, none at two", (200, 0, 0)),
        Regime("one1000", "1000 labels at one site, none at two", (1000, 0, 0)),
        _alike("overlap100", 3, 100, "3 of 100, the next site labels 10 of each too", overlap=10),
        _alike("shuffled50", 3, 50, "3 of 50, the third one's labels shuffled", shuffled=True),
        _alike("offset-1-50", 3, 50, "3 of 50, labels with offsets of sd 1 a site", offset=1.0),
        _alike("units50", 3, 50, "3 of 50, labels in units of their own", units=True),
        _alike("flipped50", 3, 50, "3 of 50, the third one's sign flipped", flipped=True),
        _alike("mislinked30", 3, 50, "3 of 50, 30 % of ids mislinked", mislinked=0.3),
        _alike("m50", 3, 50, "3 sites of 50 labels, 50 shared rows", shared=50),
        _alike("noise50", 3, 50, "3 of 50, 10 columns of noise at each site", noise=10),
        *(
            _alike(f"yes-no{n}", 3, n, f"3 sites of {n} labels, a yes/no target", yes_no=True)
            for n in (10, 50, 100)
        ),
        _alike(
            "rare200", 3, 200, "3 sites of 200 labels, 5 % of them yes", yes_no=True, positive=0.05
        ),
        _alike("n1000", 3, 1000),
        _alike("same50", 3, 50, "3 of 50, the same labelled rows everywhere", same_rows=True),
    )
}


@dataclass(frozen=True, eq=False)
class Partition(OwnPartition):
    """One federation.

    Test rows have each site's own labels. A site with shuffled labels is not ``honest``: its errors
    are not counted.
    """

    honest: tuple[bool, ...] = ()


def table_of(
    data: NumericDataSet, drop: tuple[str, ...] = (), parts: tuple[tuple[str, ...], ...] = ()
) -> AttributeTable:
    """The target, and the attributes that are not constant, not in ``drop`` and have at most
    `MOST_LEVELS` columns.

    ``parts`` names the attributes that belong together. UsageError if ``drop`` or ``parts`` has an
    unknown name.
    """
    named = [
        (data.columns[of[0]].partition("=")[0] if len(of) > 1 else data.columns[of[0]], of)
        for of in data.attributes
    ]
    if unknown := [name for name in (*drop, *itertools.chain(*parts)) if name not in dict(named)]:
        raise UsageError(f"{data.name}: no column {', '.join(unknown)}.")
    kept = [(name, of) for name, of in named if name not in drop and len(of) <= MOST_LEVELS]
    at = {name: j for j, (name, _) in enumerate(kept)}
    groups = [[at[name] for name in part] for part in parts]
    return table_of_blocks([data.X[:, list(of)] for _, of in kept], data.y, groups)


def partition(
    table: AttributeTable, regime: Regime, seed: tuple[int, ...], most_rows: int | None = None
) -> Partition | None:
    """One draw from ``most_rows`` rows (None: all).

    The result is None if the table has too few rows or columns.

    Rows and columns depend only on the table and the seed.
    """
    rng = np.random.default_rng(list(seed))
    M = len(regime.labels)
    N = len(table.y)
    rows = rng.permutation(N)[:most_rows]
    N = len(rows)
    wanted = max(regime.labels) if regime.same_rows else sum(regime.labels)
    m = min(regime.shared, int(SHARED_PART * N))
    t = min(MOST_TEST, N - m - wanted)
    own = list(table.groups) or None
    groups = (
        own
        if regime.columns == "parts"
        else _partition_columns(len(table.attributes), M, regime.columns, rng)
    )
    if groups is None or least_rows(regime) > N:
        return None
    columns = [np.concatenate([table.attributes[j] for j in group], axis=1) for group in groups]
    shared = rows[:m]
    test = rows[m : m + t]
    rest = rows[m + t :]
    if regime.noise:
        columns = [
            np.concatenate([X, rng.normal(size=(len(X), regime.noise))], axis=1) for X in columns
        ]
    if regime.mislinked:
        columns = _mislinked(columns, shared, regime.mislinked, rng)
        shared = len(table.y) + np.arange(m)
    labelled = _labelled(rest, regime)
    y = table.y
    two = len(np.unique(y)) == 2
    if two and regime.positive != 0.5:
        return None  # the table has its own share of 1
    if yes_no := regime.yes_no or two:
        above = y > (y.min() if two else np.quantile(y, 1.0 - regime.positive))
        y = (above if above.any() else y == y.max()).astype(
            np.float64
        )  # a target can end in many equal values
    factors = np.ones(M)
    shifts = np.zeros(M)
    if regime.offset:
        shifts = regime.offset * rng.normal(size=M)
    if regime.units:
        factors = 2.0 ** rng.normal(size=M)
    if regime.flipped:
        factors[-1] = -1.0
    labels = [
        factor * y[each] + shift
        for each, factor, shift in zip(labelled, factors, shifts, strict=True)
    ]
    honest = np.ones(M, dtype=bool)
    if regime.shuffled:
        labels[-1] = rng.permutation(labels[-1])
        honest[-1] = False
    y_test = np.outer(factors, y[test]) + shifts[:, None]
    alike = bool((factors == 1.0).all() and (shifts == 0.0).all())
    judged = (
        yes_no and alike and 0.0 < y_test.mean() < 1.0
    )  # probabilities are judged on both classes
    return Partition(
        columns, labelled, labels, shared, test, y_test, judged, tuple(honest.tolist())
    )


def _labelled(rows: Ints, regime: Regime) -> list[Ints]:
    """The labelled rows of each site."""
    if regime.same_rows:
        return [rows[:n] for n in regime.labels]
    ends = np.cumsum([0, *regime.labels])
    own = [rows[start:end] for start, end in itertools.pairwise(ends)]
    before = [own[-1], *own[:-1]]
    return [
        np.concatenate([mine, theirs[: regime.overlap]])
        for mine, theirs in zip(own, before, strict=True)
    ]


def least_rows(regime: Regime) -> int:
    """Rows that a table needs for the regime."""
    wanted = max(regime.labels) if regime.same_rows else sum(regime.labels)
    apart = LEAST_TEST + wanted
    shared = regime.shared if regime.sizes else 0
    return next(
        rows
        for rows in itertools.count(apart)
        if rows - (m := min(regime.shared, int(SHARED_PART * rows))) >= apart and m >= shared
    )


def _partition_columns(
    count: int, sites: int, how: Columns, rng: np.random.Generator
) -> list[list[int]] | None:
    """The attributes of each site; None if a site would have none."""
    order = rng.permutation(count).tolist()
    core: list[int] = []
    if how == "core":
        core = order[: max(1, count // 3)]
        order = order[max(1, count // 3) :]
    dealt = [order[v::sites] for v in range(sites)]
    return [core + own for own in dealt] if all(dealt) else None


def _mislinked(
    columns: list[Arr], shared: Ints, share: float, rng: np.random.Generator
) -> list[Arr]:
    """Each site's rows, then its shared rows again, of which this share have changed places."""
    out = []
    for X in columns:
        order = np.arange(len(shared))
        wrong = rng.choice(len(shared), round(share * len(shared)), replace=False)
        order[wrong] = rng.permutation(wrong)
        out.append(np.concatenate([X, X[shared[order]]]))
    return out
