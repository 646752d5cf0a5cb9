"""Write a run's models: one file for each coupling, and the site's local model. No file is overwritten.

If a model of an earlier run has the same file name, it is renamed with the name of its run.
"""

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coreg_core.additive.site_model import SiteModel
from coreg_core.agreement.views import Solution
from coreg_core.errors import BadData, StorageError, UsageError
from coreg_core.evaluation import estimate
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
        """Write all models of the run, and return their files.

        Raises
        ------
        StorageError
            a model cannot be written.
        """
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
        paths = []
        if own is not None:  # the choice of this site's own labels
            paths.append(self._agreeing(self.output, result, result.solutions[own], couplings[own], note))
        for coupling, label, solution in zip(couplings, labels, result.solutions, strict=True):
            path = self.output
            if len(couplings) > 1:  # a path of λ has one model for each λ
                path = path.with_name(f"{path.stem}-coupling-{label}{path.suffix}")
            paths.append(self._agreeing(path, result, solution, coupling, note))
        if result.alone is not None:
            paths.append(self._agreeing(self.local_path, result, result.alone, 0.0, note))
        return tuple(paths)

    def _agreeing(
        self, path: Path, result: SiteResult, solution: Solution, coupling: float, note: Callable[[str], None]
    ) -> Path:
        return self._save(path, result, solution.function, note, coupling=coupling, found=_of_path(result))

    def _write_additive(self, result: SiteResult, model: SiteModel, note: Callable[[str], None]) -> tuple[Path, ...]:
        for finding in result.findings:
            note(finding)
        found = None
        if result.judged is not None:
            found = findings.of_training(result.judged, classes=bool(result.probabilities))
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
    """A free file name beside that path, with the name of the run."""
    found, number = path.with_name(f"{path.stem}-run-{run}{path.suffix}"), 2
    while found.exists():
        found = path.with_name(f"{path.stem}-run-{run}-{number}{path.suffix}")
        number += 1
    return found


def check_output(path: Path | None, read: Callable[[Path], object] = load_model, what: str = "model") -> None:
    """Check that a model can be written to this path, or something else that ``read`` reads; a file of the kind is replaced.

    Raises
    ------
    UsageError
        a model cannot be written.
    """
    if path is None:
        return
    folder = path.resolve().parent
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder for the {what}. Create it, or choose another --output.")
    if path.is_dir():
        raise UsageError(f"{path}: this is a folder. Name a file for the {what}.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(
            f"{folder}: no permission to write the {what}. Change the permissions, or choose another --output."
        )
    try:  # a full disk, and a folder that only looks writable
        with tempfile.TemporaryFile(dir=folder) as trial:
            trial.write(bytes(_TRIAL))
            trial.flush()
    except OSError as error:
        raise UsageError(
            f"{folder}: the {what} cannot be written there ({error.strerror}). Free some space, or choose another --output."
        ) from None
    if path.exists():
        try:
            read(path)
        except BadData as error:
            raise UsageError(
                f"{error} The {what} would overwrite it. Move it away, or choose another --output."
            ) from None
