"""Sites that answer under masks, for tests: the tiny federation with keys, and agents that come back in another process."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from machine.additive_tiny import additive_plan
from machine.additive_tiny import private_data as additive_data
from machine.tiny import make_plan, private_data

from coreg_core.agreement.columns import Column
from coreg_core.agreement.question_rules import weight_of
from coreg_core.masking.fixed_point import exponent_for
from coreg_core.protocol.messages import Ask, Participant, PlanAccepted, Roster
from coreg_core.protocol.plan import Plan
from coreg_core.protocol.vectors import Vector
from coreg_sim.federation.masks import simulated_keys
from site_agent.machine.differencing import SummedWith
from site_agent.machine.memory import Remembered
from site_agent.machine.site import Site, Terms
from site_agent.machine.site_data import PrivateData

SITES = ("a", "b", "c")


def sums(objective: str = "agreement", **changes: Any) -> Plan:
    """A plan under which the coordinator gets sums alone."""
    changes = {"aggregation": "secure", "min_sites": 3} | changes
    return additive_plan(**changes) if objective == "additive" else make_plan(**changes)


def data_of(plan: Plan) -> Mapping[str, PrivateData]:
    made = private_data if plan.couplings else additive_data
    return {name: made(name) for name in plan.sites}


def masked_sites(plan: Plan, **terms: Any) -> dict[str, Site]:
    return {name: Site(name, data, Terms(keys=simulated_keys(name), **terms)) for name, data in data_of(plan).items()}


def another_process(site: Site, **terms: Any) -> Site:
    """The agent after a kill: its ledger's memory, and new keys."""
    known = {run: job.remembered for run, job in site.runs.items()}
    summed, before = site._sets, site._terms.recall

    def recall(plan: Plan, ids_digest: str) -> Remembered:
        return known[plan.run] if plan.run in known else before(plan, ids_digest)

    def summed_with(ids_digest: str) -> frozenset[SummedWith]:
        return summed

    found = Terms(keys=simulated_keys(site.name), recall=recall, summed_with=summed_with, **terms)
    return Site(site.name, site._data, found)


def accepted_by(sites: dict[str, Site], plan: Plan) -> dict[str, PlanAccepted]:
    found = {}
    for name in plan.sites:
        [answer] = sites[name].handle(plan)
        assert isinstance(answer, PlanAccepted), answer
        found[name] = answer
    return found


def roster_of(plan: Plan, accepted: dict[str, PlanAccepted], attempt: int = 0) -> Roster:
    told = [(name, accepted[name]) for name in plan.sites]
    return Roster(plan.run, attempt, tuple(Participant(n, a.key, a.signature, a.identity) for n, a in told))


def first_question(plan: Plan, accepted: dict[str, PlanAccepted], m: int = 6) -> Ask:
    coupling, M = plan.couplings[0], len(plan.sites)
    column = Column(coupling, weight_of("conjugate-gradients", coupling, M))

    reach = 2.0 ** max(a.reach for a in accepted.values())
    exponents = (exponent_for(reach, M),)
    return Ask(plan.run, 0, 0, "affine", (column,), False, Vector(np.zeros((m, 1))), exponents)
