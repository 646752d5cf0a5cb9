"""The model file: arrays and JSON in one safetensors file (no pickle), with a version and a
checksum.

It holds the function, the preprocessing, the units of the target and the plan. The points of a
kernel model and the landmarks of an additive one are rows of the site's table. Only a linear model
(weights of features) holds no rows. The file has mode 0600 and a warning if it holds rows. All
files hold how many rows of the training are in each range of each column (`coreg_core.stability`).

The function is a kernel expansion (agreement), all that a site owns after an additive training, or
its local model.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from statistics import NormalDist
from types import NoneType, UnionType
from typing import Any, TypeAlias, get_args, get_origin, get_type_hints

import numpy as np
import safetensors.numpy
from jaxtyping import jaxtyped
from safetensors import SafetensorError, safe_open

from coreg_core.additive.features import CLIP, FeatureBasis, LocalModel
from coreg_core.additive.site_model import ClassModel, LocalClasses, SiteModel
from coreg_core.agreement.views import KernelExpansion
from coreg_core.arrays import Arr
from coreg_core.errors import BadData, StorageError, UsageError
from coreg_core.evaluation import AnyProbability, ClassProbabilities, Probability
from coreg_core.kernels import Gaussian, Kernel, Linear, make_kernel
from coreg_core.messages import UPGRADE
from coreg_core.stability import Shares
from coreg_wire.files.disk import write_whole
from site_agent.data.column_notes import Range
from site_agent.data.preprocessing import Preprocessing
from site_agent.data.sources import BadTable
from site_agent.data.tables import Table
from site_agent.models.figures import Values
from site_agent.models.findings import Findings

# A release reads the files of the one before. A field that a format adds has a default, which
# stands where an older file lacks it. Raise `FORMAT` with it, and keep files of the new one
# (tests/agent/kept_models.py).
FORMAT = 12
OLDEST_FORMAT = 12
_FORMATS = "coreg-model/"
WARNING = (
    "This file holds rows of the site's own data (the points of its kernels). Keep it as private as"
    " the site's table: mode 0600, never on a shared volume."
)
AS_TRAINED = (
    "Correct the cell or leave it empty. Which columns are texts, and which texts mean missing, is"
    " as in training."
)
Function: TypeAlias = KernelExpansion | SiteModel | LocalModel | ClassModel | LocalClasses
_KINDS: dict[str, type[Function]] = {
    "agreement": KernelExpansion,
    "joined": SiteModel,
    "local": LocalModel,
    "classes": ClassModel,
    "local classes": LocalClasses,
}
_PLAIN = (
    "target",
    "shift",
    "divisor",
    "site",
    "run",
    "stop",
    "coupling",
    "plan",
    "name",
    "positive",
    "negative",
)


@dataclass(frozen=True)
class ModelFile:
    """A function of one site, from raw columns to the target's units: function · ``divisor`` +
    ``shift``.
    """

    function: Function
    preprocessing: Preprocessing
    target: str
    shift: float
    divisor: float
    site: str
    run: str
    stop: str
    coupling: float | None  # λ of an agreement
    plan: Values
    # Of the opened sums that it was made from, as ``sites``; scores join models of one name.
    name: str = ""
    sites: tuple[str, ...] = ()
    findings: Findings | None = None  # whether joining pays
    probability: AnyProbability | None = None
    score_probability: AnyProbability | None = None
    classes: tuple[str, ...] = ()  # of a target with more than two: values have a column for each
    positive: str = ""  # the value of a yes/no target that is 1
    negative: str = ""  # the other one, if the site had labels of it
    # Of each column and of the predictions, for the stability index; None in older files.
    shares: list[Shares] | None = None

    @property
    def objective(self) -> str:
        if isinstance(self.function, KernelExpansion):
            return "agreement"
        return "additive"

    def features(self, table: Table) -> Arr:
        """The table as in training.

        The advice about a fault names no setting: those of the training hold.
        """
        try:
            return self.preprocessing.transform(table)
        except BadTable as error:
            raise error.advised(lambda todo: AS_TRAINED if "--" in todo else todo) from None

    def rows_seen(self, table: Table) -> int:
        """How many rows are among those of the training that the function holds, which are not all
        of them.
        """
        X = self.features(table)
        if isinstance(self.function, KernelExpansion):
            points = self.function.points
        else:
            basis = _basis(self.function)
            X = basis.standardised(X)
            points = basis.landmarks
        held = {row.tobytes() for row in points}
        return sum(row.tobytes() in held for row in X)

    def predict(self, table: Table) -> Arr:
        """f(x) · divisor + shift, in the target's units, or the probability of a yes/no target,
        (n,); of several classes the probability of each, (n, K).
        """
        return self.predict_features(self.features(table))

    def predict_features(self, X: Arr) -> Arr:
        """As `predict`, of rows that are encoded already (n, d)."""
        scores: Arr = self.function.predict(X) * self.divisor + self.shift
        if self.probability is None:
            return scores
        return self.probability.of(scores)

    def interval(self, table: Table, coverage: float) -> tuple[Arr, Arr]:
        """Low and high ends of f(x) ± z d(x), which a share ``coverage`` of new labels is within;
        d: the model's deviation.
        """
        if self.probability is not None:
            raise UsageError(
                "intervals are for a target of numbers. This model predicts a probability."
            )
        deviations = self.deviations(table)
        if deviations is None:
            raise BadData(
                "this model has no values for intervals. Name the joined model of an additive run:"
                " --model …/model.coreg."
            )
        if not 0.0 < coverage < 1.0:
            raise UsageError(
                f"an interval of {100 * coverage:g} %: needs a percentage between 0 and 100, such"
                " as 90 (from Python 0.9)."
            )
        half = NormalDist().inv_cdf((1.0 + coverage) / 2.0) * deviations
        middle = self.predict(table)
        return middle - half, middle + half

    def deviations(self, table: Table) -> Arr | None:
        """Of a new label from each prediction of a joined model of numbers; None for another
        model.
        """
        if self.probability is not None or not isinstance(self.function, SiteModel):
            return None
        return self.function.deviations(self.features(table))

    @property
    def local(self) -> LocalModel | LocalClasses | None:
        """The local model beside an additive one."""
        if isinstance(self.function, SiteModel | ClassModel):
            return self.function.local
        return None

    def local_predictions(self, table: Table) -> Arr:
        """Of the local model, without probabilities."""
        assert self.local is not None
        return self.local.predict(self.features(table))

    def phi(self, table: Table) -> Arr:
        """What this site's part of a joint score is made of (n, d): φ(x), or f(x) under the
        agreement, in the target's units.
        """
        if isinstance(self.function, LocalModel | LocalClasses):
            raise BadData(
                "this model has no part for joint scoring, because it is the site's local model."
                " Give the joined model of a run."
            )
        if isinstance(self.function, SiteModel | ClassModel):
            return self.function.phi(self.features(table))
        return self.predict(table)[:, None]

    @property
    def intercept(self) -> float | Arr:
        """What the sum of all parts lacks for the joint score, in the target's units; of several
        classes for each score.
        """
        if isinstance(self.function, SiteModel | ClassModel):
            return self.function.score_intercept
        return 0.0


def save_model(path: Path, model: ModelFile) -> None:
    """Write the model file atomically, with mode 0600."""
    arrays = dict[str, Arr]()
    function = model.function
    records = contains_records(function)
    if not records:  # ends of ranges are cells of rows, and left-out labels belong to rows
        preprocessing = replace(model.preprocessing, ranges=_wide(model))
        findings = model.findings and replace(model.findings, left_out=None)
        model = replace(model, preprocessing=preprocessing, findings=findings)
    meta = {
        "kind": next(kind for kind, its in _KINDS.items() if isinstance(function, its)),
        "function": _nested(function, "function", arrays),
        "preprocessing": model.preprocessing.to_json(),
        "probability": _nested(model.probability, "probability", arrays),
        "score_probability": _nested(model.score_probability, "score_probability", arrays),
        "shares": model.shares,
        "found": model.findings and model.findings.to_json(),
        "contains_records": records,
        **{name: getattr(model, name) for name in (*_PLAIN, "sites", "classes")},
    }
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    text = json.dumps(meta, sort_keys=True)
    header = {"format": f"{_FORMATS}{FORMAT}", "model": text, "sha256": checksum(arrays, text)}
    if records:
        header["warning"] = WARNING
    write_whole(path, safetensors.numpy.save(arrays, metadata=header), mode=0o600)


def _wide(model: ModelFile) -> dict[str, Range]:
    """Ranges that hold no cell: `CLIP` deviations around the mean, beyond which additive models
    clip.
    """
    seen = model.preprocessing.ranges or {}
    function = model.function
    out = dict[str, Range]()
    for column, block in zip(model.preprocessing.columns, blocks(model.preprocessing), strict=True):
        middle = column.mean
        half = CLIP * column.scale
        if not isinstance(function, KernelExpansion):
            basis = _basis(function)
            middle += column.scale * float(basis.mean[block.start])
            half *= float(basis.deviation[block.start])
        elif column.scale == 1.0:  # constant or unscaled: its deviation is unknown
            continue
        if column.name in seen:
            _, _, cells = seen[column.name]
            out[column.name] = (middle - half, middle + half, cells)
    return out


def blocks(preprocessing: Preprocessing) -> list[slice]:
    """The features of each column."""
    slices = []
    start = 0
    for column in preprocessing.columns:
        end = start + len(column.feature_names)
        slices.append(slice(start, end))
        start = end
    return slices


def _basis(function: SiteModel | LocalModel | ClassModel | LocalClasses) -> FeatureBasis:
    if isinstance(function, LocalModel | LocalClasses):
        return function.basis
    return function.features.basis


def _nested(value: Any, name: str, arrays: dict[str, Arr]) -> Any:
    """JSON of dataclasses within dataclasses.

    An array goes into ``arrays``, once for all fields that have it.
    """
    if isinstance(value, np.ndarray):
        first = next((key for key, array in arrays.items() if array is value), name)
        arrays[first] = value
        return first
    if isinstance(value, Gaussian | Linear):
        return {"name": type(value).__name__.lower(), **asdict(value)}
    if is_dataclass(value):
        plain = {}
        for own in fields(value):
            entry = getattr(value, own.name)
            plain[own.name] = _nested(entry, f"{name}.{own.name}", arrays)
        return plain
    if isinstance(value, tuple):
        return [_nested(entry, f"{name}.{i}", arrays) for i, entry in enumerate(value)]
    return value


def _of_nested(hint: Any, value: Any, arrays: dict[str, Arr]) -> Any:
    """The value of that type which `_nested` turned into JSON.

    The types of the fields decide what is made, and not the file.
    """
    if hint == Kernel:
        return make_kernel(**value)
    if get_origin(hint) is UnionType:
        [hint] = (member for member in get_args(hint) if member is not NoneType)
        if value is None:
            return None
        return _of_nested(hint, value, arrays)
    if get_origin(hint) is tuple:
        of, _ = get_args(hint)
        return tuple(_of_nested(of, entry, arrays) for entry in value)
    if is_dataclass(hint):
        return _of_fields(hint, value, arrays)
    number_or_array = float(value) if hint is float else arrays[value]
    if not isinstance(number_or_array, hint):
        raise TypeError(f"{value} is not {hint}")
    return number_or_array


def _of_fields(hint: Any, value: Values, arrays: dict[str, Arr]) -> Any:
    """A dataclass; a field that an older file lacks has its default."""
    types = get_type_hints(hint)
    with jaxtyped("context"):  # lengths agree within a class
        given = [f.name for f in fields(hint) if f.name in value]
        return hint(**{name: _of_nested(types[name], value[name], arrays) for name in given})


def _probability(meta: Values, key: str, arrays: dict[str, Arr]) -> AnyProbability | None:
    kind = ClassProbabilities if meta["classes"] else Probability
    probability: AnyProbability | None = _of_nested(kind | None, meta[key], arrays)
    return probability


def contains_records(function: Function) -> bool:
    """Whether the points are rows of a table, and not unit vectors under the linear kernel
    (weights).
    """
    if isinstance(function, KernelExpansion):
        weights = isinstance(function.kernel, Linear)
        points = function.points
        return not (weights and np.array_equal(points, np.eye(points.shape[1])))
    return bool(_basis(function).width)


def load_model(path: Path) -> ModelFile:
    """Read a model file and check its checksum."""
    if not path.is_file():
        raise StorageError(
            f"{path}: no such model file. `coreg-agent models` lists this site's models."
        )

    try:
        with safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dictionary
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror or error}).") from None
    except SafetensorError as error:
        todo = (
            "Name a file that an agent wrote, such as clinic.model. A file of joblib or pickle is"
            " read by these alone."
        )
        raise BadData(f"{path}: not a model file of coreg ({error}). {todo}") from None
    _require_format(path, header.get("format", ""))
    text = header.get("model", "")
    if header.get("sha256") != checksum(arrays, text):
        raise BadData(
            f"{path}: the checksum is wrong, so the file is damaged or was changed. Use another"
            " copy."
        )
    try:
        meta = json.loads(text)
        return ModelFile(
            function=_of_nested(_KINDS[meta["kind"]], meta["function"], arrays),
            preprocessing=Preprocessing.from_json(meta["preprocessing"]),
            probability=_probability(meta, "probability", arrays),
            score_probability=_probability(meta, "score_probability", arrays),
            sites=tuple(meta["sites"]),
            classes=tuple(meta["classes"]),
            shares=meta.get("shares"),
            findings=meta["found"] and Findings.from_json(meta["found"]),
            **{name: meta[name] for name in _PLAIN if name in meta},
        )
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        # The checksum is right, so another program wrote the file.
        raise BadData(
            f"{path}: another program wrote this model ({error!r}). Train the model again."
        ) from None


def _require_format(path: Path, name: str) -> None:
    number = name.removeprefix(_FORMATS)
    if not name.startswith(_FORMATS) or not number.isdecimal():
        number = "0"
    if int(number[:9]) < OLDEST_FORMAT:
        raise BadData(
            f"{path}: format {name!r}, but this release reads {_FORMATS}{OLDEST_FORMAT} and later"
            " ones. Train the model again."
        )
    if int(number[:9]) > FORMAT:
        raise BadData(
            f"{path}: a newer release wrote this model (format {number}; this release reads up to"
            f" {FORMAT}). Upgrade: {UPGRADE}"
        )


def checksum(arrays: dict[str, Arr], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name}:{array.dtype.str}:{array.shape}:".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
