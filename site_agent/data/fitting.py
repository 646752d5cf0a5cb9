"""Fit the encoding of a column: its kind, its levels, its mean and scale.

The fit equals SimpleImputer, StandardScaler and OneHotEncoder of scikit-learn. Means and scales are
from the labelled rows. Kinds, levels and missing values are from the labelled and shared rows.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from jaxtyping import Float64

from coreg_core.arrays import Arr
from coreg_core.spread import constant, mean_and_deviation
from site_agent.data.columns import TRUTH, Column
from site_agent.data.date_layouts import find_layout, holds_dates
from site_agent.data.notation import flag
from site_agent.data.sources import BadTable, Faults, TableFault
from site_agent.data.tables import Table

MOST_LEVELS = 200  # the limit of the 2006 paper for the KDD Cup data (section 5.2)
FEW_LEVELS = 20  # a column with more, and with more than a tenth of its rows, holds no categories
# Above the one squares overflow, and so do variances and kernels; below the other they vanish.
LARGEST = 1e150
SMALLEST = 1e-150


@dataclass(frozen=True)
class ColumnOptions:
    """What the operator says of the columns."""

    categorical: Sequence[str]
    dates: Mapping[str, str]
    scale: bool


def fit_column(
    name: str, tables: Sequence[Table], together: Table, options: ColumnOptions
) -> Column:
    """Fit one column; ``tables``: the labelled rows, then the shared ones. ``together``: both, if
    they are rows of one file.

    (1) Find its kind. (2) Look for missing values. (3) Collect the levels, or (4) read all rows and
    take the mean of the labelled ones.
    """
    having = [table for table in tables if name in table]  # that one lacks it is a fault
    labelled = having[0]
    # (1)
    rows = having
    if len(having) > 1 and labelled.cells(name) is having[1].cells(name):
        rows = [together]  # so a fault of the column is one fault
    column = _of_its_kind(name, rows, options)
    # (2)
    missing = labelled.missing(name).astype(np.float64)
    if missing.all():
        what = "no labelled row has a value, so the model cannot learn from it."
        raise _without_value(labelled, name, what)
    if any(table.missing(name).any() for table in rows):
        mean = 0.0
        deviation = 1.0
        if options.scale:
            mean, deviation = _spread(missing)
        column = replace(column, indicator=True, indicator_mean=mean, indicator_scale=deviation)
    # (3)
    if column.kind == "text":
        return replace(column, levels=_levels(name, having, name in options.categorical))
    # (4)
    faults = Faults()
    for table in rows:
        with faults.caught():
            column.numbers(table)
    faults.raise_any()
    values = column.numbers(labelled)
    for fault in size_fault(labelled, name, values):
        raise BadTable(fault)
    return _of_numbers(column, values, options.scale)


def _of_its_kind(name: str, tables: Sequence[Table], options: ColumnOptions) -> Column:
    """Numeric if any cell is a number, so that one typing error is a fault and does not make the
    column one-hot.
    """
    if name in options.categorical:
        return Column(name, "text")
    if name in options.dates:
        return Column(name, "date", layout=options.dates[name])
    if any(table.is_numeric(name) for table in tables):
        return Column(name, "numeric")
    texts = list(chain.from_iterable(table.present(name) for table in tables))
    if not texts:
        raise _without_value(tables[0], name, "no row has a value.")
    if holds_dates(texts):
        distinct = list(dict.fromkeys(texts))
        return Column(name, "date", layout=find_layout(name, distinct, tables))
    boolean = {text.lower() for text in texts} <= TRUTH.keys()
    return Column(name, "boolean" if boolean else "text")


def _without_value(table: Table, name: str, what: str) -> BadTable:
    return BadTable(table.fault(what, f"Leave it out: {flag('drop', name)}.", "missing", name))


def _levels(name: str, tables: Sequence[Table], categorical: bool) -> tuple[str, ...]:
    counts = Counter[str]()
    for table in tables:
        counts += table.counts(name)
    levels = sorted(counts)
    rows = sum(map(len, tables))
    most = MOST_LEVELS
    if not categorical:
        most = min(MOST_LEVELS, max(FEW_LEVELS, rows // 10))
    if len(levels) <= most:
        return tuple(levels)
    what = (
        f"{len(levels)} different texts in {rows} rows, such as {next(iter(counts))!r}. Each would"
        " become a feature."
    )
    todo = f"Group them, or leave the column out: {flag('drop', name)}."
    if len(levels) <= MOST_LEVELS:
        todo = f"If they are categories: {flag('categorical', name)}. {todo}"
    raise BadTable(tables[0].fault(what, todo, "text", name))


def _of_numbers(column: Column, values: Float64[Arr, " n"], scale: bool) -> Column:
    if is_constant(values):
        # The floating-point mean of 0.1, 0.1 and 0.1 is not 0.1. With the value itself, a
        # constant column becomes exact zeros.
        value = float(np.nanmax(values))
        return replace(column, mean=value if scale else 0.0, fill=value)
    missing = np.isnan(values)
    # Equal to the bit to scikit-learn's SimpleImputer.
    total = np.where(missing, 0.0, values)[:, None].sum(axis=0)[0]
    fill = float(total / np.count_nonzero(~missing))
    mean = 0.0
    deviation = 1.0
    if scale:
        mean, deviation = _spread(np.where(missing, fill, values))
    return replace(column, mean=mean, scale=deviation, fill=fill)


def size_fault(table: Table, name: str, values: Float64[Arr, " n"]) -> list[TableFault]:
    """The fault of a column of which float64 does not hold the squares; it has one value at
    least.
    """
    row = int(np.nanargmax(np.abs(values)))
    size = abs(values[row])
    if size == 0.0 or SMALLEST <= size <= LARGEST:
        return []
    text = table.shown(name)[row]
    kind = "too large"
    what = f"{text!r} is outside ±{LARGEST:g}, so its square overflows."
    todo = "Correct the cell, or write the column in another unit."
    if size < SMALLEST:
        kind = "too small"
        what = f"no value is above {SMALLEST:g}, so their squares vanish; the largest is {text!r}."
        todo = "Write the column in another unit."
    return [table.fault(what, todo, kind, name, [row])]


def is_constant(values: Float64[Arr, " n"]) -> bool:
    return bool(constant(values[:, None])[0])


def _spread(values: Float64[Arr, " n"]) -> tuple[float, float]:
    mean, deviation = mean_and_deviation(values[:, None])
    return float(mean[0]), float(deviation[0])
