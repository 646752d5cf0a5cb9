"""Tables to score together with the other sites: from the operator's files to the parts of this
site's model. And the tables of scores and of predictions that come of it.
"""

import csv
import io
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np
import polars as pl

from coreg_core.additive.check import Correction
from coreg_core.additive.site_model import ClassModel, SiteModel
from coreg_core.arrays import Arr, Ints
from coreg_core.errors import UsageError
from coreg_core.evaluation import AnyProbability
from coreg_core.objectives.alignment import IdRule
from coreg_wire.files.output import Kinds, check_output, write_output
from site_agent.data.aligned_ids import SharedIds, with_shared_ids
from site_agent.data.cell_text import guarded
from site_agent.data.ids import ids_digest, normalised, order_of, own_name, unique_ids
from site_agent.data.inputs import Inputs
from site_agent.data.sources import Faults, some
from site_agent.data.tables import Table, read_table
from site_agent.machine.results import JointScores, ScoringResult
from site_agent.machine.scoring import Batch
from site_agent.models.figures import Values
from site_agent.models.file import ModelFile

Predictions: TypeAlias = Arr | Sequence[str | None]  # or classes, None without a score
COVERAGE = 0.9  # of an interval


@dataclass(frozen=True)
class Scored:
    """What the operator learns of a scoring; ``correction`` of an additive score, with ``local``
    predictions and own columns ``X`` (NaN: missing). Of several classes scores have a column for
    each.
    """

    ids: tuple[str, ...]
    id_column: str
    notes: tuple[str, ...]
    probability: AnyProbability | None = None
    correction: Callable[[Arr, Arr | None, Arr | None], Arr] = field(default_factory=Correction)
    local: Arr | None = None
    X: Arr | None = None
    noise: float = np.nan  # the deviation of a label from a score of numbers
    classes: tuple[str, ...] = ()

    def finished(self, scores: Arr, places: Ints) -> Arr:
        """Corrected scores of these individuals, or their probabilities."""
        local = None
        if self.local is not None:
            local = self.local[places]
        X = None if self.X is None else self.X[places]
        corrected = self.correction(scores[places], local, X)
        if self.probability is None:
            return corrected
        return self.probability.of(corrected)

    def write(self, result: ScoringResult, folder: Path) -> tuple[Path, ...]:
        """Write ids, scores with their intervals, the sites in each, the deviation that absent ones
        leave, and known parts.
        """
        assert result.scores is not None
        scores = self.correction(result.scores, self.local, self.X)
        missing = result.missing
        values, beside = _columns_of(scores, self.probability, self.classes)
        beside |= interval(scores, self.noise, 0.0 if missing is None else missing)
        beside["sites"] = np.array([" ".join(names) for names in result.present])
        if missing is not None and not np.isnan(missing).all():
            beside["missing_deviation"] = missing
        beside |= {f"part_{site}": part for site, part in result.contributions.items()}
        path = folder / "scores.csv"
        id_column = _free(self.id_column, ("score", *beside))
        write_predictions(
            path, values, ids=self.ids, id_column=id_column, column="score", beside=beside
        )
        return (path,)


def write_joint_scores(
    folder: Path,
    scores: JointScores,
    ids: Sequence[str],
    id_column: str,
    joined: ModelFile,
) -> Path:
    """Write the scores of a training's end; ``ids`` of all shared individuals."""
    values, beside = _columns_of(scores.values, joined.score_probability, joined.classes)
    beside |= interval(scores.values, noise_of(joined))
    path = folder / "scores.csv"
    id_column = _free(id_column, ("score", *beside))
    scored = [ids[place] for place in scores.places]
    write_predictions(path, values, ids=scored, id_column=id_column, column="score", beside=beside)
    return path


def interval(scores: Arr, noise: float, missing: Arr | float = 0.0) -> dict[str, Arr]:
    """``low`` and ``high`` of scores, between which `COVERAGE` of labels lie; no columns where no
    deviation is known.

    ``noise``: the deviation of a label from a whole score; ``missing``: that absent sites leave.
    """
    deviations = np.hypot(noise, missing) * np.ones(len(scores))
    if np.isnan(noise) or np.isnan(deviations[~np.isnan(scores)]).any():
        return {}
    half = NormalDist().inv_cdf((1.0 + COVERAGE) / 2.0) * deviations
    return {"low": scores - half, "high": scores + half}


