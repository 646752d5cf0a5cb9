"""A plan chosen against a site: within the protocol, and with every mask in its place.

*Labels.* `bandwidth = ridge = 1e-6`, `label_units = "raw"`: the kernel of two rows that differ is 0, so that the answer at an
instance with a labelled row's features is that label, and 0 everywhere else. That is so for the other sites too: their parts of
a sum are 0 at this instance, and the *sum* is the label. Masks hide nothing where only one has anything to say. A strong coupling
does as much with an ordinary kernel: answers are held to the target 0 wherever no label stands against it.

*Features.* `form = "linear"`, `ridge = 1e6`: no label is learnt from, and what is left of the operator is the kernel itself. In
the clear answers to the basis vectors are the Gram matrix of a site's shared rows, and so their distances; under sums that of
all sites' columns together.

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
    Attacker,
    RefusedByASite,
    data_of,
    off,
    plan_of,
    simulated_keys,
)
from scipy.spatial.distance import pdist

from coreg_core.agreement.question_rules import weight_of
from coreg_core.protocol.plan import Agreement, Plan
from site_agent.machine.site import Site, Terms
from site_agent.machine.site_data import PrivateData
from site_agent.policy.policy import Policy

VICTIM = "b"
PEERS = {name: f"{i:064x}" for i, name in enumerate(SITES)}


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


def attacked(plan: Plan, policy: Policy | None) -> Attacker:
    """The plan before every site; ``policy``: None for operators who never restricted any."""
    sites = {}
    for name in SITES:
        data = among_the_shared(name)
        terms = Terms(keys=simulated_keys(name))
        if policy is not None:
            objection = partial(policy.objection, data=data)
            terms = replace(terms, objection=objection, label_share_max=policy.label_share_max)
        sites[name] = Site(name, data, terms)
    return Attacker(plan, sites).begin().gather()


def labels(plan: Plan, policy: Policy | None) -> dict[str, Any]:
    """Root mean square error of b's labels over their deviation; 1 is what their mean gives. One question."""
    try:
        attacker = attacked(plan, policy)
    except RefusedByASite as refused:
        return {"refused": str(refused)}
    got = attacker.ask("affine", np.zeros(SHARED))
    told = attacker.sum(got) if plan.masked else attacker.read(got[VICTIM])
    y = data_of(VICTIM).y
    y = y if isinstance(plan.objective, Agreement) and plan.objective.label_units == "raw" else y - y.mean()
    found = told[own_rows(VICTIM)]
    factor = (found @ y) / (
        found @ found
    )  # what a row alone is shrunk by follows from the plan: it is given to the attacker
    return {"off": float(np.sqrt(np.mean((factor * found - y) ** 2)) / y.std())}


def distances(plan: Plan, policy: Policy | None) -> dict[str, Any]:
    """Relative error of the shared rows' squared distances: b's, or under sums those in all sites' columns together."""
    try:
        attacker = attacked(plan, policy)
    except RefusedByASite as refused:
        return {"refused": str(refused)}
    [mu] = [weight_of("conjugate-gradients", c, len(SITES)) for c in plan.couplings]
    objective = plan.objective
    assert isinstance(objective, Agreement)
    assert isinstance(objective.ridge, float)
    attacker.ask("affine", np.zeros(SHARED))
    answers = [attacker.ask("linear", e) for e in np.eye(SHARED)]
    told = np.array([attacker.sum(a) if plan.masked else attacker.read(a[VICTIM]) for a in answers])
    gram = objective.ridge / mu * told
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
    """Errors and refusals, in the clear and under sums."""
    found: dict[str, Any] = {}
    sizes = min(float(np.sum(data_of(name).X ** 2)) for name in SITES)
    for answers in ("plaintext", "secure"):
        policy = Policy(aggregation=answers, peers=PEERS)
        narrow = chosen(answers, bandwidth=1e-6, ridge=1e-6, label_units="raw")
        strong = chosen(answers, coupling=50.0, bandwidth=8.0, ridge=0.5)
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
