"""`coreg-agent evaluate`: compare models and scores on the site's own held-back labelled records. No network is used."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import numpy as np

from coreg_core.errors import BadData, UsageError
from coreg_core.evaluation import Estimate, Paired, estimate, paired, quality
from coreg_core.numerics.arrays import Arr, Ints
from site_agent.data.drift import look
from site_agent.data.errors import some
from site_agent.data.notation import Notation
from site_agent.data.sources import Source
from site_agent.data.tables import Table, read_table
from site_agent.models.file import load_model
from site_agent.models.findings import decimals


@dataclass(frozen=True)
class Evaluated:
    """Errors by model, in the order of the arguments. The first model is the baseline."""

    target: str
    rows: int
    models: dict[
        str, tuple[Estimate, Paired | None]
    ]  # the error, and its difference from the baseline's on the same rows
    mean_absolute: dict[str, float]
    classification: dict[str, tuple[float, float, float]]  # AUC, log loss, calibration error; of a yes/no target
    notes: tuple[str, ...]

    def quality(self, name: str) -> dict[str, float | None]:
        """The figures of a yes/no target by their names, for JSON."""
        figures = zip(("auc", "log_loss", "calibration_error"), self.classification.get(name, ()), strict=False)
        return {figure: value if isfinite(value) else None for figure, value in figures}


def labelled_rows(table: Table, target: str) -> Ints:
    table.require([target], "the target of the model")
    rows: Ints = np.flatnonzero(~np.isnan(table.numbers(target, target=True))).astype(np.int64)
    if len(rows) < 2:
        raise BadData(f"{table.source}: {len(rows)} rows have a value in {target!r}. An error needs at least two.")
    return rows


def scores_of(path: Path, id_column: str, table: Table) -> tuple[Arr, bool]:
    """The score of each row of ``table``, NaN where there is none, and whether it is a probability."""
    found = read_table(path)
    column = "probability" if "probability" in found.columns else "score"
    found.require([id_column, column], "of scores made together")
    ids = found.ids(id_column)
    if len(set(ids)) < len(ids):
        raise BadData(f"{path}: an id has two scores. Keep one row of each record.")
    by_id = dict(zip(ids, found.numbers(column).tolist(), strict=True))
    scores = np.array([by_id.get(name, np.nan) for name in table.with_id(id_column).ids(id_column)])
    if (known := len(scores) - int(np.isnan(scores).sum())) < 2:
        raise BadData(
            f"{path}: scores of {known} labelled rows of {table.source}; an error needs at least two. Compare how the two files "
            f"write {id_column!r}."
        )
    return scores, column == "probability"


def evaluate(
    models: Sequence[Path],
    data: Source,
    scores: Path | None = None,
    id_column: str = "",
    notation: Notation = Notation(),  # noqa: B008 - it is frozen
) -> Evaluated:
    """Errors of each model on the labelled rows of ``data``, with standard errors, each paired with the first model's.

    ``scores`` are scores that the sites made together, matched to the rows by ``id_column``. Rows without one are left out.
    """
    loaded = {str(path): load_model(path) for path in models}
    if len(loaded) < len(models):
        raise UsageError("a model is named twice. Name each model once.")
    targets = {model.target for model in loaded.values()}
    if len(targets) > 1:
        raise UsageError(
            f"the models have different targets ({', '.join(sorted(targets))}). Compare models of one target."
        )
    [target] = targets
    na_values = dict.fromkeys(text for model in loaded.values() for text in model.preprocessing.na_values)
    positives = {model.positive for model in loaded.values()}
    if len(positives) > 1:
        raise UsageError(f"the models have different positive values ({', '.join(map(repr, sorted(positives)))}).")
    [positive] = positives
    whole = read_table(data, na_values=tuple(na_values), notation=notation).with_classes(target, positive)
    rows = labelled_rows(whole, target)
    table = whole.rows(rows)
    y = table.numbers(target, target=True)
    used = dict.fromkeys(name for model in loaded.values() for name in model.preprocessing.sources)
    whole.require(list(used), "a feature of these models")
    notes = [*whole.notes, *whole.doubts(list(used), id_column)]
    if positive and not y.any():
        notes.append(f"{data}: no row of {target!r} has the positive value {positive!r}")
    if len(rows) < len(whole):
        notes.append(f"{data}: {len(whole) - len(rows)} rows without {target!r} are left out")
    if odd := [name for name in whole.columns if name not in used and name not in (target, *id_column.split("+"))]:
        notes.append(f"{data}: ignored, because no model uses them: {some(odd)}")
    scored, probable = (None, False) if scores is None else scores_of(scores, id_column, table)
    if scored is not None and (without := np.flatnonzero(np.isnan(scored))).size:
        notes.append(f"{scores}: no score of {len(without)} labelled rows of {data}; they are left out for every model")
        kept = np.flatnonzero(~np.isnan(scored))
        table, y, scored = table.rows(kept), y[kept], scored[kept]
    for model in loaded.values():
        notes += [text for text in look(model.preprocessing, table).values if text not in notes]
    predictions = {name: model.predict(table) for name, model in loaded.items()}
    classes = {name for name, model in loaded.items() if model.probability is not None}
    if scored is not None:
        predictions[str(scores)] = scored
        classes |= {str(scores)} if probable else set()
    residuals = {name: y - predicted for name, predicted in predictions.items()}
    if classes and not np.isin(y, (0.0, 1.0)).all():
        raise BadData(f"{data}: {target!r} has other values than 0 and 1, and these models predict a probability.")
    judged = {name: quality(p, y) for name, p in predictions.items() if name in classes}
    absolute = {name: float(np.mean(np.abs(errors))) for name, errors in residuals.items()}
    baseline = next(iter(residuals.values()))
    errors = {name: (estimate(r), None if r is baseline else paired(r, baseline)) for name, r in residuals.items()}
    return Evaluated(target, len(y), errors, absolute, judged, tuple(notes))


def lines(found: Evaluated) -> list[str]:
    """One line for each model: its error ± one standard error, its change against the first model, and a bar."""
    longest = max(error.rmse for error, _ in found.models.values()) or 1.0
    width, digits = max(len(name) for name in found.models), decimals(longest)
    out = []
    for name, (error, beside) in found.models.items():
        change = ""
        if beside is not None:
            clear = abs(beside.difference) > beside.standard_error
            change = f"{100 * beside.change:+.1f} % ({'more' if clear else 'less'} than one s.e.)"
        told = f"{error.rmse:>8.{digits}} ± {error.standard_error:<7.{digits}}"
        out.append(f"{name:<{width}}  {told}  {change:<30} {'█' * round(36 * error.rmse / longest)}")
    for name, (area, loss, off) in found.classification.items():
        known = f"{area:.3f}" if isfinite(area) else "unknown (one class)"
        out.append(f"{name:<{width}}  AUC {known}, log loss {loss:.3f}, calibration error {off:.3f}")
    return out
