"""The study: which sets, regimes and draws; a job is one federation, so that a killed study goes on where it was.

Columns that are other targets of a set are no columns of a site: a manifest's entry may name them as ``drop`` (or
``exclude``, ``exclusions``; the manifest itself, by set, under the same names), and `OTHER_TARGETS` has those that a
note alone tells of.
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from coreg_core.errors import UsageError
from coreg_sim.benefit.partition import REGIMES, Table, deal, table_of
from coreg_sim.benefit.trial import cell
from coreg_sim.federation.jobs import JSON, Job
from coreg_sim.papers.pool import DataSet, Pool

# Choices (widths, steps, priors, blend, rules) were made on the first group, and are judged on the second.
CHOSEN_ON = ("abalone", "bank32nh", "cpu_act", "house_16H", "housing", "stock", "space_ga", "diabetes")
JUDGED_ON = (
    "ailerons", "elevators", "bank8FM", "cal_housing", "pol", "puma32H", "sarcos_test", "autoMpg", "bodyfat", "mg",
)  # fmt: skip
GROUPS = {"chosen-on": CHOSEN_ON, "judged-on": JUDGED_ON}
BUNDLED = "diabetes"  # scikit-learn's, where a folder has no set of this name
OTHER_TARGETS = {"sarcos_test": ("torque5", "torque7")}
_DROP_KEYS = ("drop", "exclude", "exclusions")
# Raised when a change of code changes what a job gives: an earlier record's jobs are then done again.
METHODS = 2
QUICK_ROWS, QUICK_DRAWS, DRAWS = 1000, 2, 3


@dataclass(frozen=True)
class Study:
    """What is dealt, from where.

    Parameters
    ----------
    folder
        of data sets with manifest.json; None: what scikit-learn bundles.
    sets
        by name.
    regimes
        by name.
    draws
        of each set and regime.
    rows
        at most so many of each table; None: all.
    """

    folder: str | None
    sets: tuple[str, ...]
    regimes: tuple[str, ...]
    draws: int
    rows: int | None

    def jobs(self) -> list[Job]:
        """A federation each: a whole draw of everything before the next, so that a study that is cut short is balanced."""
        return [
            Job(
                f"{name}/{regime}/{draw}",
                {
                    "set": name,
                    "regime": regime,
                    "draw": draw,
                    "rows": self.rows,
                    "drop": self._drop(name),
                    "methods": METHODS,
                },
            )
            for draw in range(self.draws)
            for name in self.sets
            for regime in self.regimes
        ]

    def _drop(self, name: str) -> list[str]:
        return list(dropped(Path(self.folder), name)) if self.folder is not None else []

    def do(self, job: Job) -> dict[str, JSON]:
        """One federation; empty where the table is too small for the regime."""
        asked = job.arguments
        table = _table(self.folder, asked["set"], tuple(asked["drop"]))
        regime = REGIMES[asked["regime"]]
        # A table's columns are dealt alike in every regime of a draw's number only by chance: each has a seed of its own.
        seed = (asked["draw"], zlib.crc32(asked["set"].encode()), zlib.crc32(regime.name.encode()))
        dealt = deal(table, regime, seed, asked["rows"])
        # Trees take as long as everything else together; one draw says how they compare.
        return {} if dealt is None else cell(dealt, asked["draw"], trees=asked["draw"] == 0)


def study(
    folder: Path | None, sets: str | None, regimes: str | None, *, draws: int | None = None, quick: bool = False
) -> Study:
    """From what was typed.

    Parameters
    ----------
    folder
        of data sets.
    sets
        names or groups with commas between; None: every set of the folder.
    regimes
        names; None: all.
    draws
        of each; None: 3, or 2 when quick.
    quick
        at most a thousand rows of each table.

    Raises
    ------
    UsageError
        an unknown name, or nothing to do.
    """
    pool = None if folder is None else Pool(folder)
    there = () if pool is None else pool.names()
    wanted = there or (BUNDLED,)
    if sets is not None:
        wanted = tuple(dict.fromkeys(each for name in sets.split(",") for each in GROUPS.get(name, (name,))))
    if unknown := [name for name in wanted if name not in there and name != BUNDLED]:
        raise UsageError(
            f"{', '.join(unknown)}: no such data set{f' in {folder}' if folder else '; name a folder with --data'}. "
            f"--sets takes names of the manifest, {BUNDLED} (scikit-learn's), and the groups {', '.join(GROUPS)}."
        )
    chosen = tuple(REGIMES) if regimes is None else tuple(dict.fromkeys(regimes.split(",")))
    if unknown := [name for name in chosen if name not in REGIMES]:
        raise UsageError(f"--regimes {', '.join(unknown)}: there are {', '.join(REGIMES)}.")
    draws = draws or (QUICK_DRAWS if quick else DRAWS)
    return Study(
        None if folder is None else str(folder.resolve()), wanted, chosen, draws, QUICK_ROWS if quick else None
    )


def dropped(folder: Path, name: str) -> tuple[str, ...]:
    """Columns of a set that are other targets, by the manifest and by what is known."""
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    entry: Mapping[str, Any] = next((each for each in manifest["datasets"] if each["name"] == name), {})
    listed = [column for source in (entry, _by_set(manifest, name)) for column in _listed(source)]
    known = [column for column in OTHER_TARGETS.get(name, ()) if column != entry.get("target")]
    return tuple(dict.fromkeys([*listed, *(known if entry else ())]))


def _by_set(manifest: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: manifest[key].get(name, ()) for key in _DROP_KEYS if isinstance(manifest.get(key), dict)}


def _listed(source: Mapping[str, Any]) -> list[str]:
    out: list[str] = []
    for key in _DROP_KEYS:
        value = source.get(key) or ()
        out += [value] if isinstance(value, str) else list(value)
    return out


@lru_cache(maxsize=4)
def _table(folder: str | None, name: str, drop: tuple[str, ...]) -> Table:
    if folder is not None and (pool := _pool(folder)).has(name):
        data = pool.load(name)
        present = {column.partition("=")[0] for column in data.columns} | set(data.columns)
        return table_of(data, tuple(column for column in drop if column in present))
    return table_of(_bundled())


@lru_cache(maxsize=1)
def _pool(folder: str) -> Pool:
    return Pool(Path(folder))


def _bundled() -> DataSet:
    from sklearn.datasets import load_diabetes

    data = load_diabetes(scaled=False)
    columns = tuple(map(str, data.feature_names))
    return DataSet(BUNDLED, data.data, data.target, columns, tuple((j,) for j in range(len(columns))), "regression")
