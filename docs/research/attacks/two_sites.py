"""In a federation of two sites each site derives the other's predictions: it has their mean and its
own.

With three or more sites the mean covers at least two others, and stays a mean. A policy with
min_sites = 3 refuses two sites.
"""

from dataclasses import replace
from typing import Any

from federation import SITES, off, plan_of, reported, site_of, watched

from coreg_core.terms import Iteration
from site_agent.consent.consent import Consent
from site_agent.consent.memory import Memory
from site_agent.consent.objection import refusal
from site_agent.consent.policy import Policy
from site_agent.machine.results import AgreementResult


def read_by_a(n_sites: int) -> float:
    """Error of site a's guess of b's predictions: M z − its own, divided among the others."""
    names = SITES[:n_sites]
    plan = replace(
        plan_of("secure", names), iteration=Iteration(tolerance=1e-20, prediction_tolerance=1e-10)
    )
    plan = replace(plan, membership=replace(plan.membership, min_sites=n_sites))
    sites = {name: site_of(name) for name in names}
    watched(plan, sites)
    a = sites["a"].computation
    models = a._rounds.models(a._place.state)
    results = [site.result for site in sites.values()]
    predictions = [
        result.solutions[0].prediction for result in results if isinstance(result, AgreementResult)
    ]
    return off((n_sites * models.of(0)[:, 0] - predictions[0]) / (n_sites - 1), predictions[1])


@reported
def attack() -> dict[str, Any]:
    """Relative error of a's guess of b's predictions among so many sites (0: disclosed); how
    min_sites = 3 refuses two.
    """
    three = Policy(min_sites=3)
    plan = plan_of("secure", SITES[:2])
    plan = replace(plan, membership=replace(plan.membership, min_sites=2))
    judged = Consent(three, Memory(), lambda: 0.0).objections(plan, "a", ids_digest="ids")
    return {
        "two": read_by_a(2),
        "three": read_by_a(3),
        "refused": refusal(judged, three) or "",
    }
