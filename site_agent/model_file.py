"""What a site owns at the end: one file of arrays and JSON (safetensors), no pickle, versioned and checksummed.

It holds the function, the preprocessing, the target's transformation and the plan that it came of. A kernel model's
points are rows of the site's table, whatever its kernel; only weights on the features (form "linear") hold none. The file
is mode 0600, and says what it holds. Knows files; no socket.
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

from coreg_core.arrays import Arr
from coreg_core.errors import BadData, StorageError, UsageError
from coreg_core.kernels import Gaussian, Kernel, Laplacian, Linear, Polynomial, make_kernel
from coreg_core.views import KernelExpansion
from coreg_wire.files import write_whole
from site_agent.data.preprocessing import Preprocessing
from site_agent.data.tables import Table

FORMAT = "coreg-model/1"
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
    """A function of one site, from raw columns to the target's own units."""

    function: KernelExpansion
    preprocessing: Preprocessing
    target: str
    shift: float
    divisor: float
    site: str
    run: str
    stop: str
    coupling: float
    plan: dict[str, Any]

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
    arrays = {"points": np.ascontiguousarray(model.function.points), "coef": np.ascontiguousarray(model.function.coef)}
    meta = {
        "kernel": _kernel_to_json(model.function.kernel),
        "preprocessing": model.preprocessing.to_json(),
        "target": model.target,
        "shift": model.shift,
        "scale": model.divisor,
        "site": model.site,
        "run": model.run,
        "stop": model.stop,
        "coupling": model.coupling,
        "plan": model.plan,
        "contains_records": contains_records(model.function),
    }
    text = json.dumps(meta, sort_keys=True)
    header = {"format": FORMAT, "model": text, "sha256": _checksum(arrays, text)}
    if meta["contains_records"]:
        header["warning"] = LINEAR_WARNING if isinstance(model.function.kernel, Linear) else WARNING
    write_whole(path, safetensors.numpy.save(arrays, metadata=header), mode=0o600)


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
    if header.get("format") != FORMAT:
        raise BadData(f"{path}: format {header.get('format')!r}, this version reads {FORMAT!r}.")
    text = header.get("model", "")
    if set(arrays) != {"points", "coef"} or header.get("sha256") != _checksum(arrays, text):
        raise BadData(
            f"{path}: damaged, or changed since it was written: its checksum does not fit. Take a fresh copy."
        )
    try:
        meta = json.loads(text)
        return SiteModel(
            function=KernelExpansion(make_kernel(**meta["kernel"]), arrays["points"], arrays["coef"]),
            preprocessing=Preprocessing.from_json(meta["preprocessing"]),
            **{name: meta[name] for name in ("target", "shift", "scale", "site", "run", "stop", "coupling", "plan")},
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
