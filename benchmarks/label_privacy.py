"""What label privacy costs: the score of a federation under `label_epsilon`, on partitions of the
benefit study.

    python benchmarks/label_privacy.py --data DIR [--draws 2]

Three sites of 50, 200 and 1,000 labels each, on the judged-on sets with rows for 1,000. Training is
in memory, so labels are the only noise. Yes/no targets: the area under the curve, mean over sites.
Numbers: the change of the error against the local model, for a label range of six deviations. Both
are of the score with the site's verdict. An hour for two draws.
"""

import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
from harness import arguments

from benchmarks.benefit.partition import Partition, Regime, partition
from benchmarks.benefit.study import table_named
from coreg_core.evaluation import auc
from coreg_core.objectives.additive import IN_MEMORY, Additive
from coreg_core.threads import pin_threads
from coreg_sim.benefit.trial import TrainedPartition

SETS = ("ailerons", "elevators", "bank8FM", "cal_housing", "pol", "puma32H", "sarcos_test")
LABELS = (50, 200, 1000)
YES_NO = replace(IN_MEMORY, task="classification")
NUMBERS = replace(IN_MEMORY, label_range=(-3.0, 3.0))  # targets have mean 0 and deviation 1


def rules_of(private: Additive, epsilon: float) -> Additive:
    return replace(private, label_epsilon=epsilon) if epsilon else IN_MEMORY


def areas(found: Partition, draw: int) -> list[float]:
    """Of the local models, then of the scores without privacy and with ε = 4, 2, 1."""
    trained = [
        TrainedPartition(found, draw, rules=rules_of(YES_NO, e)) for e in (0.0, 4.0, 2.0, 1.0)
    ]
    predictions = [trained[0].local, *(each.scores() for each in trained)]
    return [float(np.mean(list(map(auc, each, found.y_test)))) for each in predictions]


def changes(found: Partition, draw: int) -> list[float]:
    """In per cent, of the scores without privacy and with ε = 8, 4."""
    trained = [TrainedPartition(found, draw, rules=rules_of(NUMBERS, e)) for e in (0.0, 8.0, 4.0)]
    return [float(100 * np.mean(each.changes(each.scores()))) for each in trained]


def main() -> None:
    options = arguments(__doc__, data="data", draws=2)
    pin_threads(1)
    for title, yes_no, measured, digits in (
        ("yes/no: area of local, score, score at ε = 4, 2, 1", True, areas, 3),
        ("numbers: change in % of score, score at ε = 8, 4", False, changes, 1),
    ):
        print(title)
        for n in LABELS:
            rows = []
            regime = Regime("", "", (n,) * 3, yes_no=yes_no)
            for name in SETS:
                table = table_named(Path(options.data).resolve(), name)
                of_draws = []
                for draw in range(options.draws):
                    found = partition(table, regime, (draw, zlib.crc32(name.encode()), n))
                    of_draws.append(measured(found, draw))
                rows.append(np.mean(of_draws, axis=0))
                print(n, name, *np.round(rows[-1], digits), flush=True)
            print(n, "mean", *np.round(np.mean(rows, axis=0), digits), flush=True)


if __name__ == "__main__":
    main()
