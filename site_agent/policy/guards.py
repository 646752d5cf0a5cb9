"""What a site holds every plan to, made of its operator's policy and its ledger's memory."""

from coreg_core.numerics.threads import pin_threads
from coreg_core.protocol.plan import Plan
from site_agent.ledger import Ledger
from site_agent.machine.masks import Keys
from site_agent.machine.scoring import Batch
from site_agent.machine.site import Terms
from site_agent.machine.site_data import PrivateData
from site_agent.policy.policy import Policy


def terms_of(
    policy: Policy, ledger: Ledger, keys: Keys | None = None, data: PrivateData | Batch | None = None
) -> Terms:
    """The terms of a site; without keys it takes part in no sum. ``data``: what it answers for, which its plans have to suit."""
    if data is not None and data.instances:
        ledger.know_as(data.ids_digest, data.instances)
    rows = data if isinstance(data, PrivateData) else None

    def objection(plan: Plan) -> str | None:
        against, rationed = policy.objection(plan, rows), ledger.objection(plan.run, policy.max_runs_per_day)
        if rationed is None:
            return against
        return f"against this site's policy: {rationed}" if against is None else f"{against} And {rationed}"

    return Terms(
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
        lambda: ledger.objection(None, policy.max_questions_per_day),
        ledger.promises,
    )
