"""A coordinator that is the certificate authority invents all sites but one: it signs keys of its own in the others' names.

Of a site whose policy pinned those keys it learns everything, the sum less its own words. A site that pins its peers' real
keys refuses the roster.
"""

from typing import Any

import numpy as np
from federation import SHARED, SITES, Attacker, RefusedByASite, off, plan_of, respond_of, site_of

from coreg_sim.federation.masks import fingerprint_of, identity_of
from site_agent.identity.mask_keys import RunKeys

OWN = {name: f"the coordinator's own {name}" for name in SITES if name != "b"}


def alone_among_puppets(*, deceived: bool) -> dict[str, Any]:
    """What comes of it where b pins whatever the authority signed (deceived), and where it pins its peers."""

    def pinned(name: str) -> str:
        return fingerprint_of(OWN.get(name, name)) if deceived else fingerprint_of(name)

    sites = {name: site_of(name, keys=RunKeys(name, identity_of(OWN[name]), fingerprint_by_owner)) for name in OWN}
    sites["b"] = site_of("b", keys=RunKeys("b", identity_of("b"), pinned))
    attacker = Attacker(plan_of("secure"), sites).begin()
    target = np.random.default_rng(1).normal(size=SHARED)
    try:
        attacker.gather()
    except RefusedByASite as refused:
        return {"refused": str(refused)}
    answers = attacker.ask("linear", target)
    puppets = np.sum([respond_of(name, target, 4) for name in OWN], axis=0)  # its own answers, which it knows
    return {"off": off(attacker.sum(answers) - puppets, respond_of("b", target, 4))}


def fingerprint_by_owner(name: str) -> str:
    """The puppets know each other."""
    return fingerprint_of(OWN.get(name, name))


def attack() -> dict[str, Any]:
    """How near the attacker comes to b's answer, or b's refusal."""
    return {"peers not pinned": alone_among_puppets(deceived=True), "pinned": alone_among_puppets(deceived=False)}


if __name__ == "__main__":
    print(attack())  # noqa: T201
