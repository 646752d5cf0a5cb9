"""What a site holds every plan to, made of its operator's policy and its ledger's memory. Knows both; no connection."""

from coreg_core.plan import Plan
from coreg_core.threads import pin_threads
from site_agent.data.private import PrivateData
from site_agent.federation import Terms
from site_agent.jobs.masks import Keys
from site_agent.ledger import Ledger, recall, summed_with
from site_agent.policy import Policy


def terms_of(policy: Policy, ledger: Ledger, keys: Keys | None = None, data: PrivateData | None = None) -> Terms:
    """The terms of a site; without keys it takes part in no sum. ``data``: of one that trains, whose plans have to suit them."""
    path = ledger.path

    def objection(plan: Plan) -> str | None:
        against, rationed = policy.objection(plan, data), ledger.objection(plan.run, policy.runs_a_day)
        if rationed is None:
            return against
        return f"against this site's policy: {rationed}" if against is None else f"{against} And {rationed}"

    return Terms(
        objection,
        policy.questions,
        pin_threads,
        lambda plan, ids_digest: recall(path, plan, ids_digest),
        policy.residuals,
        policy.disclose_forecast,
        policy.factor_memory,
        keys,
        lambda ids_digest: summed_with(path, ids_digest),
        policy.membership_changes,
        policy.label_share_max,
        lambda: ledger.objection(None, policy.questions_a_day),
    )
