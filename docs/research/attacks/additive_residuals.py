"""Another site reads labels from the residuals of the additive objective: all labels, group means or next to nothing.

Every site has s, q and a. With open residuals y_i = a + a_v + s_i + σ² q_i on the shared instances that a site labels. The
random intercept a_v is κ times the sum of q over them, and σ² is one number. So one known label discloses all labels of that
site, with or without masks, because q is a sum over sites that label different instances. With grouped residuals the same
equation discloses the means of groups, up to that number. With smoothed residuals q is spread over instances that look alike.

What remains is the score itself. A member reads it for every shared instance, and it was trained on the label: `of_scores`
measures how well it predicts that label, beside labels that no site has.
"""

from typing import Any

import numpy as np
from federation import SITES, off, site_of, watched
from sklearn.datasets import load_diabetes

from benchmarks.additive_reference.dense_training import train_dense
from coreg_core.additive.model.grouping import ResidualPolicy
from coreg_core.additive.model.terms import Additive
from coreg_core.additive.question_types import split
from coreg_core.additive.site import AdditiveSite
from coreg_core.protocol.plan import Membership, Plan, Privacy
from site_agent.machine.site_data import PrivateData, row_keys

SHARED, LABELLED = 60, 12
SMALL: dict[str, Any] = {"tuning_steps": 2, "probes": 2, "landmarks": 20, "final_tolerance": 1e-10, "targets": "raw"}
EVERYTHING = ResidualPolicy(grouped_at_least=3, open_residuals=True)


def data_of(name: str) -> PrivateData:
    """Two columns of eight, a label that is a sum over all of them; labelled rows are among the shared ones."""
    rng, v = np.random.default_rng(11), SITES.index(name)
    A = rng.normal(size=(SHARED, 2 * len(SITES)))
    y = np.sin(A).sum(axis=1) + 0.3 * rng.normal(size=len(A))
    own = LABELLED * v + np.arange(LABELLED)
    X, Z = (np.ascontiguousarray(A[rows, 2 * v : 2 * v + 2]) for rows in (own, np.arange(SHARED)))
    keys = row_keys([f"p{i}" for i in own], y[own], name.encode())
    return PrivateData(X, y[own], Z, "ids", name.encode(), own, keys)


def run_of(**terms: Any) -> tuple[PrivateData, Any]:
    """Site b's data, and the point x = (s, q, a) of site c, after an honest run under masks."""
    plan = Plan("run-1", "attacked", Membership(SITES, 3), Additive(**SMALL, **terms), privacy=Privacy("secure"))
    held = {name: data_of(name) for name in SITES}
    sites = {name: site_of(name, data, residuals=EVERYTHING) for name, data in held.items()}
    watched(plan, sites)
    result = sites["c"].result
    assert result is not None
    assert result.point is not None
    return held["b"], result.point


def of_labels(**terms: Any) -> dict[str, float]:
    """Errors for another site that knows the instances that b labels, and one label or one group's mean.

    ``labels`` and ``means``: relative errors of its guesses; ``without``: of what s alone says of these instances.
    """
    data, x = run_of(rows="common", **terms)
    s, q, a = (part[..., 0] for part in split(x))
    assert data.positions is not None
    s, q, y = s[data.positions], q[data.positions], data.y
    a = a + Additive().random_intercept * q.sum()
    groups = [np.flatnonzero(np.isclose(q, value, rtol=1e-9)) for value in dict.fromkeys(np.round(q, 12))]
    first = groups[0]
    noise = (y[first].mean() - a - s[first].mean()) / q[first[0]]
    means = np.array([[a + s[g].mean() + noise * q[g[0]], y[g].mean()] for g in groups[1:]])
    rest = np.concatenate(groups[1:])
    guess = np.concatenate([np.full(len(g), mean) for g, mean in zip(groups[1:], means[:, 0], strict=True)])
    return {"labels": off(guess, y[rest]), "means": off(means[:, 0], means[:, 1]), "without": off(a + s[rest], y[rest])}


def of_scores(n: int = 50, draws: int = 5) -> dict[str, float]:
    """Errors of the joint score at ``labelled`` rows and at all ``others``, in deviations of the labels: scikit-learn's diabetes
    table, three sites, n labels each, all sites know all rows."""
    X, y = load_diabetes(return_X_y=True)
    views, found = [slice(0, 4), slice(4, 7), slice(7, 10)], []
    for seed in range(draws):
        order = np.random.default_rng(seed).permutation(len(y))
        labelled = np.arange(len(y))[:, None] // n == np.arange(len(views))
        known = labelled.any(axis=1)
        terms, table, target = Additive(rows="common", seed=seed), X[order], y[order]
        sites = [
            AdditiveSite(table[own, view], target[own], np.ascontiguousarray(table[:, view]), terms, positions=own)
            for view, own in zip(views, map(np.flatnonzero, labelled.T), strict=True)
        ]
        run = train_dense(terms, sites, len(y))
        mean, deviation = run.units
        off_by = mean + deviation * (run.x[: len(y), 0] + run.x[-1, 0]) - target
        found.append([float(np.sqrt(np.mean(off_by[rows] ** 2)) / y[order][rows].std()) for rows in (known, ~known)])
    return dict(zip(("labelled", "others"), np.mean(found, axis=0).tolist(), strict=True))


def attack() -> dict[str, Any]:
    """Relative errors, by the plan's `residuals`."""
    return {
        "open": of_labels(residuals="open"),
        "grouped": of_labels(residuals="grouped", group_size=3),
        "smoothed": of_labels(),
        "scores": of_scores(),
    }


if __name__ == "__main__":
    print(attack())  # noqa: T201
