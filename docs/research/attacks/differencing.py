"""A coordinator claims that a site left, and repeats the sum without it: the difference is that site's answer.

The coordinator can read neither sum. A member that helps it can, and so can any member alone. Answers are linear, so any
other run has the same effect. A site remembers the sets of sites that it was summed with, and refuses another set.
"""

from typing import Any

from federation import COUPLING, SITES, member_operator, off, plan_of, site_of, truth, watched

from site_agent.machine.differencing import SummedWith


def second_sum(*, consent: bool) -> dict[str, Any]:
    """ΣR with d and without, at one weight, and their difference; or the refusal of a site."""
    summed: dict[str, set[Any]] = {name: set() for name in SITES}
    found = []
    # λ so that 2λM, with M = 3, is the weight that 2λM was with M = 4.
    for run, sites, coupling in (("run-1", SITES, COUPLING), ("run-2", SITES[:3], COUPLING * 4 / 3)):
        plan = plan_of("secure", sites, run=run, coupling=(coupling,), membership_changes=consent)

        def ledger(name: str) -> Any:
            return lambda _ids: frozenset(summed[name])

        held = {name: site_of(name, summed_with=ledger(name), membership_changes=consent) for name in sites}
        seen = watched(plan, held)
        if not seen.rounds:
            return {"refused": seen.reason}
        for name in held:
            summed[name].add(SummedWith(frozenset(sites), consent))
        found.append(member_operator(seen))
    return {"off": off(found[0] - found[1], truth("d", plan_of("secure")))}


def attack() -> dict[str, Any]:
    """A refusal; and, if every policy and both plans consent, the error of the difference as d's operator."""
    return {"no consent": second_sum(consent=False), "consented": second_sum(consent=True)}


if __name__ == "__main__":
    print(attack())  # noqa: T201
