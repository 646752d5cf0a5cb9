r"""The data of a simulated federation: from a generator with a known answer, or from a table whose columns are partitioned.

views.toml: the columns of a table by site, and the sites at which its rows are labelled.

    data = "study.csv"          # CSV or Parquet, relative to this file
    target = "progression"
    decimal = ","               # optional, as separator: where the table does not show them
    labelled_at = "who"         # optional: a column that names, row by row, the site that has the row's label

    [sites.clinic]
    columns = ["age", "sex", "bmi"]
    categorical = ["sex"]       # optional, as the agent's --categorical
    dates = {admitted = "%d/%m/%Y"}  # optional, as the agent's --dates

Without ``labelled_at`` the labelled rows of each site are drawn. With it, a row without a site is shared, and "held-out"
marks a test row. Where no row is marked, a third of the shared rows with a target become test rows. Columns are encoded as
the agent encodes them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coreg_core.errors import BadData, UsageError
from coreg_core.numerics.arrays import Arr, Ints
from coreg_wire.files.toml_file import file_faults, read_toml
from site_agent.data.notation import dates_of, notation_of
from site_agent.data.preprocessing import Preprocessing
from site_agent.data.sources import NA_VALUES
from site_agent.data.tables import Table, read_table
from site_agent.site_data import PrivateData


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

    def labelled(self) -> tuple[Table, Arr, int]:
        """Features and target of the rows that have a target, and how many have none; BadTable names a wrong column."""
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
    total = n_sites * n_labelled + n_unlabelled + 200  # held out
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

    ``common``: the labelled rows are shared too. BadData: fewer columns than sites, or fewer rows than asked for.
    """
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


HELD_OUT = "held-out"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SiteViews(_Strict):
    """One site's columns."""

    columns: tuple[str, ...] = Field(min_length=1)
    categorical: tuple[str, ...] = ()
    dates: dict[str, str] = Field(default_factory=dict)


class ViewsFile(_Strict):
    """See the module's docstring."""

    data: Path
    target: str
    labelled_at: str | None = None
    separator: str | None = None
    decimal: str | None = None
    sites: dict[str, SiteViews] = Field(min_length=1)


def read_views(path: Path) -> ViewsFile:
    """The file, with the full path of its table."""
    try:
        read = ViewsFile.model_validate(read_toml(path))
    except ValidationError as error:
        fault = file_faults(
            path, error, [*ViewsFile.model_fields, *(f"sites.NAME.{key}" for key in SiteViews.model_fields)]
        )
        if any(e["loc"][-1] in ("positive", "na_values") for e in error.errors()):
            raise UsageError(f"{fault} Give --positive or --na-values beside --views instead.") from None
        raise fault from None
    if HELD_OUT in read.sites:
        raise UsageError(f"{path}: a site cannot be called {HELD_OUT!r}: this word marks test rows.")
    return read.model_copy(update={"data": path.parent / read.data})


def partitioned(views: ViewsFile, labelled: int, unlabelled: int | None, seed: int, *, common: bool = False) -> Problem:
    """Each site's data, and the held-out rows.

    If rows are drawn, each site has ``labelled`` of them. ``unlabelled`` None shares two thirds of the rest, or all shared rows
    that the file marks. ``common``: all sites' labelled rows are shared too.
    """
    table = read_table(views.data, notation=notation_of(views.separator, views.decimal))
    table.require([views.target], "the target")
    for site, its in views.sites.items():
        table.require(its.columns, f"columns of {site}")
        if views.target in its.columns:
            raise BadData(f"{views.data}: the columns of {site} contain the target {views.target!r}.")
    y = table.numbers(views.target, target=True)
    rng = np.random.default_rng(seed)
    names = sorted(views.sites)
    if views.labelled_at is None:
        own, shared, held_out = _drawn(views, y, labelled, unlabelled, rng)
    else:
        own, shared, held_out = _listed(views, table, y, unlabelled, rng)
    if common:
        shared = np.concatenate([shared, *(own[name] for name in names)])
    places, sites, judged = {row: place for place, row in enumerate(shared.tolist())}, {}, []
    for name in names:
        its = views.sites[name]
        mine = table.select(its.columns)
        encoding = Preprocessing.fit(
            mine.rows(own[name]), mine.rows(shared), categorical=its.categorical, dates=its.dates
        )
        X, Z = encoding.transform(mine.rows(own[name])), encoding.transform(mine.rows(shared))
        at = np.array([places.get(row, -1) for row in own[name].tolist()], dtype=np.int64)
        sites[name] = PrivateData(X, y[own[name]], Z, "simulated", positions=at)
        judged.append(encoding.transform(mine.rows(held_out)))
    return Problem(sites, tuple(judged), y[held_out])


_Rows = tuple[dict[str, Ints], Ints, Ints]  # labelled of each site, shared, held out


def _drawn(views: ViewsFile, y: np.ndarray, labelled: int, unlabelled: int | None, rng: np.random.Generator) -> _Rows:
    known, names = rng.permutation(np.flatnonzero(~np.isnan(y))), sorted(views.sites)
    blank = np.flatnonzero(np.isnan(y))  # without a label they can only be shared
    room = len(known) - len(names) * labelled
    m = unlabelled if unlabelled is not None else max(len(blank), (len(blank) + room) * 2 // 3)
    taken = max(0, m - len(blank))
    if room - taken < 1:
        raise BadData(
            f"{views.data}: {len(known)} rows with a target are too few for {len(names)} x {labelled} labelled, "
            f"{taken} unlabelled and 1 held out."
        )
    own = {name: known[v * labelled : (v + 1) * labelled] for v, name in enumerate(names)}
    rest = known[len(names) * labelled :]
    return own, np.concatenate([blank[:m], rest[:taken]]), rest[taken:]


def _listed(views: ViewsFile, table: Table, y: np.ndarray, unlabelled: int | None, rng: np.random.Generator) -> _Rows:
    assert views.labelled_at is not None
    table.require([views.labelled_at], "the site with a row's label")
    at, known = np.array(table.ids(views.labelled_at)), ~np.isnan(y)
    if unknown := sorted(set(at) - {*views.sites, "", HELD_OUT}):
        raise BadData(
            f"{views.data}: {views.labelled_at!r} contains {', '.join(unknown[:5])}. It can name a site of the file "
            f"({', '.join(sorted(views.sites))}) or {HELD_OUT!r}, or be empty."
        )
    own = {name: np.flatnonzero((at == name) & known) for name in sorted(views.sites)}
    if bare := [name for name, rows in own.items() if not len(rows)]:
        raise BadData(f"{views.data}: no row with a target is labelled at {', '.join(bare)}.")
    shared, held_out = np.flatnonzero(at == ""), np.flatnonzero((at == HELD_OUT) & known)
    if not len(held_out):
        could = rng.permutation(shared[known[shared]])
        held_out = could[: len(could) // 3]
        shared = np.setdiff1d(shared, held_out)
    shared = shared if unlabelled is None else rng.permutation(shared)[:unlabelled]
    if not len(shared) or not len(held_out):
        raise BadData(
            f"{views.data}: {len(shared)} shared rows and {len(held_out)} test rows; at least one of each is needed. "
            f"Leave {views.labelled_at!r} empty for shared rows; those with a target can become test rows."
        )
    return own, np.sort(shared), np.sort(held_out)
