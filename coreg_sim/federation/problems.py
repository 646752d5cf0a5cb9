"""The data of a simulated federation: from a generator with a known answer, or from a table whose columns are partitioned."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from coreg_core.errors import BadData, UsageError
from coreg_core.numerics.arrays import Arr
from site_agent.site_data import PrivateData

if TYPE_CHECKING:
    from site_agent.data.tables import Table


@dataclass(frozen=True)
class Problem:
    """Each site's private data (`site_agent.site_data.PrivateData`) by name.

    ``held_out`` has rows of every view, and ``held_out_y`` their targets.
    """

    sites: dict[str, PrivateData]
    held_out: tuple[Arr, ...]
    held_out_y: Arr

    @property
    def n_unlabelled(self) -> int:
        return len(next(iter(self.sites.values())).Z)


@dataclass(frozen=True)
class TableSource:
    """A file, its target column, the columns that are no features, those that hold dates, the target value that means 1, columns
    that hold texts, and texts of missing values beside the usual ones."""

    path: str
    target: str
    drop: tuple[str, ...] = ()
    dates: tuple[str, ...] = ()  # COLUMN=FORMAT
    positive: str = ""
    categorical: tuple[str, ...] = ()
    na_values: tuple[str, ...] = ()
    separator: str | None = None
    decimal: str | None = None

    def labelled(self) -> tuple["Table", Arr, int]:
        """Features and target of the rows that have a target, and how many rows have none.

        BadTable if a column is missing or no number.
        """
        from site_agent.data.notation import dates_of, notation_of
        from site_agent.data.sources import NA_VALUES
        from site_agent.data.tables import read_table

        notation = notation_of(self.separator, self.decimal)
        table = read_table(Path(self.path), na_values=self.na_values or NA_VALUES, notation=notation)  # as the agent's
        table.require([self.target], "the target")
        if self.target in self.drop:
            raise UsageError(f"{self.target!r} is both the target and a column to drop.")
        table.require(self.drop, "to be dropped")
        table.require(list(dates_of(self.dates)), "to be read as dates")
        table.require(self.categorical, "to be read as texts")
        y = table.with_classes(self.target, self.positive).numbers(self.target, target=True)
        known = np.flatnonzero(~np.isnan(y))
        if len(known) and np.ptp(y[known]) == 0.0:
            raise BadData(
                f"{self.path}: the target {self.target!r} has one value, {y[known[0]]:g}. There is nothing to predict."
            )
        features = table.rows(known).select([n for n in table.columns if n not in (self.target, *self.drop)])
        return features, y[known], len(y) - len(known)


def generated(
    n_sites: int,
    n_labelled: int,
    n_unlabelled: int,
    n_features: int,
    seed: int,
    n_held_out: int = 200,
    *,
    common: bool = False,
) -> Problem:
    r"""Views of one hidden truth: $x_v = W_v h + 0.3\,\varepsilon$, $y = \sin h_1 + h_2 + 0.1\,\varepsilon$, h ∈ R³ normal.

    Every site has other features of the same instances, and its own labelled instances. ``common``: these are shared too.
    """
    counts = {"sites": n_sites, "labelled": n_labelled, "unlabelled": n_unlabelled, "views": n_features}
    for name, value in counts.items():
        if value < 1:
            raise UsageError(f"--{name} {value}: needs at least 1.")
    rng = np.random.default_rng(seed)
    total = n_sites * n_labelled + n_unlabelled + n_held_out
    hidden = rng.normal(size=(total, 3))
    y = np.sin(hidden[:, 0]) + hidden[:, 1] + 0.1 * rng.normal(size=total)
    views = (
        hidden @ rng.normal(size=(3, n_features)) + 0.3 * rng.normal(size=(total, n_features)) for _ in range(n_sites)
    )
    return _partition(views, n_sites, y, n_labelled, n_unlabelled, common)


def from_table(
    source: TableSource, n_sites: int, n_labelled: int, n_unlabelled: int | None, seed: int, *, common: bool = False
) -> Problem:
    """Partition a table: its columns go to the sites in turn, its rows are drawn as labelled, unlabelled and held-out.

    ``common``: the labelled rows are shared too.

    Raises
    ------
    BadData
        Fewer columns than sites, or fewer rows than asked for.
    """
    from site_agent.data.notation import dates_of
    from site_agent.data.preprocessing import Preprocessing

    path = source.path
    table, y, _ = source.labelled()
    columns = table.columns
    if len(columns) < n_sites:
        raise BadData(f"{path}: {len(columns)} feature columns for {n_sites} sites; every site needs at least one.")
    order = np.random.default_rng(seed).permutation(len(y))
    room = len(y) - n_sites * n_labelled
    m = n_unlabelled if n_unlabelled is not None else room * 2 // 3
    if m < 1 or room - m < 1:
        shared = f"{n_unlabelled} unlabelled" if n_unlabelled is not None else "1 unlabelled"
        raise BadData(
            f"{path}: {len(y)} rows are too few for {n_sites} x {n_labelled} labelled, {shared} and 1 held out."
        )
    parts = (table.select(columns[v::n_sites]) for v in range(n_sites))
    views = (
        Preprocessing.fit(
            part,
            categorical=[n for n in source.categorical if n in part.columns],
            dates={n: layout for n, layout in dates_of(source.dates).items() if n in part.columns},
        ).transform(part)[order]
        for part in parts
    )
    return _partition(views, n_sites, y[order], n_labelled, m, common)


def _partition(views: Iterable[Arr], n_sites: int, y: Arr, n: int, m: int, common: bool) -> Problem:
    """Rows in order: m unlabelled, n labelled for each site, the rest held out. One view at a time, to save memory."""
    sites, held_out = {}, []
    known = m + n_sites * n
    width = len(str(n_sites - 1))
    for v, X in enumerate(views):
        own = np.arange(m + v * n, m + (v + 1) * n)
        shared = X[: known if common else m].copy()
        at = own if common else None
        sites[f"site-{v:0{width}d}"] = PrivateData(X[own], y[own], shared, "simulated", positions=at)
        held_out.append(X[known:].copy())
    return Problem(sites, tuple(held_out), y[known:])
