"""Write a run's models: one file for each coupling, and the site's local model. And tables of predictions.

No model is overwritten. If a model of an earlier run has the same file name, it is renamed with the name of its run.
"""

import io
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from coreg_core.additive.site_model import SiteModel
from coreg_core.errors import BadData, StorageError, UsageError
from coreg_core.evaluation import estimate
from coreg_core.numerics.arrays import Arr
from coreg_wire.files.disk import write_whole
from site_agent.data.notation import guarded
from site_agent.data.prepare import Prepared
from site_agent.machine.job import SiteResult
from site_agent.models import findings
from site_agent.models.file import Function, ModelFile, load_model, save_model

_TRIAL = 65_536  # bytes that `check_output` writes, to find a full disk before the run


@dataclass(frozen=True)
class Models:
    """Writes this site's models."""

    site: str
    prepared: Prepared
    target: str
    output: Path
    local_model: Path | None

    @property
    def local_path(self) -> Path:
        """The file of the local model: beside the joined model, unless the operator gave a path."""
        return self.local_model or self.output.with_name(f"{self.output.stem}-local{self.output.suffix}")

    def write(self, result: SiteResult, note: Callable[[str], None]) -> tuple[Path, ...]:
        try:
            return self._write(result, note)
        except StorageError as error:
            raise StorageError(
                f"{error} The model is not lost: start the agent again, with another --output if needed. The coordinator sends "
                "the end of the run again while it serves."
            ) from None

    def _write(self, result: SiteResult, note: Callable[[str], None]) -> tuple[Path, ...]:
        if result.plan is not None and result.additive is not None:
            return self._write_additive(result, result.additive, note)
        if result.plan is None or not result.solutions:
            return ()
        couplings = result.plan.couplings
        short = [f"{coupling:g}" for coupling in couplings]  # two couplings can have the same six digits
        labels = short if len(set(short)) == len(set(couplings)) else [repr(coupling) for coupling in couplings]
        own = None if result.choice is None else result.choice.chosen
        found = _of_path(result)
        for text in [*_choice(result, labels), *([] if found is None else findings.told(found, self.target))]:
            note(text)
        # The choice of this site's own labels, every member of the path, and the local model.
        path = self.output
        chosen = [] if own is None else [(path, result.solutions[own], couplings[own])]
        many = len(couplings) > 1  # a path of λ has one model for each λ
        each = [path.with_name(f"{path.stem}-coupling-{label}{path.suffix}") if many else path for label in labels]
        alone = [] if result.alone is None else [(self.local_path, result.alone, 0.0)]
        return tuple(
            self._save(path, result, solution.function, note, coupling=coupling, found=found)
            for path, solution, coupling in (*chosen, *zip(each, result.solutions, couplings, strict=True), *alone)
        )

    def _write_additive(self, result: SiteResult, model: SiteModel, note: Callable[[str], None]) -> tuple[Path, ...]:
        for finding in result.findings:
            note(finding)
        found = None
        if result.judged is not None:
            found = findings.of_training(result.judged, classes=bool(result.probabilities))
            found |= findings.of_linear(model, self.prepared.preprocessing)
            for text in findings.told(found, self.target):
                note(text)
        joined, score, local = result.probabilities or (None, None, None)
        kept: dict[str, Any] = {"found": found, "probability": joined, "score_probability": score}
        paths = [self._save(self.output, result, model, note, **kept)]
        if model.local is not None:
            paths.append(self._save(self.local_path, result, model.local, note, probability=local))
        return tuple(paths)

    def _save(
        self,
        path: Path,
        result: SiteResult,
        function: Function,
        note: Callable[[str], None],
        *,
        coupling: float | None = None,
        **kept: Any,
    ) -> Path:
        assert result.plan is not None
        run = result.plan.run
        try:
            if (aside := set_aside(path, run)) is not None:
                note(f"{path} was the model of an earlier run. It is now {aside}")
        except BadData:  # the names of a path of couplings were not known before the plan came
            elsewhere = free_name(path, run)
            note(f"{path} is not a model of coreg and is not changed. The model is saved as {elsewhere}")
            path = elsewhere
        model = ModelFile(
            function=function,
            preprocessing=self.prepared.preprocessing,
            target=self.target,
            shift=result.shift,
            divisor=result.divisor,
            site=self.site,
            run=run,
            stop=result.outcome.name,
            coupling=coupling,
            plan=result.plan.to_dict(),
            positive=self.prepared.data.positive,
            name=result.name,
            sites=result.sites,
            **kept,
        )
        save_model(path, model)
        return path


