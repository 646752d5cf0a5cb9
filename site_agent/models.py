"""A run's models onto the disk: one file a coupling, the model that the site would have alone, and nothing written over.

Knows files and results; no connection. A model of an earlier run that stands in the way is kept under its run's name.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from coreg_core.additive.model import Expansion
from coreg_core.additive.model import SiteModel as AdditiveModels
from coreg_core.errors import BadData, UsageError
from coreg_core.views import KernelExpansion
from site_agent.data.prepare import Prepared
from site_agent.jobs.remembered import SiteResult
from site_agent.model_file import SiteModel, load_model, save_model


@dataclass(frozen=True)
class Models:
    """Where this site's models go, and what goes into each."""

    site: str
    prepared: Prepared
    target: str
    output: Path
    alone: Path | None

    def check(self) -> None:
        """Said before the run, and not after hours of it, when the model would be lost.

        Raises
        ------
        UsageError
            a model cannot be written there, or a file that is no model stands there.
        """
        for path in (self.output, self.alone):
            check_output(path)

    def write(self, result: SiteResult, note: Callable[[str], None]) -> tuple[Path, ...]:
        """Every model of the run, on the disk when this returns.

        Raises
        ------
        StorageError
            one cannot be written.
        """
        if result.plan is not None and result.additive is not None:
            return self._write_additive(result, result.additive, note)
        if result.plan is None or not result.solutions:
            return ()
        couplings = result.plan.couplings
        short = [f"{coupling:g}" for coupling in couplings]  # six digits may not tell two of them apart
        labels = short if len(set(short)) == len(set(couplings)) else [repr(coupling) for coupling in couplings]
        paths = []
        for coupling, label, solution in zip(couplings, labels, result.solutions, strict=True):
            path = self.output
            if len(couplings) > 1:  # a path of λ: one model for each
                path = path.with_name(f"{path.stem}-coupling-{label}{path.suffix}")
            paths.append(self._save(path, result, solution.function, coupling, note))
        if self.alone is not None and result.alone is not None:
            paths.append(self._save(self.alone, result, result.alone.function, 0.0, note))
        return tuple(paths)

    def _write_additive(
        self, result: SiteResult, models: AdditiveModels, note: Callable[[str], None]
    ) -> tuple[Path, ...]:
        for finding in result.findings:
            note(finding)
        paths = [self._save(self.output, result, models.own, None, note)]
        if self.alone is not None and models.alone is not None:
            paths.append(self._save(self.alone, result, models.alone, None, note))
        return tuple(paths)

    def _save(
        self,
        path: Path,
        result: SiteResult,
        function: KernelExpansion | Expansion,
        coupling: float | None,
        note: Callable[[str], None],
    ) -> Path:
        assert result.plan is not None
        run = result.plan.run
        try:
            if (kept := set_aside(path, run)) is not None:
                note(f"{path} was the model of an earlier run; it is kept as {kept}")
        except BadData:  # a path of couplings goes to names that nobody could look at before the plan came
            elsewhere = free_name(path, run)
            note(f"{path} is no model of coreg, and stays as it is: the model goes to {elsewhere}")
            path = elsewhere
        model = SiteModel(
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
        )
        save_model(path, model)
        return path


def set_aside(path: Path, run: str) -> Path | None:
    """Give a model of another run that stands there its run's name; where it went, or None where nothing had to move."""
    if not path.exists():
        return None
    earlier = load_model(path)
    if earlier.run == run:
        return None  # fetched again: the same model once more
    kept = free_name(path, earlier.run)
    path.rename(kept)
    return kept


def free_name(path: Path, run: str) -> Path:
    """A name beside that path which tells the run and which nobody has."""
    found, number = path.with_name(f"{path.stem}-run-{run}{path.suffix}"), 2
    while found.exists():
        found = path.with_name(f"{path.stem}-run-{run}-{number}{path.suffix}")
        number += 1
    return found


def check_output(path: Path | None) -> None:
    """Whether a model can be written there.

    Raises
    ------
    UsageError
        it cannot; says why.
    """
    if path is None:
        return
    folder = path.resolve().parent
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder for the model.")
    if path.is_dir():
        raise UsageError(f"{path}: a folder; name a file for the model.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{folder}: the model cannot be written there; mend its rights, or choose another --output.")
    if path.exists():
        try:
            load_model(path)
        except BadData as error:
            raise UsageError(f"{error} It would be written over: move it away, or choose another --output.") from None
