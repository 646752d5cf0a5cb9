"""The data sets, regimes and draws of the study. A job is one federation.

No site gets a column that is another target of the set. A manifest's entry names these columns as
``drop``. `OTHER_TARGETS` has those that only a note mentions.
"""

import itertools
import zlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from benchmarks.benefit.partition import REGIMES, Partition, partition, table_of
from benchmarks.benefit.trial import trial
from benchmarks.papers.jobs import JSON, Job
from benchmarks.papers.pool import NumericDataSet, Pool
from coreg_core.errors import UsageError
from coreg_sim.benefit.partition import AttributeTable

# The constants of the method were chosen on the first group and are tested on the second.
CHOSEN_ON = (
    "abalone",
    "bank32nh",
    "cpu_act",
    "house_16H",
    "housing",
    "stock",
    "space_ga",
    "diabetes",
)
JUDGED_ON = (
    "ailerons", "elevators", "bank8FM", "cal_housing", "pol", "puma32H", "sarcos_test", "autoMpg",
    "bodyfat", "mg",
)  # fmt: skip
BUNDLED = "diabetes"  # from scikit-learn, if the folder has no set of this name
OTHER_TARGETS = {"sarcos_test": ("torque5", "torque7"), "pbc": ("D",)}
# Three groups of columns that belong together, as three organisations could have them.
PARTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "pbc": (  # a trial in liver disease: person and treatment with history, signs, laboratory
        ("Z1", "Z2", "Z3"),
        ("Z4", "Z5", "Z6", "Z7", "Z17"),
        ("Z8", "Z9", "Z10", "Z11", "Z12", "Z13", "Z14", "Z15", "Z16"),
    ),
    "cleveland": (  # history, electrocardiograms, imaging and laboratory
        ("age", "sex", "cp", "trestbps"),
        ("restecg", "thalach", "exang", "oldpeak", "slope"),
        ("chol", "fbs", "ca", "thal"),
    ),
    "bodyfat": (  # general, trunk, limbs
        ("Age", "Weight", "Height"),
        ("Neck", "Chest", "Abdomen", "Hip"),
        ("Thigh", "Knee", "Ankle", "Biceps", "Forearm", "Wrist"),
    ),
    "cal_housing": (  # place, buildings, people
        ("longitude", "latitude", "housingMedianAge"),
        ("totalRooms", "totalBedrooms"),
        ("population", "households", "medianIncome"),
    ),
    "cpu_act": (  # system calls, paging, memory
        ("lread", "lwrite", "scall", "sread", "swrite", "fork", "exec", "rchar", "wchar"),
        ("pgout", "ppgout", "pgfree", "pgscan", "atch", "pgin", "ppgin"),
        ("pflt", "vflt", "runqsz", "freemem", "freeswap"),
    ),
    "sarcos_test": tuple(
        tuple(f"{kind}{j}" for j in range(1, 8)) for kind in ("pos", "vel", "acc")
    ),
}
GROUPED_ONLY = ("pbc", "cleveland")  # medical tables, for the regimes of such groups
# Increment it when a change of code changes the result of a job. Earlier records are then computed
# again.
METHODS = 12


@dataclass(frozen=True)
class BenefitStudy:
    """The study as a value: the folder of sets, their names, regimes, and draws.

    UsageError for an unknown name.
    """

    folder: Path
    sets: tuple[str, ...] = (*JUDGED_ON, *GROUPED_ONLY, *CHOSEN_ON)
    regimes: tuple[str, ...] = tuple(REGIMES)
    draws: int = 8

    def __post_init__(self) -> None:
        if unknown := [name for name in self.regimes if name not in REGIMES]:
            raise UsageError(
                f"unknown regimes {', '.join(unknown)}. There are {', '.join(REGIMES)}."
            )
        if absent := [
            name for name in self.sets if name != BUNDLED and not _pool(self.folder).has(name)
        ]:
            raise UsageError(f"{self.folder}: no data sets {', '.join(absent)}.")

    def jobs(self) -> list[Job]:
        """One job for each federation.

        Draws come one after another, so a partial study is balanced.
        """
        pool = _pool(self.folder)
        of = {
            name: {"table": pool.digest(name) if pool.has(name) else "", "methods": METHODS}
            for name in self.sets
        }
        return [
            Job(
                f"{name}/{regime}/{draw}", {"set": name, "regime": regime, "draw": draw, **of[name]}
            )
            for draw in range(self.draws)
            for name in self.sets
            for regime in self.regimes
            if _belongs(name, regime)
        ]

    def do(self, job: Job) -> dict[str, JSON]:
        """Compute one federation: a record for each site.

        The result is empty if the table is too small for the regime.
        """
        name, regime, draw = (job.arguments[key] for key in ("set", "regime", "draw"))
        found = drawn(self.folder, name, regime, draw)
        return {} if found is None else {"sites": trial(found, draw)}


def _belongs(name: str, regime: str) -> bool:
    return name in PARTS if REGIMES[regime].grouped else name not in GROUPED_ONLY


def drawn(folder: Path, name: str, regime: str, draw: int) -> Partition | None:
    """One federation of a set, None if it is too small.

    With one seed for all regimes, a draw would have the same columns.
    """
    seed = (draw, zlib.crc32(name.encode()), zlib.crc32(regime.encode()))
    return partition(table_named(folder, name), REGIMES[regime], seed)


@lru_cache(maxsize=4)
def table_named(folder: Path, name: str) -> AttributeTable:
    """A data set of the study, without columns that are other targets."""
    if (pool := _pool(folder)).has(name):
        data = pool.load(name)
        other = tuple(c for c in OTHER_TARGETS.get(name, ()) if c in data.columns)
        parts = PARTS.get(name, ())
        whole = set(itertools.chain(*parts)) <= {
            column.partition("=")[0] for column in data.columns
        }  # not of a stand-in
        return table_of(data, other, parts if whole else ())
    return table_of(_bundled())


@lru_cache(maxsize=1)
def _pool(folder: Path) -> Pool:
    return Pool(folder)


def _bundled() -> NumericDataSet:
    from sklearn.datasets import load_diabetes

    data = load_diabetes(scaled=False)
    columns = tuple(map(str, data.feature_names))
    return NumericDataSet(
        BUNDLED,
        data.data,
        data.target,
        columns,
        tuple((j,) for j in range(len(columns))),
        "regression",
    )
