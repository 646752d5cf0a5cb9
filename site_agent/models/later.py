"""A study's new model beside the model in use, on labelled rows that came after that one.

The model in use never saw these rows. The new model did, so its errors there are of rows left out in turn.
"""

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coreg_core.errors import CoregError
from coreg_core.evaluation.losses import Paired, paired
from coreg_core.numerics.arrays import Arr
from site_agent.data.prepare import Prepared
from site_agent.machine.memory import SiteResult
from site_agent.models.file import load_model

ROWS = "rows.txt"  # names of the labelled rows that a run's model was trained on
LEAST = 20  # later rows; with fewer a difference is chance


@dataclass(frozen=True)
class Later:
    """``than``: the run of the model in use; ``beside``: the new model's errors paired with that one's."""

    than: str
    beside: Paired

    @property
    def worse(self) -> bool:
        """By more than one standard error of the paired difference."""
        return self.beside.difference > self.beside.standard_error

    @property
    def text(self) -> str:
        """For the operator."""
        change = f"{100 * abs(self.beside.change):.1f} % {'larger' if self.beside.change > 0.0 else 'smaller'}"
        rows = f"on {self.beside.rows} rows that came after run {self.than}"
        said = f"{rows}, the new model's error is {change} than that of run {self.than}"
        if not self.worse:
            return said
        return (
            f"{said}, by more than one standard error. So run {self.than} stays the current one. To use the new model: "
            "`coreg-agent models use STUDY RUN`"
        )

    def to_json(self) -> dict[str, Any]:
        """For the manifest."""
        return {"than": self.than, **asdict(self.beside), "worse": self.worse}


def rows_text(prepared: Prepared) -> str:
    """The content of `ROWS`."""
    return "".join(f"{name}\n" for name in _names(prepared))


def compare(model: Path, result: SiteResult, prepared: Prepared) -> Later | None:
    """The new models of a run beside ``model``, in use so far; None without a comparison.

    There is none without an earlier model, with fewer than `LEAST` later rows, if most of the earlier rows are missing (other
    ids, or another table), or if the earlier model needs a column that the table no longer has. Nor is there one for an
    agreement without left-out errors of its choice.
    """
    data = prepared.data
    errors = _left_out(result, data.y)
    if errors is None:
        return None
    try:
        known = set((model.parent / ROWS).read_text(encoding="utf-8").split())
        earlier = load_model(model)
        names = _names(prepared)
        rows = np.array([i for i, name in enumerate(names) if name not in known], dtype=np.int64)
        if len(rows) < LEAST or 2 * len(known.intersection(names)) < len(known):
            return None
        missed = data.y[rows] - earlier.predict(prepared.table.labelled.rows(rows))
    except (OSError, ValueError, CoregError):
        return None
    return Later(earlier.run, paired(errors[rows], missed))


def removed(model: Path, prepared: Prepared) -> str | None:
    """A warning if more than a tenth of the labelled rows of ``model`` are not in the table any more; else None."""
    try:
        known = set((model.parent / ROWS).read_text(encoding="utf-8").split())
        run = load_model(model).run
    except (OSError, ValueError, CoregError):
        return None
    if (gone := len(known.difference(_names(prepared)))) <= len(known) / 10:
        return None
    return (
        f"{gone} of the {len(known)} labelled rows of run {run} are not in the table any more. If this is a mistake, restore the "
        "table, and take the earlier model meanwhile: `coreg-agent models use STUDY RUN`"
    )


def _names(prepared: Prepared) -> list[str]:
    """A name for each labelled row: its id under the site's secret. A corrected label keeps the name."""
    salt = prepared.data.salt
    return [hashlib.sha256(salt + b"row " + text.encode()).hexdigest()[:24] for text in prepared.table.labelled_ids]


def _left_out(result: SiteResult, y: Arr) -> Arr | None:
    """The errors of the run's own model at each labelled row, left out in turn."""
    if result.additive is not None:
        predicted = result.additive.left_out[0]
        if len(predicted) and result.probabilities:
            predicted = result.probabilities[0].of(predicted)
        return y - predicted if len(predicted) == len(y) else None
    if result.choice is None or result.choice.nested is None:
        return None
    errors: Arr = result.choice.nested * result.divisor
    return errors if len(errors) == len(y) else None
