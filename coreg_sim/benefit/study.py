"""The data sets, regimes and draws of the study. A job is one federation.

No site gets a column that is another target of the set. A manifest's entry names these columns as ``drop``. `OTHER_TARGETS`
has those that only a note mentions.
"""

import re
import zlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from coreg_core.errors import UsageError
from coreg_sim.benefit.own import OwnTable
from coreg_sim.benefit.partition import REGIMES, AttributeTable, needs, partition, table_of
from coreg_sim.benefit.trial import trial
from coreg_sim.papers.pool import NumericDataSet, Pool
from coreg_sim.study.jobs import JSON, Job
from coreg_wire.files.toml_file import unknown_key

# Choices (widths, steps, priors, blend, rules) were made on the first group and are tested on the second.
CHOSEN_ON = ("abalone", "bank32nh", "cpu_act", "house_16H", "housing", "stock", "space_ga", "diabetes")
JUDGED_ON = (
    "ailerons", "elevators", "bank8FM", "cal_housing", "pol", "puma32H", "sarcos_test", "autoMpg", "bodyfat", "mg",
)  # fmt: skip
GROUPS = {"chosen-on": CHOSEN_ON, "judged-on": JUDGED_ON}
BUNDLED = "diabetes"  # from scikit-learn, if the folder has no set of this name
OTHER_TARGETS = {"sarcos_test": ("torque5", "torque7")}
# Increment it when a change of code changes the result of a job. Earlier records are then computed again.
METHODS = 4
QUICK_ROWS, QUICK_DRAWS, DRAWS = 1000, 2, 3


@dataclass(frozen=True)
class BenefitStudy:
    """The study as a value: where the sets are, regimes, draws of each, and the limit of rows (None: all).

    ``source`` is a folder with a manifest, a table of the user's own, or None for the bundled set.
    """

    source: str | OwnTable | None
    sets: tuple[str, ...]
    regimes: tuple[str, ...]
    draws: int
    rows: int | None

    def jobs(self) -> list[Job]:
        """One job for each federation. Draws come one after another, so a partial study is balanced."""
        fixed = {"rows": self.rows, "methods": METHODS}
        of = {name: {**_identity(self.source, name), **fixed} for name in self.sets}
        return [
            Job(f"{name}/{regime}/{draw}", {"set": name, "regime": regime, "draw": draw, **of[name]})
            for draw in range(self.draws)
            for name in self.sets
            for regime in self.regimes
        ]

    def do(self, job: Job) -> dict[str, JSON]:
        """Compute one federation. The result is empty if the table is too small for the regime."""
        asked = job.arguments
        table = _table(self.source, asked["set"])
        regime = REGIMES[asked["regime"]]
        # Each regime has its own seed. Otherwise all regimes of a draw would have the same columns. A user's table has one seed
        # under every file name, so that its versions can be compared.
        name = "" if isinstance(self.source, OwnTable) else asked["set"]
        seed = (asked["draw"], zlib.crc32(name.encode()), zlib.crc32(regime.name.encode()))
        drawn = partition(table, regime, seed, asked["rows"])
        # Trees take as long as all other methods together, and one draw is enough for their comparison.
        return {} if drawn is None else trial(drawn, asked["draw"], trees=asked["draw"] == 0)


def study(
    source: Path | OwnTable | None,
    sets: str | None,
    regimes: str | None,
    *,
    draws: int | None = None,
    quick: bool = False,
) -> BenefitStudy:
    """Make a study from the command's options: comma-separated sets (or groups of sets) and regimes; None takes all.

    Raises
    ------
    UsageError
        A name is unknown.
    """
    if isinstance(source, OwnTable):
        wanted: tuple[str, ...] = (source.name,)
    else:
        wanted = _wanted(source, sets)
    divided = isinstance(source, OwnTable) and bool(source.sites)
    every = tuple(name for name, regime in REGIMES.items() if not (divided and regime.divides))
    chosen = every if regimes is None else tuple(dict.fromkeys(regimes.split(",")))
    if unknown := [name for name in chosen if name not in REGIMES]:
        sizes = [name for name in REGIMES if re.fullmatch(r"n\d+", name)]
        told = "; ".join(f"{name}: {_nearest(name, sizes)}" for name in unknown)
        others = ", ".join(name for name in REGIMES if name not in sizes)
        raise UsageError(
            f"--regimes {told}\nBy labels at each site: {', '.join(sizes)}. Others: {others} (docs/research/benefit-tables.md)."
        )
    if refused := [name for name in chosen if name not in every]:
        raise UsageError(f"--regimes {', '.join(refused)}: about the division of the columns, which --views has fixed.")
    draws = draws or (QUICK_DRAWS if quick else DRAWS)
    place = str(source.resolve()) if isinstance(source, Path) else source
    return BenefitStudy(place, wanted, chosen, draws, QUICK_ROWS if quick else None)


