"""Whom an attempt is with: rosters that this site takes part in, and where they can go on from."""

from collections.abc import Sequence

from coreg_core.protocol.messages import Offer
from coreg_core.protocol.plan import Plan


def roster_fault(plan: Plan, own: Offer, roster: Sequence[Offer]) -> str | None:
    """Why this is no roster of the plan, or None."""
    sites = [offer.site for offer in roster]
    if own not in roster:
        return f"the roster of run {plan.run} does not have this site's offer as it was made."
    if sites != sorted(set(sites)):
        return f"the roster lists {', '.join(sites)}: every site once, in site order."
    if unknown := sorted(set(sites) - set(plan.sites)):
        return f"{', '.join(unknown)} on the roster: not of the plan."
    if len(sites) < plan.membership.min_sites:
        return f"a roster of {len(sites)} sites; the plan has at least {plan.membership.min_sites}."
    for offer in roster:
        if (offer.run, offer.attempt, offer.plan_digest) != (own.run, own.attempt, own.plan_digest):
            return f"the offer of {offer.site} is for another plan or attempt."
        if (offer.n_unlabelled, offer.ids_digest) != (own.n_unlabelled, own.ids_digest):
            return (
                f"{offer.site} lists {offer.n_unlabelled} shared instances, and {own.site} {own.n_unlabelled}: not the same "
                "ids. Compare them with `coreg-agent check` at both sites."
            )
        if offer.machine != own.machine:
            return (
                f"the machine of {offer.site} rounds otherwise than that of {own.site}, so they would never agree on a state. "
                "Start both agents with the same release of coreg and numpy."
            )
    return None


def common_position(roster: Sequence[Offer]) -> tuple[int, str] | None:
    """The latest state that every offer has; nobody chooses it, since all see the same offers."""
    shared = set.intersection(*({(r.position, r.digest) for r in offer.resume} for offer in roster))
    return max(shared, default=None)
