"""The model file: arrays and JSON in one safetensors file (no pickle), with a version and a checksum.

It holds the function, the preprocessing, the units of the target and the plan. The points of a kernel model are rows of the
site's table. Only a model with form "linear" (weights of features) holds no rows. The file has mode 0600 and a warning if
it holds rows.

The function is one kernel expansion (agreement), or several in standard units plus a constant (additive objective). An
additive model also keeps the values for joint scoring and intervals (`Joint`, `Intervals`).
"""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError, safe_open

from coreg_core.additive.model.expansion import Expansion
from coreg_core.additive.model.features import Standardiser
from coreg_core.additive.model.predictive_sd import Spread
from coreg_core.agreement.views import KernelExpansion
from coreg_core.errors import BadData, StorageError, UsageError
from coreg_core.evaluation.intervals import conformal_factor
from coreg_core.evaluation.probability import Probability
from coreg_core.kernels.functions import Gaussian, Kernel, Laplacian, Linear, Polynomial, make_kernel
from coreg_core.numerics.arrays import Arr
from coreg_wire.files.files import write_whole
from site_agent.data.errors import BadTable
from site_agent.data.preprocessing import Preprocessing
from site_agent.data.tables import Table

FORMAT = "coreg-model/6"
WARNING = (
    "This file holds rows of the site's own data (the points of its kernel expansion). Keep it as private as the site's "
    "table: mode 0600, never on a shared volume."
)
AS_TRAINED = (
    "Correct the cell or leave it empty. Which columns are texts, and which texts mean missing, is as in training."
)
LINEAR_WARNING = (
    "This linear model is an expansion over the site's own rows, so the file holds these rows. Keep it as private as the "
    'site\'s table: mode 0600, never on a shared volume. A plan with form = "linear" keeps only weights.'
)


@dataclass(frozen=True)
class Joint:
    """A site's part h_v of the joint score (additive objective), and the intercept that all sites know."""

    part: Expansion
    intercept: float


@dataclass(frozen=True, eq=False)
class Intervals:
    """A posterior deviation, and the sorted ratios of |y − f| to it at rows that folds left out."""

    spread: Spread
    ratios: Arr


@dataclass(frozen=True)
class SiteModel:
    """A function of one site, from raw columns to the target's units.

    Parameters
    ----------
    shift, divisor
        the target is function · divisor + shift.
    coupling
        λ of the agreement; None for the additive objective.
    mean_on_shared
        mean prediction on the shared instances, for scoring together.
    found
        the findings of its run on whether joining pays (`findings`).
    probability
        from scores to probabilities, for a yes/no target.
    positive
        the value of that target which is 1; "" for a target of numbers.
    """

    function: KernelExpansion | Expansion
    preprocessing: Preprocessing
    target: str
    shift: float
    divisor: float
    site: str
    run: str
    stop: str
    coupling: float | None
    plan: dict[str, Any]
    mean_on_shared: float | None = None
    joint: Joint | None = None
    intervals: Intervals | None = None
    found: dict[str, Any] | None = None
    probability: Probability | None = None
    positive: str = ""

    @property
    def objective(self) -> str:
        """The objective of its training."""
        return "additive" if isinstance(self.function, Expansion) else "agreement"

    def _features(self, table: Table) -> Arr:
        """The table as in training. The advice about a fault names no setting: those of the training hold."""
        try:
            return self.preprocessing.transform(table)
        except BadTable as error:
            raise error.advised(lambda todo: AS_TRAINED if "agent.toml" in todo else todo) from None

    def predict(self, table: Table) -> Arr:
        """f(x) · divisor + shift, in the target's units, or the probability of a yes/no target, (n,).

        Raises
        ------
        BadData
            the table lacks a column, or holds a cell that is not a number.
        """
        scores: Arr = self.function.predict(self._features(table)) * self.divisor + self.shift
        return scores if self.probability is None else self.probability.of(scores)

    def interval(self, table: Table, coverage: float) -> tuple[Arr, Arr]:
        """Low and high ends of f(x) ± q d(x), for a share ``coverage`` of new labels; q is from rows that folds left out.

        Raises
        ------
        BadData
            the table lacks a column, or the model has no values for intervals.
        UsageError
            the coverage is not between 0 and 1, or the labels are too few for it.
        """
        if self.probability is not None:
            raise UsageError("intervals are for a target of numbers. This model predicts a probability.")
        if self.intervals is None:
            raise BadData(
                "this model has no values for intervals. Use the joined model of a run with forecast = true (additive "
                "objective) and enough labels for folds."
            )
        ratios = self.intervals.ratios
        q = conformal_factor(ratios, np.ones(len(ratios)), coverage)
        half = q * self.intervals.spread.deviations(self._features(table)) * self.divisor
        middle = self.predict(table)
        return middle - half, middle + half

    def part(self, table: Table) -> Arr:
        """This site's part of the joint score, in the target's units: h_v(x), or f_v(x) under the agreement.

        Raises
        ------
        BadData
            the table lacks a column, or the model is the local one, which has no part.
        """
        if self.objective == "agreement":
            return self.predict(table)
        if self.joint is None:
            raise BadData(
                "this model has no part for joint scoring, because it is the site's local model. Give the joined model of a run."
            )
        return self.joint.part.predict(self._features(table)) * self.divisor

    @property
    def intercept(self) -> float:
        """The intercept of the joint score, in the target's units."""
        return 0.0 if self.joint is None else self.joint.intercept * self.divisor + self.shift


