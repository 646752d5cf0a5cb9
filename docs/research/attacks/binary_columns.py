"""With linear features every member sees the span of all sites' columns, and tests a guess of one
column in it.

An attacker can guess a column of two values, for example which of 24 instances are women. The guess
lies in the span or it does not. No key of a policy refuses such a plan: the request for approval
states what a linear kernel discloses.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from federation import (
    FEATURES,
    SHARED,
    SITES,
    VICTIM,
    data_of,
    member_operator,
    plan_of,
    reported,
    site_of,
    watched,
)

from site_agent.site_data import PrivateData


def with_a_binary_column(data: PrivateData) -> PrivateData:
    """Its second column has two values."""
    X = data.X.copy()
    Z = data.Z.copy()
    rng = np.random.default_rng(1)
    X[:, 1], Z[:, 1] = (rng.choice([-1.0, 1.0], size=len(part)) for part in (X, Z))
    return replace(data, X=X, Z=Z)


@reported
def attack() -> dict[str, Any]:
    """Relative distance of a guessed column from the span of the columns: 0 confirms the guess, 1
    is a right angle.
    """
    data = with_a_binary_column(data_of(VICTIM))
    plan = plan_of("secure")
    seen = watched(plan, {name: site_of(name, data if name == VICTIM else None) for name in SITES})
    span = np.linalg.eigh(member_operator(seen))[1][:, -FEATURES * len(SITES) :]

    def missed(column: Any) -> float:
        return float(np.linalg.norm(column - span @ (span.T @ column)) / np.linalg.norm(column))

    wrong = np.random.default_rng(2).choice([-1.0, 1.0], size=(200, SHARED))
    return {
        "right guess": missed(data.Z[:, 1]),
        "best of 200 wrong guesses": min(map(missed, wrong)),
    }
