"""Objections to the terms of a plan: the policy's limits, and those of every agent.

The policy has switches (`_forbidden`: a plan asks for what is not allowed) and numbers (`_beyond`:
a plan's number is on the wrong side of the policy's). An objection has the line of policy.toml that
would allow the plan. Where none would, the limit belongs to every agent: a plan beyond it holds the
machine longer, or discloses more, than a study needs.
"""

from collections.abc import Iterator
from typing import assert_never

from coreg_core.objectives.additive import Additive
from coreg_core.objectives.agreement import Agreement
from coreg_core.objectives.alignment import Alignment
from coreg_core.objectives.scoring import Scoring
from coreg_core.plan import Plan
from coreg_wire.files.toml_file import toml
from site_agent.consent.objection import Objection
from site_agent.consent.policy import Policy
from site_agent.consent.scale import faults_of_scale, sends_counts
from site_agent.site_data import PrivateData

COUNTED = 0.1  # least noise on sums of a site whose entries are counts
COUPLING_MAX = 100.0
MOST_THREADS = 64
# Limits of an additive plan: what a smaller value would disclose.
_DISCLOSES = {
    "rows_per_feature": "members would learn more of each label and row",
    "noise": "members could compute yes/no columns",
    "label_noise": "a lying member, or members together, could read labels",
    "least_labels": "sums would disclose rows of a site with few labels",
    "least_rows": "members could compute yes/no labels and columns of few rows",
}


def objections_to_terms(
    plan: Plan, policy: Policy, data: PrivateData | None
) -> Iterator[Objection]:
    """Every reason in the plan itself. ``data``: the rows of a training, if they are known."""
    match plan.objective:
        case Agreement() as terms:
            trained = "agreement"
            own = _of_agreement(plan, terms, policy, data)
        case Additive() as terms:
            trained = "additive"
            own = _of_additive(terms, policy, data)
        case Scoring() as terms:
            trained = terms.trained
            own = _of_scoring(plan, terms, policy)
        case Alignment() as terms:
            trained = ""
            own = _of_alignment(terms, policy)
        case _:
            assert_never(plan.objective)
    if trained and trained not in policy.objectives:
        yield Objection(
            f'the plan\'s objective is "{trained}", and objectives = {toml(policy.objectives)} '
            "does not list it",
            f"objectives = {toml((*policy.objectives, trained))}",
        )
    least = plan.membership.min_sites
    threads = plan.iteration.threads
    if least < policy.min_sites:
        yield _beyond("min_sites", least, "below", policy.min_sites)
    if threads > MOST_THREADS:
        yield Objection(
            f"the plan's threads = {threads} is above {MOST_THREADS}, the limit of every agent"
        )
    yield from _of_privacy(plan, policy)
    yield from own
    if plan.align is not None:
        yield from _of_alignment(plan.align, policy)


def _beyond(
    term: str, stated: float, side: str, limit: float, why: str = "", *, policy_key: str = ""
) -> Objection:
    """The plan's term is below or above the policy's key, which has the same name if no other is
    given.
    """
    key = policy_key or term
    reason = f"the plan's {term} = {stated:.12g} is {side} {key} = {limit:.12g}{why}"
    return Objection(reason, f"{key} = {stated:.12g}")


def _forbidden(policy: Policy, key: str, reason: str) -> Iterator[Objection]:
    """What the policy has to allow by this switch."""
    if not getattr(policy, key):
        yield Objection(f"{reason} ({key} = false)", f"{key} = true")


def _of_privacy(plan: Plan, policy: Policy) -> Iterator[Objection]:
    if not plan.masked and policy.aggregation == "secure":
        yield Objection(
            "the plan's aggregation = \"plaintext\" would show the coordinator each of this site's "
            "answers, from which it can compute the labels of rows that it knows "
            '(aggregation = "secure")',
            'aggregation = "plaintext"',
        )
    if plan.privacy.membership_changes:
        yield from _forbidden(
            policy,
            "membership_changes",
            "the plan's membership_changes = true would allow sums over other sets of sites, whose "
            "differences reveal single answers",
        )


def _of_agreement(
    plan: Plan, terms: Agreement, policy: Policy, data: PrivateData | None
) -> Iterator[Objection]:
    solver = plan.iteration.name
    rounds = plan.iteration.max_rounds
    if solver not in policy.solvers:
        yield Objection(
            f'the plan\'s solver "{solver}" is not in solvers = {toml(policy.solvers)}',
            f"solvers = {toml((*policy.solvers, solver))}",
        )
    if rounds > policy.max_rounds:
        yield _beyond("max_rounds", rounds, "above", policy.max_rounds)
    if max(terms.coupling) > COUPLING_MAX:
        yield Objection(
            f"the plan's coupling = {toml(terms.coupling)} is above {COUPLING_MAX:g}, the limit of "
            "every agent: answers would reveal labels of shared instances"
        )
    if data is not None:
        yield from faults_of_scale(terms, data)


def _of_additive(terms: Additive, policy: Policy, data: PrivateData | None) -> Iterator[Objection]:
    for key, discloses in _DISCLOSES.items():
        least = getattr(policy, key)
        if key == "label_noise" and terms.private_labels:  # label_epsilon holds in its place
            continue
        if getattr(terms, key) < least:
            why = f": {discloses}. The study can have {key} = {least:g}"
            yield _beyond(key, getattr(terms, key), "below", least, why)
    if terms.private_labels and terms.label_epsilon > policy.label_epsilon:
        why = ": members could guess labels more surely"
        yield _beyond("label_epsilon", terms.label_epsilon, "above", policy.label_epsilon, why)
    if data is not None and terms.noise < COUNTED and sends_counts(data, policy.least_columns):
        yield Objection(
            f"the plan's noise = {terms.noise:g} is below {COUNTED:g}: this site has fewer columns "
            f"than least_columns = {policy.least_columns}, or yes/no columns only, and its sums "
            f"would be counts. The study can have noise = {COUNTED}"
        )


def _of_scoring(plan: Plan, terms: Scoring, policy: Policy) -> Iterator[Objection]:
    yield from _forbidden(policy, "scoring", "scoring together is not allowed")
    least = plan.membership.min_sites
    if least < 3:
        reason = f"the plan's min_sites = {least} would let one site compute another's part of"
        yield from _forbidden(policy, "scores_of_two", f"{reason} a score")
    if terms.contributions:
        yield from _forbidden(
            policy,
            "contributions",
            "the plan's contributions = true would show the receivers this site's part of each "
            "score, and not only the sum",
        )


def _of_alignment(terms: Alignment, policy: Policy) -> Iterator[Objection]:
    yield from _forbidden(policy, "alignment", "alignment of ids is not allowed")
    most = policy.max_alignment_ids
    if terms.max_ids > most:
        why = ": each id that a site lists tests whether all others have it"
        yield _beyond("max_ids", terms.max_ids, "above", most, why, policy_key="max_alignment_ids")
