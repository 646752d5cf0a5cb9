"""The members of an attempt: whether their offers fit the plan, and the digest of them all."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from coreg_core.messages import Offer
from coreg_core.plan import LISTED, Plan


def canonical(*about: Any) -> bytes:
    """An injective encoding of names, numbers and texts: other values have other bytes."""
    return json.dumps(about, separators=(",", ":"), sort_keys=True).encode()


def transcript_of(plan: Plan, roster: Iterable[Offer]) -> bytes:
    """T: the digest of plan and roster, where every chain begins."""
    offers = [asdict(offer) for offer in roster]
    return hashlib.sha256(canonical("coreg attempt 2", plan.run, plan.digest, *offers)).digest()


def roster_fault(plan: Plan, own: Offer, roster: Sequence[Offer]) -> str | None:
    """Why this roster does not fit the plan, or None."""
    sites = [offer.site for offer in roster]
    if own not in roster:
        return f"the roster of run {plan.run} does not contain this site's unchanged offer."
    if sites != sorted(set(sites)):
        return "the roster does not list every site once, in site order."
    if unknown := sorted(set(sites) - set(plan.sites)):
        return f"the roster lists {', '.join(unknown[:LISTED])}, which the plan does not."
    if len(sites) < plan.membership.min_sites:
        least = plan.membership.min_sites
        return f"the roster has {len(sites)} sites; the plan needs at least {least}."
    for offer in roster:
        here = (own.run, own.attempt, own.plan_digest)
        if (offer.run, offer.attempt, offer.plan_digest) != here:
            return f"the offer of {offer.site} is for another plan or attempt."
        if (offer.n_unlabelled, offer.ids_digest) != (own.n_unlabelled, own.ids_digest):
            return (
                f"{offer.site} lists {offer.n_unlabelled} shared instances, and {own.site} lists "
                f"{own.n_unlabelled}: not the same ids. Compare them with `coreg-agent check` at "
                "both sites."
            )
    return None
