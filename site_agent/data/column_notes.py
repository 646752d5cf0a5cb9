"""Sentences for the operator on columns: that can be read otherwise, that have no effect, or that
moved since the training.
"""

from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from typing import TypeAlias

import numpy as np
import polars as pl

from coreg_wire.clock import utc_now
from site_agent.data.columns import Column
from site_agent.data.fitting import ColumnOptions, is_constant
from site_agent.data.notation import flag
from site_agent.data.sources import COLUMNS, some
from site_agent.data.tables import Table

Range: TypeAlias = tuple[float, float, int]  # least, greatest, cells
MANY_LEVELS = 10  # a column with fewer is not reported as most of the features
OUTSIDE = 0.05  # a larger share of cells outside the range of training is reported
_COMPACT = r"^(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])$"
_EPOCH = date(1970, 1, 1)


# --- at the fit -----------------------------------------------------------------------------------


def notes_on_fit(
    columns: Sequence[Column], tables: Sequence[Table], options: ColumnOptions
) -> Iterator[str]:
    """Sentences about columns that can be read otherwise, or that have no effect."""
    labelled = tables[0]
    for column in columns:
        if column.kind == "numeric":
            yield from _codes(labelled, column)
        elif "/" in column.layout and column.name not in options.dates:
            yield _layout_note(labelled, column)
    yield from _without_effect(columns, labelled)
    total = sum(len(column.feature_names) for column in columns)
    for column in columns:
        own = len(column.feature_names)
        if len(column.levels) >= MANY_LEVELS and 2 * own > total:
            yield (
                f"column {column.name!r} makes {own} of {total} features, one for each text."
                f" Group the texts, or leave the column out: {flag('drop', column.name)}"
            )
        if column.kind == "date":
            yield from _after_today(column, tables)


def _without_effect(columns: Sequence[Column], labelled: Table) -> Iterator[str]:
    numbers = [column for column in columns if column.kind != "text"]
    alike = [column.name for column in numbers if is_constant(column.numbers(labelled))]
    if alike:
        yield f"constant among the labelled rows, so without effect: {some(alike, COLUMNS)}"


def _layout_note(table: Table, column: Column) -> str:
    """A note on the order of day and month that the cells showed."""
    examples = list(table.counts(column.name))[:2]
    texts = " and ".join(map(repr, examples))
    return (
        f"{table.source}: read as dates of the format {column.layout}, as their numbers show:"
        f" {texts} in {column.name!r}"
    )


def _codes(table: Table, column: Column) -> Iterator[str]:
    """A note on numbers that look like dates or codes, with the option to say it."""
    name = column.name
    values = column.numbers(table)
    values = values[~np.isnan(values)]
    if (values != np.floor(values)).any():
        return
    texts = pl.Series(table.present(name), dtype=pl.String)
    if texts.str.contains(_COMPACT).all():
        yield (
            f"{name!r} looks like dates, such as {texts[0]!r}, and is read as numbers:"
            f" {flag('dates', f'{name}=%Y%m%d')} reads the dates"
        )
    codes = texts.filter(texts.str.contains(r"^0\d"))
    if len(codes):
        yield (
            f"{name!r} looks like codes, such as {codes[0]!r}, and is read as numbers:"
            f" {flag('categorical', name)} keeps the texts, {flag('drop', name)} leaves it out"
        )


def _after_today(column: Column, tables: Sequence[Table]) -> Iterator[str]:
    """A note on dates after today: most are a wrong century, or a wrong format."""
    today = (utc_now().date() - _EPOCH).days
    days = np.concatenate([column.numbers(table) for table in tables])
    after = days[days > today]
    if len(after):
        last = _EPOCH + timedelta(days=float(after.max()))
        yield (
            f"dates after today in {column.name!r}: {len(after)}, up to {last}. If that cannot be,"
            f" correct the cells or the format: {flag('dates', f'{column.name}=%d.%m.%Y')}"
        )


# --- at a prediction ------------------------------------------------------------------------------


def notes_on_drift(column: Column, table: Table, trained: Range | None) -> Iterator[str]:
    """Sentences about a column that differs from training; ``trained``: its range there."""
    missing = int(table.missing(column.name).sum())
    if column.kind == "text":
        yield from _new_texts(column, table)
    elif trained is not None:
        yield from _outside(column, table, trained, len(table) - missing)
    if missing and not column.indicator:
        instead = "the mean"
        if column.kind == "text":
            instead = "none of its levels"
        yield f"missing cells: {missing}, and none in training. They count as {instead}"


def _new_texts(column: Column, table: Table) -> Iterator[str]:
    unknown = column.places(table) < 0
    new = np.flatnonzero(unknown & ~table.missing(column.name))
    if len(new):
        first = table.shown(column.name)[new[0]]
        yield (
            f"cells with a text that training never had: {len(new)} ({first!r} first). They count"
            " as none of its levels"
        )


def _outside(column: Column, table: Table, trained: Range, cells: int) -> Iterator[str]:
    low, high, seen = trained
    values = column.numbers(table)
    outside = int(np.sum((values < low) | (values > high)))
    # Of n training cells and no change, 2 of n + 1 new ones are outside.
    if outside > cells * max(OUTSIDE, 4.0 / (seen + 1)):
        ends = f"{low:g} to {high:g}"
        if column.kind == "date":
            first = _EPOCH + timedelta(days=low)
            last = _EPOCH + timedelta(days=high)
            ends = f"{first} to {last}"
        yield (
            f"{outside} of {cells} cells ({100 * outside / cells:.0f} %) are outside the range of"
            f" training ({ends}). The model has not learned from such values"
        )
