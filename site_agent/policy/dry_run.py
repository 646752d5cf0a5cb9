"""A plan held to this site before it arrives: everything that would be refused, and the site's own figures beside it.

What a refusal may not tell, because it leaves the site, its own operator sees here: what the plan's bandwidth and ridge
are in units of these rows, and how much of a sum one label would be.
"""

import datetime as dt
from dataclasses import dataclass
from pathlib import Path

from coreg_core.agreement.question_rules import weight_of
from coreg_core.errors import CoregError
from coreg_core.protocol.plan import Agreement, Plan, Scoring
from site_agent.ledger import quota_of
from site_agent.machine.agreement import AgreementJob
from site_agent.machine.leverage import share_of_one_label
from site_agent.machine.site_data import PrivateData
from site_agent.policy.policy import Policy
from site_agent.policy.units import scaled


@dataclass(frozen=True)
class Judged:
    """Reasons against the plan, and what its operator should know of it."""

    reasons: tuple[str, ...]
    told: tuple[str, ...]


def rehearse(plan: Plan, name: str, policy: Policy, data: PrivateData, ledger: Path) -> Judged:
    """Every reason at once, those that only factoring finds among them.

    Raises
    ------
    StorageError
        the ledger cannot be read.
    """
    reasons = [] if name in plan.sites else [f"does not list {name} among its sites, {', '.join(plan.sites)}"]
    reasons += policy.objections(plan, data)
    now = dt.datetime.now(dt.UTC)
    if (rationed := quota_of(ledger, now).run_objection(plan.run, policy.max_runs_per_day, now)) is not None:
        reasons.append(rationed)
    told: list[str] = []
    if not isinstance(plan.objective, Scoring):
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
        told.append(f"of a sum at one shared instance, one label of this site would be {share:.2g} at most")
        if plan.masked and share > policy.label_share_max:
            reasons.append(f"{told[-1]}, above label_share_max={policy.label_share_max:g}")
    return Judged(tuple(reasons), tuple(told))


def _share(plan: Plan, terms: Agreement, policy: Policy, data: PrivateData) -> float:
    begun = AgreementJob(plan, terms, data, lambda threads: threads, policy.factor_memory)
    couplings = terms.couplings(len(data.y) * len(plan.sites), len(plan.sites), max(len(data.Z), 1))
    weights = [weight_of(plan.iteration.name, c, len(plan.sites)) for c in couplings]
    return share_of_one_label(begun.view, data, weights, plan.membership.min_sites if plan.masked else 1)
