"""What an operator is asked about a table before a training.

A column that is known only where the target is known, or that is nearly the target itself, makes
every left-out error too small: the rows to predict will not have it. So do copies of a row: the
label of one tells that of the other. Levels of a text column that differ only by case are slips of
the pen, and 999 far from all other values stands for a missing one. Each is a sentence with the
file, the column and the option that mends it. None is a fault, since a table can be right that way.
"""

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import polars as pl
from jaxtyping import Float64

from coreg_core.arrays import Arr
from coreg_core.spread import constant
from site_agent.data.columns import Column
from site_agent.data.ids import normalised
from site_agent.data.notation import flag
from site_agent.data.preprocessing import Preprocessing
from site_agent.data.site_tables import SiteTable
from site_agent.data.sources import some
from site_agent.data.tables import Table

NEARLY = 0.98  # a larger rank correlation with the target is reported
FEWEST = 10  # of fewer rows a rank correlation can be this large by chance
FEWEST_EMPTY = 2  # one empty cell beside one empty target is an accident
MOST_COPIES = 0.02  # of the rows
BY_CHANCE = 10.0  # columns that depend on each other make more rows equal
LEAST_CODES = 0.01  # of the values
CODES = [10.0**digits - 1.0 for digits in range(2, 10)]  # 99, 999, …
FAR = 10.0  # from the median, in distances between the quartiles


def suspects(table: SiteTable, preprocessing: Preprocessing, target: str) -> Iterator[str]:
    """A sentence for the rows, and for each column and reason, in the order of the columns."""
    source = table.labelled.source
    if many := copies(preprocessing.transform(table.labelled), table.y):
        yield f"{source}: {told_copies(many, len(table.y))}"
    if code := _code(table.y):
        yield f"{source}, column {target!r}: {code}"
    for column in preprocessing.columns:
        reasons = (
            _filled_with_target(column, table, target),
            _near_copy(column, table, target),
            _alike_levels(column),
            _rare_levels(column, table),
            "" if column.kind == "text" else _code(column.numbers(table.labelled)),
        )
        for reason in reasons:
            if reason:
                yield f"{source}, column {column.name!r}: {reason}"


def copies(X: Float64[Arr, "n p"], y: Float64[Arr, " n"]) -> int:
    """How many rows repeat the features and the label of another one; 0 where these are few, or can
    be equal by chance.

    By chance there are as many equal pairs as if the columns were independent, times `BY_CHANCE`.
    """
    rows = np.column_stack([X, y])
    n = len(rows)
    if n < FEWEST:
        return 0
    many = n - len(np.unique(rows, axis=0))
    pairs = n * (n - 1) / 2.0
    for column in rows.T:
        shares = np.unique(column, return_counts=True)[1] / n
        pairs *= float(shares @ shares)
    if many < max(2.0, MOST_COPIES * n, BY_CHANCE * pairs):
        return 0
    return many


def told_copies(many: int, rows: int) -> str:
    return (
        f"{many} of {rows} labelled rows repeat all values of another one. If they are of one"
        " individual, keep one of them: else a label that is left out is known from its copy, so"
        " errors are too small, and joining looks better than it is"
    )


def _code(values: Arr) -> str:
    """Whether 99, 999, … or −99, … stands for a missing value: far from the quartiles, and with no
    other value near it.
    """
    known, counts = np.unique(values[~np.isnan(values)], return_counts=True)
    least = max(2.0, LEAST_CODES * counts.sum())
    for place in np.flatnonzero((counts >= least) & np.isin(np.abs(known), CODES)).tolist():
        code = float(known[place])
        others = np.delete(known, place)
        if not len(others):
            continue
        spread = np.repeat(others, np.delete(counts, place))
        low, middle, high = np.quantile(spread, [0.25, 0.5, 0.75])
        far = FAR * (high - low)
        if abs(code - middle) > far and np.abs(others - code).min() > far / 2.0:
            return (
                f"{code:g} occurs {counts[place]} times, far from all other values. If it means a"
                f" missing value: {flag('na-values', f'{code:g}')}"
            )
    return ""


def _dropped(column: Column) -> str:
    return flag("drop", column.name)


def _filled_with_target(column: Column, table: SiteTable, target: str) -> str:
    labelled = table.labelled
    others = table.unlabelled
    if len(others) < FEWEST_EMPTY or not len(labelled):
        return ""
    if labelled.missing(column.name).any() or not others.missing(column.name).all():
        return ""
    return (
        f"it is filled exactly where the target {target!r} is ({len(labelled)} rows), and empty in"
        f" the {len(others)} other rows. If it is known only with the target, leave it out:"
        f" {_dropped(column)}"
    )


def _near_copy(column: Column, table: SiteTable, target: str) -> str:
    values = _values(column, table.labelled)
    if values is None:
        return ""
    present = ~np.isnan(values)
    own = values[present]
    labels = table.y[present]
    if len(own) < 2 or constant(np.column_stack([own, labels])).any():
        return ""
    why = ""
    if np.array_equal(own, labels):
        why = "equals"
    elif len(own) >= FEWEST:
        correlation = rank_correlation(own, labels)
        if abs(correlation) > NEARLY:
            why = f"has the rank correlation {correlation:.3f} with"
    if not why:
        return ""
    return (
        f"it {why} the target {target!r}. If it is computed from the target, or known only after"
        f" it, leave it out: {_dropped(column)}"
    )


def _values(column: Column, labelled: Table) -> Arr | None:
    """The column as numbers that have an order; None if it has none."""
    if column.kind != "text":
        return column.numbers(labelled)
    if len(column.levels) != 2:
        return None
    places = column.places(labelled).astype(np.float64)
    return np.where(places < 0, np.nan, places)


def rank_correlation(x: Arr, y: Arr) -> float:
    """Spearman's: Pearson's correlation of the ranks; equal values share their mean rank."""
    ranks = pl.DataFrame({"x": x, "y": y}).select(pl.all().rank("average"))
    return float(np.corrcoef(ranks["x"], ranks["y"])[0, 1])


def _alike_levels(column: Column) -> str:
    groups: dict[str, list[str]] = defaultdict(list)
    for level in column.levels:
        groups[normalised(level, "folded")].append(level)
    alike = [groups[folded] for folded in sorted(groups) if len(groups[folded]) > 1]
    if not alike:
        return ""
    first = " and ".join(map(repr, alike[0]))
    others = ""
    if len(alike) > 1:
        others = f" (and {len(alike) - 1} more)"
    return (
        f"{first}{others} differ only by case or white space, and count as different levels. Write"
        f" them in one way, or leave the column out: {_dropped(column)}"
    )


def _rare_levels(column: Column, table: SiteTable) -> str:
    if column.kind != "text":
        return ""
    places = np.concatenate([column.places(table.labelled), column.places(table.unlabelled)])
    counts = np.bincount(places[places >= 0], minlength=len(column.levels))
    once = [column.levels[i] for i in np.flatnonzero(counts == 1)]
    if not once:
        return ""
    verb = "occurs" if len(once) == 1 else "occur"
    return (
        f"{len(once)} of {len(column.levels)} levels {verb} once ({some(once)}), which is too few"
        f" to learn from. Merge them, or leave the column out: {_dropped(column)}"
    )