def too_small(asked: BenefitStudy, source: Path | OwnTable | None, sites: int) -> str:
    """Why no regime of a study has a federation, and what the regimes need."""
    each = "; ".join(needs(name, sites) for name in asked.regimes[:3])
    more = f", and {len(asked.regimes) - 3} more regimes" if len(asked.regimes) > 3 else ""
    has = f": {source.size()}" if isinstance(source, OwnTable) else ""
    return (
        f"no federation: {', '.join(asked.sets)} is too small{has}. {each}{more}. Choose other --regimes (the smallest: "
        f"{needs('n10', sites)})."
    )


def _nearest(name: str, sizes: list[str]) -> str:
    """The fault of an unknown regime: n30 is nearest to n20 as a number, and to n50 as a text."""
    if re.fullmatch(r"n\d+", name) is None:
        return unknown_key(name, REGIMES, "regime")
    return f"unknown regime; did you mean {min(sizes, key=lambda size: abs(int(size[1:]) - int(name[1:])))}?"


def _wanted(folder: Path | None, sets: str | None) -> tuple[str, ...]:
    there = () if folder is None else Pool(folder).names()
    wanted = there or (BUNDLED,)
    if sets is not None:
        wanted = tuple(dict.fromkeys(each for name in sets.split(",") for each in GROUPS.get(name, (name,))))
    if unknown := [name for name in wanted if name not in there and name != BUNDLED]:
        raise UsageError(
            f"{', '.join(unknown)}: no such data set{f' in {folder}' if folder else ' without a folder. Name it with --data'}. "
            f"--sets takes names of the manifest, {BUNDLED} (from scikit-learn), and the groups {', '.join(GROUPS)}."
        )
    return wanted


def _identity(source: str | OwnTable | None, name: str) -> dict[str, JSON]:
    """What decides the content of a set: other columns or another file are other jobs."""
    if isinstance(source, OwnTable):
        return {
            "target": source.target,
            "drop": [*source.drop],
            "dates": [*source.dates],
            "positive": source.positive,
            "table": source.digest(),
            **({"sites": [[name, *columns] for name, columns in source.sites]} if source.sites else {}),
            **({"categorical": [*source.categorical]} if source.categorical else {}),
            **({"na_values": [*source.na_values]} if source.na_values else {}),
        }
    digest = _pool(source).digest(name) if source is not None and _pool(source).has(name) else ""
    return {"drop": list(OTHER_TARGETS.get(name, ())), "table": digest}


def table_named(folder: Path, name: str) -> AttributeTable:
    """A data set of the study, without columns that are other targets."""
    return _table(str(folder.resolve()), name)


@lru_cache(maxsize=4)
def _table(source: str | OwnTable | None, name: str) -> AttributeTable:
    if isinstance(source, OwnTable):
        return source.read()[0]
    if source is not None and (pool := _pool(source)).has(name):
        data = pool.load(name)
        return table_of(data, tuple(c for c in OTHER_TARGETS.get(name, ()) if c in data.columns))
    return table_of(_bundled())


@lru_cache(maxsize=1)
def _pool(folder: str) -> Pool:
    return Pool(Path(folder))


def _bundled() -> NumericDataSet:
    from sklearn.datasets import load_diabetes

    data = load_diabetes(scaled=False)
    columns = tuple(map(str, data.feature_names))
    return NumericDataSet(
        BUNDLED, data.data, data.target, columns, tuple((j,) for j in range(len(columns))), "regression"
    )
