"""The results of a site's runs: models and scores in models/STUDY/RUN/, with a manifest.

A run's folder appears atomically, and replaces that of an earlier attempt.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path

import numpy as np

from coreg_core.arrays import Arr
from coreg_core.errors import BadData, StorageError
from coreg_core.evaluation import estimate
from coreg_core.names import check_name
from coreg_core.outcomes import Outcome
from coreg_core.plan import Plan
from coreg_wire.clock import timestamp
from coreg_wire.files.disk import Disk
from site_agent.data.prepare import Prepared
from site_agent.machine.results import AdditiveResult, AgreementResult, Result
from site_agent.models import report
from site_agent.models.batch import write_joint_scores
from site_agent.models.explain import own_columns
from site_agent.models.figures import Values
from site_agent.models.file import ModelFile, load_model, save_model
from site_agent.models.findings import Findings, of
from site_agent.models.stability import training_shares
from site_agent.site_data import PrivateData

MANIFEST = "manifest.json"
MODEL = "model.coreg"
LOCAL = "local.coreg"
UNNAMED = "unnamed"  # the folder for a federation without studies
_TRIAL = 65_536  # bytes that `check` writes, to find a full disk before the run

Note = Callable[[str], None]  # receives a finding about this site's data


@dataclass(frozen=True)
class RunFacts:
    """What the models and the report of a run contain beside its result."""

    target: str
    id_column: str
    words_compared: bool = True  # whether the operators compared the eight words
    training: str = ""  # which one it was with these labels


@dataclass(frozen=True)
class ModelStore:
    """Saves and lists results."""

    site: str
    folder: Path
    disk: Disk = field(default_factory=Disk)

    def check(self) -> int:
        """Check before a run that models can be written, and return the free bytes of the disk."""
        whole = self.folder.resolve()
        there = next(path for path in (whole, *whole.parents) if path.exists())
        try:  # no permission, a full disk, and a folder that only looks writable
            with tempfile.TemporaryFile(dir=there) as trial:
                trial.write(bytes(_TRIAL))
                trial.flush()
        except OSError as error:
            raise StorageError(
                f"{self.folder}: models cannot be written there ({error.strerror}). Free some"
                " space, or change the permissions."
            ) from None
        return shutil.disk_usage(there).free

    def folder_of(self, plan: Plan) -> Path:
        return (
            self.folder / check_name(plan.study or UNNAMED, "study") / check_name(plan.run, "run")
        )

    # --- reading ----------------------------------------------------------------------------------

    def model_of(self, run: str) -> ModelFile:
        files = sorted(self.folder.glob(f"*/{check_name(run, 'run')}/{MODEL}"))
        if not files:
            raise BadData(f"this site has no model of run {run}.")
        return load_model(files[0])

    def newest(self) -> Path:
        """The folder of the newest run that left a model; of one that ended well, if there is
        one.
        """
        runs = []
        for manifest in self.manifests():
            folder = Path(manifest["folder"])
            if (folder / MODEL).exists():
                well = manifest["stop"] == Outcome.CONVERGED.name
                runs.append((well, manifest["at"], folder))
        if not runs:
            todo = "A run writes one. Go to the site's folder, or name a file with --model."
            raise StorageError(f"{self.folder.absolute()}: there is no model yet. {todo}")
        return max(runs, key=itemgetter(0, 1))[2]

    def local_and_joined(self) -> list[Path]:
        """The models of the newest run, if they exist."""
        newest = self.newest()
        return [path for path in (newest / LOCAL, newest / MODEL) if path.exists()]

    def recommended(self) -> Path:
        """The model of the newest run that its report advises for predictions alone."""
        folder = self.newest()
        findings = load_model(folder / MODEL).findings or Findings()
        local = folder / LOCAL
        if findings.alone == "local" and local.exists():
            return local
        return folder / MODEL

    def manifests(self) -> list[Values]:
        """The manifests of all runs, by study and time."""
        folders = list[Path]()
        for study in sorted(self.folder.glob("*/")):
            folders += _runs_of(study)
        return [{**_manifest(folder / MANIFEST), "folder": str(folder)} for folder in folders]

    # --- writing ----------------------------------------------------------------------------------

    def put_models(
        self,
        plan: Plan,
        result: Result,
        prepared: Prepared,
        facts: RunFacts,
        note: Note,
    ) -> tuple[Path, ...]:
        """Write a run's models."""
        functions = _functions(plan, result)
        if not functions:
            return ()
        scores = None
        if isinstance(result, AdditiveResult):
            scores = result.scores
        data = prepared.data
        about: Values = {
            "preprocessing": prepared.preprocessing,
            "target": facts.target,
            "site": self.site,
            "run": plan.run,
            "stop": result.outcome.name,
            "plan": plan.to_dict(),
            "positive": data.positive,
            "negative": data.negative,
            "classes": data.classes,
            "name": result.name,
            "sites": result.sites,
        }
        models = {name: ModelFile(**about, **own) for name, own in functions.items()}
        findings = of(result, prepared.preprocessing)
        sentences = [*result.findings, *_choice(plan, result)]
        if findings is not None:
            findings = replace(
                findings,
                words_compared=None if facts.words_compared else False,
                training=facts.training or None,
                of_two=len(result.sites) == 2 or None,
                scored=None if scores is None else len(scores.places),
                **own_columns(models[MODEL], data.X, data.y),
            )
            sentences += report.sentences(findings, facts.target)
        for text in sentences:
            note(text)
        rows = _training_rows(data)

        def write(folder: Path) -> tuple[Path, ...]:
            for name, model in models.items():
                counted = replace(model, shares=training_shares(model, rows))
                if name != LOCAL:
                    counted = replace(counted, findings=findings)
                save_model(folder / name, counted)
            files = tuple(folder / name for name in models)
            if scores is None:
                return files
            ids = prepared.table.written_ids
            joined = models[MODEL]
            table = write_joint_scores(folder, scores, ids, facts.id_column, joined)
            return (*files, table)

        return self.save(plan, result, write)

    def save(
        self, plan: Plan, result: Result, write: Callable[[Path], tuple[Path, ...]]
    ) -> tuple[Path, ...]:
        """Make the run's folder of the files that ``write`` writes, at once."""
        place = self.folder_of(plan)
        partial = place.parent / f".{place.name}.partial"
        with _changing(place):
            self.disk.remove_tree(partial)  # an agent was killed while it wrote
            self.disk.make_folder(partial)
        written = write(partial)
        digests = [
            {"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
            for path in written
        ]
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
            "models": digests,
        }
        text = json.dumps(manifest, indent=1) + "\n"
        self.disk.write_whole(partial / MANIFEST, text.encode())
        earlier = place.parent / f".{place.name}.earlier"
        with _changing(place):
            self.disk.remove_tree(earlier)
            if place.exists():  # of an earlier attempt at the run, whose end some site missed
                self.disk.replace(place, earlier)
            self.disk.replace(partial, place)
            self.disk.sync_folder(place.parent)
            self.disk.remove_tree(earlier)
        return tuple(place / path.name for path in written)