def _free(id_column: str, taken: Collection[str]) -> str:
    """The heading of the ids: a study can name its id column like a column of scores."""
    if id_column in taken:
        return "id"
    return id_column


def _columns_of(
    scores: Arr, probability: AnyProbability | None, classes: Sequence[str]
) -> tuple[Predictions, dict[str, Arr]]:
    if probability is None:
        return scores, {}
    return as_columns(classes, probability.of(scores), scores)


def as_columns(
    classes: Sequence[str], probabilities: Arr, score: Arr
) -> tuple[Predictions, dict[str, Arr]]:
    """The column and those beside it: of several classes the most probable one, None without a
    score, and the probability of each.
    """
    if not classes:
        return score, {"probability": probabilities}
    most = list[str | None]()
    for row in probabilities:
        most.append(None if np.isnan(row).any() else classes[row.argmax()])
    columns = zip(classes, probabilities.T, strict=True)
    return most, {f"probability_{name}": column for name, column in columns}


def batch_of(
    model: ModelFile, inputs: Inputs, salt: bytes, aligned: SharedIds | None = None
) -> tuple[Batch, Scored]:
    """This site's parts of the scores, by ids as the sites compare them.

    An instance is missing if its features are empty.
    """
    preprocessing = model.preprocessing
    column = inputs.id or ""
    faults = Faults()
    table = read_table(inputs.table, na_values=preprocessing.na_values, notation=inputs.notation)
    table = table.with_id(column)
    table.require([column], "the id column")
    rule: IdRule = "exact"
    if aligned is not None:
        rule = aligned.rule
        table = with_shared_ids(table, column, aligned, complete=True)
    keys = unique_ids(table, column, rule, faults)
    faults.raise_any()
    table.require(preprocessing.sources, "a feature of this model")
    order = order_of(keys)
    table = table.rows(order)
    keys = [keys[i] for i in order]
    digest = ids_digest(keys)
    ids = tuple(table.ids(column))
    absent = np.all([table.missing(name) for name in preprocessing.sources], axis=0)
    phi, X, local = _arrays(model, table, absent)
    notes = [*table.notes, *table.doubts(inputs.id)]
    if not absent.all():
        notes += preprocessing.moved(table.rows(np.flatnonzero(~absent)))
    lacking = [ids[i] for i in np.flatnonzero(absent)]
    if lacking:
        notes.append(
            f"{inputs.table}: no record of {len(lacking)} instances ({some(lacking)}): all features"
            " are empty"
        )
    joined: SiteModel | ClassModel | None = None
    correction: Any = Correction()
    if isinstance(model.function, SiteModel | ClassModel):
        joined = model.function
        correction = joined.correct_score
    batch = Batch(
        features=phi,
        missing=absent,
        model=joined,
        intercept=model.intercept,
        of_run=model.run,
        trained=model.objective,
        name=model.name,
        sites=model.sites,
        ids_digest=digest,
        salt=salt,
        instances=own_name(digest, salt),
        ids=tuple(keys),
        columns=max(len(model.classes), 1),
    )
    scored = Scored(
        ids,
        column,
        tuple(notes),
        model.score_probability,
        correction,
        local,
        X,
        noise_of(model),
        model.classes,
    )
    return batch, scored


def _arrays(model: ModelFile, table: Table, absent: np.ndarray) -> tuple[Arr, Arr, Arr | None]:
    """Features of the score (0 of an absent row), own columns and local predictions (NaN)."""
    present = np.flatnonzero(~absent)
    own = table.rows(present)
    if not len(present):  # the first row alone has the width of the arrays
        own = table.rows(np.arange(1))
    phi = _placed(model.phi(own), present, len(absent), 0.0)
    X = _placed(model.features(own), present, len(absent), np.nan)
    if model.local is None or not len(present):
        return phi, X, None
    return phi, X, _placed(model.local_predictions(own), present, len(absent), np.nan)


def _placed(values: Arr, places: Ints, n: int, absent: float) -> Arr:
    """The values at these places of n rows, and ``absent`` at the others."""
    out = np.full((n, *values.shape[1:]), absent)
    out[places] = values[: len(places)]
    return out


def noise_of(model: ModelFile) -> float:
    """The deviation of a label from a score of numbers; NaN of other targets."""
    joined = model.function
    if not isinstance(joined, SiteModel) or model.score_probability is not None:
        return np.nan
    noise = joined.spread * joined.noise
    if model.findings and "score" in model.findings.models:
        left_out = float(model.findings.models["score"].get("rmse", 0.0))  # by own labels
        noise = max(noise, left_out)
    return noise


