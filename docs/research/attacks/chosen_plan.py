"""A plan chosen against a site: within the protocol, by a coordinator in plaintext, or for a member that reads the sums.

*Labels.* `bandwidth = ridge = 1e-6`, `label_units = "raw"`: the kernel of two rows that differ is 0, so that the answer at an
instance with a labelled row's features is that label, and 0 everywhere else. That is so for the other sites too: their parts of
a sum are 0 at this instance, and the *sum*, which members read, is the label. A strong coupling
does as much with an ordinary kernel: answers are held to the target 0 wherever no label stands against it.

*Features.* `form = "linear"`, `ridge = 1e6`: no label is learnt from, and what is left of the operator is the kernel itself. In
plaintext the operator is the Gram matrix of a site's shared rows, and so their distances; a member has that of all sites'
columns together.

A policy has ranges for both numbers, in units of the site's own rows, and under sums a bound on how much of one at an instance
may be one label, which each site measures on its own rows; it refuses by name. `border` is the worst plan of the kind that the
defaults let through: what it tells is what they do not prevent.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from federation import (
    COUPLING,
    LABELLED,
    SHARED,
    SITES,
    VICTIM,
    Seen,
    data_of,
    linear,
    member_operator,
    off,
    operator,
    plan_of,
    site_of,
    watched,
)
from scipy.spatial.distance import pdist

from coreg_core.protocol.plan import Agreement, Plan
from site_agent.machine.site_data import PrivateData
from site_agent.policy.policy import Policy

PEERS = {name: f"{i:064x}" for i, name in enumerate(SITES)}


class RefusedByASite(Exception):
    """What a site said instead of an answer."""


def among_the_shared(name: str) -> PrivateData:
    """A site that lists its labelled instances among the shared ones: five of its own, elsewhere than another site's."""
    data, Z = data_of(name), data_of(name).Z.copy()
    Z[own_rows(name)] = data.X
    return replace(data, Z=Z)


def own_rows(name: str) -> slice:
    """Where they stand."""
    first = LABELLED * SITES.index(name)
    return slice(first, first + LABELLED)


def chosen(answers: Any, coupling: float = COUPLING, **terms: Any) -> Plan:
    """A plan that says so."""
    return replace(plan_of(answers), objective=Agreement(coupling=(coupling,), **terms))


def attacked(plan: Plan, policy: Policy | None) -> Seen:
    """The plan before every site; ``policy``: None for operators who never restricted any."""
    sites = {}
    for name in SITES:
        data, rules = among_the_shared(name), dict[str, Any]()
        if policy is not None:
            rules = {"objection": partial(policy.objection, data=data), "label_share_max": policy.label_share_max}
        sites[name] = site_of(name, data, **rules)
    seen = watched(plan, sites)
    if VICTIM in seen.refused:
        raise RefusedByASite(seen.refused[VICTIM])
    return seen


def linear_or_affine(seen: Seen) -> list[int]:
    """The numbers of the rounds that summed vectors."""
    return [number for number, (_, total) in enumerate(seen.rounds) if total.values is not None and total.values.size]


def labels(plan: Plan, policy: Policy | None) -> dict[str, Any]:
    """Root mean square error of b's labels over their deviation; 1 is what their mean gives. One question."""
    try:
        seen = attacked(plan, policy)
    except RefusedByASite as refused:
        return {"refused": str(refused)}
    first = linear_or_affine(seen)[0]
    told = np.asarray(seen.rounds[first][1].values if plan.masked else seen.words(first)[VICTIM])[:, 0]
    y = data_of(VICTIM).y
    y = y if isinstance(plan.objective, Agreement) and plan.objective.label_units == "raw" else y - y.mean()
    found = told[own_rows(VICTIM)]
    # What a row alone is shrunk by follows from the plan: it is given to the attacker.
    factor = (found @ y) / (found @ found)
    return {"off": float(np.sqrt(np.mean((factor * found - y) ** 2)) / y.std())}


def distances(plan: Plan, policy: Policy | None) -> dict[str, Any]:
    """Relative error of the shared rows' squared distances: b's, or of sealed sums those in all sites' columns together."""
    try:
        seen = attacked(plan, policy)
    except RefusedByASite as refused:
        return {"refused": str(refused)}
    objective = plan.objective
    assert isinstance(objective, Agreement)
    assert isinstance(objective.ridge, float)
    if plan.masked:
        told = member_operator(seen)
    else:
        numbers, P = linear(seen)
        told = operator(P, np.stack([seen.words(number)[VICTIM][:, 0] for number in numbers], axis=1))
    gram = objective.ridge / (2.0 * objective.coupling[0] * len(SITES)) * told
    norms = np.diag(gram)
    found = (norms[:, None] + norms - gram - gram.T)[np.triu_indices(SHARED, 1)]
    columns = [among_the_shared(name).Z for name in (SITES if plan.masked else (VICTIM,))]
    return {"off": off(found, pdist(np.concatenate(columns, axis=1), "sqeuclidean"))}


def border(answers: Any, policy: Policy) -> dict[str, Any]:
    """The narrowest kernel and the smallest ridge that every site lets through, at the strongest coupling that they do."""
    apart = max(float(np.median(pdist(data_of(name).X, "sqeuclidean"))) for name in SITES)
    for coupling in np.geomspace(100.0, 1e-6, 49).tolist():
        found = labels(
            chosen(answers, coupling, bandwidth=policy.bandwidth_min * apart, ridge=policy.ridge_min), policy
        )
        if "off" in found:
            return {**found, "coupling": coupling}
    return found


def attack() -> dict[str, Any]:
    """Errors and refusals, by the coordinator in plaintext, and by a member of sealed sums."""
    found: dict[str, Any] = {}
    sizes = min(float(np.sum(data_of(name).X ** 2)) for name in SITES)
    for answers in ("plaintext", "secure"):
        policy = Policy(aggregation=answers, peers=PEERS, members_may_learn="operators", coupling_max=1e5)
        narrow = chosen(answers, bandwidth=1e-6, ridge=1e-6, label_units="raw")
        strong = chosen(answers, coupling=5e4, bandwidth=3.0, ridge=0.5)
        flat = chosen(answers, form="linear", ridge=1e6)
        widest = chosen(answers, form="linear", ridge=policy.ridge_max * sizes)
        found[answers] = {
            "narrow": labels(narrow, None),
            "narrow, policy": labels(narrow, policy),
            "strong": labels(strong, None),
            "strong, policy": labels(strong, policy),
            "honest": labels(chosen(answers, coupling=0.01), policy),
            "border": border(answers, policy),
            "flat": distances(flat, None),
            "flat, policy": distances(flat, policy),
            "flat, border": distances(widest, policy),
        }
    return found


if __name__ == "__main__":
    print(attack())  # noqa: T201
