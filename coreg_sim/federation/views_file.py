"""views.toml: the columns of a table by site, and the sites at which its rows are labelled.

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

from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coreg_core.errors import BadData, UsageError
from coreg_core.numerics.arrays import Ints
from coreg_sim.federation.problems import Problem
from coreg_wire.files.toml_file import file_faults, read_toml
from site_agent.data.notation import notation_of
from site_agent.data.preprocessing import Preprocessing
from site_agent.data.tables import Table, read_table
from site_agent.site_data import PrivateData

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
    """The file, with the full path of its table.

    Raises
    ------
    UsageError
        Missing, not TOML, or with a key that is unknown, absent or of the wrong kind.
    """
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

    Raises
    ------
    BadData
        A column is missing, or there are too few rows.
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