def save_model(path: Path, model: SiteModel) -> None:
    """Write the model file atomically, with mode 0600.

    Raises
    ------
    StorageError
        the file cannot be written.
    """
    functions = _functions(model.function)
    if isinstance(model.function, Expansion):
        arrays, shape = _arrays_of(model.function), _shape_of(model.function)
    else:
        function = model.function
        arrays = {"points": np.ascontiguousarray(function.points), "coef": np.ascontiguousarray(function.coef)}
        shape = {"kernel": _kernel_to_json(function.kernel)}
    records = any(contains_records(f) for f in functions)
    meta = {
        **shape,
        # The ends of a range are cells of rows, so a file without rows must not hold them.
        "preprocessing": (model.preprocessing if records else replace(model.preprocessing, ranges=None)).to_json(),
        "target": model.target,
        "shift": model.shift,
        "scale": model.divisor,
        "site": model.site,
        "run": model.run,
        "stop": model.stop,
        "coupling": model.coupling,
        "plan": model.plan,
        "contains_records": records,
    }
    if model.found is not None:
        meta["found"] = model.found
    if model.probability is not None:
        meta |= {"probability": asdict(model.probability), "positive": model.positive}
    if model.mean_on_shared is not None:
        meta["mean_on_shared"] = model.mean_on_shared
    if model.joint is not None:
        arrays |= _arrays_of(model.joint.part, "joint.")
        meta["joint"] = {**_shape_of(model.joint.part), "intercept": model.joint.intercept}
    if model.intervals is not None:
        spread = model.intervals.spread
        arrays |= {
            "spread.mean": spread.standardiser.mean,
            "spread.deviation": spread.standardiser.deviation,
            "spread.points": spread.points,
            "spread.map": spread.map,
            "spread.shift": spread.shift,
            "ratios": model.intervals.ratios,
        }
        meta["spread"] = {"kernel": _kernel_to_json(spread.kernel), "noise": spread.noise, "factor": spread.factor}
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    text = json.dumps(meta, sort_keys=True)
    header = {"format": FORMAT, "model": text, "sha256": _checksum(arrays, text)}
    if meta["contains_records"]:
        header["warning"] = LINEAR_WARNING if all(isinstance(f.kernel, Linear) for f in functions) else WARNING
    write_whole(path, safetensors.numpy.save(arrays, metadata=header), mode=0o600)


def _functions(function: KernelExpansion | Expansion) -> tuple[KernelExpansion, ...]:
    return function.functions if isinstance(function, Expansion) else (function,)


def _arrays_of(function: Expansion, prefix: str = "") -> dict[str, Arr]:
    arrays = {f"{prefix}mean": function.standardiser.mean, f"{prefix}deviation": function.standardiser.deviation}
    for j, part in enumerate(function.functions):
        arrays |= {f"{prefix}points.{j}": part.points, f"{prefix}coef.{j}": part.coef}
    return arrays


def _shape_of(function: Expansion) -> dict[str, Any]:
    kernels = [_kernel_to_json(part.kernel) for part in function.functions]
    return {"objective": "additive", "kernels": kernels, "constant": function.constant}


