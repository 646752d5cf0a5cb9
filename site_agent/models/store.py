"""Where a serving agent keeps its results: models/STUDY/RUN/, each with a manifest, and a link to the model in use.

A run's folder appears at one instant, complete, and nothing is ever written over.
"""

import datetime as dt
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coreg_core.errors import BadData, StorageError, UsageError
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan
from coreg_wire.files.disk import Disk
from coreg_wire.identity.names import check_study_name
from site_agent.data.prepare import Prepared
from site_agent.machine.memory import SiteResult
from site_agent.models.batch import Scored
from site_agent.models.file import SiteModel, load_model
from site_agent.models.writer import Models

MANIFEST, CURRENT, MODEL, LOCAL = "manifest.json", "current", "model.coreg", "local.coreg"
UNNAMED = "unnamed"  # where the runs of a federation without studies go


@dataclass(frozen=True)
class ModelStore:
    """See the module's docstring. ``keep``: of each study the last so many runs; None: all."""

    site: str
    folder: Path
    keep: int | None = None
    disk: Disk = field(default_factory=Disk)

    def folder_of(self, plan: Plan) -> Path:
        """Where a run's results go.

        Raises
        ------
        UsageError
            study or run have a name that is none for a folder.
        """
        return self.folder / check_study_name(plan.study or UNNAMED, "study") / check_study_name(plan.run, "run")

    def has(self, plan: Plan) -> bool:
        """Whether every file of the run is there."""
        folder = self.folder_of(plan)
        try:
            manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
            return all((folder / model["file"]).is_file() for model in manifest["models"])
        except (OSError, ValueError, LookupError, TypeError):
            return False

    def model_of(self, run: str) -> SiteModel:
        """The model that a run trained, for scoring.

        Raises
        ------
        BadData
            this site has none.
        """
        found = sorted(self.folder.glob(f"*/{check_study_name(run, 'run')}/{MODEL}"))
        if not found:
            raise BadData(f"this site has no model of run {run}.")
        return load_model(found[0])

    def put_models(
        self, plan: Plan, result: SiteResult, prepared: Prepared, target: str, note: Callable[[str], None]
    ) -> tuple[Path, ...]:
        """Write a run's models, and the link to them if they are the ones to use: the last that converged.

        Raises
        ------
        StorageError
            they cannot be written.
        """
        if not result.solutions and result.additive is None:
            return ()

        def write(folder: Path) -> tuple[Path, ...]:
            return Models(self.site, prepared, target, folder / MODEL, folder / LOCAL).write(result, note)

        written, study = self._put(plan, result, write), self.folder_of(plan).parent
        try:
            if result.outcome is Outcome.CONVERGED or not (study / CURRENT).exists():
                self.disk.point(study / CURRENT, plan.run)
                self.disk.sync_folder(study)
            self._forget_old(study)
        except OSError as error:
            raise StorageError(f"{study}: cannot be changed ({error.strerror}).") from None
        return written

    def put_scores(self, plan: Plan, result: SiteResult, scored: Scored) -> tuple[Path, ...]:
        """Write the scores of a run, one file per data set, if this site may have them.

        Raises
        ------
        StorageError
            they cannot be written.
        """
        scores = result.scores
        if scores is None:
            return ()
        return self._put(
            plan, result, lambda folder: scored.write(scores, {n: folder / f"{n or 'scores'}.csv" for n in scored.ids})
        )

    def _put(self, plan: Plan, result: SiteResult, write: Callable[[Path], tuple[Path, ...]]) -> tuple[Path, ...]:
        place = self.folder_of(plan)
        partial = place.parent / f".{place.name}.partial"
        try:
            self.disk.remove_tree(partial)  # of an agent that was killed here
            self.disk.make_folder(partial)
            if place.exists():  # a file of it was lost, and the run was fetched again
                self.disk.replace(place, _free(place))
        except OSError as error:
            raise StorageError(f"{place}: cannot be made ({error.strerror}).") from None
        written = write(partial)
        manifest = {
            "run": plan.run,
            "study": plan.study,
            "data": plan.data,
            "federation": plan.federation,
            "site": self.site,
            "plan": plan.digest,
            "stop": result.outcome.name,
            "reason": result.reason,
            "at": dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds"),
            "findings": list(result.findings),
            "models": [{"file": p.name, "sha256": hashlib.sha256(p.read_bytes()).hexdigest()} for p in written],
        }
        self.disk.write_whole(partial / MANIFEST, json.dumps(manifest, indent=1).encode() + b"\n")
        try:
            self.disk.replace(partial, place)
            self.disk.sync_folder(place.parent)
        except OSError as error:
            raise StorageError(f"{place}: cannot be put in its place ({error.strerror}).") from None
        return tuple(place / path.name for path in written)

    def _forget_old(self, study: Path) -> None:
        if self.keep is not None:
            for folder in _runs_of(study)[: -self.keep]:
                if not _is_current(folder):
                    self.disk.remove_tree(folder)

    def manifests(self) -> list[dict[str, Any]]:
        """Every run that has models here, by study and time; ``current`` is the one that the study's link names."""
        found = []
        for study in sorted(p for p in self.folder.glob("*") if p.is_dir()):
            for folder in _runs_of(study):
                manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
                found.append({**manifest, "folder": str(folder), "current": _is_current(folder)})
        return found

    def prune(self, study: str, keep: int) -> list[str]:
        """Remove a study's models but the last ``keep``; the runs that went.

        Raises
        ------
        UsageError
            there is no such study here.
        """
        folder = self.folder / check_study_name(study, "study")
        if not folder.is_dir():
            raise UsageError(
                f"{folder}: no models of a study {study!r} are here; `coreg-agent models list` lists them."
            )
        runs = _runs_of(folder)
        gone = runs[: len(runs) - keep]
        try:
            for run in gone:
                if _is_current(run):
                    self.disk.remove(folder / CURRENT)
                self.disk.remove_tree(run)
            if keep and runs[-keep:] and not (folder / CURRENT).exists():
                self.disk.point(folder / CURRENT, runs[-1].name)
            if not keep:
                self.disk.remove_tree(folder)
        except OSError as error:
            raise StorageError(f"{folder}: cannot be removed ({error.strerror}).") from None
        return [run.name for run in gone]


def _runs_of(study: Path) -> list[Path]:
    """The folders of a study's runs, the oldest first."""
    found = []
    for manifest in study.glob(f"*/{MANIFEST}"):
        if not manifest.parent.is_symlink() and not manifest.parent.name.startswith("."):
            try:
                at = json.loads(manifest.read_text(encoding="utf-8"))["at"]
            except (OSError, ValueError, LookupError, TypeError) as error:
                raise StorageError(f"{manifest}: cannot be read ({error}). Move its folder away.") from None
            found.append((at, manifest.parent))
    return [folder for _, folder in sorted(found)]


def _is_current(folder: Path) -> bool:
    link = folder.parent / CURRENT
    return link.is_symlink() and str(link.readlink()) == folder.name


def _free(place: Path) -> Path:
    number = 1
    while (found := place.with_name(f"{place.name}.old-{number}")).exists():
        number += 1
    return found
