"""What a site holds every plan to, made of its operator's policy and its ledger's memory. Knows both; no connection."""

from pathlib import Path

from coreg_core.threads import pin_threads
from site_agent.data.private import PrivateData
from site_agent.federation import Terms
from site_agent.jobs.masks import Keys
from site_agent.ledger import recall, summed_with
from site_agent.policy import Policy


def terms_of(policy: Policy, ledger: Path, keys: Keys | None = None, data: PrivateData | None = None) -> Terms:
    """The terms of a site; without keys it takes part in no sum. ``data``: of one that trains, whose plans have to suit them."""
    return Terms(
        lambda plan: policy.objection(plan, data),
        policy.questions,
        pin_threads,
        lambda plan, ids_digest: recall(ledger, plan, ids_digest),
        policy.residuals,
        policy.disclose_forecast,
        policy.factor_memory,
        keys,
        lambda ids_digest: summed_with(ledger, ids_digest),
        policy.membership_changes,
        policy.label_share_max,
    )
