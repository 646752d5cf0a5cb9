"""One reason against a plan or an answer, and the refusal that leaves the site with all of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from site_agent.consent.policy import Policy


@dataclass(frozen=True)
class Objection:
    """A reason, which leaves the site: it has no figure of the rows.

    ``allow``: the lines of policy.toml that would allow it, if any. ``here``: a figure for this
    site's operator alone.
    """

    reason: str
    allow: str = ""
    here: str = ""


def refusal(objections: Sequence[Objection], policy: Policy | None = None) -> str | None:
    """The reasons as one text, with the file that has the limits; None without an objection."""
    if not objections:
        return None
    reasons = [objection.reason.removesuffix(".") for objection in objections]
    if len(reasons) > 1:
        reasons = [f"({number}) {reason}" for number, reason in enumerate(reasons, 1)]
    text = f"{'; '.join(reasons)}."
    if not any(objection.allow for objection in objections):
        return text
    if policy == Policy():
        where = (
            "This policy has only default values. A policy.toml beside agent.toml, or --policy"
            " FILE, changes them."
        )
    else:
        where = "These limits are in this site's policy.toml, or in the file of --policy."
    return f"{text} {where}"
