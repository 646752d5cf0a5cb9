"""What a site holds every plan to, made of its operator's policy and its ledger's memory."""

from coreg_core.numerics.threads import pin_threads
from coreg_core.protocol.plan import Plan
from site_agent.ledger import Ledger
from site_agent.machine.operators import operator_of
from site_agent.machine.run_keys import Keys
from site_agent.machine.scoring import Batch
from site_agent.machine.site import Rules
from site_agent.machine.site_data import PrivateData
from site_agent.policy.policy import Policy


def rules_of(
    policy: Policy, ledger: Ledger, keys: Keys | None = None, data: PrivateData | Batch | None = None
) -> Rules:
    """The rules of a site; without keys it takes part in no sum. ``data``: what it answers for, which its plans have to suit."""
    if data is not None and data.instances:
        ledger.know_as(data.ids_digest, data.instances)
    rows = data if isinstance(data, PrivateData) else None

    def objection(plan: Plan) -> str | None:
        against, rationed = policy.objection(plan, rows), ledger.objection(plan.run, policy.max_runs_per_day)
        if rationed is None:
            return against
        return f"against this site's policy: {rationed}" if against is None else f"{against} And {rationed}"

    def admit(plan: Plan, sites: tuple[str, ...]) -> str | None:
        if data is None or policy.members_may_learn == "operators":
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
        lambda: ledger.objection(None, policy.max_questions_per_day),
        ledger.promises,
        admit,
        policy.convergence_report == "exact",
    )
