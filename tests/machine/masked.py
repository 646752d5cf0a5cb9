"""Sites that answer under masks, for tests: the tiny federation with keys, and agents that come back in another process."""

from collections.abc import Mapping
from typing import Any

from additive_tiny import additive_plan
from additive_tiny import private_data as additive_data
from tiny import make_plan, private_data

from coreg_core.protocol.plan import Plan
from coreg_sim.federation.masks import simulated_keys
from site_agent.machine.differencing import SummedWith
from site_agent.machine.memory import Remembered
from site_agent.machine.site import Site, Terms
from site_agent.machine.site_data import PrivateData

SITES = ("a", "b", "c")


def sums(objective: str = "agreement", **changes: Any) -> Plan:
    """A plan under which the coordinator gets sums alone."""
    changes = {"answers": "sums", "min_sites": 3} | changes
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