def _function_of(meta: dict[str, Any], arrays: dict[str, Arr]) -> KernelExpansion | Expansion:
    if "kernels" not in meta:
        return KernelExpansion(make_kernel(**meta["kernel"]), arrays["points"], arrays["coef"])
    return _expansion_of(meta, arrays)


def _expansion_of(meta: dict[str, Any], arrays: dict[str, Arr], prefix: str = "") -> Expansion:
    parts = tuple(
        KernelExpansion(make_kernel(**kernel), arrays[f"{prefix}points.{j}"], arrays[f"{prefix}coef.{j}"])
        for j, kernel in enumerate(meta["kernels"])
    )
    return Expansion(Standardiser(arrays[f"{prefix}mean"], arrays[f"{prefix}deviation"]), meta["constant"], parts)


def _joint_of(meta: dict[str, Any], arrays: dict[str, Arr]) -> Joint | None:
    if "joint" not in meta:
        return None
    return Joint(_expansion_of(meta["joint"], arrays, "joint."), meta["joint"]["intercept"])


def _intervals_of(meta: dict[str, Any], arrays: dict[str, Arr]) -> Intervals | None:
    if "spread" not in meta:
        return None
    said = meta["spread"]
    standardiser = Standardiser(arrays["spread.mean"], arrays["spread.deviation"])
    points, mapped, shift = arrays["spread.points"], arrays["spread.map"], arrays["spread.shift"]
    spread = Spread(standardiser, make_kernel(**said["kernel"]), points, mapped, shift, said["noise"], said["factor"])
    return Intervals(spread, arrays["ratios"])


def contains_records(function: KernelExpansion) -> bool:
    """Whether the points are rows of a table, and not unit vectors under the linear kernel (weights)."""
    points = function.points
    return not (isinstance(function.kernel, Linear) and np.array_equal(points, np.eye(points.shape[1])))


def load_model(path: Path) -> SiteModel:
    """Read a model file and check its checksum.

    Raises
    ------
    BadData
        the file is not a model, has another version or a wrong checksum, or is incomplete.
    StorageError
        the file cannot be read.
    """
    if not path.is_file():
        raise StorageError(
            f"{path}: no such model file. Give the path that --output had in training, or one of `coreg-agent models list`."
        )

    try:
        with safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dictionary
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror or error}).") from None
    except SafetensorError as error:
        todo = (
            "Name a file that an agent wrote, such as clinic.model. A file of joblib or pickle is read by these alone."
        )
        raise BadData(f"{path}: not a model file of coreg ({error}). {todo}") from None
    if header.get("format") != FORMAT:
        raise BadData(
            f"{path}: format {header.get('format')!r}, but this version reads {FORMAT}. Train the model again."
        )
    text = header.get("model", "")
    if header.get("sha256") != _checksum(arrays, text):
        raise BadData(f"{path}: the checksum is wrong, so the file is damaged or was changed. Use another copy.")
    try:
        meta = json.loads(text)
        return SiteModel(
            function=_function_of(meta, arrays),
            preprocessing=Preprocessing.from_json(meta["preprocessing"]),
            divisor=meta["scale"],
            mean_on_shared=meta.get("mean_on_shared"),
            found=meta.get("found"),
            probability=Probability(**meta["probability"]) if "probability" in meta else None,
            positive=meta.get("positive", ""),
            joint=_joint_of(meta, arrays),
            intervals=_intervals_of(meta, arrays),
            **{name: meta[name] for name in ("target", "shift", "site", "run", "stop", "coupling", "plan")},
        )
    except (KeyError, TypeError, ValueError) as error:  # the checksum is right, so another program wrote the file
        raise BadData(f"{path}: another program wrote this model ({error!r}). Train the model again.") from None


def _kernel_to_json(kernel: Kernel) -> dict[str, Any]:
    match kernel:
        case Gaussian() | Laplacian() | Polynomial():
            return {"name": type(kernel).__name__.lower(), **asdict(kernel)}
        case Linear():
            return {"name": "linear"}
        case _:
            raise TypeError(f"{kernel!r} has no form in a model file")


def _checksum(arrays: dict[str, Arr], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name}:{array.dtype.str}:{array.shape}:".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
