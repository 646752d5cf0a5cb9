"""The plan is chosen against a site, for a coordinator that reads plaintext or for a member that
reads sums.

*Labels.* `bandwidth = ridge = 1e-6`: the kernel of two different rows is 0, so the answer at an
instance with a labelled row's features is that label less their mean, and 0 elsewhere. The same
holds for the other sites. Their parts of a sum are 0 at this instance, so the *sum*, which members
read, is the label. A strong coupling does the same with an ordinary kernel: it holds answers to the
target 0 wherever no label opposes it.

*Features.* `form = "linear"`, `ridge = 1e6`: nothing is learnt from a label, and the operator is
the kernel itself. In plaintext the operator is the Gram matrix of a site's shared rows, and
discloses their distances. A member has that of all sites' columns together.

An agent has ranges for both numbers, in units of the site's own rows, and a largest coupling. Under
sums it also limits the share of one label in an answer at one instance, which each site measures on
its own rows. A refusal names the number. `border` is the worst plan of this kind that an agent
accepts: the limits do not prevent what it discloses.
"""

from dataclasses import replace
from typing import Any
from unittest.mock import patch

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
    reported,
    site_of,
    watched,
)
from scipy.spatial.distance import pdist

from coreg_core.objectives.agreement import Agreement
from coreg_core.plan import Plan
from site_agent.consent.consent import Consent
from site_agent.consent.memory import Memory
from site_agent.consent.policy import Policy
from site_agent.consent.scale import BANDWIDTH_MIN, RIDGE_MAX, RIDGE_MIN
from site_agent.machine.agreement import LABEL_SHARE_MAX
from site_agent.site_data import PrivateData


class RefusedByASite(Exception):
    """The reply of a site that did not answer."""


def among_the_shared(name: str) -> PrivateData:
    """A site that lists its labelled instances among the shared ones: five of its own, elsewhere
    than another site's.
    """
    data = data_of(name)
    Z = data_of(name).Z.copy()
    Z[own_rows(name)] = data.X
    return replace(data, Z=Z)


def own_rows(name: str) -> slice:
    """Positions of the labelled instances."""
    first = LABELLED * SITES.index(name)
    return slice(first, first + LABELLED)


def chosen(answers: Any, coupling: float = COUPLING, **terms: Any) -> Plan:
    """A plan with these terms."""
    return replace(plan_of(answers), objective=Agreement(coupling=(coupling,), **terms))


def attacked(plan: Plan, policy: Policy | None) -> Seen:
    """The plan, proposed to every site; ``policy`` is None for sites without restrictions."""
    sites = {}
    for name in SITES:
        sites[name] = site_of(name, among_the_shared(name), Consent(policy, Memory(), lambda: 0.0))
    with patch("site_agent.machine.agreement.LABEL_SHARE_MAX", LABEL_SHARE_MAX if policy else 1.0):
        seen = watched(plan, sites)
    if VICTIM in seen.refused:
        raise RefusedByASite(seen.refused[VICTIM])
    return seen


def linear_or_affine(seen: Seen) -> list[int]:
    """Indices of the rounds that summed vectors."""
    return [
        number for number, (_, total) in enumerate(seen.rounds) if total is not None and total.size
    ]


def labels(plan: Plan, policy: Policy | None) -> dict[str, Any]:
    """Root mean square error of b's labels over their deviation, from one question; guessing their
    mean gives 1.
    """
    try:
        seen = attacked(plan, policy)
    except RefusedByASite as refused:
        return {"refused": str(refused)}
    first = linear_or_affine(seen)[0]
    told = np.asarray(seen.rounds[first][1] if plan.masked else seen.words(first)[VICTIM])[:, 0]
    y = data_of(VICTIM).y
    found = told[own_rows(VICTIM)]
    # The shrinkage of a lone row follows from the plan, so the attacker knows it.
    factor = (found @ y) / (found @ found)
    return {"error": float(np.sqrt(np.mean((factor * found - y) ** 2)) / y.std())}


def distances(plan: Plan, policy: Policy | None) -> dict[str, Any]:
    """Relative error of the shared rows' squared distances: b's, or of sealed sums those in all
    sites' columns together.
    """
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
        told = operator(
            P, np.stack([seen.words(number)[VICTIM][:, 0] for number in numbers], axis=1)
        )
    gram = objective.ridge / (2.0 * objective.coupling[0] * len(SITES)) * told
    norms = np.diag(gram)
    found = (norms[:, None] + norms - gram - gram.T)[np.triu_indices(SHARED, 1)]
    columns = [among_the_shared(name).Z for name in (SITES if plan.masked else (VICTIM,))]
    return {"error": off(found, pdist(np.concatenate(columns, axis=1), "sqeuclidean"))}


def border(answers: Any, policy: Policy) -> dict[str, Any]:
    """The narrowest kernel, the smallest ridge and the strongest coupling that every site
    accepts.
    """
    apart = max(float(np.median(pdist(data_of(name).X, "sqeuclidean"))) for name in SITES)
    for coupling in np.geomspace(100.0, 1e-6, 49).tolist():
        found = labels(
            chosen(answers, coupling, bandwidth=BANDWIDTH_MIN * apart, ridge=RIDGE_MIN), policy
        )
        if "error" in found:
            return {**found, "coupling": coupling}
    return found


@reported
def attack() -> dict[str, Any]:
    """Errors of labels (flat: of distances), 1 as of a guess, for a coordinator (plaintext) and a
    member (secure); refusals.
    """
    found: dict[str, Any] = {}
    sizes = min(float(np.sum(data_of(name).X ** 2)) for name in SITES)
    for answers in ("plaintext", "secure"):
        policy = Policy(aggregation=answers)
        narrow = chosen(answers, bandwidth=1e-6, ridge=1e-6)
        strong, strongest = (
            chosen(answers, coupling=c, bandwidth=3.0, ridge=0.5) for c in (5e4, 100.0)
        )
        flat = chosen(answers, form="linear", ridge=1e6)
        widest = chosen(answers, form="linear", ridge=RIDGE_MAX * sizes)
        found[answers] = {
            "narrow": labels(narrow, None),
            "narrow, policy": labels(narrow, policy),
            "strong": labels(strong, None),
            "strong, policy": labels(strong, policy),
            "strongest, policy": labels(strongest, policy),
            "honest": labels(chosen(answers, coupling=0.01), policy),
            "border": border(answers, policy),
            "flat": distances(flat, None),
            "flat, policy": distances(flat, policy),
            "flat, border": distances(widest, policy),
        }
    return found
