"""Where sites know only some shared instances, a member with two operators derives which instances each other site knows.

It separates the sums as `separation.py` does. A component is zero at the instances that its site does not know. The policy
setting `members_may_learn = "sums"` refuses such a shared set, and so does `min_sites` above the fewest that know an instance.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from federation import COUPLING, FEATURES, SHARED, SITES, data_of, member_operator, plan_of, site_of, view_of, watched
from separation import components

from coreg_core.alignment.overlap import Overlap
from coreg_core.protocol.plan import Membership, Plan
from site_agent.machine.site_data import PrivateData
from site_agent.policy.policy import Policy

PATH = (COUPLING, 0.05)
ATTACKER = SITES[0]
# The attacker knows all instances, and every other site lacks a third of them.
KNOWN = np.array([[v == 0 or i % len(SITES) != v for i in range(SHARED)] for v in range(len(SITES))])


def known_part(name: str) -> PrivateData:
    """The site's rows, with the shared instances that it knows."""
    v, data = SITES.index(name), data_of(name)
    overlap = Overlap(np.flatnonzero(KNOWN[v]), KNOWN.sum(axis=0), len(SITES))
    ids = tuple(data.ids[i] for i in overlap.places)
    return replace(data, Z=data.Z[overlap.places], ids=ids, overlap=overlap, aligned_sites=SITES)


def attacked_plan(aggregation: Any) -> Plan:
    """All four sites, and two couplings."""
    return replace(plan_of(aggregation, coupling=PATH), membership=Membership(SITES, len(SITES)))


def attack() -> dict[str, Any]:
    """The share of (instance, hidden site) that a member finds, and two refusals."""
    plan, parts = attacked_plan("secure"), {name: known_part(name) for name in SITES}
    seen = watched(plan, {name: site_of(name, parts[name]) for name in SITES})
    own = view_of(ATTACKER, plan, parts[ATTACKER])
    weights = [np.full(SHARED, 2.0 * coupling * len(SITES)) for coupling in PATH]
    hidden = [member_operator(seen, j) - own.respond(np.eye(SHARED), w, "linear") for j, w in enumerate(weights)]
    found = components(hidden[0], hidden[1], FEATURES * (len(SITES) - 1))
    size = np.abs(found) / np.abs(found).max(axis=0)
    support = size > 1e-6
    truth = KNOWN[1:]
    # Each component against the site that it fits best; a site has FEATURES of them.
    fits = np.array([[np.mean(column == row) for row in truth] for column in support.T])
    guess = np.random.default_rng(0).permuted(truth, axis=1)
    return {
        "known instances found": float(fits.max(axis=1).mean()),
        "sites found": sorted(np.bincount(fits.argmax(axis=1), minlength=len(truth)).tolist()),
        "by guessing": float(np.mean(guess == truth)),
        "refused under sums": policy("sums", 2).objection(one_operator(plan), parts[ATTACKER]) or "",
        "refused by min_sites": policy("operators", 4).objection(plan, parts[ATTACKER]) or "",
    }


def one_operator(plan: Plan) -> Plan:
    """A plan that a policy of sums accepts for instances that all sites know."""
    terms = replace(plan.objective, coupling=(COUPLING,), form="semi-parametric")
    return replace(plan, objective=terms)


def policy(members: str, least: int) -> Policy:
    """A policy with pinned peers."""
    peers = {name: name * 64 for name in SITES}
    return Policy.model_validate({"peers": peers, "members_may_learn": members, "min_sites": least})


if __name__ == "__main__":
    print(attack())  # noqa: T201
