"""A coordinator that is the certificate authority invents all sites but one, with keys of its own
in the others' names.

If a site's operator confirms the eight words of those keys without a call, the coordinator learns
everything: the sum minus its own words. A site that confirmed the real keys of its peers refuses
the roster.
"""

from typing import Any

from federation import (
    SITES,
    VICTIM,
    member_operator,
    off,
    plan_of,
    reported,
    site_of,
    truth,
    watched,
)

from coreg_sim.simulate import fingerprint_of, identity_of
from site_agent.identity.run_keys import RunKeys

OWN = {name: f"the coordinator's own {name}" for name in SITES if name != VICTIM}


def alone_among_puppets(*, deceived: bool) -> dict[str, Any]:
    """Run the attack on a b that confirmed the keys that the authority signed (deceived), or its
    peers' real keys.
    """

    def confirmed(name: str) -> str:
        return fingerprint_of(OWN.get(name, name)) if deceived else fingerprint_of(name)

    sites = {
        name: site_of(name, keys=RunKeys(identity_of(OWN[name]), fingerprint_by_owner))
        for name in OWN
    }
    sites[VICTIM] = site_of(VICTIM, keys=RunKeys(identity_of(VICTIM), confirmed))
    seen = watched(plan_of("secure"), {name: sites[name] for name in SITES})
    if not seen.rounds:
        return {"refused": seen.reason}
    puppets = sum(truth(name, plan_of("secure")) for name in OWN)  # its own answers, which it knows
    return {"error": off(member_operator(seen) - puppets, truth(VICTIM, plan_of("secure")))}


def fingerprint_by_owner(name: str) -> str:
    """The puppets know each other."""
    return fingerprint_of(OWN.get(name, name))


@reported
def attack() -> dict[str, Any]:
    """The relative error of b's operator for the coordinator (0: disclosed), or b's refusal."""
    return {
        "words not compared": alone_among_puppets(deceived=True),
        "compared": alone_among_puppets(deceived=False),
    }
