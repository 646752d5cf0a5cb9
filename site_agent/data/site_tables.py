"""The rows of a site: those with a label, and those that it shares with the other sites.

The shared rows are those without a label, those of a table of their own, or those with the ids
that an alignment found. They are sorted by id, so every site has them in the same order.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coreg_core.arrays import Arr, Ints
from coreg_core.objectives.alignment import IdRule
from site_agent.data.aligned_ids import SharedIds, is_shared, with_shared_ids
from site_agent.data.cell_text import canonical
from site_agent.data.fitting import size_fault
from site_agent.data.ids import compared_ids, order_of, unique_ids
from site_agent.data.inputs import Inputs
from site_agent.data.notation import flag
from site_agent.data.sources import BadTable, Faults, TableFault, some
from site_agent.data.tables import CLASSES_OF_A_STUDY, Table, read_inputs

UNSHARED = "no shared rows"  # the kind of the fault that an alignment of ids can mend
WAITING = {UNSHARED, CLASSES_OF_A_STUDY}  # kinds that are no fault until a run needs the rows
WITHOUT_LABELS = " A site without labels uses --no-labels."
USUAL_TARGETS = ("y", "target", "label")


@dataclass(frozen=True)
class SiteTable:
    """Labelled rows, and shared rows sorted by id; ``positions`` of the labelled in the shared
    ones, -1 of others.
    """

    labelled: Table
    y: Arr
    unlabelled: Table
    unlabelled_ids: tuple[str, ...]
    written_ids: tuple[str, ...]  # the same as the site's table writes them
    notes: tuple[str, ...]
    doubts: tuple[str, ...]
    positions: Ints
    labelled_ids: tuple[str, ...]
    negative: str  # the value of a yes/no target that is 0


def load_site_tables(
    inputs: Inputs, aligned: SharedIds | None, faults: Faults, classes: Sequence[str] = ()
) -> SiteTable:
    """Read labelled and shared rows; ``aligned``: the shared are those with these ids.

    (1) Read the tables. (2) Find the features. (3) Read the labels. (4) Find the shared rows.
    (5) Read the ids of both. ``faults`` collects faults, to find more.
    """
    target = inputs.target or ""
    column = inputs.id or ""
    # (1)
    table = read_inputs(inputs, faults, joined=False)
    apart: Table | None = None
    with faults.caught():
        table = table.with_id(column)
    with faults.caught():
        if inputs.unlabelled is not None:
            apart = read_inputs(inputs, faults, inputs.unlabelled)
    _check_columns(table, inputs, faults)
    # (2)
    features = _features(table, inputs, faults)
    # (3)
    y, has_label = _labels(table, inputs, classes, faults)
    labelled = table.rows(has_label)
    unlabelled = table.rows(~has_label)
    y = np.ascontiguousarray(y[has_label])
    if not len(faults) or target in table:  # else the rows cannot be split
        faults.add(*_parts_lacking(inputs, labelled, unlabelled, aligned))
    notes = [*table.notes, *_notes_on_labels(inputs, y, unlabelled)]
    # (4)
    source = table
    shared = unlabelled
    if apart is not None:
        source = shared = apart
        with faults.caught():
            notes += _notes_on_shared(apart, table, features, inputs)
    if aligned is not None:
        with faults.caught():
            notes += _notes_on_unused(shared, column, aligned)
            shared = with_shared_ids(source, column, aligned, complete=not _ragged(faults))
    # (5)
    doubts = list(dict.fromkeys([*table.doubts(column), *source.doubts(column)]))
    own_ids, ids, written = _ids_of(labelled, shared, inputs, aligned, faults)
    doubts += [*_doubts_on_copies(own_ids, table.source), *_doubts_on_targets(inputs, features)]
    order = order_of(ids)
    shared_ids = _ordered(ids, order)
    places = {text: place for place, text in enumerate(shared_ids)}
    names = [name for name in features if name in shared]
    return SiteTable(
        labelled=labelled.select(features),
        y=y,
        unlabelled=shared.rows(order).select(names),
        unlabelled_ids=shared_ids,
        written_ids=_ordered(written, order),
        notes=tuple(notes),
        doubts=tuple(doubts),
        positions=np.array([places.get(text, -1) for text in own_ids], dtype=np.int64),
        labelled_ids=tuple(own_ids),
        negative=_negative(table, target, inputs.positive),
    )


def _ordered(texts: Sequence[str], order: Ints) -> tuple[str, ...]:
    return tuple(texts[row] for row in order)


def _ragged(faults: Faults) -> bool:
    """Whether lines of a table are malformed, so that their ids are not read."""
    return any(fault.kind == "ragged" for fault in faults)


def _ids_of(
    labelled: Table, shared: Table, inputs: Inputs, aligned: SharedIds | None, faults: Faults
) -> tuple[list[str], list[str], list[str]]:
    """The ids of the labelled and of the shared rows, and the latter as the table writes them."""
    column = inputs.id or ""
    rule: IdRule = "exact"
    if aligned is not None:
        rule = aligned.rule
    with faults.caught():
        ids = unique_ids(shared, column, rule, faults)
        return compared_ids(labelled, column, rule), ids, shared.ids(column)
    return [], [""] * len(shared), [""] * len(shared)


def _check_columns(table: Table, inputs: Inputs, faults: Faults) -> None:
    target = inputs.target or ""
    if inputs.positive in inputs.na_values:
        what = f"the positive value {inputs.positive!r} means a missing value (na_values)."
        faults.add(TableFault(table.source, what, about=target))
    if inputs.labels:
        with faults.caught():
            table.require([target], "the target", WITHOUT_LABELS)
    with faults.caught():
        table.require([inputs.id or ""], "the id column")
    with faults.caught():
        table.require(inputs.drop, "to be dropped")
    if target == inputs.id:
        what = f"{target!r} is both the target and the id column."
        faults.add(TableFault(table.source, what, kind="column", about=target))


def _features(table: Table, inputs: Inputs, faults: Faults) -> list[str]:
    apart = {inputs.target, inputs.id, *inputs.drop}
    expected = [inputs.id]
    if inputs.labels:
        expected.append(inputs.target)
    for name in expected:
        if name not in table:
            apart.add(table.like(name or ""))  # it is misspelt, and no feature
    features = []
    for name in dict.fromkeys(table.columns):
        with faults.caught():
            if name not in apart:
                features.append(table.cells(name).name)
    if not features:
        what = f"no feature column is left besides {inputs.target!r} and {inputs.id!r}."
        faults.add(TableFault(table.source, what))
    return features


def _labels(
    table: Table, inputs: Inputs, classes: Sequence[str], faults: Faults
) -> tuple[Arr, NDArray[np.bool_]]:
    """The label column (NaN: empty), and which rows have a label, also one that cannot be read."""
    target = inputs.target or ""
    nothing = np.full(len(table), np.nan)
    if target not in table:
        return nothing, np.zeros(len(table), dtype=np.bool_)
    try:
        coded = table.with_places(target, classes).with_classes(target, inputs.positive)
        y = coded.numbers(target, target=True)
    except BadTable as error:
        faults.add(*error.faults)
        with faults.caught():
            return nothing, ~table.missing(target)
        return nothing, np.ones(len(table), dtype=np.bool_)
    present = ~np.isnan(y)
    if present.any():
        faults.add(*size_fault(table, target, y))
    return y, present


def _negative(table: Table, target: str, positive: str) -> str:
    """The value of a yes/no target besides the positive one; "" without one."""
    if not positive or target not in table:
        return ""
    for text in table.counts(target):
        if text != canonical(positive):
            return text
    return ""


def _notes_on_labels(inputs: Inputs, y: Arr, unlabelled: Table) -> Iterator[str]:
    source = unlabelled.source
    if inputs.positive and len(y) and not y.any():
        yield (
            f"{source}: no row of {inputs.target!r} has the positive value {inputs.positive!r}, so"
            " all labels are 0"
        )
    if inputs.unlabelled is not None and len(unlabelled):
        yield (
            f"{source}: {len(unlabelled)} rows without a target are left out: --unlabelled names"
            " the shared set"
        )


def _doubts_on_targets(inputs: Inputs, features: Sequence[str]) -> Iterator[str]:
    """At a site without labels a target that has values is a feature, unless the study names it."""
    for name in USUAL_TARGETS:
        if not inputs.labels and name in features:
            yield (
                f"{name!r} is a feature here, because this site has no labels. If it is"
                f" the study's target, it tells the labels: leave it out ({flag('drop', name)})."
            )


def _parts_lacking(
    inputs: Inputs, labelled: Table, unlabelled: Table, aligned: SharedIds | None
) -> Iterator[TableFault]:
    """Faults if there is no labelled row, a labelled row with --no-labels, or no shared row."""
    target = inputs.target or ""
    if inputs.labels and not len(labelled):
        what = f"no row has a value in {target!r}. A site needs labelled rows of its own."
        todo = "Under the additive objective a site without labels can take part with --no-labels."
        yield TableFault(labelled.source, what, todo, kind="missing", about=target)
    if not inputs.labels and len(labelled):
        what = f"{len(labelled)} rows have a value in {target!r}, although --no-labels is given."
        todo = f"Leave the column out ({flag('drop', target)}), or take part with labels."
        yield TableFault(labelled.source, what, todo, kind="column", about=target)
    if inputs.unlabelled is None and aligned is None and not len(unlabelled):
        what = f"no row has an empty {target!r}, so there are no shared unlabelled instances."
        todo = (
            "A run aligns the ids first. Without that, add rows with an empty target, or name their"
            " table with --unlabelled."
        )
        yield TableFault(labelled.source, what, todo, kind=UNSHARED, about=target)


def _notes_on_shared(
    shared: Table, table: Table, features: Sequence[str], inputs: Inputs
) -> Iterator[str]:
    """Notes on a table of shared rows. BadTable: it lacks a column."""
    yield from shared.notes
    shared.require([inputs.id or ""], "the id column")
    shared.require(features, f"features of {table.source}")
    used = {*features, inputs.target, inputs.id, *inputs.drop}
    extra = [name for name in shared.columns if name not in used]
    if extra:
        yield (
            f"{shared.source}: not used, because {table.source} does not have these columns:"
            f" {some(extra)}"
        )


def _notes_on_unused(candidates: Table, column: str, aligned: SharedIds) -> Iterator[str]:
    unused = is_shared(compared_ids(candidates, column, aligned.rule), aligned).count(False)
    if unused:
        yield (
            f"{candidates.source}: {unused} rows have no label and no shared id. They are not used,"
            " and not checked"
        )


def _doubts_on_copies(ids: Sequence[str], source: str) -> Iterator[str]:
    copies = [text for text, count in Counter(ids).items() if text and count > 1]
    if copies:
        yield (
            f"{source}: more than one labelled row has the id {some(copies)}. A run that"
            " aligns ids refuses the table"
        )
