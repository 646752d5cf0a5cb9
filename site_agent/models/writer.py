"""A run's models onto the disk: one file a coupling, the model that the site would have alone, and nothing written
over.

A model of an earlier run that stands in the way is kept under its run's name.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from coreg_core.additive.model.expansion import Expansion
from coreg_core.additive.model.expansion import SiteModel as AdditiveModels
from coreg_core.agreement.views import KernelExpansion, Solution
from coreg_core.errors import BadData, UsageError
from coreg_core.evaluation.losses import estimate
from coreg_core.numerics.arrays import Arr
from coreg_core.protocol.plan import Agreement
from site_agent.data.prepare import Prepared
from site_agent.machine.memory import Judged, SiteResult
from site_agent.models import findings
from site_agent.models.file import Intervals, Joint, SiteModel, load_model, save_model


@dataclass(frozen=True)
class Models:
    """Where this site's models go, and what goes into each."""

    site: str
    prepared: Prepared
    target: str
    output: Path
    local_model: Path | None

    def check(self) -> None:
        """Said before the run, and not after hours of it, when the model would be lost.

        Raises
        ------
        UsageError
            a model cannot be written there, or a file that is no model stands there.
        """
        for path in (self.output, self.local_model):
            check_output(path)

    @property
    def local_path(self) -> Path:
        """Where the model goes that this site trains alone: beside the joined one, unless a path was given."""
        return self.local_model or self.output.with_name(f"{self.output.stem}-local{self.output.suffix}")

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
        said = result.plan.couplings  # as the plan has them: relative ones are not λ
        couplings = result.couplings or said
        short = [f"{coupling:g}" for coupling in said]  # six digits may not tell two of them apart
        labels = short if len(set(short)) == len(set(said)) else [repr(coupling) for coupling in said]
        own = None if result.choice is None else result.choice.chosen
        found = _of_path(result)
        for text in [*findings_of(result, labels), *([] if found is None else findings.recommended(found))]:
            note(text)
        paths = []
        if own is not None:  # what this site's own labels are for
            paths.append(self._agreeing(self.output, result, result.solutions[own], couplings[own], note))
        for coupling, label, solution in zip(couplings, labels, result.solutions, strict=True):
            path = self.output
            if len(couplings) > 1:  # a path of λ: one model for each
                path = path.with_name(f"{path.stem}-coupling-{label}{path.suffix}")
            paths.append(self._agreeing(path, result, solution, coupling, note))
        if result.alone is not None:
            paths.append(self._agreeing(self.local_path, result, result.alone, 0.0, note))
        return tuple(paths)

    def _agreeing(
        self, path: Path, result: SiteResult, solution: Solution, coupling: float, note: Callable[[str], None]
    ) -> Path:
        mean = float(solution.prediction.mean()) * result.divisor + result.shift if len(solution.prediction) else None
        return self._save(
            path, result, solution.function, coupling, note, Kept(mean_on_shared=mean, found=_of_path(result))
        )

    def _write_additive(
        self, result: SiteResult, models: AdditiveModels, note: Callable[[str], None]
    ) -> tuple[Path, ...]:
        for finding in result.findings:
            note(finding)
        kept, judged = Kept(mean_on_shared=0.0, joint=Joint(models.part, models.intercept)), result.judged
        if judged is not None:  # a part is centred over the shared instances, so its mean there is 0
            found = findings.of_training(judged, judged.verdict.labels)
            for text in [*findings.lines(found, self.target), *findings.sentences(found)]:
                note(text)
            kept = replace(kept, found=found, intervals=_intervals(judged))
        paths = [self._save(self.output, result, models.own, None, note, kept)]
        if models.alone is not None:
            paths.append(self._save(self.local_path, result, models.alone, None, note, Kept()))
        return tuple(paths)

    def _save(
        self,
        path: Path,
        result: SiteResult,
        function: KernelExpansion | Expansion,
        coupling: float | None,
        note: Callable[[str], None],
        kept: "Kept",
    ) -> Path:
        assert result.plan is not None
        run = result.plan.run
        try:
            if (aside := set_aside(path, run)) is not None:
                note(f"{path} was the model of an earlier run; it is kept as {aside}")
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
            mean_on_shared=kept.mean_on_shared,
            joint=kept.joint,
            intervals=kept.intervals,
            found=kept.found,
        )
        save_model(path, model)
        return path


@dataclass(frozen=True)
class Kept:
    """What a model file keeps beside the function, for scoring together, for intervals, and for the report."""

    mean_on_shared: float | None = None
    joint: Joint | None = None
    intervals: Intervals | None = None
    found: findings.Found | None = None


def _intervals(judged: Judged) -> Intervals | None:
    """Ratios of errors to stated deviations at rows that folds left out; none without folds."""
    rows = judged.left_out
    if judged.spread is None or rows is None or not len(rows.rows):
        return None
    return Intervals(judged.spread, np.sort(np.abs(rows.labels - rows.own) / rows.deviation))


def _of_path(result: SiteResult) -> findings.Found | None:
    choice = result.choice
    if choice is None or 0.0 not in result.couplings:
        return None
    return findings.of_path(choice, result.couplings, result.divisor)


def findings_of(result: SiteResult, labels: Sequence[str]) -> tuple[str, ...]:
    """What own labels say of a path, in words, in the label column's units; nothing without a choice."""
    choice = result.choice
    if choice is None:
        return ()
    assert result.plan is not None
    relative = isinstance(result.plan.objective, Agreement) and result.plan.objective.relative
    name = "relative coupling" if relative else "coupling"
    errors = [estimate(errors).rmse * result.divisor for errors in choice.left_out]
    told = ", ".join(f"{label}: {error:.4g}" for label, error in zip(labels, errors, strict=True))
    found = [
        f"by own labels, each left out in turn, {name} {labels[choice.chosen]} serves this site best "
        f"(root mean square errors: {told})"
    ]
    if choice.nested is not None:
        alone = choice.left_out[result.couplings.index(0.0)] if 0.0 in result.couplings else None
        beside = "" if alone is None else f", beside {_worded(alone, result.divisor)} alone"
        found.append(
            f"such a choice missed labels that it had not seen by {_worded(choice.nested, result.divisor)}{beside} "
            f"(five folds, {len(choice.nested)} labels)"
        )
    return tuple(found)


def _worded(errors: Arr, divisor: float) -> str:
    found = estimate(errors)
    return f"{found.rmse * divisor:.4g} ± {found.standard_error * divisor:.2g}"


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
