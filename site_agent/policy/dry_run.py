"""Check a plan before it arrives: every reason for a refusal, and figures for this site's operator alone.

A refusal leaves the site, so it holds no figure of the rows. The operator sees them here: the plan's bandwidth and ridge in
units of these rows, and the largest share of one label in a sum.
"""

from dataclasses import dataclass
from pathlib import Path

from coreg_core.agreement.question_rules import weight_of
from coreg_core.errors import CoregError
from coreg_core.protocol.plan import Additive, Agreement, Alignment, Plan, Scoring
from site_agent.ledger import operators_of, remember
from site_agent.machine.additive import task_fault
from site_agent.machine.agreement import AgreementJob
from site_agent.machine.factoring import many_labels
from site_agent.machine.leverage import share_of_one_label
from site_agent.machine.site_data import PrivateData
from site_agent.policy.guards import against_ledger
from site_agent.policy.policy import Policy
from site_agent.policy.units import scaled


@dataclass(frozen=True)
class Judged:
    """Reasons against the plan, and figures for this site's operator."""

    reasons: tuple[str, ...]
    told: tuple[str, ...]


def rehearse(plan: Plan, name: str, policy: Policy, data: PrivateData, ledger: Path) -> Judged:
    """All reasons against the plan, including those that only factoring finds.

    Raises
    ------
    StorageError
        the ledger cannot be read.
    """
    reasons, told = list[str](), list[str]()
    if not isinstance(plan.objective, Scoring | Alignment):  # a scoring is about a batch, not about these rows
        (memory, _), known_as = remember(ledger), data.instances or data.ids_digest
        given, most = memory.recall(plan, known_as).answered, policy.questions(plan)
        told.append(f"{given} of at most {most} answers to this plan on these instances are given (max_questions)")
        if given >= most:
            reasons.append(f"{told[-1]}, over all runs. Raise max_questions in policy.toml to go on")
        summed = memory.summed_with(known_as)
        earlier = against_ledger(policy, plan, data, summed, operators_of(ledger).objection)
        reasons += [] if earlier is None else [earlier]
    reasons += [] if name in plan.sites else [f"does not list {name} among its sites, {', '.join(plan.sites)}"]
    reasons += policy.objections(plan, data)
    faults = [data.plan_fault(plan)]
    if isinstance(plan.objective, Additive):
        faults.append(task_fault(plan.objective, data))
    reasons += [fault for fault in faults if fault is not None]
    if not isinstance(plan.objective, Scoring | Alignment):
        here = scaled(plan.objective, data)
        told += [
            f"{what} is {value:.3g} times {unit}"
            for what, value, unit in (
                ("its bandwidth", here.bandwidth, "the median distance of these labelled rows"),
                ("its ridge", here.ridge, "the kernel's mean over them"),
                ("its largest ridge", here.of_all, "the kernel's sum over them"),
            )
            if value is not None
        ]
    if isinstance(plan.objective, Agreement):
        try:
            share = _share(plan, plan.objective, policy, data)
        except CoregError as error:
            return Judged((*reasons, str(error)), tuple(told))
        if many := many_labels(plan.objective, len(data.y)):
            told.append(many)
        told.append(f"the largest share of one label of this site in a sum at one shared instance would be {share:.2g}")
        if plan.masked and share > policy.label_share_max:
            reasons.append(f"{told[-1]}, above label_share_max = {policy.label_share_max:g}")
    return Judged(tuple(reasons), tuple(told))


def _share(plan: Plan, terms: Agreement, policy: Policy, data: PrivateData) -> float:
    begun = AgreementJob(plan, terms, data, lambda threads: threads, policy.factor_memory)
    weights = [weight_of(plan.iteration.name, c, len(plan.sites)) for c in terms.coupling]
    return share_of_one_label(begun.view, data, weights, plan.membership.min_sites if plan.masked else 1)
