"""Answering under masks, as the machine sees it: keys and streams are somebody else's (`site_agent.identity`), handed
in.

What is masked, in which context, and what a roster has to be before anything is answered under it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from coreg_core.masking.fixed_point import LEAST_EXPONENT, MOST_EXPONENT, on_the_grid, power_above, wraps
from coreg_core.masking.sums import Layout, summand
from coreg_core.masking.sums import Words as Row
from coreg_core.numerics.arrays import Arr
from coreg_core.protocol.messages import Ask, Inquiry, Masked, Roster
from coreg_core.protocol.plan import FEWEST_MASKED, Plan
from coreg_core.protocol.vectors import Words


@dataclass(frozen=True)
class Offer:
    """This site's key for the masks of a run, signed by its certificate's key; all hex."""

    key: str = ""
    signature: str = ""
    identity: str = ""


NO_KEYS = Offer()


class Masks(Protocol):
    """The masks of one roster."""

    @property
    def roster(self) -> Roster: ...

    def add(self, layout: Layout, words: Row, context: bytes) -> None:
        """Mask the words in place; the same context, the same masks, and another context, others."""
        ...


class Keys(Protocol):
    """The keys of this process, one a run."""

    def offer(self, plan: Plan) -> Offer:
        """What the acceptance of a plan carries; the same for the same run."""
        ...

    def forget(self, run: str) -> None:
        """The next offer for that run has another key: whoever begins it anew may have other data under the same questions."""
        ...

    def agree(self, plan: Plan, roster: Roster) -> Masks:
        """The masks with these peers.

        Raises
        ------
        Refused
            a peer is not one that this site's policy pins, or its key is not signed by the one that is.
        """
        ...


def roster_fault(plan: Plan, name: str, offer: Offer, roster: Roster) -> str | None:
    """What is wrong with a roster, whoever the peers are; None where nothing is."""
    sites, least = roster.sites, max(FEWEST_MASKED, plan.membership.min_sites)
    if list(sites) != sorted(set(sites)) or not set(sites) <= set(plan.sites):
        return f"the roster of attempt {roster.attempt} does not list sites of the plan, each once and in site order."
    if name not in sites:
        return f"the roster of attempt {roster.attempt} does not list {name}, and asks it all the same."
    if len(sites) < least:
        return f"the roster of attempt {roster.attempt} has {len(sites)} sites; fewer than {least} are not summed."
    own = roster.participants[sites.index(name)]
    if (own.key, own.signature, own.identity) != (offer.key, offer.signature, offer.identity):
        return f"the roster of attempt {roster.attempt} has another key for {name} than this site gave."
    return None


def context_of(roster: Roster, asked: Ask | Inquiry, digest: str, layout: Layout) -> bytes:
    """What a mask is bound to: run, question, attempt, participants and keys, and everything that is asked, by its digest."""
    participants = [[p.site, p.key, p.identity] for p in roster.participants]
    shape = [layout.rows, layout.columns, layout.scalars]
    about = [asked.run, asked.question, asked.attempt, participants, asked.part, digest, list(asked.exponents), shape]
    return json.dumps(["coreg masks 1", *about], separators=(",", ":")).encode()


def reach_of(largest: float) -> int:
    """p, a multiple of four, where everything that this bounds is below half of 2ᵖ: a size that tells little."""
    p = power_above(2.0 * largest)
    return min(MOST_EXPONENT, max(LEAST_EXPONENT, 4 * -(-p // 4)))


def scale_fault(exponents: Sequence[int], bounds: Sequence[float], n_sites: int) -> str | None:
    """Why answers within these bounds may not be summed at these exponents: judged by bounds alone, so that it tells no
    answer.
    """
    if len(exponents) != len(bounds):
        return f"{len(exponents)} exponents to {len(bounds)} columns."
    if any(wraps(bound, e, n_sites) for bound, e in zip(bounds, exponents, strict=True)):
        return "exponents at which a sum could wrap."
    return None


def masked(masks: Masks, asked: Ask | Inquiry, digest: str, values: Arr, scalars: Sequence[float]) -> Masked:
    """The answer under masks.

    Raises
    ------
    BadData
        a number is beyond the bound that its column is scaled by.
    """
    layout, words = summand(values, scalars, asked.exponents, len(masks.roster.participants))
    masks.add(layout, words, context_of(masks.roster, asked, digest, layout))
    return Masked(asked.run, asked.question, asked.attempt, Words(words))


def in_the_clear(values: Arr, asked: Ask | Inquiry) -> Arr:
    """The answer as it will be summed: masks would change no bit of it.

    Raises
    ------
    BadData
        a number is beyond every bound.
    """
    return on_the_grid(values, asked.exponents, 1) if values.size and asked.exponents else np.ascontiguousarray(values)