def _of_path(result: SiteResult) -> findings.Found | None:
    choice = result.choice
    if choice is None or 0.0 not in result.couplings:
        return None
    return findings.of_path(choice, result.couplings, result.divisor)


def _choice(result: SiteResult, labels: Sequence[str]) -> list[str]:
    """The left-out error of each coupling of a path, in the target's units; empty without a choice."""
    if (choice := result.choice) is None:
        return []
    errors = [estimate(errors).rmse * result.divisor for errors in choice.left_out]
    listed = ", ".join(f"{label}: {error:.4g}" for label, error in zip(labels, errors, strict=True))
    return [
        f"coupling {labels[choice.chosen]} has the least error on this site's own labels, each left out in turn "
        f"(root mean square errors: {listed})"
    ]


def set_aside(path: Path, run: str) -> Path | None:
    """Rename a model of another run at this path, and return its new path (None: there was nothing to rename)."""
    if not path.exists():
        return None
    earlier = load_model(path)
    if earlier.run == run:
        return None  # of an earlier attempt
    kept = free_name(path, earlier.run)
    path.rename(kept)
    return kept


def free_name(path: Path, run: str) -> Path:
    found, number = path.with_name(f"{path.stem}-run-{run}{path.suffix}"), 2
    while found.exists():
        found = path.with_name(f"{path.stem}-run-{run}-{number}{path.suffix}")
        number += 1
    return found


def check_output(path: Path | None) -> None:
    """Check before a run that a model can be written to this path; a model there is replaced."""
    if path is None:
        return
    folder = path.resolve().parent
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder for the model. Create it, or choose another --output.")
    if path.is_dir():
        raise UsageError(f"{path}: this is a folder. Name a file for the model.")
    try:  # no permission, a full disk, and a folder that only looks writable
        with tempfile.TemporaryFile(dir=folder) as trial:
            trial.write(bytes(_TRIAL))
            trial.flush()
    except OSError as error:
        raise UsageError(
            f"{folder}: the model cannot be written there ({error.strerror}). Free some space, change the permissions, or choose "
            "another --output."
        ) from None
    if path.exists():
        try:
            load_model(path)
        except BadData as error:
            raise UsageError(
                f"{error} The model would overwrite it. Move it away, or choose another --output."
            ) from None


# --- tables of predictions --------------------------------------------------------------------------------------------

TABLES = (".csv", ".parquet", ".pq")


def check_predictions(
    path: Path, id_column: str | None = None, column: str = "prediction", read: Sequence[Path] = ()
) -> None:
    """Check before the work that predictions can be written, and that the file is none of those that are ``read``."""
    if path.exists() and any(each.exists() and path.samefile(each) for each in read):
        raise UsageError(f"{path} is read by this command, and would be overwritten. Give another --output.")
    if not path.resolve().parent.is_dir():
        raise StorageError(f"{path.resolve().parent}: no such folder. Make it, or give another --output.")
    if path.suffix.lower() not in TABLES:
        raise UsageError(f"{path}: predictions are written as .csv or .parquet. Give --output such a name.")
    if id_column == column:
        raise UsageError(f"{path}: the id column has the name of the column of {column}s. Rename it in the table.")


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
