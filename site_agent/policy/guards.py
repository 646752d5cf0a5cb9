"""A policy and the ledger's records, applied: the rules of a site in a run, and a plan checked before it arrives.

A refusal leaves the site, so it holds no figure of the rows. `rehearse` shows such figures to this site's operator: the plan's
bandwidth and ridge in units of these rows, and the largest share of one label in a sum.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from coreg_core.agreement.objective import weight_of
from coreg_core.errors import CoregError
from coreg_core.numerics.threads import pin_threads
from coreg_core.protocol.plan import Additive, Agreement, Alignment, Plan, Scoring
from site_agent.ledger import Ledger, operators_of, remember
from site_agent.machine import differencing
from site_agent.machine.additive import task_fault
from site_agent.machine.agreement import AgreementJob
from site_agent.machine.alignment import IdList
from site_agent.machine.differencing import SummedWith
from site_agent.machine.factoring import many_labels
from site_agent.machine.leverage import share_of_one_label
from site_agent.machine.operators import Operator, operator_of
from site_agent.machine.row_sets import RowRules
from site_agent.machine.run_keys import Keys
from site_agent.machine.scoring import Batch, ScoreRules
from site_agent.machine.site import Rules
from site_agent.machine.site_data import PrivateData
from site_agent.policy.policy import Policy
from site_agent.policy.units import scaled


def rules_of(
    policy: Policy, ledger: Ledger, keys: Keys | None = None, data: PrivateData | Batch | IdList | None = None
) -> Rules:
    """The rules of a site. Without keys it takes part in no sealed sum. ``data``: the rows for its answers."""
    if data is not None and data.instances:
        ledger.know_as(data.ids_digest, data.instances)
    rows = data if isinstance(data, PrivateData) else None

    def objection(plan: Plan) -> str | None:
        found = [policy.objection(plan, rows)]
        if data is not None:
            found.append(
                against_ledger(policy, plan, data, ledger.summed_with(data.ids_digest), ledger.operators.objection)
            )
        return " And ".join(reason for reason in found if reason is not None) or None

    def admit(plan: Plan, sites: tuple[str, ...]) -> str | None:
        if not isinstance(data, PrivateData) or not _keeps_one_operator(policy, plan):
            return None
        return ledger.operators.admit(operator_of(plan, data, sites), plan.run)

    return Rules(
        objection=objection,
        max_questions=policy.questions,
        pin_threads=pin_threads,
        recall=ledger.recall,
        factor_memory=policy.factor_memory,
        keys=keys,
        summed_with=ledger.summed_with,
        membership_changes=policy.membership_changes,
        label_share_max=policy.label_share_max,
        promises=ledger.promises,
        admit=admit,
        row_rules=RowRules(ledger.row_sets, policy.openings, clock=time.monotonic),
        score_rules=ScoreRules(ledger.scored, policy.models_per_individual),
    )


def _keeps_one_operator(policy: Policy, plan: Plan) -> bool:
    return policy.members_may_learn == "sums" and isinstance(plan.objective, Agreement)


def against_ledger(
    policy: Policy,
    plan: Plan,
    data: PrivateData | Batch | IdList,
    summed: Iterable[SummedWith],
    operators: Callable[[Operator], str | None],
) -> str | None:
    """The reason why earlier answers forbid this plan, or None. It checks only plans that need all of their sites.

    Other plans can run with fewer sites, so `Site` repeats the check on the roster.

    Parameters
    ----------
    summed
        the sets of sites that answers on these instances were summed with.
    operators
        the objection of the records of operators.
    """
    if not plan.masked or plan.membership.min_sites < len(plan.sites) or isinstance(plan.objective, Scoring):
        return None
    consents = policy.membership_changes and plan.privacy.membership_changes
    reason = differencing.objection(frozenset(plan.sites), summed, consents=consents)
    if reason is None and _keeps_one_operator(policy, plan) and isinstance(data, PrivateData):
        reason = operators(operator_of(plan, data, plan.sites))
    return reason


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
    if isinstance(plan.objective, Additive) and (fault := task_fault(plan.objective, data)) is not None:
        reasons.append(fault)
    if isinstance(plan.objective, Agreement):
        here = scaled(plan.objective, data)
        told += [
            f"{what} is {value:.3g} times {unit}"
            for what, value, unit in (
                ("its bandwidth", here.bandwidth, "the median distance of these labelled rows"),
                ("its ridge", here.ridge, "the kernel's mean over them"),
                ("its ridge", here.of_all, "the kernel's sum over them"),
            )
            if value is not None
        ]
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
