"""Shared by the attacks on additive trainings: tables, a session of the agent's own code, and what
its members opened.

The secrets of the cross products are shorter here than in a federation (64 rows for 3,328). This
opens the same sums, up to the words' rounding. No score is refined: that comes after the last sum.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from federation import Seen, site_of, watched

from coreg_core.additive import refined
from coreg_core.additive.exchange import SiteExchange
from coreg_core.objectives.additive import Additive
from coreg_core.plan import Plan
from coreg_core.secure import cross_products as cross
from coreg_core.terms import Iteration, Membership, Privacy
from site_agent.consent.consent import Consent
from site_agent.consent.memory import Memory
from site_agent.machine.results import AdditiveResult
from site_agent.site_data import PrivateData

cross.SECRET_ROWS = 64
cross.RANDOM_ROWS = 320
refined.LEAST_LABELS = 10**9

Rows = dict[str, PrivateData]


def rows_of(sites: int = 3, labelled: int = 50, unlabelled: int = 0, seed: int = 0) -> Rows:
    """Columns that go together, a target that is a sum of parts, and labels of each site's own
    individuals.
    """
    rng = np.random.default_rng(seed)
    N = sites * labelled + unlabelled
    z = rng.normal(size=(N, 4))
    X = [z @ rng.normal(size=(4, 5)) + rng.normal(size=(N, 5)) for _ in range(sites)]
    y = sum(np.sin(x[:, 0]) + 0.5 * x[:, 1] * (x[:, 2] > 0) for x in X) + 0.5 * rng.normal(size=N)
    # The noise of a label is named after its text, and last bits are of the processor.
    X, y = [x.round(6) for x in X], y.round(6)
    ids = tuple(f"p{i}" for i in range(N))
    found = {}
    for v, name in enumerate("abcdefgh"[:sites]):
        at = np.arange(v * labelled, (v + 1) * labelled)
        found[name] = PrivateData(X[v][at], y[at], X[v], "digest", name.encode(), at, ids=ids)
    return found


def train(
    rows: Rows,
    noise: float,
    label_noise: float,
    run: str = "run-1",
    records: Mapping[str, Memory] | None = None,
    **terms: Any,
) -> tuple[Seen, list[SiteExchange]]:
    """A session; ``records``: the row sets that these sites remember.

    The exchanges are empty if a site refused.
    """
    plan = Plan(
        run,
        "attacked",
        Membership(tuple(rows), len(rows)),
        Additive(noise=noise, label_noise=label_noise, **terms),
        Iteration(),
        Privacy(),
    )
    consents = {
        name: Consent(None, memory, lambda: 0.0) for name, memory in (records or {}).items()
    }
    sites = {name: site_of(name, data, consents.get(name)) for name, data in rows.items()}
    seen = watched(plan, sites)
    ended = [site for site in sites.values() if isinstance(site.result, AdditiveResult)]
    return seen, [site.computation.exchange for site in ended]


def left_out(A: Any, B: Any) -> Any:
    """Left-out predictions of B from A, by the ridge of least error: what A tells without any
    opened sum.
    """
    U, s, _ = np.linalg.svd(A - A.mean(0), full_matrices=False)
    middle = B - B.mean(0)
    errors = []
    for ridge in s[0] ** 2 * np.logspace(-5, 2, 15):
        h = s**2 / (s**2 + ridge)
        leverage = (U**2) @ h + 1.0 / len(A)
        errors.append(
            (middle - (U * h) @ (U.T @ middle)) / (1.0 - leverage.reshape(-1, *[1] * (B.ndim - 1)))
        )
    return B - min(errors, key=lambda e: float((e**2).sum()))


def read(truth: Any, guess: Any, known: Any) -> float:
    """The share of what ``known`` leaves open that the guess reads; with a mean for ``known`` this
    is R².
    """
    return float(1.0 - np.sum((truth - guess) ** 2) / np.sum((truth - known) ** 2))
