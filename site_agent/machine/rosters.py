"""What members compare before they go on: the roster of a run, the state to continue from, and the heads of their logs."""

from collections.abc import Collection, Iterable, Sequence

from coreg_core.protocol.messages import Head, Offer
from coreg_core.protocol.plan import Plan


def roster_fault(plan: Plan, own: Offer, roster: Sequence[Offer]) -> str | None:
    """Why this roster does not fit the plan, or None."""
    sites = [offer.site for offer in roster]
    if own not in roster:
        return f"the roster of run {plan.run} does not contain this site's unchanged offer."
    if sites != sorted(set(sites)):
        return f"the roster lists {', '.join(sites)}; expected every site once, in site order."
    if unknown := sorted(set(sites) - set(plan.sites)):
        return f"the roster lists {', '.join(unknown)}, which the plan does not."
    if len(sites) < plan.membership.min_sites:
        return f"the roster has {len(sites)} sites; the plan needs at least {plan.membership.min_sites}."
    for offer in roster:
        if (offer.run, offer.attempt, offer.plan_digest) != (own.run, own.attempt, own.plan_digest):
            return f"the offer of {offer.site} is for another plan or attempt."
        if (offer.n_unlabelled, offer.ids_digest) != (own.n_unlabelled, own.ids_digest):
            return (
                f"{offer.site} lists {offer.n_unlabelled} shared instances, and {own.site} lists {own.n_unlabelled}: not the "
                "same ids. Compare them with `coreg-agent check` at both sites."
            )
    return None


def common_position(roster: Sequence[Offer]) -> tuple[int, str] | None:
    """The latest state that every offer lists. Each site derives it from the same offers, so no party can choose it."""
    shared = set.intersection(*({(r.position, r.digest) for r in offer.resume} for offer in roster))
    return max(shared, default=None)


def heads_fault(heads: Iterable[Head], own: Head, sites: Collection[str]) -> str | None:
    """How another site's log or state differs from this site's, or None.

    Heads are not signed, so they help to name a fault and protect nothing. A sum opens only for sites with the same log.
    """
    found = {head.site: head for head in heads}
    if set(found) != set(sites):
        return f"heads of {', '.join(sorted(found)) or 'no site'}; expected {', '.join(sorted(sites))}."
    if others := sorted(site for site, head in found.items() if head.chain != own.chain):
        return f"the coordinator sent {', '.join(others)} another sum than {own.site} in the same step."
    if others := sorted(site for site, head in found.items() if head.state != own.state):
        return f"{', '.join(others)} computed another state than {own.site} from the same sums."
    return None
