"""A coordinator that says a site has left, and takes the sum again without it: the difference is that site's answer.

Answers are linear, so any target does, and any other run: in one attempt, in the next run, in another study on the same
instances. The weight 2λM changes with the number of sites; a second study's λ makes it equal again. A site remembers the sets
that it was summed with, and refuses.
"""

from typing import Any

import numpy as np
from federation import COUPLING, SHARED, SITES, Attacker, RefusedByASite, off, plan_of, respond_of, site_of


def second_sum(*, consent: bool, another_run: bool) -> dict[str, Any]:
    """The sum with d, the sum without, and their difference at one weight; or what a site says instead."""
    sites = {name: site_of(name, membership_changes=consent) for name in SITES}
    target = np.random.default_rng(0).normal(size=SHARED)
    first = Attacker(plan_of("secure", membership_changes=consent), sites).begin().gather()
    whole = first.sum(first.ask("linear", target))
    try:
        if another_run:
            for site in sites.values():  # the first run is over
                site.runs.clear()
            # λ so that 2λM, with M = 3, is the weight that 2λM was with M = 4.
            study = plan_of("secure", SITES[:3], run="run-2", coupling=COUPLING * 4 / 3, membership_changes=consent)
            second = Attacker(study, sites).begin().gather()
        else:
            second = first
            second.attempt += 1
            second.gather(*SITES[:3])
    except RefusedByASite as refused:
        return {"refused": str(refused)}
    less = second.sum(second.ask("linear", target))
    return {"off": off(whole - less, respond_of("d", target, 4))}


def attack() -> dict[str, Any]:
    """Refusals; and where every policy and the first plan consented, how near the difference comes to d's answer."""
    return {
        "in the run": second_sum(consent=False, another_run=False),
        "in another run": second_sum(consent=False, another_run=True),
        "consented, near weight": second_sum(consent=True, another_run=False),
        "consented, equal weight": second_sum(consent=True, another_run=True),
    }


if __name__ == "__main__":
    print(attack())  # noqa: T201
