"""The rules of a site: its operator's policy, and the ledger's records of earlier answers."""

from collections.abc import Callable, Iterable

from coreg_core.numerics.threads import pin_threads
from coreg_core.protocol.plan import Plan
from site_agent.ledger import Ledger
from site_agent.machine import differencing
from site_agent.machine.alignment import IdList
from site_agent.machine.differencing import SummedWith
from site_agent.machine.operators import Operator, operator_of
from site_agent.machine.run_keys import Keys
from site_agent.machine.scoring import Batch
from site_agent.machine.site import Rules
from site_agent.machine.site_data import PrivateData
from site_agent.policy.policy import Policy


def rules_of(
    policy: Policy, ledger: Ledger, keys: Keys | None = None, data: PrivateData | Batch | IdList | None = None
) -> Rules:
    """The rules of a site. Without keys it takes part in no sealed sum. ``data``: the rows for its answers."""
    if data is not None and data.instances:
        ledger.know_as(data.ids_digest, data.instances)
    rows = data if isinstance(data, PrivateData) else None

    def objection(plan: Plan) -> str | None:
        found = [policy.objection(plan, rows), None if rows is None else rows.plan_fault(plan)]
        if data is not None:
            found.append(
                against_ledger(policy, plan, data, ledger.summed_with(data.ids_digest), ledger.operators.objection)
            )
        return " And ".join(reason for reason in found if reason is not None) or None

    def admit(plan: Plan, sites: tuple[str, ...]) -> str | None:
        if data is None or isinstance(data, IdList) or policy.members_may_learn == "operators":
            return None
        return ledger.operators.admit(operator_of(plan, data, sites), plan.run)

    return Rules(
        objection,
        policy.questions,
        pin_threads,
        ledger.recall,
        policy.residuals,
        policy.disclose_forecast,
        policy.factor_memory,
        keys,
        ledger.summed_with,
        policy.membership_changes,
        policy.label_share_max,
        ledger.promises,
        admit,
    )


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
    if not plan.masked or plan.membership.min_sites < len(plan.sites):
        return None
    consents = policy.membership_changes and plan.privacy.membership_changes
    reason = differencing.objection(frozenset(plan.sites), summed, consents=consents)
    if reason is None and policy.members_may_learn == "sums" and not isinstance(data, IdList):
        reason = operators(operator_of(plan, data, plan.sites))
    return reason
