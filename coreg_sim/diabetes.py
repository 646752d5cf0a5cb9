"""The demonstration's data: scikit-learn's bundled diabetes study (442 patients), dealt out to three sites as CSV files.

A clinic measures age, sex, bmi and bp; one laboratory s1 to s3, another s4 to s6. Each site holds 15 labelled patients of its
own; all share 250 unlabelled ones, each with its own columns; 100 are held out for judging. The draw is by a fixed seed
that nobody chose for its result: `--seed` deals another.
"""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.datasets import load_diabetes

from coreg_core.arrays import Arr

SITES: dict[str, tuple[str, ...]] = {
    "clinic": ("age", "sex", "bmi", "bp"),
    "laboratory-1": ("s1", "s2", "s3"),
    "laboratory-2": ("s4", "s5", "s6"),
}
TARGET, ID = "progression", "patient"
LABELLED, UNLABELLED, HELD_OUT = 15, 250, 100


@dataclass(frozen=True)
class Dealt:
    """Where each site's table lies, where its view of the held-out patients lies, and their true targets."""

    tables: dict[str, Path]
    held_out: dict[str, Path]
    held_out_y: Arr


def deal(directory: Path, seed: int = 0) -> Dealt:
    """Write `NAME.csv` and `NAME-held-out.csv` for every site."""
    study = load_diabetes(scaled=False)
    order = np.random.default_rng(seed).permutation(len(study.target))
    names = list(study.feature_names)
    shared, rest = order[:UNLABELLED], order[UNLABELLED:]
    held_out, labelled = rest[:HELD_OUT], rest[HELD_OUT:]
    tables, judged = {}, {}
    for v, (site, columns) in enumerate(SITES.items()):
        own = labelled[v * LABELLED : (v + 1) * LABELLED]
        X = study.data[:, [names.index(c) for c in columns]]
        rows = [(i, X[i], repr(float(study.target[i]))) for i in own] + [(i, X[i], "") for i in shared]
        # Each site has its own order: ids align the shared patients, not rows.
        np.random.default_rng(seed + v + 1).shuffle(rows)
        tables[site] = _write(directory / f"{site}.csv", columns, rows)
        judged[site] = _write(directory / f"{site}-held-out.csv", columns, [(i, X[i], "") for i in held_out])
    return Dealt(tables, judged, study.target[held_out])


def _write(path: Path, columns: tuple[str, ...], rows: list[tuple[int, Arr, str]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([ID, *columns, TARGET])
        writer.writerows([f"patient-{i:03d}", *(repr(float(x)) for x in values), y] for i, values, y in rows)
    return path
