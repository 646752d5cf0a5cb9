"""Whether an agent can take part in a plan beside its other runs. Its policy is another matter."""

from dataclasses import replace
from typing import TYPE_CHECKING

from coreg_core.messages import MOST_OPEN, Proposal
from coreg_core.plan import Plan, alignment_of, aligns_for, is_on_demand

if TYPE_CHECKING:
    from site_agent.machine.agent import ActiveRun, Agent

MAX_ALIGNMENTS = 3  # of one consent: a coordinator can restart in the middle of one


def aligns(above: Plan, plan: Plan) -> bool:
    """Whether a plan aligns the ids as the plan above it says: same column, same sites."""
    return above.align is not None and plan == replace(alignment_of(above, 0), run=plan.run)


def is_agreed(above: "ActiveRun | None", plan: Plan) -> bool:
    """Whether it aligns the ids of this run, which the site takes part in, as its plan says."""
    if above is None or not above.begun or above.alignments >= MAX_ALIGNMENTS:
        return False
    return aligns(above.plan, plan)


def objection(agent: "Agent", proposal: Proposal) -> str | None:
    """The reason why it cannot, or None."""
    plan = proposal.plan
    if plan.masked and len(proposal.keys) != len(plan.sites):
        return "the plan came without the keys of its sites, so nobody can confirm them."
    return _alignment_objection(agent, plan) or _capacity_objection(agent, plan)


def _alignment_objection(agent: "Agent", plan: Plan) -> str | None:
    """A plan aligns ids if and only if its name is that of an alignment of an agreed run.

    Under a standing plan a member could begin one after another, and test who is known elsewhere.
    """
    if plan.objective.needs == "ids" and is_on_demand(plan.run):
        return "a run that a site asked for aligns no ids."
    if plan.objective.needs == "ids" and not is_agreed(agent.runs.get(aligns_for(plan.run)), plan):
        return (
            "an alignment of ids belongs to a run that this site takes part in, and happens once."
        )
    if aligns_for(plan.run) and plan.objective.needs != "ids":
        return f"run {plan.run} has the name of an alignment of ids, and is none."
    return None


def _capacity_objection(agent: "Agent", plan: Plan) -> str | None:
    """What the other runs of this agent leave no room for."""
    others = [run.plan for run in agent.runs.values()]
    threads = {other.iteration.threads for other in others}
    if agent.once and others and not aligns_for(plan.run):
        return f"this site takes part in run {others[0].run}. It takes part in one run at a time."
    if threads - {plan.iteration.threads}:
        return (
            f"threads = {plan.iteration.threads}: an open run of this site uses {min(threads)}, "
            "which cannot change."
        )
    if len(others) >= MOST_OPEN:
        return f"this site has {len(others)} open runs, the most of an agent."
    return None
