"""Columns that `coreg-agent check` asks about before a training.

A column that is known only where the target is known, or that is nearly the target itself, makes
every left-out error too small: the rows to predict will not have it. Levels of a text column that
differ only by case are slips of the pen. Each is a sentence with the file, the column and the
option that mends it. None is a fault, since a table can be right that way.
"""

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import polars as pl

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


def suspects(table: SiteTable, preprocessing: Preprocessing, target: str) -> Iterator[str]:
    """A sentence for each column and reason, in the order of the columns."""
    for column in preprocessing.columns:
        reasons = (
            _filled_with_target(column, table, target),
            _near_copy(column, table, target),
            _alike_levels(column),
            _rare_levels(column, table),
        )
        for reason in reasons:
            if reason:
                yield f"{table.labelled.source}, column {column.name!r}: {reason}"


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
