"""Checks of members_may_learn = "sums": one operator for each set of instances.

Every member reads the sums. The sums of one operator cannot be separated into sites by linear algebra; those of two can
(docs/research/mathematics.md, "What sums tell"). Therefore a site refuses a second operator: another coupling, a fold, a tuning
step, another set of sites.
"""

import numpy as np

from coreg_core.protocol.plan import Additive, Agreement, Alignment, Plan, Scoring
from site_agent.machine.site_data import PrivateData

FEWEST = 3  # in a sum of two sites, each can compute the other's part
_KEY = '(this policy has members_may_learn = "sums"; with "operators" another member can compute your predictions)'


def against_one_operator(plan: Plan, data: PrivateData | None) -> list[tuple[bool, str]]:
    """For each rule: whether the plan breaks it, and the reason."""
    least, sites = plan.membership.min_sites, len(plan.sites)
    checks = [
        (
            sites < FEWEST,
            f"{sites} sites are fewer than {FEWEST}: each could compute the other's part of the sum {_KEY}",
        ),
        (
            least < sites or plan.membership.on_dropout == "continue",
            f"min_sites={least} of {sites} would allow sums over another set of sites, which is a second response operator "
            f"{_KEY}",
        ),
        (
            plan.privacy.membership_changes,
            f"membership_changes=true would allow sums over another set of sites, which is a second response operator {_KEY}",
        ),
    ]
    match plan.objective:
        case Agreement() as terms:
            return checks + _of_agreement(plan, terms, data)
        case Additive() as terms:
            return checks + _of_additive(terms)
        case Alignment():
            return []
        case Scoring(batches=batches):
            return [*checks, (len(batches) > 1, f"{len(batches)} batches in one score {_KEY}")]


def _of_agreement(plan: Plan, terms: Agreement, data: PrivateData | None) -> list[tuple[bool, str]]:
    linear = terms.form == "linear" or terms.kernel == "linear"
    few_values = data is not None and any(len(np.unique(column)) <= 2 for column in data.Z.T)
    return [
        (
            len(terms.coupling) > 1 or 0.0 in terms.coupling,
            f"coupling={list(terms.coupling)} is not one number above 0, and each coupling is another response operator {_KEY}",
        ),
        (
            plan.iteration.name == "block-coordinate-descent",
            f"schedule 'block-coordinate-descent' would reveal each site's predictions to the members {_KEY}",
        ),
        (
            linear and few_values,
            "a linear form would let members recognise this site's columns of two values in the span of all columns, which "
            f"reveals its response operator {_KEY}",
        ),
        (
            linear and data is not None and plan.iteration.max_rounds >= data.Z.shape[1],
            f"max_rounds={plan.iteration.max_rounds} answers of a linear form are as many as this site has columns, which "
            f"reveals its whole response operator {_KEY}",
        ),
    ]


def _of_additive(terms: Additive) -> list[tuple[bool, str]]:
    return [
        (
            terms.tuning_steps > 0,
            f"{terms.tuning_steps} tuning steps would each tell members more about each site; the study needs tuning_steps = 0 "
            f"{_KEY}",
        ),
        (
            terms.probes > 1,
            f"probes={terms.probes} would tell members more about each site than one probe; the study needs probes = 1 {_KEY}",
        ),
        (
            terms.forecast or terms.rows == "common",
            f"forecast={terms.forecast}, rows={terms.rows!r}: each fold trains again, and members would learn from it; "
            f"the study needs forecast = false {_KEY}",
        ),
        (terms.residuals != "smoothed", f"residuals={terms.residuals!r} {_KEY}"),
        (
            terms.kernel == "linear",
            f"a linear kernel: with it, one response operator is enough to separate the sites {_KEY}",
        ),
    ]
