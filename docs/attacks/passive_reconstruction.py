"""A coordinator that merely keeps what it gets in an ordinary run of the default schedule.

In the clear it ends with the site's predictions alone m₀ and its response operator R: conjugate gradients' own directions
span R's range, and R = (RP)(PᵀRP)⁺(RP)ᵀ. Where it knows the site's features, the labels follow. Under sums the words that it
keeps have nothing in them: a one-time pad, but for the sum over all sites.
"""

from typing import Any

import numpy as np
from federation import FEATURES, SHARED, Attacker, data_of, m0_of, off, plan_of

from coreg_core.agreement.schedules import make_schedule
from coreg_core.agreement.schedules.schedule import Terms


def kept(answers: Any) -> dict[str, float]:
    """An honest run, and what comes of the answers of site b that were kept."""
    attacker = Attacker(plan_of(answers)).begin().gather()
    M = len(attacker.names)
    schedule = make_schedule("conjugate-gradients", Terms((0.5,), (1e3,) * M, 1.0, 0.0, 0.0, 40))
    state = schedule.start(SHARED)
    asked, told, affine = [], [], None
    while not schedule.finished(state) and len(told) < 2 * FEATURES:
        query = schedule.query(state)
        got = attacker.ask(query.part, query.targets[:, 0])
        if query.part == "affine":
            affine = attacker.read(got["b"])
        else:
            asked.append(query.targets[:, 0])
            told.append(attacker.read(got["b"]))
        state = schedule.step(state, attacker.sum(got)[:, None])
    P, RP = np.array(asked).T, np.array(told).T
    with np.errstate(all="ignore"):
        R = RP @ np.linalg.pinv((P.T @ RP + RP.T @ P) / 2, rcond=1e-12) @ RP.T
        gain, U = np.linalg.eigh((R + R.T) / 2)
        gain, U = gain[-FEATURES:], U[:, -FEATURES:]
        m0 = U @ ((U.T @ affine) / (1.0 - gain))
        # Whoever knows the features knows the map from labels to m0.
        data = data_of("b")
        labels_to_m0 = data.Z @ np.linalg.solve(data.X.T @ data.X + 0.5 * np.eye(FEATURES), data.X.T)
        labels = np.linalg.lstsq(labels_to_m0, m0, rcond=None)[0]
    return {"m0": off(m0, m0_of("b")), "labels": off(labels, data.y)}


def attack() -> dict[str, Any]:
    """Relative errors of what was found out of site b."""
    return {"plaintext": kept("plaintext"), "secure": kept("secure")}


if __name__ == "__main__":
    print(attack())  # noqa: T201