@contextmanager
def _changing(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{place}: cannot be changed ({error.strerror}). A result is not lost: start the agent"
            " again while the coordinator serves, and it sends the end of the run again."
        ) from None


def _runs_of(study: Path) -> list[Path]:
    """The folders of a study's runs, oldest first."""
    folders = [path.parent for path in study.glob(f"*/{MANIFEST}")]
    whole = [folder for folder in folders if not folder.name.startswith(".")]
    return sorted(whole, key=lambda folder: (_manifest(folder / MANIFEST)["at"], folder))


def _manifest(path: Path) -> Values:
    """A manifest, with the values that commands show checked."""
    try:
        manifest: Values = json.loads(path.read_text(encoding="utf-8"))
        texts = [manifest[name] for name in ("study", "run", "at", "stop")]
        texts += [model["file"] for model in manifest["models"]]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("a value is not a text")
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise StorageError(f"{path}: cannot be read ({error}). Move its folder away.") from None
    return manifest


def _training_rows(data: PrivateData) -> Arr:
    """The shared rows, and the labelled ones that are not among them."""
    private = data.X
    if data.positions is not None:
        private = data.X[data.positions < 0]
    return np.concatenate([data.Z, private])


# --- the models of one run ------------------------------------------------------------------------


def _functions(plan: Plan, result: Result) -> dict[str, Values]:
    """Of each file of a run, by its name: the fields of a `ModelFile` that are its own."""
    match result:
        case AdditiveResult():
            units: Values = {"shift": 0.0, "divisor": 1.0, "coupling": None}
            functions = _additive_functions(result)
        case AgreementResult() if result.solutions:
            units = {"shift": result.shift, "divisor": result.divisor}
            functions = _agreement_functions(plan, result)
        case _:
            return {}
    return {name: {**units, **own} for name, own in functions.items()}


def _additive_functions(result: AdditiveResult) -> dict[str, Values]:
    joined, score, alone = result.probabilities or (None, None, None)
    functions: dict[str, Values] = {
        MODEL: {"function": result.model, "probability": joined, "score_probability": score}
    }
    if result.model.local is not None:
        functions[LOCAL] = {"function": result.model.local, "probability": alone}
    return functions


def _agreement_functions(plan: Plan, result: AgreementResult) -> dict[str, Values]:
    """A path of couplings has a model for each, beside the choice of this site's own labels."""
    path: list[Values] = [
        {"function": solution.function, "coupling": coupling}
        for solution, coupling in zip(result.solutions, plan.couplings, strict=True)
    ]
    functions = {}
    if result.choice is not None:
        functions = {MODEL: path[result.choice.chosen]}
    if len(path) == 1:
        functions[MODEL] = path[0]
    else:
        names = [f"model-coupling-{label}.coreg" for label in _labels(plan)]
        functions |= dict(zip(names, path, strict=True))
    if result.alone is not None:
        functions[LOCAL] = {"function": result.alone.function, "coupling": 0.0}
    return functions


def _labels(plan: Plan) -> list[str]:
    """A name for each coupling; two couplings can have the same six digits."""
    short = [f"{coupling:g}" for coupling in plan.couplings]
    if len(set(short)) == len(set(plan.couplings)):
        return short
    return [repr(coupling) for coupling in plan.couplings]


def _choice(plan: Plan, result: Result) -> list[str]:
    """The left-out error of each coupling of a path, in the target's units; or nothing."""
    if not isinstance(result, AgreementResult) or result.choice is None:
        return []
    choice = result.choice
    labels = _labels(plan)
    errors = []
    for label, left_out in zip(labels, choice.left_out, strict=True):
        error = estimate(left_out).rmse * result.divisor
        errors.append(f"{label}: {error:.4g}")
    return [
        f"coupling {labels[choice.chosen]} has the least error on this site's own labels, each "
        f"left out in turn (root mean square errors: {', '.join(errors)})"
    ]
