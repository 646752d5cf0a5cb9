"""A policy and the ledger's records, applied: the rules of a site in a run, and a plan checked before it arrives.

A refusal leaves the site, so it holds no figure of the rows. `rehearse` shows such figures to this site's operator: the plan's
bandwidth and ridge in units of these rows, and the largest share of one label in a sum.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from coreg_core.agreement.objective import weight_of
from coreg_core.errors import CoregError
from coreg_core.numerics.threads import pin_threads
from coreg_core.protocol.plan import Additive, Agreement, Alignment, Plan, Scoring
from site_agent.ledger import Ledger, remember
from site_agent.machine import differencing
from site_agent.machine.additive import task_fault
from site_agent.machine.agreement import AgreementJob
from site_agent.machine.alignment import IdList
from site_agent.machine.differencing import SummedWith
from site_agent.machine.factoring import many_labels
from site_agent.machine.leverage import LABEL_SHARE_MAX, share_of_one_label
from site_agent.machine.row_sets import RowRules
from site_agent.machine.run_keys import Keys
from site_agent.machine.scoring import Batch, ScoreRules
from site_agent.machine.site import Rules, max_questions
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
            found.append(against_ledger(policy, plan, ledger.summed_with(data.ids_digest)))
        return " And ".join(reason for reason in found if reason is not None) or None

    return Rules(
        objection=objection,
        pin_threads=pin_threads,
        recall=ledger.recall,
        keys=keys,
        summed_with=ledger.summed_with,
        membership_changes=policy.membership_changes,
        promises=ledger.promises,
        row_rules=RowRules(ledger.row_sets, policy.openings, clock=time.monotonic),
        score_rules=ScoreRules(ledger.scored, policy.models_per_individual),
    )


def against_ledger(policy: Policy, plan: Plan, summed: Iterable[SummedWith]) -> str | None:
    """The reason why earlier answers forbid this plan, or None. It checks only plans that need all of their sites.

    Other plans can run with fewer sites, so `Site` repeats the check on the roster.

    Parameters
    ----------
    summed
        the sets of sites that answers on these instances were summed with.
    """
    if not plan.masked or plan.membership.min_sites < len(plan.sites) or isinstance(plan.objective, Scoring):
        return None
    consents = policy.membership_changes and plan.privacy.membership_changes
    return differencing.objection(frozenset(plan.sites), summed, consents=consents)


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
        given, most = memory.recall(plan, known_as).answered, max_questions(plan)
        told.append(f"{given} of at most {most} answers to this plan on these instances are given")
        if given >= most:
            reasons.append(f"{told[-1]}, over all runs. A plan with other terms is counted by itself")
        earlier = against_ledger(policy, plan, memory.summed_with(known_as))
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
            share = _share(plan, plan.objective, data)
        except CoregError as error:
            return Judged((*reasons, str(error)), tuple(told))
        if many := many_labels(plan.objective, len(data.y)):
            told.append(many)
        told.append(f"the largest share of one label of this site in a sum at one shared instance would be {share:.2g}")
        if plan.masked and share > LABEL_SHARE_MAX:
            reasons.append(f"{told[-1]}, above {LABEL_SHARE_MAX:g}, the limit of every agent")
    return Judged(tuple(reasons), tuple(told))


def _share(plan: Plan, terms: Agreement, data: PrivateData) -> float:
    begun = AgreementJob(plan, terms, data, lambda threads: threads)
    weights = [weight_of(plan.iteration.name, c, len(plan.sites)) for c in terms.coupling]
    return share_of_one_label(begun.view, data, weights, plan.membership.min_sites if plan.masked else 1)
