"""The demonstration's data: scikit-learn's diabetes study (442 patients), split over three sites as CSV files.

A clinic measures age, sex, bmi and bp. One laboratory measures s1 to s3, another s4 to s6. 80 patients are held out. Of the
other 362, each site has the labels of 60. In the demonstration and the quickstart all sites know the labelled patients; in other
tables only the site with the label does. The default seed was not chosen for its result; `--seed` makes another draw.
"""

import csv
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.datasets import load_diabetes

from coreg_core.numerics.arrays import Arr, Ints

SITES: dict[str, tuple[str, ...]] = {
    "clinic": ("age", "sex", "bmi", "bp"),
    "laboratory-1": ("s1", "s2", "s3"),
    "laboratory-2": ("s4", "s5", "s6"),
}
TARGET, ID = "progression", "patient"
# 180 labelled rows give each site 18 features by the default rules; fewer than 10 x 18 others would not enter the sums.
LABELLED, UNLABELLED, HELD_OUT = 60, 182, 80

COUPLING = 0.01
MODELS = {
    "additive": 'objective = "additive"\n',
    "agreement": f"""\
form = "exact"
coupling = {COUPLING}

[schedule]
tolerance = 1e-10
prediction_tolerance = 1e-8
""",
}
ALIGN = '[study]\nname = "shared-patients"\n\n[model]\nobjective = "alignment"\n'


def federation_toml(name: str, sites: list[str]) -> str:
    """The federation that trains one of `MODELS`."""
    return f"""\
[federation]
name = "diabetes study: {name}"
sites = {json.dumps(sites)}

[model]
{MODELS[name]}
[service]
listen = "127.0.0.1:0"
store = "{name}.sqlite"
"""


@dataclass(frozen=True, eq=False)
class Everything:
    """All columns in one place, for reference: data would have to leave the sites. Site v has every label of its 60 rows."""

    X: Arr
    y: Arr  # NaN: unknown to all
    held_out: Arr


@dataclass(frozen=True)
class DemoData:
    """The paths of each site's tables, and the true targets of the held-out patients.

    ``shared``, with common rows: the patients that all sites know, of whom each site has labels for some.
    ``judged`` tables have the held-out patients with their targets: docker compose evaluates models on them.
    """

    tables: dict[str, Path]
    held_out: dict[str, Path]
    judged: dict[str, Path]
    shared: dict[str, Path]
    held_out_y: Arr
    everything: Everything


def write_tables(directory: Path, seed: int = 0, *, partly_shared: bool = False, common: bool = False) -> DemoData:
    """Write `NAME.csv`, `NAME-held-out.csv` and `NAME-judged.csv` for every site, with ``common`` also `NAME-shared.csv`.

    ``common``, for the demonstration: all sites know all 362 patients. ``partly_shared``, for the quickstart: all know the
    labelled ones, each knows nine in ten of the others, and the first laboratory writes ids in capitals.
    """
    study = load_diabetes(scaled=False)
    order = np.random.default_rng(seed).permutation(len(study.target))
    names = list(study.feature_names)
    rest = order[UNLABELLED:]
    held_out, known = rest[:HELD_OUT], np.concatenate([rest[HELD_OUT:], order[:UNLABELLED]])
    every, others = np.split(known, [LABELLED * len(SITES)])
    shared = known if common or partly_shared else others
    tables, unseen, judged, listed = {}, {}, {}, {}
    for v, (site, columns) in enumerate(SITES.items()):
        own = every[v * LABELLED : (v + 1) * LABELLED]
        X = study.data[:, [names.index(c) for c in columns]]
        rows = [(i, X[i], repr(float(study.target[i]))) for i in own]
        if common:
            listed[site] = _write(directory / f"{site}-shared.csv", columns, [(i, X[i], "") for i in shared])
        else:
            absent: Ints = (
                others[np.random.default_rng([seed, v]).random(len(others)) > 0.9] if partly_shared else others[:0]
            )
            rows += [(i, X[i], "") for i in np.setdiff1d(shared, [*own, *absent])]
        # Each site has its own order: ids align the shared patients, not rows.
        np.random.default_rng(seed + v + 1).shuffle(rows)
        named = "PATIENT" if partly_shared and site == "laboratory-1" else "patient"
        tables[site] = _write(directory / f"{site}.csv", columns, rows, named)
        unseen[site] = _write(directory / f"{site}-held-out.csv", columns, [(i, X[i], "") for i in held_out])
        with_target = [(i, X[i], repr(float(study.target[i]))) for i in held_out]
        judged[site] = _write(directory / f"{site}-judged.csv", columns, with_target)
    labels = np.where(np.isin(known, every), study.target[known], np.nan)
    pooled = Everything(study.data[known], labels, study.data[held_out])
    return DemoData(tables, unseen, judged, listed, study.target[held_out], pooled)


def _write(path: Path, columns: tuple[str, ...], rows: list[tuple[int, Arr, str]], named: str = "patient") -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([ID, *columns, TARGET])
        writer.writerows([f"{named}-{i:03d}", *(repr(float(x)) for x in values), y] for i, values, y in rows)
    return path
