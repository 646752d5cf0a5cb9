"""Where an agent that serves keeps its models: models/STUDY/RUN/, each with a manifest, and a link to the one in use.

A run's folder appears at one instant, whole, and nothing is ever written over.
"""

import datetime as dt
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coreg_core.errors import StorageError, UsageError
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan
from coreg_wire.files.files import write_whole
from coreg_wire.identity.names import check_study_name
from site_agent.data.prepare import Prepared
from site_agent.machine.memory import SiteResult
from site_agent.models.writer import Models

MANIFEST, CURRENT, MODEL, ALONE = "manifest.json", "current", "model.coreg", "alone.coreg"
UNNAMED = "unnamed"  # where the runs of a federation without studies go


@dataclass(frozen=True)
class Archive:
    """See the module's docstring. ``keep``: of each study the last so many runs; all of them without it."""

    site: str
    folder: Path
    keep: int | None = None

    def folder_of(self, plan: Plan) -> Path:
        """Where a run's models go.

        Raises
        ------
        UsageError
            study or run have a name that is none for a folder.
        """
        return self.folder / check_study_name(plan.study or UNNAMED, "study") / check_study_name(plan.run, "run")

    def has(self, plan: Plan) -> bool:
        """Whether every model of the run is there."""
        folder = self.folder_of(plan)
        try:
            manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
            return all((folder / model["file"]).is_file() for model in manifest["models"])
        except (OSError, ValueError, LookupError, TypeError):
            return False

    def put(
        self, plan: Plan, result: SiteResult, prepared: Prepared, target: str, note: Callable[[str], None]
    ) -> tuple[Path, ...]:
        """A run's models onto the disk, and the link to them where they are the ones to use: the last that converged.

        Raises
        ------
        StorageError
            they cannot be written.
        """
        place = self.folder_of(plan)
        if not result.solutions and result.additive is None:
            return ()
        partial = place.parent / f".{place.name}.partial"
        try:
            shutil.rmtree(partial, ignore_errors=True)  # of an agent that was killed here
            partial.mkdir(parents=True, mode=0o700)
            if place.exists():  # a model of it was lost, and it was fetched again
                place.rename(_free(place))
        except OSError as error:
            raise StorageError(f"{place}: cannot be made ({error.strerror}).") from None
        models = Models(self.site, prepared, target, partial / MODEL, partial / ALONE)
        written = models.write(result, note)
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
        write_whole(partial / MANIFEST, json.dumps(manifest, indent=1).encode() + b"\n", mode=0o600)
        try:
            partial.rename(place)
            if result.outcome is Outcome.CONVERGED or not (place.parent / CURRENT).exists():
                _point(place.parent / CURRENT, place.name)
            _sync(place.parent)
            self._forget_old(place.parent)
        except OSError as error:
            raise StorageError(f"{place}: cannot be put in its place ({error.strerror}).") from None
        return tuple(place / path.name for path in written)

    def _forget_old(self, study: Path) -> None:
        if self.keep is not None:
            for folder in _runs_of(study)[: -self.keep]:
                if not _is_current(folder):
                    shutil.rmtree(folder)

    def manifests(self) -> list[dict[str, Any]]:
        """Every run that has models here, by study and time; ``current`` is the one that the study's link names."""
        found = []
        for study in sorted(p for p in self.folder.glob("*") if p.is_dir()):
            for folder in _runs_of(study):
                manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
                found.append({**manifest, "folder": str(folder), "current": _is_current(folder)})
        return found

    def forget(self, study: str, keep: int) -> list[str]:
        """Remove a study's models but the last ``keep``; the runs that went.

        Raises
        ------
        UsageError
            there is no such study here.
        """
        folder = self.folder / check_study_name(study, "study")
        if not folder.is_dir():
            raise UsageError(f"{folder}: no models of a study {study!r} are here; `coreg-agent models` lists them.")
        runs = _runs_of(folder)
        gone = runs[: len(runs) - keep]
        try:
            for run in gone:
                if _is_current(run):
                    (folder / CURRENT).unlink()
                shutil.rmtree(run)
            if keep and runs[-keep:] and not (folder / CURRENT).exists():
                _point(folder / CURRENT, runs[-1].name)
            if not keep:
                shutil.rmtree(folder)
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


def _point(link: Path, name: str) -> None:
    """Move the link at one instant."""
    beside = link.with_name(f".{link.name}.new")
    beside.unlink(missing_ok=True)
    beside.symlink_to(name)
    beside.replace(link)


def _free(place: Path) -> Path:
    number = 1
    while (found := place.with_name(f"{place.name}.old-{number}")).exists():
        number += 1
    return found


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
