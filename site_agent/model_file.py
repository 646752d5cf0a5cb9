"""What a site owns at the end: one file of arrays and JSON (safetensors), no pickle, versioned and checksummed.

It holds the function, the preprocessing, the target's transformation and the plan that it came of. A kernel model's
points are rows of the site's table, whatever its kernel; only weights on the features (form "linear") hold none. The file
is mode 0600, and says what it holds. Knows files; no socket.

Formats coreg-model/1 and /2 are one kernel expansion (the agreement), coreg-model/3 a sum of several in standard units, plus
a constant (the additive objective). All are read.
"""

import hashlib
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import safetensors.numpy
from safetensors import SafetensorError, safe_open

from coreg_core.additive.features import Standardiser
from coreg_core.additive.model import Expansion
from coreg_core.arrays import Arr
from coreg_core.errors import BadData, StorageError, UsageError
from coreg_core.kernels import Gaussian, Kernel, Laplacian, Linear, Polynomial, make_kernel
from coreg_core.views import KernelExpansion
from coreg_wire.files import write_whole
from site_agent.data.preprocessing import Preprocessing
from site_agent.data.tables import Table

FORMAT, READABLE = "coreg-model/2", ("coreg-model/1", "coreg-model/2")
FORMAT_OF_SUMS = "coreg-model/3"
WARNING = (
    "This file holds rows of the site's own data (the points of its kernel expansion). Keep it as private as the table "
    "that it came of: mode 0600, never on a shared volume."
)
LINEAR_WARNING = (
    "This linear model is kept as an expansion over the site's own rows, which stand in this file. Keep it as private as "
    'the table that it came of: mode 0600, never on a shared volume. A plan with form = "linear" keeps weights alone.'
)


@dataclass(frozen=True)
class SiteModel:
    """A function of one site, from raw columns to the target's own units. ``coupling`` is λ, where the objective has one."""

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

    @property
    def objective(self) -> str:
        """By which objective it was trained."""
        return "additive" if isinstance(self.function, Expansion) else "agreement"

    def predict(self, table: Table) -> Arr:
        """f(x) · divisor + shift, in the target's own units, (n,).

        Raises
        ------
        BadData
            the table lacks a column, by name, or holds a cell that is no number.
        """
        return self.function.predict(self.preprocessing.transform(table)) * self.divisor + self.shift


def save_model(path: Path, model: SiteModel) -> None:
    """Write it whole or not at all, mode 0600.

    Raises
    ------
    StorageError
        it cannot be written there.
    """
    functions = _functions(model.function)
    if isinstance(model.function, Expansion):
        form, arrays, shape = FORMAT_OF_SUMS, _arrays_of(model.function), _shape_of(model.function)
    else:
        function = model.function
        arrays = {"points": np.ascontiguousarray(function.points), "coef": np.ascontiguousarray(function.coef)}
        if function.coef_low is not None:  # a narrow view's coefficients cancel: they are double-doubles
            arrays["coef_low"] = np.ascontiguousarray(function.coef_low)
        form, shape = FORMAT, {"kernel": _kernel_to_json(function.kernel)}
    meta = {
        **shape,
        "preprocessing": model.preprocessing.to_json(),
        "target": model.target,
        "shift": model.shift,
        "scale": model.divisor,
        "site": model.site,
        "run": model.run,
        "stop": model.stop,
        "coupling": model.coupling,
        "plan": model.plan,
        "contains_records": any(contains_records(f) for f in functions),
    }
    text = json.dumps(meta, sort_keys=True)
    header = {"format": form, "model": text, "sha256": _checksum(arrays, text)}
    if meta["contains_records"]:
        header["warning"] = LINEAR_WARNING if all(isinstance(f.kernel, Linear) for f in functions) else WARNING
    write_whole(path, safetensors.numpy.save(arrays, metadata=header), mode=0o600)


def _functions(function: KernelExpansion | Expansion) -> tuple[KernelExpansion, ...]:
    return function.functions if isinstance(function, Expansion) else (function,)


def _arrays_of(function: Expansion) -> dict[str, Arr]:
    arrays = {"mean": function.standardiser.mean, "deviation": function.standardiser.deviation}
    for j, part in enumerate(function.functions):
        arrays |= {f"points.{j}": part.points, f"coef.{j}": part.coef}
    return {name: np.ascontiguousarray(array) for name, array in arrays.items()}


