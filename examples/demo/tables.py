"""The demonstration's data: scikit-learn's diabetes study (442 patients), split over three sites as
CSV files.

A clinic measures age, sex, bmi and bp. One laboratory measures s1 to s3, another s4 to s6. 80
patients are held out. Of the other 362, each site has the labels of 60; all sites know these 180,
and each knows nine in ten of the others. The first laboratory writes ids in capitals. The default
seed was not chosen for its result; `--seed` makes another draw.

    python examples/demo/tables.py FOLDER
"""

import argparse
import csv
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.datasets import load_diabetes

from coreg_core.arrays import Arr
from coreg_wire.files.output import write_output

SITES: dict[str, tuple[str, ...]] = {
    "clinic": ("age", "sex", "bmi", "bp"),
    "laboratory-1": ("s1", "s2", "s3"),
    "laboratory-2": ("s4", "s5", "s6"),
}
TARGET = "progression"
ID = "patient"
# 180 labelled rows give each site 18 features by the default rules; fewer than 10 x 18 others would
# not enter the sums.
LABELLED = 60
UNLABELLED = 182
HELD_OUT = 80
COUPLINGS = (0.0, 0.001, 0.01, 0.1)
_STUDY = f'[study]\nname = "NAME"\ntarget = "{TARGET}"\nid = "{ID}"\n\n[model]\n'
_AGREEMENT = f'objective = "agreement"\nform = "exact"\ncoupling = {list(COUPLINGS)}\n\n[solver]\n'
# The paper's system first: Algorithm 1, then the same optimum by conjugate gradients.
STUDIES = {
    name: _STUDY.replace("NAME", name) + model
    for name, model in {
        "algorithm-1": (
            f'{_AGREEMENT}name = "block-coordinate-descent"\nprediction_tolerance = 1e-7\n'
        ),
        "conjugate-gradients": (
            f'{_AGREEMENT}name = "conjugate-gradients"\nprediction_tolerance = 1e-7\n'
        ),
        "additive": 'objective = "additive"\n',
        "scoring": 'objective = "scoring"\n',
    }.items()
}


@dataclass(frozen=True, eq=False)
class Everything:
    """All columns in one place, for reference: data would have to leave the sites.

    Site v has every label of its 60 rows.
    """

    X: Arr
    y: Arr  # NaN: unknown to all
    held_out: Arr


@dataclass(frozen=True)
class DemoData:
    """Paths of tables and studies, ``judged`` tables of the held-out patients, and their
    targets.
    """

    tables: dict[str, Path]
    held_out: dict[str, Path]
    judged: dict[str, Path]
    studies: dict[str, Path]
    held_out_y: Arr
    everything: Everything


def write_tables(directory: Path, seed: int = 0) -> DemoData:
    """Write `NAME.csv`, `NAME-held-out.csv` and `NAME-judged.csv` for every site, and `STUDY.toml`
    for every study.
    """
    study = load_diabetes(scaled=False)
    order = np.random.default_rng(seed).permutation(len(study.target))
    names = list(study.feature_names)
    rest = order[UNLABELLED:]
    held_out = rest[:HELD_OUT]
    known = np.concatenate([rest[HELD_OUT:], order[:UNLABELLED]])
    every, others = np.split(known, [LABELLED * len(SITES)])
    tables = {}
    unseen = {}
    judged = {}
    for v, (site, columns) in enumerate(SITES.items()):
        own = every[v * LABELLED : (v + 1) * LABELLED]
        X = study.data[:, [names.index(c) for c in columns]]
        absent = others[np.random.default_rng([seed, v]).random(len(others)) > 0.9]
        rows = [(i, X[i], repr(float(study.target[i]))) for i in own]
        rows += [(i, X[i], "") for i in np.setdiff1d(known, [*own, *absent])]
        # Each site has its own order: ids align the shared patients, not rows.
        np.random.default_rng(seed + v + 1).shuffle(rows)
        tables[site] = _write(
            directory / f"{site}.csv", columns, rows, capitals=site == "laboratory-1"
        )
        unseen[site] = _write(
            directory / f"{site}-held-out.csv", columns, [(i, X[i], "") for i in held_out]
        )
        with_target = [(i, X[i], repr(float(study.target[i]))) for i in held_out]
        judged[site] = _write(directory / f"{site}-judged.csv", columns, with_target)
    studies = {name: directory / f"{name}.toml" for name in STUDIES}
    for name, path in studies.items():
        _put(path, STUDIES[name])
    labels = np.where(np.isin(known, every), study.target[known], np.nan)
    pooled = Everything(study.data[known], labels, study.data[held_out])
    return DemoData(tables, unseen, judged, studies, study.target[held_out], pooled)


def _write(
    path: Path,
    columns: tuple[str, ...],
    rows: list[tuple[int, Arr, str]],
    *,
    capitals: bool = False,
) -> Path:
    table = io.StringIO()
    writer = csv.writer(table)
    writer.writerow([ID, *columns, TARGET])
    named = "PATIENT" if capitals else "patient"
    writer.writerows(
        [f"{named}-{i:03d}", *(repr(float(x)) for x in values), y] for i, values, y in rows
    )
    return _put(path, table.getvalue())


def _put(path: Path, text: str) -> Path:
    """Write a file that is not there yet, or is there with the same content."""
    data = text.encode()
    kinds = {path.suffix: lambda earlier: earlier.read_bytes() == data}
    write_output(path, data, "folder", kinds)
    return path


def main() -> None:
    """Write the tables and studies into a folder, and print their paths."""
    parser = argparse.ArgumentParser(description="Write the tables of the demonstration.")
    parser.add_argument("folder", type=Path, help="the output folder; it is created if absent")
    parser.add_argument("--seed", type=int, default=0, help="another draw of patients")
    options = parser.parse_args()
    options.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    data = write_tables(options.folder, options.seed)
    for paths in (data.tables, data.held_out, data.judged, data.studies):
        print(*paths.values(), sep="\n")


if __name__ == "__main__":
    main()
