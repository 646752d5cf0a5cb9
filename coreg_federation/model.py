"""A site's model file, for pandas and polars frames."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from coreg_core.arrays import Arr
from coreg_core.errors import BadData, UsageError
from site_agent.data.sources import BadTable
from site_agent.data.tables import Table, read_table
from site_agent.models import explain
from site_agent.models.file import ModelFile
from site_agent.models.file import load_model as _load


@dataclass(frozen=True)
class Model:
    """A model that a site trained with others, or alone. `load_model` reads it.

    Parameters
    ----------
    site, run
        the site that owns it, and the run that trained it.
    columns
        the features that a frame must have.
    target
        the name of the column that it predicts.
    """

    site: str
    run: str
    columns: tuple[str, ...]
    target: str
    _model: ModelFile = field(repr=False)  # it holds rows of the site

    def predict(self, frame: Any) -> Arr:
        """Predict f(x) for each row, in the units of the target, or the probability of a yes/no
        target, (n,).

        A `UserWarning` tells of texts and of missing cells that training never had, and of values
        outside its range.

        Parameters
        ----------
        frame
            pandas or polars, with the columns of the model; others are ignored. A missing value is
            null, NaN, None, or a text that meant a missing value in training.

        Raises
        ------
        BadData
            not a frame, a column is missing, or a cell cannot be read as the model reads it.
        """
        with _in_terms_of_frames():
            return self._model.predict(self._looked_at(frame))

    def interval(self, frame: Any, level: float = 0.9) -> tuple[Arr, Arr]:
        """Low and high ends, (n,) each, of an interval that covers a share ``level`` of new labels
        (additive objective).

        Raises
        ------
        BadData
            as `predict`; or the model has no values for intervals.
        UsageError
            the level is not between 0 and 1, or the target is yes/no.
        """
        with _in_terms_of_frames():
            return self._model.interval(self._looked_at(frame), level)

    @property
    def coefficients(self) -> pl.DataFrame:
        """The score's slopes in own columns, with all other columns fixed: ``column``,
        ``coefficient``, ``se``, and ``p`` (two-sided, normal).

        Raises
        ------
        UsageError
            not the joined model of a linear training (kernel = "linear").
        """
        findings = self._model.findings
        if findings is None or not findings.coefficients:
            raise UsageError(
                'coefficients are of the joined model of a linear training (kernel = "linear").'
            )
        numbers = dict.fromkeys(("coefficient", "se", "p"), pl.Float64)
        return pl.DataFrame(findings.coefficients, {"column": pl.String, **numbers})

    def contributions(self, frame: Any) -> pl.DataFrame:
        """Of each column to each prediction of a linear joined model: its exact Shapley value, in
        the target's units (n rows).

        Their sum is `predict` less a constant. They differ from ``coefficients`` times the column,
        because the joined model also predicts the other sites' columns from this site's.

        Raises
        ------
        BadData
            as `predict`.
        UsageError
            the model is not linear.
        """
        with _in_terms_of_frames():
            return pl.DataFrame(explain.contributions(self._model, self._looked_at(frame)))

    def _looked_at(self, frame: Any) -> Table:
        known = self._model.preprocessing
        table = read_table(frame, na_values=known.na_values)
        known.transform(table)  # names the faults of all columns
        for note in known.moved(table):
            warnings.warn(note, UserWarning, stacklevel=3)
        return table


def load_model(path: str | Path) -> Model:
    """Read a model file.

    Raises
    ------
    BadData
        (a ValueError) not a model of coreg, or damaged.
    StorageError
        the file is missing or cannot be read.
    """
    model = _load(Path(path))
    return Model(model.site, model.run, tuple(model.preprocessing.sources), model.target, model)


@contextmanager
def _in_terms_of_frames() -> Iterator[None]:
    """Faults of a table without the advice for a training."""
    try:
        yield
    except BadTable as error:
        raise BadData(str(error.advised(lambda _todo: ""))) from None
