"""A coordinator that departs from its program: it asks for the answer to every basis vector, within what a site answers to
a plan.

In the clear it has R whole, and so m₀, in any form. Under sums it has the sum of the sites' operators whole, and that is all:
every site's share of it is as free as before. (Fewer questions would help: the policy's `max_questions`.)
"""

from typing import Any

import numpy as np
from federation import SHARED, Attacker, m0_of, off, plan_of, respond_of


def asked_all(answers: Any) -> dict[str, float]:
    """Errors of site b's R and m₀ by the best that these answers give."""
    attacker = Attacker(plan_of(answers, form="exact")).begin().gather()
    M = len(attacker.names)
    first = attacker.ask("affine", np.zeros(SHARED))
    columns = [attacker.ask("linear", e) for e in np.eye(SHARED)]
    truth = np.array([respond_of("b", e, M, "exact") for e in np.eye(SHARED)]).T
    R = np.array([attacker.read(c["b"]) for c in columns]).T
    with np.errstate(all="ignore"):
        m0 = np.linalg.lstsq(np.eye(SHARED) - R, attacker.read(first["b"]), rcond=None)[0]
    shared = np.array([attacker.sum(c) for c in columns]).T / M  # as if all were alike
    everybody = np.mean([[respond_of(s, e, M, "exact") for e in np.eye(SHARED)] for s in attacker.names], axis=0).T
    return {
        "R": off(R, truth),
        "m0": off(m0, m0_of("b", "exact")),
        "R by the mean": off(shared, truth),
        "mean of R": off(shared, everybody),
    }


def attack() -> dict[str, Any]:
    """Relative errors."""
    return {"plaintext": asked_all("plaintext"), "secure": asked_all("secure")}


if __name__ == "__main__":
    print(attack())  # noqa: T201