def as_answers(classes: Sequence[str], values: Arr) -> Values:
    """Columns of predictions as a program reads them, of several classes as in `as_columns`."""
    if not classes:
        return {"score": values}
    most, beside = as_columns(classes, values, values)
    return {"score": most, **beside}


@dataclass(frozen=True, eq=False)
class Alone:
    """The joined model on any row of this site's table, by its normalised id."""

    model: ModelFile
    table: Table
    places: Mapping[str, int]

    @classmethod
    def of(cls, model: ModelFile, inputs: Inputs, rule: IdRule) -> "Alone":
        na_values = model.preprocessing.na_values
        column = inputs.id or ""
        table = read_table(inputs.table, na_values=na_values, notation=inputs.notation)
        ids = table.with_id(column).ids(column)
        places = {normalised(text, rule): place for place, text in enumerate(ids)}
        return cls(model, table, places)

    def answers(self, texts: Sequence[str], coverage: float) -> list[Values]:
        """Predictions, with intervals where the model has them. UsageError: an id has no row."""
        unknown = [text for text in texts if text not in self.places]
        if unknown:
            raise UsageError(f"this site's table has no row of {some(unknown)}.")
        places = [self.places[text] for text in texts]
        rows = self.table.rows(np.array(places, dtype=np.int64))
        columns = as_answers(self.model.classes, self.model.predict(rows))
        if self.model.deviations(rows) is not None:
            columns["low"], columns["high"] = self.model.interval(rows, coverage)
        frame = pl.DataFrame(columns)
        return [{**row, "sites": [], "from": "joined model"} for row in frame.iter_rows(named=True)]


# --- tables of scores and predictions -------------------------------------------------------------

_COLUMNS = {"prediction", "probability", "low", "high"}
_PARTS = ("contribution_", "probability_")


def _is_ours(columns: Sequence[str]) -> bool:
    """Whether `predict` wrote a table of these columns: one, an id, is the user's. It writes no
    table of scores over another one.
    """
    others = [name for name in columns if name not in _COLUMNS and not name.startswith(_PARTS)]
    return len(others) < 2 and not {"prediction", "probability"}.isdisjoint(columns)


def _is_our_csv(path: Path) -> bool:
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        columns = next(csv.reader([file.readline(1 << 16)]), [])
    return _is_ours(columns)


def _is_our_parquet(path: Path) -> bool:
    try:
        columns = pl.read_parquet_schema(path)
    except pl.exceptions.PolarsError:
        return False
    return _is_ours(list(columns))


TABLES: Kinds = {".csv": _is_our_csv, ".parquet": _is_our_parquet, ".pq": _is_our_parquet}


def check_predictions(path: Path, read: Sequence[Path]) -> None:
    """Check before the work that predictions can be written, and that the file is none of those
    that are ``read``.
    """
    if path.exists() and any(path.samefile(file) for file in read if file.exists()):
        raise UsageError(
            f"{path} is read by this command, and would be overwritten. Give another --output."
        )
    check_output(path, "--output", TABLES)


def write_predictions(
    path: Path,
    predictions: Predictions,
    *,
    ids: Sequence[str] | None = None,
    id_column: str | None = None,
    column: str = "prediction",
    beside: Mapping[str, Arr] | None = None,
) -> None:
    """Write a CSV or Parquet table: ids, predictions under ``column``, the columns ``beside``.

    The file has mode 0600.
    """
    beside = beside or {}
    if ids is not None and id_column in (column, *beside):
        raise UsageError(
            f"{path}: the id column has the name of the column of {column}s. Rename it in the"
            " table."
        )
    columns = dict[str, Any]()
    if ids is not None:
        columns[id_column or "id"] = ids
    columns |= {column: predictions, **beside}
    frame = pl.DataFrame(columns).fill_nan(None)
    if path.suffix.lower() == ".csv":
        # Ids, classes and names of columns can be another party's.
        texts = pl.col(pl.String).map_elements(guarded, return_dtype=pl.String)
        frame = frame.with_columns(texts).rename(guarded)
        data = frame.write_csv().encode()
    else:
        buffer = io.BytesIO()
        frame.write_parquet(buffer)
        data = buffer.getvalue()
    write_output(path, data, "--output", TABLES)
