"""The results of a serving agent, and of an agent of one run.

The former are in models/STUDY/RUN/ with a manifest, and a link to the current run of each study. A run's folder appears
atomically, and replaces that of an earlier attempt.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from coreg_core.errors import BadData, Refused, StorageError, UsageError
from coreg_core.protocol.plan import Plan
from coreg_wire.clock import timestamp
from coreg_wire.files.disk import Disk
from coreg_wire.identity.names import check_study_name
from site_agent.data.prepare import Prepared
from site_agent.machine.job import SiteResult
from site_agent.models.batch import Scored
from site_agent.models.file import ModelFile, load_model
from site_agent.models.writer import Models

MANIFEST, CURRENT, MODEL, LOCAL = "manifest.json", "current", "model.coreg", "local.coreg"
UNNAMED = "unnamed"  # the folder for a federation without studies


Note = Callable[[str], None]  # receives a finding about this site's data


@dataclass(frozen=True)
class OneRun:
    """Of an agent of one run: a training writes models, a scoring one table."""

    kind: Literal["training", "scoring"]
    output: Path
    site: str = ""
    local_model: Path | None = None
    model: ModelFile | None = None  # to score with

    @property
    def trains(self) -> bool:
        return self.kind == "training"

    def model_of(self, run: str) -> ModelFile:
        if self.model is None or self.model.run != run:
            given = f"this agent was started for {self.kind}"
            given += "" if self.model is None else f" with a model of run {self.model.run}"
            raise Refused(f"the plan scores with the models of run {run}, but {given}. Use `coreg-agent score`.")
        return self.model

    def put_models(
        self,
        plan: Plan,  # noqa: ARG002
        result: SiteResult,
        prepared: Prepared,
        target: str,
        note: Note,
    ) -> tuple[Path, ...]:
        if self.kind != "training":
            raise Refused(f"this agent was started for {self.kind}. `coreg-agent --data …` trains.")
        return Models(self.site, prepared, target, self.output, self.local_model).write(result, note)

    def put_scores(self, plan: Plan, result: SiteResult, scored: Scored) -> tuple[Path, ...]:  # noqa: ARG002
        if result.scores is None:
            return ()
        many = len(scored.ids) > 1
        beside = {name: self.output.with_name(f"{self.output.stem}-{name}{self.output.suffix}") for name in scored.ids}
        return scored.write(result, beside if many else dict.fromkeys(scored.ids, self.output))


@dataclass(frozen=True)
class ModelStore:
    """Saves and lists results. ``keep`` is the number of latest runs to keep of each study (None: all)."""

    site: str
    folder: Path
    keep: int | None = None
    disk: Disk = field(default_factory=Disk)
    trains = True

    def folder_of(self, plan: Plan) -> Path:
        return self.folder / check_study_name(plan.study or UNNAMED, "study") / check_study_name(plan.run, "run")

    def model_of(self, run: str) -> ModelFile:
        found = sorted(self.folder.glob(f"*/{check_study_name(run, 'run')}/{MODEL}"))
        if not found:
            raise BadData(f"this site has no model of run {run}.")
        return load_model(found[0])

    def put_models(
        self, plan: Plan, result: SiteResult, prepared: Prepared, target: str, note: Note
    ) -> tuple[Path, ...]:
        """Write a run's models, and make a converged run the study's current one."""
        if not result.solutions and result.additive is None:
            return ()

        def write(folder: Path) -> tuple[Path, ...]:
            return Models(self.site, prepared, target, folder / MODEL, folder / LOCAL).write(result, note)

        written = self._put(plan, result, write)
        self._make_current(plan, good=result.outcome.good)
        return written

    def _make_current(self, plan: Plan, *, good: bool) -> None:
        study = self.folder_of(plan).parent
        with _changing(study):
            if good or not (study / CURRENT).exists():
                self.disk.point(study / CURRENT, plan.run)
                self.disk.sync_folder(study)
            for folder in _runs_of(study)[: -self.keep] if self.keep is not None else ():
                if not _is_current(folder):
                    self.disk.remove_tree(folder)

    def put_scores(self, plan: Plan, result: SiteResult, scored: Scored) -> tuple[Path, ...]:
        if result.scores is None:
            return ()
        return self._put(
            plan, result, lambda folder: scored.write(result, {n: folder / f"{n or 'scores'}.csv" for n in scored.ids})
        )

    def _put(self, plan: Plan, result: SiteResult, write: Callable[[Path], tuple[Path, ...]]) -> tuple[Path, ...]:
        place = self.folder_of(plan)
        partial = place.parent / f".{place.name}.partial"
        with _changing(place):
            self.disk.remove_tree(partial)  # an agent was killed while it wrote
            self.disk.make_folder(partial)
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
            "at": timestamp(),
            "findings": list(result.findings),
            "models": [{"file": p.name, "sha256": hashlib.sha256(p.read_bytes()).hexdigest()} for p in written],
        }
        self.disk.write_whole(partial / MANIFEST, json.dumps(manifest, indent=1).encode() + b"\n")
        earlier = place.parent / f".{place.name}.earlier"
        with _changing(place):
            self.disk.remove_tree(earlier)
            if place.exists():  # of an earlier attempt at the run, whose end some site missed
                self.disk.replace(place, earlier)
            self.disk.replace(partial, place)
            self.disk.sync_folder(place.parent)
            self.disk.remove_tree(earlier)
        return tuple(place / path.name for path in written)

    def manifests(self) -> list[dict[str, Any]]:
        """The manifests of all runs, by study and time. ``current`` marks the run of the study's link."""
        studies = sorted(p for p in self.folder.glob("*") if p.is_dir())
        return [
            {**_manifest(folder / MANIFEST), "folder": str(folder), "current": _is_current(folder)}
            for study in studies
            for folder in _runs_of(study)
        ]

    def use(self, study: str, run: str) -> Path:
        """Make a run the study's current one; its folder."""
        folder = self.folder / check_study_name(study, "study")
        named = [path for path in _runs_of(folder) if path.name.startswith(run) and (path / MODEL).exists()]
        if len(named) != 1:
            raise UsageError(
                f"{len(named) or 'no'} models of study {study!r} are of a run {run!r} or one that begins with it. "
                "`coreg-agent models list` shows all runs."
            )
        with _changing(folder):
            self.disk.point(folder / CURRENT, named[0].name)
        return named[0]

    def prune(self, study: str, keep: int) -> list[str]:
        """Remove a study's runs except the last ``keep`` and the current one, and return the names of the removed runs.

        ``keep`` 0 removes all.
        """
        folder = self.folder / check_study_name(study, "study")
        if not folder.is_dir():
            raise UsageError(
                f"{folder}: there are no models of study {study!r}. `coreg-agent models list` lists the studies."
            )
        runs = _runs_of(folder)
        gone = [run for run in runs[: len(runs) - keep] if not (keep and _is_current(run))]
        with _changing(folder):
            for run in gone:
                if _is_current(run):
                    self.disk.remove(folder / CURRENT)
                self.disk.remove_tree(run)
            if keep and not (folder / CURRENT).exists():
                self.disk.point(folder / CURRENT, runs[-1].name)
            if not keep:
                self.disk.remove_tree(folder)
        return [run.name for run in gone]


Results: TypeAlias = ModelStore | OneRun  # a place for results


@contextmanager
def _changing(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"{place}: cannot be changed ({error.strerror}).") from None


def _runs_of(study: Path) -> list[Path]:
    """The folders of a study's runs, oldest first."""
    whole = (p for p in study.glob(f"*/{MANIFEST}") if not (p.parent.is_symlink() or p.parent.name.startswith(".")))
    return [folder for _, folder in sorted((_manifest(path)["at"], path.parent) for path in whole)]


def _manifest(path: Path) -> dict[str, Any]:
    """A manifest, with the values that commands show checked."""
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        texts = [manifest[name] for name in ("study", "run", "at", "stop")]
        texts += [model["file"] for model in manifest["models"]]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("a value is not a text")
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise StorageError(f"{path}: cannot be read ({error}). Move its folder away.") from None
    return manifest


def _is_current(folder: Path) -> bool:
    link = folder.parent / CURRENT
    return link.is_symlink() and str(link.readlink()) == folder.name
