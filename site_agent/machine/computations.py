"""The computation of each objective, by the name of its plan's terms."""

from collections.abc import Callable
from typing import Any

from coreg_core.objectives.scoring import Scoring
from coreg_core.plan import Plan
from coreg_core.secure.cross_products import RandomBytes
from site_agent.machine.additive import AdditiveComputation
from site_agent.machine.agreement import AgreementComputation
from site_agent.machine.alignment import AlignmentComputation
from site_agent.machine.objective import Computation
from site_agent.machine.scoring import ScoringComputation
from site_agent.machine.standing import StandingComputation

COMPUTATIONS: dict[str, Callable[..., Computation]] = {
    "agreement": AgreementComputation,
    "additive": AdditiveComputation,
    "alignment": AlignmentComputation,
    "scoring": ScoringComputation,
}


def computation_of(
    plan: Plan,
    name: str,
    data: Any,
    pin_threads: Callable[[int], int],
    random_bytes: RandomBytes,
) -> Computation:
    """The plan's computation on these data. CoregError: the site cannot take part, and why."""
    make = COMPUTATIONS[plan.objective.name]
    if isinstance(plan.objective, Scoring) and plan.objective.standing:
        make = StandingComputation
    return make(plan, plan.objective, name, data, pin_threads, random_bytes)
