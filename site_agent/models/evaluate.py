"""Models on the site's own labelled records that no training has seen: errors, ranks, calibration,
and how far the records moved from those of the training.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from pathlib import Path

import numpy as np

from coreg_core.arrays import Arr, Ints
from coreg_core.errors import BadData, UsageError
from coreg_core.evaluation import brier_residuals
from site_agent.data.notation import Notation
from site_agent.data.sources import SHOWN, Source, shortened, some
from site_agent.data.tables import Table, read_table
from site_agent.models.figures import (
    Values,
    of_classes,
    of_residuals,
    of_several_classes,
    table,
    tenth_lines,
)
from site_agent.models.file import ModelFile, load_model
from site_agent.models.stability import moved


@dataclass(frozen=True, eq=False)
class Evaluated:
    """Of each model its error, the change against the first model's on the same rows, and its other
    figures.
    """

    target: str
    rows: int
    models: dict[str, Values]
    notes: list[str]
    seen: int  # rows that are known to be of the training; a model does not hold all of them
    left_out: Values  # labels and residuals of single rows, for a picture


def evaluate(models: Sequence[Path], data: Source, notation: Notation) -> Evaluated:
    """Errors of each model on the labelled rows of ``data``, with standard errors, each paired with
    the first model's.
    """
    loaded = {str(path): load_model(path) for path in models}
    if len(loaded) < len(models):
        raise UsageError("a model is named twice. Name each model once.")
    target, table, notes = _labelled(loaded, data, notation)
    y = table.numbers(target, target=True)
    classes = next(iter(loaded.values())).classes
    if not classes:
        _check_labels(loaded, y, f"{data}: {target!r}")
    seen = max(model.rows_seen(table) for model in loaded.values())
    if seen:
        notes.append(
            f"{data}: at least {seen} of these rows have the features of rows of the training. If"
            " they are the same individuals, these errors are too small: use others. `coreg-agent"
            " report` has errors on left-out labels"
        )
    residuals = dict[str, Arr]()
    figures = dict[str, Values]()
    for name, model in loaded.items():
        X = model.features(table)
        predicted = model.predict_features(X)
        labels = None
        if classes:
            errors = brier_residuals(predicted, y)
        else:
            errors = y - predicted
            labels = y
        baseline = next(iter(residuals.values()), None)
        residuals[name] = errors
        figures[name] = of_residuals(errors, labels, baseline)
        figures[name] |= _of_probabilities(model, predicted, y)
        figures[name]["stability"] = moved(model, X, predicted)
    single_rows: Values = {"labels": y, "residuals": residuals}
    if classes:
        single_rows["residuals"] = {}
    return Evaluated(target, len(y), figures, notes, seen, left_out=single_rows)


def _check_labels(loaded: Mapping[str, ModelFile], y: Arr, where: str) -> None:
    """BadData: a model predicts a probability, and a label is neither 0 nor 1."""
    probabilities = any(model.probability is not None for model in loaded.values())
    if probabilities and not np.isin(y, (0.0, 1.0)).all():
        raise BadData(
            f"{where} has other values than 0 and 1, and these models predict a probability."
        )


def _of_probabilities(model: ModelFile, predicted: Arr, y: Arr) -> Values:
    """The figures of probabilities; nothing of a model of numbers."""
    if model.classes:
        return of_several_classes(predicted, y, model.classes)
    if model.probability is None:
        return {}
    return of_classes(predicted, y)


def _target_of(loaded: Mapping[str, ModelFile]) -> tuple[str, str, tuple[str, ...]]:
    """Target, positive value and classes; UsageError: they are not equal in all models."""
    kinds = {(model.target, model.positive, model.classes) for model in loaded.values()}
    if len(kinds) > 1:
        names = [f"{target} {positive}".strip() for target, positive, _ in kinds]
        raise UsageError(
            "the models have different targets, positive values or classes"
            f" ({some(sorted(names))}). Compare equal ones."
        )
    [kind] = kinds
    return kind


def _labelled(
    loaded: Mapping[str, ModelFile], data: Source, notation: Notation
) -> tuple[str, Table, list[str]]:
    """The target of all models, the rows that have a value of it, and notes on the table."""
    target, positive, classes = _target_of(loaded)
    encodings = [model.preprocessing for model in loaded.values()]
    negatives = {model.negative for model in loaded.values()} - {""}
    negative = ""
    if len(negatives) == 1:
        negative = negatives.pop()
    na_values = _each_once(encoding.na_values for encoding in encodings)
    whole = read_table(data, na_values=na_values, notation=notation)
    whole = whole.with_places(target, classes).with_classes(target, positive, negative)
    whole.require([target], "the target of the model")
    used = _each_once(encoding.sources for encoding in encodings)
    whole.require(used, "a feature of these models")
    y = whole.numbers(target, target=True)
    rows: Ints = np.flatnonzero(~np.isnan(y)).astype(np.int64)
    if len(rows) < 2:
        raise BadData(
            f"{data}: {len(rows)} rows have a value in {target!r}. An error needs at least two."
        )
    notes = [*whole.notes]
    if positive and not y[rows].any():
        notes.append(f"{data}: no row of {target!r} has the positive value {positive!r}")
    unlabelled = len(whole) - len(rows)
    if unlabelled:
        notes.append(f"{data}: {unlabelled} rows without {target!r} are left out")
    table = whole.rows(rows)
    notes += _each_once(encoding.moved(table) for encoding in encodings)
    return target, table, notes


def _each_once(lists: Iterable[Iterable[str]]) -> list[str]:
    return list(dict.fromkeys(chain.from_iterable(lists)))


def evaluated_lines(evaluated: Evaluated) -> list[str]:
    """The errors as a table under a heading, with the change against the first model. Then tenths
    of a yes/no target and the stability index, of each model.
    """
    models = evaluated.models
    classes = any("auc_by_class" in figures for figures in models.values())
    what = "root mean square error"
    if classes:
        what = "root of the Brier score"
    heading = f"{what} of {evaluated.target} on {evaluated.rows} rows, ± one standard error"
    out = [heading, *table(models)]
    for name, figures in models.items():
        out += tenth_lines(figures.get("tenths"), f"these rows, {name}")
    for name, figures in models.items():
        index = figures["stability"]
        if index:
            out.append(f"{name}: stability index against the training, {_listed(index)}")
    return out


def _listed(index: Values) -> str:
    """The predictions' index, and those of the columns that moved most."""
    columns = sorted(index["columns"].items(), key=itemgetter(1), reverse=True)
    listed = shortened([f"{name} {value:.3f}" for name, value in columns], SHOWN)
    chance = index["by_chance"]
    predictions = index["predictions"]
    return f"{chance:.3f} by chance: predictions {predictions:.3f}; {listed}"
