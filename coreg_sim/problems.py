r"""The data of a simulated federation: from a generator with a known answer, or from a table that a
views.toml divides.

views.toml: the columns of a table by site.

    data = "study.csv"          # CSV or Parquet, relative to this file
    target = "progression"
    decimal = ","               # optional, as separator: where the table does not show them

    [sites.clinic]
    columns = ["age", "sex", "bmi"]
    categorical = ["sex"]       # optional, as the agent's --categorical
    dates = {admitted = "%d/%m/%Y"}  # optional, as the agent's --dates

The labelled rows of each site are drawn. Columns are encoded as the agent encodes them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coreg_core.arrays import Arr, Ints
from coreg_core.errors import BadData, UsageError
from coreg_wire.files.toml_file import file_faults, read_toml
from site_agent.data.inputs import Decimal, Separator
from site_agent.data.notation import Notation
from site_agent.data.preprocessing import Preprocessing
from site_agent.data.tables import read_table
from site_agent.site_data import PrivateData

HELD_OUT = 200  # rows of a generated problem


@dataclass(frozen=True)
class Problem:
    """Each site's `PrivateData` by name; ``held_out`` rows of every view, with targets
    ``held_out_y``.
    """

    sites: dict[str, PrivateData]
    held_out: tuple[Arr, ...]
    held_out_y: Arr

    @property
    def n_unlabelled(self) -> int:
        return len(next(iter(self.sites.values())).Z)


def generated(
    n_sites: int,
    n_labelled: int,
    n_unlabelled: int,
    n_features: int,
    seed: int,
    *,
    common: bool = False,
) -> Problem:
    r"""Views of one hidden truth: $x_v = W_v h + 0.3\,\varepsilon$, $y = \sin h_1 + h_2 +
    0.1\,\varepsilon$, h ∈ R³ normal.
    """
    _require_counts(n_sites, n_labelled, n_unlabelled, n_features)
    rng = np.random.default_rng(seed)
    total = n_sites * n_labelled + n_unlabelled + HELD_OUT
    hidden = rng.normal(size=(total, 3))
    y = np.sin(hidden[:, 0]) + hidden[:, 1] + 0.1 * rng.normal(size=total)

    def columns() -> Arr:
        signal: Arr = hidden @ rng.normal(size=(3, n_features))
        return signal + 0.3 * rng.normal(size=(total, n_features))

    views = (columns() for _ in range(n_sites))
    return _partition(views, n_sites, y, n_labelled, n_unlabelled, common)


def same_condition(
    n_sites: int, n_labelled: int, n_unlabelled: int, n_features: int, seed: int
) -> Problem:
    r"""Sites that measure one hidden condition, each by its own noisy columns: the case for which
    the agreement is made.

    The severity h of the condition is uniform, with variance 1. Columns: $x_v = w_v h + 2\,
    \varepsilon$, with weights of 0.5 to 1.5 and either sign. Labels: $y = \sin 2h + 0.7\,
    \varepsilon$. A site's columns alone describe the whole individual, and no site knows more than
    another. The noise of the columns and of the labels is a site's own. So what the sites agree on
    is the condition.
    """
    _require_counts(n_sites, n_labelled, n_unlabelled, n_features)
    rng = np.random.default_rng(seed)
    total = n_sites * n_labelled + n_unlabelled + HELD_OUT
    end = np.sqrt(3.0)
    severity = rng.uniform(-end, end, size=total)
    y = np.sin(2.0 * severity) + 0.7 * rng.normal(size=total)

    def columns() -> Arr:
        sizes = rng.uniform(0.5, 1.5, size=n_features)
        signs = rng.choice([-1.0, 1.0], size=n_features)
        signal: Arr = np.outer(severity, sizes * signs)
        return signal + 2.0 * rng.normal(size=(total, n_features))

    views = (columns() for _ in range(n_sites))
    return _partition(views, n_sites, y, n_labelled, n_unlabelled, common=False)


def _require_counts(sites: int, labelled: int, unlabelled: int, features: int) -> None:
    counts = {"sites": sites, "labelled": labelled, "unlabelled": unlabelled, "views": features}
    for name, value in counts.items():
        if value < 1:
            raise UsageError(f"--{name} {value}: needs at least 1.")


def _partition(views: Iterable[Arr], n_sites: int, y: Arr, n: int, m: int, common: bool) -> Problem:
    """Rows in order: m unlabelled, n labelled for each site, the rest held out.

    One view at a time, to save memory.
    """
    sites = {}
    held_out = []
    known_rows = m + n_sites * n
    width = len(str(n_sites - 1))
    for v, X in enumerate(views):
        own = np.arange(m + v * n, m + (v + 1) * n)
        shared = X[:m].copy()
        at = None
        if common:
            shared = X[:known_rows].copy()
            at = own
        data = PrivateData(X[own], y[own], shared, "simulated", positions=at)
        sites[f"site-{v:0{width}d}"] = data
        held_out.append(X[known_rows:].copy())
    return Problem(sites, tuple(held_out), y[known_rows:])


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
    separator: Separator = None
    decimal: Decimal = None
    sites: dict[str, SiteViews] = Field(min_length=1)


def read_views(path: Path) -> ViewsFile:
    """The file, with the full path of its table."""
    try:
        read = ViewsFile.model_validate(read_toml(path))
    except ValidationError as error:
        of_site = [f"sites.NAME.{key}" for key in SiteViews.model_fields]
        fault = file_faults(path, error, [*ViewsFile.model_fields, *of_site])
        keys = {wrong["loc"][-1] for wrong in error.errors()}
        if keys & {"positive", "na_values"}:
            raise UsageError(
                f"{fault} Give --positive or --na-values beside --views instead."
            ) from None
        raise fault from None
    return read.model_copy(update={"data": path.parent / read.data})


def partitioned(
    views: ViewsFile, labelled: int, unlabelled: int | None, seed: int, *, common: bool = False
) -> Problem:
    """Each site's data, and the held-out rows.

    ``unlabelled`` None shares two thirds of the rows without labels.
    """
    table = read_table(views.data, notation=Notation(views.separator, views.decimal))
    table.require([views.target], "the target")
    for site, its in views.sites.items():
        table.require(its.columns, f"columns of {site}")
        if views.target in its.columns:
            raise BadData(
                f"{views.data}: the columns of {site} contain the target {views.target!r}."
            )
    y = table.numbers(views.target, target=True)
    names = sorted(views.sites)
    own, shared, held_out = _drawn(views, y, labelled, unlabelled, np.random.default_rng(seed))
    if common:
        shared = np.concatenate([shared, *(own[name] for name in names)])
    places = {row: place for place, row in enumerate(shared.tolist())}
    sites = {}
    judged = []
    for name in names:
        its = views.sites[name]
        mine = table.select(its.columns)
        rows = own[name]
        encoding = Preprocessing.fit(
            mine.rows(rows), mine.rows(shared), categorical=its.categorical, dates=its.dates
        )
        X = encoding.transform(mine.rows(rows))
        Z = encoding.transform(mine.rows(shared))
        at = np.array([places.get(row, -1) for row in rows.tolist()], dtype=np.int64)
        sites[name] = PrivateData(X, y[rows], Z, "simulated", positions=at)
        judged.append(encoding.transform(mine.rows(held_out)))
    return Problem(sites, tuple(judged), y[held_out])


_Rows = tuple[dict[str, Ints], Ints, Ints]  # labelled of each site, shared, held out


def _drawn(
    views: ViewsFile, y: np.ndarray, labelled: int, unlabelled: int | None, rng: np.random.Generator
) -> _Rows:
    labelled_rows = rng.permutation(np.flatnonzero(~np.isnan(y)))
    names = sorted(views.sites)
    blank = np.flatnonzero(np.isnan(y))  # without a label they can only be shared
    of_sites = len(names) * labelled
    room = len(labelled_rows) - of_sites
    m = max(len(blank), (len(blank) + room) * 2 // 3)
    if unlabelled is not None:
        m = unlabelled
    taken = max(0, m - len(blank))
    if room - taken < 1:
        raise BadData(
            f"{views.data}: {len(labelled_rows)} rows with a target are too few for {len(names)} x"
            f" {labelled} labelled, {taken} unlabelled and 1 held out."
        )
    labelled_of_sites, shared, held_out = np.split(labelled_rows, [of_sites, of_sites + taken])
    own = dict(zip(names, np.split(labelled_of_sites, len(names)), strict=True))
    return own, np.concatenate([blank[:m], shared]), held_out
