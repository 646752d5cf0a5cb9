"""What a site holds every plan to, made of its operator's policy and its ledger's memory. Knows both; no connection."""

from pathlib import Path

from coreg_core.threads import pin_threads
from site_agent.federation import Terms
from site_agent.ledger import recall
from site_agent.policy import Policy


def terms_of(policy: Policy, ledger: Path) -> Terms:
    """The terms of a site that trains."""
    return Terms(
        policy.objection,
        policy.questions,
        pin_threads,
        lambda plan, ids_digest: recall(ledger, plan, ids_digest),
        policy.residuals,
        policy.disclose_forecast,
        policy.factor_memory,
    )