def _shape_of(function: Expansion) -> dict[str, Any]:
    kernels = [_kernel_to_json(part.kernel) for part in function.functions]
    return {"objective": "additive", "kernels": kernels, "constant": function.constant}


def _function_of(meta: dict[str, Any], arrays: dict[str, Arr]) -> KernelExpansion | Expansion:
    if "kernels" not in meta:
        return KernelExpansion(make_kernel(**meta["kernel"]), arrays["points"], arrays["coef"], arrays.get("coef_low"))
    parts = tuple(
        KernelExpansion(make_kernel(**kernel), arrays[f"points.{j}"], arrays[f"coef.{j}"])
        for j, kernel in enumerate(meta["kernels"])
    )
    return Expansion(Standardiser(arrays["mean"], arrays["deviation"]), meta["constant"], parts)


def contains_records(function: KernelExpansion) -> bool:
    """Whether the points are rows of a table: all are, but the unit vectors under the linear kernel (weights)."""
    points = function.points
    return not (isinstance(function.kernel, Linear) and np.array_equal(points, np.eye(points.shape[1])))


def load_model(path: Path) -> SiteModel:
    """Read it, the checksum checked.

    Raises
    ------
    BadData
        not a model file, of another version, changed since it was written, or without a part it should have.
    StorageError
        it cannot be read.
    """
    if not path.is_file():
        raise StorageError(f"{path}: no such model file.")
    try:
        with safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dictionary
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror or error}).") from None
    except SafetensorError as error:
        raise BadData(f"{path}: not a model file of coreg ({error}).") from None
    readable = (*READABLE, FORMAT_OF_SUMS)
    if header.get("format") not in readable:
        raise BadData(f"{path}: format {header.get('format')!r}, this version reads {', '.join(readable)}.")
    text = header.get("model", "")
    alone = header["format"] in READABLE
    if (alone and set(arrays) - {"coef_low"} != {"points", "coef"}) or header.get("sha256") != _checksum(arrays, text):
        raise BadData(
            f"{path}: damaged, or changed since it was written: its checksum does not fit. Take a fresh copy."
        )
    try:
        meta = json.loads(text)
        return SiteModel(
            function=_function_of(meta, arrays),
            preprocessing=Preprocessing.from_json(meta["preprocessing"]),
            divisor=meta["scale"],
            **{name: meta[name] for name in ("target", "shift", "site", "run", "stop", "coupling", "plan")},
        )
    except (KeyError, TypeError, ValueError) as error:  # the checksum fits, so another program wrote it
        raise BadData(
            f"{path}: not as this version writes models ({error!r}). Train again, or ask its author."
        ) from None


def write_predictions(
    path: Path, predictions: Arr, *, ids: Sequence[str] | None = None, id_column: str | None = None
) -> None:
    """A CSV or Parquet table with the column ``prediction``, after the ids where there are any.

    They are about people: a new file is mode 0600. One that is written over keeps the mode that somebody gave it.

    Raises
    ------
    StorageError
        it cannot be written there, or the suffix is neither.
    UsageError
        as many ids as predictions there are not, or the id column has the predictions' name.
    """
    if ids is not None and len(ids) != len(predictions):
        raise UsageError(f"{path}: {len(ids)} ids for {len(predictions)} predictions; every row needs one.")
    if ids is not None and id_column == "prediction":
        raise UsageError(f"{path}: the id column has the name of the column of predictions; rename it in the table.")
    columns: dict[str, Any] = {} if ids is None else {id_column or "id": list(ids)}
    frame = pl.DataFrame({**columns, "prediction": predictions})
    mode = path.stat().st_mode & 0o777 if path.is_file() else 0o600
    match path.suffix.lower():
        case ".csv":
            write_whole(path, frame.write_csv().encode(), mode=mode)
        case ".parquet" | ".pq":
            buffer = io.BytesIO()
            frame.write_parquet(buffer)
            write_whole(path, buffer.getvalue(), mode=mode)
        case _:
            raise StorageError(f"{path}: predictions are written as .csv or .parquet.")


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
