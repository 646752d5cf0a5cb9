"""Two trainings whose labelled rows differ in at most d rows disclose the labels of these rows, so
sites refuse the second.

A member has d features, and keeps them. The difference of its two vectors b is Φᵀ times the labels
that left: d equations for these labels, whatever features the others draw. If rows × features of
them left, the share that follows is about d/n of what the score leaves open.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from federation import reported
from training import Rows, left_out, read, rows_of, train

from coreg_core.additive.exchange import SiteExchange
from site_agent.consent.memory import Memory


def without(rows: Rows, k: int, drawn: bytes = b"") -> Rows:
    """The last k labels are withdrawn, of c and then of b.

    With another secret these have other features.
    """
    left = k
    found = {"a": rows["a"]}
    for name in ("c", "b"):
        data = rows[name]
        n = max(len(data.y) - left, 50)
        left -= len(data.y) - n
        found[name] = replace(
            data, X=data.X[:n], y=data.y[:n], positions=data.positions[:n], salt=drawn + data.salt
        )
    return {name: found[name] for name in rows}


def own_equations(a: SiteExchange) -> Any:
    """Φᵀ y for its own features, over all labelled rows."""
    part = a.fits[0].moments.parts[0]
    mine = a.terms.blocks[0]
    levels = a.terms.targets[0].levels
    centre = a.start.features.centre[: a.terms.d[0]]  # its own, so a knows it
    return part.b[mine] + levels @ part.o[:, mine] + centre * (part.r + levels * part.n).sum()


def labels(rows: Rows, k: int) -> float:
    """The share that a reads of what the score leaves open of these labels, by two trainings of
    sites without a record.
    """
    first, second = (
        train(each, 0.0, 0.0, run)[1]
        for run, each in (("run-1", rows), ("run-2", without(rows, k, b"new")))
    )
    y = np.concatenate([rows[name].y for name in rows])
    phi = [each.common[:, :d] for each, d in zip(first, first[0].terms.d, strict=True)]
    kept = np.concatenate([each.start.rows.own for each in second])
    gone = np.setdiff1d(np.arange(len(y)), kept)
    score = left_out(np.concatenate(phi, axis=1), y)[gone]
    A = phi[0][gone]
    difference = own_equations(first[0]) - own_equations(second[0])
    return read(y[gone], score + np.linalg.pinv(A.T, 1e-7) @ (difference - A.T @ score), score)


def refused(rows: Rows, k: int) -> str:
    """What sites with a record say to the second training."""
    records = {name: Memory() for name in rows}
    train(rows, 0.0, 0.0, "run-1", records)
    return train(without(rows, k), 0.0, 0.0, "run-2", records)[0].reason


@reported
def attack() -> dict[str, Any]:
    """Share read of what the score leaves open of k labels that left, with 30 features; how such a
    second run ends.
    """
    rows = rows_of(labelled=200)
    return {
        "share read": {str(k): labels(rows, k) for k in (1, 10, 20, 300)},
        "second training": {str(k): refused(rows, k) for k in (20, 300)},
    }
