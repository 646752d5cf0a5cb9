"""The data sets of the papers' experiments: a folder of CSV files with manifest.json, which `fetch`
can fill from OpenML.

Every experiment gets the same numbers: numeric columns unchanged, with the column's mean for a
missing value; nominal columns as one 0/1 column for each level, with a level for missing values.
Rows without a target are dropped.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from coreg_core.arrays import Arr
from coreg_core.errors import BadData, Unreachable, UsageError

MISSING = ("", "?", "NA", "nan", "NaN")


@dataclass(frozen=True, eq=False)
class NumericDataSet:
    """One table as numbers: X (n, d) and y (n,), with 0 and 1 for a binary target of words.

    ``attributes`` has, for each attribute of the original table, its columns of X. The task is
    "regression" or "binary".
    """

    name: str
    X: Arr
    y: Arr
    columns: tuple[str, ...]
    attributes: tuple[tuple[int, ...], ...]
    task: str


class Pool:
    """A folder with manifest.json and one CSV file for each set; UsageError without a manifest.

    A set of the manifest has a name, file, target and task ("regression" or "binary"), and lists of
    nominal columns (``categorical``) and of columns to leave out (``drop``), if there are any.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._loaded: dict[str, NumericDataSet] = {}
        try:
            manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            raise UsageError(
                f"{folder}: no folder with manifest.json (docs/research/papers.md). "
                "`python -m benchmarks.papers all --data DIR --fetch` makes one."
            ) from None
        self._entries: dict[str, dict[str, Any]] = {
            entry["name"]: entry for entry in manifest["datasets"]
        }

    def has(self, name: str) -> bool:
        return name in self._entries

    def digest(self, name: str) -> str:
        """Of the set's file and its entry in the manifest: another table is another study."""
        entry = self._entries[name]
        content = (self.folder / entry["file"]).read_bytes()
        return hashlib.sha256(content + json.dumps(entry, sort_keys=True).encode()).hexdigest()[:16]

    def load(self, name: str) -> NumericDataSet:
        """The set as numbers, read once; UsageError for an unknown set, BadData if the file does
        not match the manifest.
        """
        if name not in self._loaded:
            if not self.has(name):
                raise UsageError(
                    f"{self.folder}: no data set {name!r} there. Fetch it with --fetch."
                )
            self._loaded[name] = _read(self.folder, self._entries[name])
        return self._loaded[name]


def _read(folder: Path, entry: dict[str, Any]) -> NumericDataSet:
    path = folder / entry["file"]
    target = entry["target"]
    nominal = set(entry.get("categorical", ()))
    frame = pl.read_csv(path, infer_schema=False).fill_null("")
    if unknown := [
        name for name in (target, *nominal, *entry.get("drop", [])) if name not in frame.columns
    ]:
        raise BadData(f"{path}: no column {unknown[0]!r}, which the manifest names.")
    frame = frame.drop(entry.get("drop", []))
    cells = {
        name: np.array([c.strip() for c in frame[name].to_list()], dtype=object)
        for name in frame.columns
    }
    there = ~np.isin(cells[target], MISSING)
    y = _target(path, target, cells[target][there], str(entry["task"]))
    blocks: list[Arr] = []
    columns: list[str] = []
    attributes: list[tuple[int, ...]] = []
    for name in frame.columns:
        if name == target:
            continue
        values = cells[name][there]
        if name in nominal:
            levels = sorted(set(values))
            block = (values[:, None] == np.array(levels, dtype=object)[None, :]).astype(np.float64)
            names = [f"{name}={level or '?'}" for level in levels]
        else:
            block = _numeric(path, values, name)[:, None]
            names = [name]
        attributes.append(tuple(range(len(columns), len(columns) + len(names))))
        columns += names
        blocks.append(block)
    X = np.ascontiguousarray(np.hstack(blocks)) if blocks else np.zeros((len(y), 0))
    return NumericDataSet(
        str(entry["name"]), X, y, tuple(columns), tuple(attributes), str(entry["task"])
    )


def _numeric(path: Path, values: Any, name: str) -> Arr:
    missing = np.isin(values, MISSING)
    out = np.full(len(values), np.nan)
    try:
        out[~missing] = values[~missing].astype(np.float64)
    except ValueError:
        raise BadData(
            f"{path}: {name!r} is not numeric. List it in manifest.json under categorical or drop."
        ) from None
    out[missing] = out[~missing].mean() if not missing.all() else 0.0
    return out


def _target(path: Path, name: str, values: Any, task: str) -> Arr:
    try:
        numbers: Arr = values.astype(np.float64)
        return numbers
    except ValueError:
        levels = sorted(set(values))
        if task != "binary" or len(levels) != 2:
            raise BadData(
                f"{path}: the target {name!r} is not numeric, and not of two classes."
            ) from None
        return np.array([float(value == levels[1]) for value in values])


def fetch(names: tuple[str, ...], folder: Path) -> list[str]:
    """Fetch the missing sets from OpenML into ``folder``, by name, and add them to its manifest.

    Returns the names that OpenML does not have, or not in a readable form. Raises Unreachable if
    OpenML does not answer.
    """
    from sklearn.datasets import fetch_openml

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"datasets": []}
    there = {entry["name"] for entry in manifest["datasets"]}
    lacking = []
    for name in names:
        if name in there:
            continue
        try:
            bunch = fetch_openml(name=name, version=1, as_frame=False, parser="liac-arff")
        except OSError as error:
            raise Unreachable(
                f"OpenML does not answer ({error}). Is this machine online? --data DIR reads a"
                " folder."
            ) from None
        except ValueError:
            lacking.append(name)
            continue
        manifest["datasets"].append(_write(folder, name, bunch))
        path.write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    return lacking


def _write(folder: Path, name: str, bunch: Any) -> dict[str, Any]:
    """One fetched set as CSV; returns its entry for the manifest."""
    target = str(bunch.target_names[0])
    nominal = {key: list(levels) for key, levels in (bunch.categories or {}).items()}
    columns: dict[str, list[str | None]] = {}
    for j, feature in enumerate(bunch.feature_names):
        columns[feature] = [_cell(value, nominal.get(feature)) for value in bunch.data[:, j]]
    columns[target] = [_cell(value, None) for value in bunch.target]
    pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.String)).write_csv(
        folder / f"{name}.csv"
    )
    levels = {cell for cell in columns[target] if cell is not None}
    return {
        "name": name,
        "file": f"{name}.csv",
        "target": target,
        "task": "binary" if len(levels) == 2 else "regression",
        "categorical": [feature for feature in bunch.feature_names if feature in nominal],
        "source": f"openml:{bunch.details.get('id', '?')}",
    }


def _cell(value: Any, levels: list[str] | None) -> str | None:
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return None
    return levels[int(value)] if levels is not None else str(value)
