"""Checks of members_may_learn = "sums": one operator for each set of instances.

Every member reads the sums. The sums of one operator cannot be separated into sites by linear algebra; those of two can
(docs/research/mathematics.md, "What sums tell"). Therefore a site refuses a second operator: another coupling, another set of
sites.
"""

import numpy as np

from coreg_core.protocol.plan import Additive, Agreement, Alignment, Plan, Scoring
from coreg_wire.files.toml_file import toml
from site_agent.machine.site_data import PrivateData

FEWEST = 3  # in a sum of two sites, each can compute the other's part
_KEY = ' (this policy has members_may_learn = "sums"; with "operators" another member can compute your predictions)'


def against_one_operator(plan: Plan, data: PrivateData | None) -> list[str]:
    """Every reason against the plan. The first one names the key of the policy, for all of them.

    An additive training has no response operator: the policy's other keys limit what it discloses.
    """
    least, sites, own = plan.membership.min_sites, len(plan.sites), list[tuple[bool, str]]()
    match plan.objective:
        case Agreement() as terms:
            own = _of_agreement(plan, terms, data)
        case Additive():
            pass
        case Alignment() | Scoring():
            return []
    checks = [
        (sites < FEWEST, f"{sites} sites are fewer than {FEWEST}: each could compute the other's part of the sum"),
        (
            not isinstance(plan.objective, Additive) and (least < sites or plan.membership.on_dropout == "continue"),
            f"min_sites = {least} of {sites} would allow sums over another set of sites, which is a second response operator",
        ),
        (
            plan.privacy.membership_changes,
            "membership_changes = true would allow sums over another set of sites, whose differences reveal single answers",
        ),
        *own,
    ]
    reasons = [text for is_broken, text in checks if is_broken]
    return [reason + _KEY * (number == 0) for number, reason in enumerate(reasons)]


def _of_agreement(plan: Plan, terms: Agreement, data: PrivateData | None) -> list[tuple[bool, str]]:
    linear = terms.form == "linear" or terms.kernel == "linear"
    few_values = data is not None and any(len(np.unique(column)) <= 2 for column in data.Z.T)
    return [
        (
            len(terms.coupling) > 1 or 0.0 in terms.coupling,
            f"coupling = {toml(terms.coupling)} is not one number above 0, and each coupling is another response operator",
        ),
        (
            plan.iteration.name == "block-coordinate-descent",
            'schedule "block-coordinate-descent" would reveal each site\'s predictions to the members',
        ),
        (
            linear and few_values,
            "a linear form would let members recognise this site's columns of two values in the span of all columns, which "
            "reveals its response operator",
        ),
        (
            linear and data is not None and plan.iteration.max_rounds >= data.Z.shape[1],
            f"max_rounds = {plan.iteration.max_rounds} answers of a linear form are as many as this site has columns, which "
            "reveals its whole response operator",
        ),
    ]
