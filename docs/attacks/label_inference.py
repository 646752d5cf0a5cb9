"""What the sums themselves tell of labels: a coordinator that knows a site's features, all of them, and has Σ respond_v(0, μ).

It treats the mean of the answers as that site's own, and inverts the map from the site's labels to its answer. In the clear
that gives the labels; from the sum of four sites it gives numbers that are further from the labels than the labels' mean is.
"""

from typing import Any

import numpy as np
from federation import COUPLING, FEATURES, SHARED, Attacker, data_of, plan_of

from coreg_core.agreement.question_rules import weight_of


def inferred(answers: Any) -> dict[str, float]:
    """Root mean square error of b's labels, over their deviation."""
    attacker = Attacker(plan_of(answers)).begin().gather()
    got = attacker.ask("affine", np.zeros(SHARED))
    own = attacker.read(got["b"]) if answers == "plaintext" else attacker.sum(got) / len(attacker.names)
    data, mu = data_of("b"), weight_of("conjugate-gradients", COUPLING, len(attacker.names))
    inner = data.X.T @ data.X + 0.5 * np.eye(FEATURES) + mu * data.Z.T @ data.Z
    labels = np.linalg.lstsq(data.Z @ np.linalg.solve(inner, data.X.T), own, rcond=None)[0]
    return {"error over deviation": float(np.sqrt(np.mean((labels - data.y) ** 2)) / data.y.std())}


def attack() -> dict[str, Any]:
    """1 is what the labels' mean gives."""
    return {"plaintext": inferred("plaintext"), "secure": inferred("secure")}


if __name__ == "__main__":
    print(attack())  # noqa: T201
