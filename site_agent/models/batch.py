"""Tables to score together with the other sites: from the operator's files to the parts of this site's model. And the tables of
scores and of predictions that come of it.
"""

import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Bool

from coreg_core.additive.check import Correction
from coreg_core.additive.site_model import SiteModel
from coreg_core.arrays import Arr
from coreg_core.errors import StorageError, UsageError
from coreg_core.evaluation import Probability
from coreg_wire.files.disk import write_whole
from site_agent.data.inputs import Inputs
from site_agent.data.notation import guarded
from site_agent.data.prepare import SharedIds, ids_digest, load_batch, own_name
from site_agent.machine.job import SiteResult
from site_agent.machine.scoring import Batch
from site_agent.models.file import ModelFile


@dataclass(frozen=True)
class Scored:
    """The ids of the scored instances by data set, in the order of the batch.

    ``correction``: of an additive score by this site's own labels, with the ``local`` predictions, NaN of missing instances.
    """

    ids: Mapping[str, tuple[str, ...]]
    id_columns: Mapping[str, str]
    notes: tuple[str, ...]
    probability: Probability | None = None
    correction: Correction | None = None
    local: Arr | None = None

    def write(self, result: SiteResult, path_of: "Mapping[str, Path]") -> tuple[Path, ...]:
        """Write ids, scores, the sites in each, the deviation that absent ones leave, and known parts: one file per data set."""
        assert result.scores is not None
        start, written, scores = 0, list[Path](), self._corrected(result.scores)
        sites, missing = np.array([" ".join(names) for names in result.present]), result.missing
        for name, ids in self.ids.items():
            rows, start = slice(start, start + len(ids)), start + len(ids)
            own = scores[rows]
            beside = {} if self.probability is None else {"probability": self.probability.of(own)}
            beside["sites"] = sites[rows]
            if missing is not None and not np.isnan(missing).all():
                beside["missing_deviation"] = missing[rows]
            beside |= {f"part_{site}": part[rows] for site, part in result.contributions.items()}
            column = self.id_columns[name]
            write_predictions(path_of[name], own, ids=ids, id_column=column, column="score", beside=beside)
            written.append(path_of[name])
        return tuple(written)

    def _corrected(self, scores: Arr) -> Arr:
        if self.correction is None:
            return scores
        out = self.correction.rescaled(scores).copy()
        if self.local is not None:
            known = ~np.isnan(self.local)
            out[known] = self.correction(scores[known], self.local[known])
        return out


def batch_of(
    model: ModelFile, tables: Mapping[str, Inputs], salt: bytes, aligned: SharedIds | None = None
) -> tuple[Batch, Scored]:
    """What this site's parts of the scores are made of, table after table; of the ids that are ``aligned``.

    If all features of an instance are empty, it is missing: all sites list it, but this site has no record of it.
    """
    features, local, missing, notes = list[Arr](), list[Arr](), list[Bool[np.ndarray, " m"]](), list[str]()
    ids, columns, digests = dict[str, tuple[str, ...]](), dict[str, str](), list[str]()
    for name, inputs in tables.items():
        phi, alone, absent, ids[name], keys, told = _of_table(model, inputs, aligned)
        digests.append(ids_digest(keys))
        features.append(phi)
        local.append(alone)
        missing.append(absent)
        columns[name] = inputs.id or ""
        notes += told
    digest = _digest(digests)
    batch = Batch(
        features=np.concatenate(features),
        missing=np.concatenate(missing),
        model=model.function if isinstance(model.function, SiteModel) else None,
        intercept=model.intercept,
        of_run=model.run,
        trained=model.objective,
        name=model.name,
        sites=model.sites,
        ids_digest=digest,
        salt=salt,
        instances=own_name(digest, salt),
        ids=tuple(name for each in ids.values() for name in each),
    )
    correction = model.function.correct_score if isinstance(model.function, SiteModel) else None
    locals_ = None if model.local is None else np.concatenate(local)
    return batch, Scored(ids, columns, tuple(notes), model.score_probability, correction, locals_)


def _of_table(
    model: ModelFile, inputs: Inputs, aligned: SharedIds | None
) -> tuple[Arr, Arr, Bool[np.ndarray, " m"], tuple[str, ...], tuple[str, ...], list[str]]:
    """Features of the score, local predictions (NaN without), which are missing, ids as written and as compared, notes."""
    table, ids, keys = load_batch(inputs, model.preprocessing.na_values, aligned)
    names = model.preprocessing.sources
    table.require(names, "a feature of this model")
    absent = np.all([table.missing(name) for name in names], axis=0)
    known = np.flatnonzero(~absent)
    own = table.rows(known)
    some = model.phi(own) if len(known) else model.phi(table.rows(np.arange(1)))[:0]
    phi, local, notes = (
        np.zeros((len(ids), some.shape[1])),
        np.full(len(ids), np.nan),
        [*table.notes, *table.doubts(names, inputs.id)],
    )
    if len(known):
        phi[known] = some
        if model.local is not None:
            local[known] = model.local_predictions(own)
        notes += model.preprocessing.moved(own)
    if absent.any():
        first = ", ".join(ids[i] for i in np.flatnonzero(absent)[:5])
        notes.append(
            f"{inputs.table}: no record of {int(absent.sum())} instances ({first} first). All their features are empty"
        )
    return phi, local, absent, ids, keys, notes


def _digest(digests: Sequence[str]) -> str:
    """The digest of one table, or the digest of several tables' digests in their order."""
    return digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()


# --- tables of scores and predictions ---------------------------------------------------------------------------------

TABLES = (".csv", ".parquet", ".pq")


def check_predictions(path: Path, read: Sequence[Path]) -> None:
    """Check before the work that predictions can be written, and that the file is none of those that are ``read``."""
    if path.exists() and any(each.exists() and path.samefile(each) for each in read):
        raise UsageError(f"{path} is read by this command, and would be overwritten. Give another --output.")
    if not path.resolve().parent.is_dir():
        raise StorageError(f"{path.resolve().parent}: no such folder. Make it, or give another --output.")
    if path.suffix.lower() not in TABLES:
        raise UsageError(f"{path}: predictions are written as .csv or .parquet. Give --output such a name.")


def write_predictions(
    path: Path,
    predictions: Arr,
    *,
    ids: Sequence[str] | None = None,
    id_column: str | None = None,
    column: str = "prediction",
    beside: Mapping[str, Arr] | None = None,
) -> None:
    """Write a CSV or Parquet table: ids, if any, then predictions under ``column``, then the columns ``beside``.

    In a CSV file an id that a spreadsheet would run gets an apostrophe; `Table.ids` removes it. Predictions are
    personal data, so a new file has mode 0600. An existing file keeps its mode.
    """
    if ids is not None and id_column in (column, *(beside or {})):
        raise UsageError(f"{path}: the id column has the name of the column of {column}s. Rename it in the table.")
    texts = [] if ids is None else [guarded(text) for text in ids] if path.suffix.lower() == ".csv" else list(ids)
    columns: dict[str, Any] = {} if ids is None else {id_column or "id": texts}
    frame = pl.DataFrame({**columns, column: predictions, **(beside or {})}).fill_nan(None)
    if path.suffix.lower() == ".csv":
        data = frame.write_csv().encode()
    else:
        buffer = io.BytesIO()
        frame.write_parquet(buffer)
        data = buffer.getvalue()
    write_whole(path, data, mode=path.stat().st_mode & 0o777 if path.is_file() else 0o600)
