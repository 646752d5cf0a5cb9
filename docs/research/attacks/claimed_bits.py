"""A member claims a label of an individual in one training and not in the next: that individual's
features follow.

Sums of features by the label's owner are opened. An individual whose label two sites claim is alone
with these owners, so its labels stay out. So the true owner's sum differs by the individual's
features of every site. A site therefore counts every site's statement as part of the row, and
refuses the second training.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from federation import reported
from training import Rows, read, rows_of, train

from site_agent.consent.memory import Memory

# c, of which a claims one at a time
OWNER = 2
INDIVIDUALS = (130, 150, 170)


def claiming(rows: Rows, individual: int) -> Rows:
    """a says that it has a label of this individual."""
    a = rows["a"]
    X = np.vstack([a.X, a.Z[individual]])
    y = np.append(a.y, 0.0)
    at = np.append(a.positions, individual)
    return rows | {"a": replace(a, X=X, y=y, positions=at)}


def features(rows: Rows, noise: float) -> float:
    """R² of these individuals' features at b and c, if no site remembers a row set."""
    made = train(rows, noise, 0.5)[1]
    d = made[0].terms.d
    before = made[0].fits[0].moments.parts[0].o[OWNER]
    told = []
    truth = []
    for individual in INDIVIDUALS:
        after = (
            train(claiming(rows, individual), noise, 0.5, "run-2")[1][0]
            .fits[0]
            .moments.parts[0]
            .o[OWNER]
        )
        told.append((before - after)[d[0] :])
        truth.append(
            np.concatenate(
                [each.common[individual, :n] for each, n in zip(made[1:], d[1:], strict=True)]
            )
        )
    return read(np.array(truth), np.array(told), 0.0)


@reported
def attack() -> dict[str, Any]:
    """R² of the individuals' features, without noise and with the default; how sites with a record
    end the second run.
    """
    rows = rows_of(labelled=63, unlabelled=200)
    records = {name: Memory() for name in ("b", "c")}
    train(rows, 0.01, 0.5, "run-1", records)
    second, _ = train(claiming(rows, INDIVIDUALS[0]), 0.01, 0.5, "run-2", records)
    return {
        "exact": features(rows, 0.0),
        "default": features(rows, 0.01),
        "second training": second.reason,
    }
