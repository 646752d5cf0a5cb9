"""Objections from what this site answered before, in this run or another.

Answers are linear, so two of them can reveal what neither does alone:

    S(a,b,c) + S(c,d,e) − S(a,b,d,e) = 2 S(c)       sums over different sets of sites
    moments of n rows − moments of n − k rows       the labels of k rows, unless k is many times
                                                    the number of features
    the same moments again, with fresh noise        an average without noise

Therefore (1) each site's answers on a set of instances go into sums over one set of sites only,
(2) labelled rows are the same or differ in many, (3) features on overlapping rows have a budget,
(4) the same rows are opened a few times, and (5) an individual is scored by a few models. A plan
and every policy can allow other sets of sites and of rows (membership_changes) from its first run.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from coreg_core.objectives.additive import Additive
from coreg_core.plan import Plan
from site_agent.consent.memory import Memory
from site_agent.consent.objection import Objection
from site_agent.consent.policy import Policy
from site_agent.disclosure import Disclosure, Pairs, RowSet


def objections_to_other_sites(
    plan: Plan, policy: Policy, memory: Memory, ids_digest: str, now: frozenset[str]
) -> Iterator[Objection]:
    """(1): this site was summed with another set on these instances, or will be in an open run.

    If each site's answers go into sums over one set only, no combination reveals a part.
    """
    if not (plan.masked and plan.objective.one_set):
        return
    consents = policy.membership_changes and plan.privacy.membership_changes
    earlier = {*memory.summed_with(ids_digest), *memory.reserved(plan.run, ids_digest)}
    sets = [
        sums.sites for sums in earlier if sums.sites != now and not (consents and sums.may_change)
    ]
    if sets:
        changed = min(sets, key=lambda sites: (len(sites ^ now), sorted(sites)))
        yield Objection(
            f"this site was summed with {_listed(changed)} on these instances, and now with "
            f"{_listed(now)}. The difference of the two sums reveals the answers of "
            f"{_listed(changed ^ now)} alone, also across runs. Continue with the same sites, or "
            "use other shared instances. For these instances it can no longer be allowed: "
            "membership_changes = true has to be in the first plan and in every policy "
            "(docs/how-to/operate-a-coordinator.md)"
        )


def _listed(sites: Iterable[str]) -> str:
    return ", ".join(sorted(sites))


def objections_to_other_rows(
    plan: Plan, policy: Policy, memory: Memory, disclosure: Disclosure
) -> Iterator[Objection]:
    """(2) changed rows, (3) features on the same rows, (4) openings of the same sums."""
    rows = disclosure.rows
    if rows is None or not isinstance(plan.objective, Additive):
        return
    earlier = memory.row_sets()
    least = plan.objective.rows_per_feature
    # (2)
    if not (policy.membership_changes and plan.privacy.membership_changes):
        yield from _changed_rows(rows, earlier, least)
    # (3)
    yield from _over_budget(rows, earlier, least, disclosure.labelled)
    # (4)
    times = memory.openings_of(rows)
    left = policy.openings - times
    if left <= 0:
        often = f"{times} time" if times == 1 else f"{times} times"
        yield Objection(
            f"sums of these labelled rows were opened {often}, and openings = {policy.openings} in "
            "this site's policy: more would average out the noise. An earlier run's model stays. "
            "New labels allow another training",
            f"openings = {times + 1}",
        )
    elif left == 1 and memory.opened_in(plan.run, rows):
        yield Objection(
            "an attempt at this run was interrupted after this site had answered with sums of"
            f" these labelled rows. One of openings = {policy.openings} is left, and a retry does"
            " not use it: submit the study again when all sites are up"
        )


def _changed_rows(now: RowSet, earlier: Iterable[RowSet], least: int) -> Iterator[Objection]:
    """``least``: rows for each feature."""
    for before in earlier:
        apart = now.apart(before)
        wanted = least * max(now.features, before.features)
        if now.overlaps(before) and 0 < apart < wanted:
            yield Objection(
                f"{apart} labelled rows differ from those of an earlier training (a label of "
                "another target or label_epsilon counts too), and their labels would follow from "
                f"the difference of the two sums. None or at least {wanted} have to differ: "
                f"{wanted - apart} more. The models of the earlier training stay."
            )
            return


def _over_budget(
    now: RowSet, earlier: Iterable[RowSet], least: int, counted: int
) -> Iterator[Objection]:
    """Features of all sets that overlap with these rows; the same set counts once."""
    overlapping = [rows for rows in earlier if rows.digest != now.digest and now.overlaps(rows)]
    spent = sum(rows.features for rows in overlapping)
    individuals = np.unique(np.concatenate([rows.individuals for rows in (now, *overlapping)]))
    have = max(len(individuals), counted)
    wanted = least * (spent + now.features)
    if overlapping and wanted > have:
        yield Objection(
            f"earlier trainings used {spent} features on some of these labelled rows. With "
            f"{now.features} more, rows_per_feature = {least} wants {wanted} labelled individuals"
            f" in all, and there are {have}: label {wanted - have} more. The models of the earlier"
            " trainings stay."
        )


def objections_to_other_models(
    policy: Policy, memory: Memory, scores: Pairs | None
) -> Iterator[Objection]:
    """(5): too many models. ``scores``: individuals that a scoring discloses, each with its model
    and sites.
    """
    if scores is None:
        return
    both = np.unique(np.concatenate([memory.scores(), scores]), axis=0)
    models = np.unique(both[np.isin(both[:, 0], scores[:, 0])][:, 0], return_counts=True)[1]
    if models.max(initial=0) > policy.models_per_individual:
        yield Objection(
            f"some of these individuals were scored by {policy.models_per_individual} models or "
            "sets of sites (models_per_individual in this site's policy): more would tell their "
            "features. Their earlier scores stay. Leave them out, or this site raises "
            "models_per_individual"
        )
