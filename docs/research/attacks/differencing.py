"""A coordinator that says a site has left, and has the sum taken again without it: the difference is that site's answer.

It cannot read either sum; a member that helps it, or watches by itself, can. Answers are linear, so any other run does too.
A site remembers the sets that it was summed with, and refuses another.
"""

from typing import Any

from federation import COUPLING, SITES, member_operator, off, plan_of, site_of, truth, watched

from site_agent.machine.differencing import SummedWith


def second_sum(*, consent: bool) -> dict[str, Any]:
    """ΣR with d and without, at one weight, and their difference; or what a site says instead."""
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
    """A refusal; and where every policy and both plans consented, how near the difference comes to d's operator."""
    return {"no consent": second_sum(consent=False), "consented": second_sum(consent=True)}


if __name__ == "__main__":
    print(attack())  # noqa: T201
