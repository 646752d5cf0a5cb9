"""k of M sites give the coordinator their secrets: it has the sum of the other M − k.

With M − k of at least two it cannot tell these apart; with one it has that site's answer. So of three sites, two that collude
know the third, as two sites always know each other. No mask helps against that; whom to join with is the operator's choice.
"""

from typing import Any

import numpy as np
from federation import SHARED, SITES, Attacker, off, plan_of, respond_of


def with_colluding(k: int) -> float:
    """Relative error of site d's answer by what is left when the k others' answers are taken away, shared out evenly."""
    attacker = Attacker(plan_of("secure")).begin().gather()
    target = np.random.default_rng(2).normal(size=SHARED)
    left = attacker.sum(attacker.ask("linear", target))
    left = left - np.sum([respond_of(name, target, 4) for name in SITES[:k]], axis=0) if k else left
    return off(left / (4 - k), respond_of("d", target, 4))


def attack() -> dict[str, Any]:
    """By the number of colluding sites."""
    return {str(k): with_colluding(k) for k in range(4)}


if __name__ == "__main__":
    print(attack())  # noqa: T201
