"""A coordinator claims that a site left, and repeats the sum without it: the difference is that
site's answer.

The coordinator can read neither sum. A member that helps it can, and so can any member alone.
Answers are linear, so any other run has the same effect. A site remembers the sets of sites that it
was summed with, and refuses another set.
"""

from typing import Any

from federation import (
    COUPLING,
    SITES,
    member_operator,
    off,
    plan_of,
    reported,
    site_of,
    truth,
    watched,
)

from site_agent.consent.consent import Consent
from site_agent.consent.memory import Memory
from site_agent.consent.policy import Policy


def second_sum(*, consent: bool) -> dict[str, Any]:
    """ΣR with d and without, at one weight, and their difference; or the refusal of a site."""
    memories = {name: Memory() for name in SITES}
    found = []
    policy = Policy(membership_changes=consent)
    # λ so that 2λM, with M = 3, is the weight that 2λM was with M = 4.
    for run, sites, coupling in (
        ("run-1", SITES, COUPLING),
        ("run-2", SITES[:3], COUPLING * 4 / 3),
    ):
        plan = plan_of("secure", sites, run=run, coupling=(coupling,), membership_changes=consent)
        held = {
            name: site_of(name, consent=Consent(policy, memories[name], lambda: 0.0))
            for name in sites
        }
        seen = watched(plan, held)
        if not seen.rounds:
            return {"refused": seen.reason}
        for name in held:
            memories[name].add(
                {"kind": "Offer", "run": run, "plan": plan.digest, "ids_digest": "ids"}
            )
            answered = {
                "kind": "Answer",
                "run": run,
                "numbers": 1,
                "participants": sites,
                "may_change": consent,
            }
            memories[name].add(answered)
        found.append(member_operator(seen))
    return {"error": off(found[0] - found[1], truth("d", plan_of("secure")))}


@reported
def attack() -> dict[str, Any]:
    """A refusal; if all policies and both plans consent, the relative error of d's operator (0:
    disclosed).
    """
    return {"no consent": second_sum(consent=False), "consented": second_sum(consent=True)}
