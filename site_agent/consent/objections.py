"""May this site do that? Every reason against a plan before an offer, and against an answer.

`before_offer` is asked when a plan arrives, by `check --plan`, and before the operator is.
`before_answer` is asked of each answer with what it discloses, before it leaves. Nothing else
decides what a site does.
"""

from collections.abc import Iterable, Iterator
from typing import assert_never

import numpy as np

from coreg_core.objectives.additive import Additive
from coreg_core.objectives.agreement import Agreement
from coreg_core.objectives.alignment import Alignment
from coreg_core.objectives.scoring import Scoring
from coreg_core.plan import Plan, plan_fault
from coreg_wire.files.toml_file import toml
from site_agent.consent.memory import Memory
from site_agent.consent.objection import Objection
from site_agent.consent.policy import Policy
from site_agent.consent.scale import faults_of_scale, sends_counts
from site_agent.disclosure import Disclosure, Pairs, RowSet
from site_agent.site_data import PrivateData

COUNTED = 0.1  # least noise on sums of a site whose entries are counts
# Limits of every agent: a plan beyond them holds the machine longer, or discloses more, than a
# study needs.
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


# --- before an offer ----------------------------------------------------------------------------


def before_offer(
    plan: Plan,
    name: str,
    policy: Policy | None,
    memory: Memory,
    *,
    data: PrivateData | None = None,
    ids_digest: str = "",
) -> list[Objection]:
    """Every reason against the plan at the site of that name.

    ``policy``: None in a simulation, which judges no term. ``data``: the rows of a training, if
    they are known. ``ids_digest``: of the shared instances, "" if they are not known yet.
    """
    if (fault := plan_fault(plan)) is not None:
        return [Objection(f"the plan is not valid: {fault}")]
    if name not in plan.sites:
        listed = ", ".join(plan.sites)
        return [Objection(f"the plan does not list {name} among its sites, {listed}")]
    terms = [] if policy is None else list(_of_terms(plan, policy, data))
    with memory.lock:
        return [*terms, *_of_memory(plan, policy or Policy(), memory, ids_digest)]


def trainings(
    plan: Plan, policy: Policy, data: PrivateData | None, memory: Memory
) -> dict[str, str]:
    """By heading, for the operator: which training with these labelled rows this one is.

    ``data``: None before the alignment. Too many are no objection, because other sites can have
    enough new labels.
    """
    if not isinstance(plan.objective, Additive) or (data is not None and not len(data.y)):
        return {}
    if data is None:
        times = max((rows.openings for rows in memory.row_sets()), default=0)
    else:
        times = memory.trainings(data)
    text = training_of(times + 1, policy.openings)
    if data is None and times:
        text = f"at most {text}: the alignment finds which labels are used"
    elif times >= policy.openings:
        text += ", so the run ends refused unless other sites have enough new labels (openings)"
    return {"labels": text}


def training_of(number: int, openings: int) -> str:
    """The countdown of a policy's ``openings``, as an operator reads it."""
    return f"training {number} of {openings} with these labels"


def _of_memory(plan: Plan, policy: Policy, memory: Memory, ids_digest: str) -> Iterator[Objection]:
    most = plan.objective.most_answers(plan)
    given = memory.recall(plan, ids_digest).answered
    if given >= most:
        yield Objection(
            f"{given} answers to this plan on these instances are given, over all runs, of at most "
            f"{most}. A plan with other terms is counted by itself"
        )
    if plan.membership.min_sites == len(plan.sites):  # other plans can run with fewer sites
        yield from _of_sites(plan, policy, memory, ids_digest, frozenset(plan.sites))


def _of_terms(plan: Plan, policy: Policy, data: PrivateData | None) -> Iterator[Objection]:
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
        yield Objection(
            f"the plan's min_sites = {least} is below min_sites = {policy.min_sites}",
            f"min_sites = {least}",
        )
    if threads > MOST_THREADS:
        yield Objection(
            f"the plan's threads = {threads} is above {MOST_THREADS}, the limit of every agent"
        )
    yield from _of_privacy(plan, policy)
    yield from own
    if plan.align is not None:
        yield from _of_alignment(plan.align, policy)


def _of_privacy(plan: Plan, policy: Policy) -> Iterator[Objection]:
    if not plan.masked and policy.aggregation == "secure":
        yield Objection(
            "the plan's aggregation = \"plaintext\" would show the coordinator each of this site's "
            "answers, from which it can compute the labels of rows that it knows "
            '(aggregation = "secure")',
            'aggregation = "plaintext"',
        )
    if plan.privacy.membership_changes and not policy.membership_changes:
        yield Objection(
            "the plan's membership_changes = true would allow sums over other sets of sites, whose "
            "differences reveal single answers (membership_changes = false)",
            "membership_changes = true",
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
        yield Objection(
            f"the plan's max_rounds = {rounds} is above max_rounds = {policy.max_rounds}",
            f"max_rounds = {rounds}",
        )
    if max(terms.coupling) > COUPLING_MAX:
        yield Objection(
            f"the plan's coupling = {toml(terms.coupling)} is above {COUPLING_MAX:g}, the limit of "
            "every agent: answers would reveal labels of shared instances"
        )
    if data is not None:
        yield from faults_of_scale(terms, data)


def _of_additive(terms: Additive, policy: Policy, data: PrivateData | None) -> Iterator[Objection]:
    for key, discloses in _DISCLOSES.items():
        stated = getattr(terms, key)
        least = getattr(policy, key)
        if key == "label_noise" and terms.private_labels:  # label_epsilon holds in its place
            continue
        if stated < least:
            yield Objection(
                f"the plan's {key} = {stated:g} is below {key} = {least:g}: {discloses}. The study "
                f"can have {key} = {least:g}",
                f"{key} = {stated:g}",
            )
    if terms.private_labels and terms.label_epsilon > policy.label_epsilon:
        yield Objection(
            f"the plan's label_epsilon = {terms.label_epsilon:g} is above label_epsilon = "
            f"{policy.label_epsilon:g}: members could guess labels more surely",
            f"label_epsilon = {terms.label_epsilon:g}",
        )
    if data is not None and terms.noise < COUNTED and sends_counts(data, policy.least_columns):
        yield Objection(
            f"the plan's noise = {terms.noise:g} is below {COUNTED:g}: this site has fewer columns "
            f"than least_columns = {policy.least_columns}, or yes/no columns only, and its sums "
            f"would be counts. The study can have noise = {COUNTED}"
        )


def _of_scoring(plan: Plan, terms: Scoring, policy: Policy) -> Iterator[Objection]:
    if not policy.scoring:
        yield Objection("scoring together is not allowed (scoring = false)", "scoring = true")
    if plan.membership.min_sites < 3 and not policy.scores_of_two:
        yield Objection(
            f"the plan's min_sites = {plan.membership.min_sites} would let one site compute "
            "another's part of a score (scores_of_two = false)",
            "scores_of_two = true",
        )
    if terms.contributions and not policy.contributions:
        yield Objection(
            "the plan's contributions = true would show the receivers this site's part of each "
            "score, and not only the sum (contributions = false)",
            "contributions = true",
        )


def _of_alignment(terms: Alignment, policy: Policy) -> Iterator[Objection]:
    if not policy.alignment:
        yield Objection("alignment of ids is not allowed (alignment = false)", "alignment = true")
    if terms.max_ids > policy.max_alignment_ids:
        yield Objection(
            f"the plan's max_ids = {terms.max_ids} is above max_alignment_ids = "
            f"{policy.max_alignment_ids}: each id that a site lists tests whether all others have "
            "it",
            f"max_alignment_ids = {terms.max_ids}",
        )


def fewest_sites_of_scores(policy: Policy, memory: Memory, data: PrivateData) -> int:
    """The fewest sites with which this site ends a training with joint scores; 0: it does not.

    It does not where an individual was scored by as many models as the policy allows.
    """
    if not policy.scoring or memory.most_models(data) >= policy.models_per_individual:
        return 0
    return 2 if policy.scores_of_two else 3


# --- before an answer ---------------------------------------------------------------------------


def before_answer(
    plan: Plan,
    policy: Policy | None,
    memory: Memory,
    disclosure: Disclosure,
    *,
    ids_digest: str,
    seconds: float,
) -> Iterator[Objection]:
    """Every reason against an answer; ``seconds`` since the first one of its attempt."""
    allowed = policy or Policy()
    if plan.rehearsal:
        yield Objection("the plan is a rehearsal, which asks for no answer")
    most = plan.objective.most_answers(plan)
    if memory.recall(plan, ids_digest).answered >= most:
        yield Objection(
            f"more than {most} questions: an agent's limit for such a plan on these instances, "
            "over all runs in its ledger. A plan with other terms is counted by itself"
        )
    if seconds > disclosure.within:
        yield Objection(
            "more than an hour since this site's first answer of this attempt. The next attempt "
            "has fresh secrets"
        )
    yield from _of_sites(plan, allowed, memory, ids_digest, frozenset(disclosure.sites))
    if disclosure.rows is not None and isinstance(plan.objective, Additive):
        yield from _of_rows(plan, plan.objective, allowed, memory, disclosure.rows, disclosure)
    # Scores of a training are limited before it begins (`fewest_sites_of_scores`).
    if disclosure.scores is not None and isinstance(plan.objective, Scoring):
        yield from _of_scores(allowed, memory, disclosure.scores)


def _of_sites(
    plan: Plan, policy: Policy, memory: Memory, ids_digest: str, now: frozenset[str]
) -> Iterator[Objection]:
    """Sums over different sets of sites reveal single answers, since they are linear.

    S(a,b,c) + S(c,d,e) − S(a,b,d,e) = 2 S(c). If each site's answers on a set of instances go into
    sums over one set of sites only, no combination reveals a part.
    """
    if not (plan.masked and plan.objective.one_set):
        return
    consents = policy.membership_changes and plan.privacy.membership_changes
    earlier = {*memory.summed_with(ids_digest), *memory.reserved(plan.run, ids_digest)}
    before = [
        each.sites for each in earlier if each.sites != now and not (consents and each.may_change)
    ]
    if before:
        changed = min(before, key=lambda sites: (len(sites ^ now), sorted(sites)))
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


def _of_rows(
    plan: Plan,
    terms: Additive,
    policy: Policy,
    memory: Memory,
    rows: RowSet,
    disclosure: Disclosure,
) -> Iterator[Objection]:
    """(1) changed rows, (2) features on the same rows, (3) openings of the same sums."""
    earlier = memory.row_sets()
    may_change = policy.membership_changes and plan.privacy.membership_changes
    # (1)
    if not may_change and (fault := changed_rows(rows, earlier, terms.rows_per_feature)):
        yield Objection(fault)
    # (2)
    if fault := over_budget(rows, earlier, terms.rows_per_feature, disclosure.labelled):
        yield Objection(fault)
    # (3)
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


def changed_rows(now: RowSet, earlier: Iterable[RowSet], rows_per_feature: int) -> str | None:
    """The reason against a set that differs from an earlier one in too few rows, or None."""
    for known in earlier:
        apart = now.apart(known)
        wanted = rows_per_feature * max(now.features, known.features)
        if now.overlaps(known) and 0 < apart < wanted:
            return (
                f"{apart} labelled rows differ from those of an earlier training (a label of "
                "another target or label_epsilon counts too), and their labels would follow from "
                f"the difference of the two sums. None or at least {wanted} have to differ: train "
                f"with the earlier rows, or change {wanted - apart} more. The model of the earlier "
                "training stays."
            )
    return None


def over_budget(
    now: RowSet, earlier: Iterable[RowSet], rows_per_feature: int, counted: int
) -> str | None:
    """The reason against more features on rows of earlier trainings, or None. A set counts once."""
    overlapping = [known for known in earlier if known.digest != now.digest and now.overlaps(known)]
    spent = sum(known.features for known in overlapping)
    union = now.individuals
    for known in overlapping:
        union = np.union1d(union, known.individuals)
    have = max(len(union), counted)
    wanted = rows_per_feature * (spent + now.features)
    if not overlapping or wanted <= have:
        return None
    return (
        f"earlier trainings used {spent} features on some of these labelled rows. With "
        f"{now.features} more, rows_per_feature = {rows_per_feature} wants {wanted} labelled "
        f"individuals in all, and there are {have}: label {wanted - have} more. The models of the "
        "earlier trainings stay."
    )


def _of_scores(policy: Policy, memory: Memory, scores: Pairs) -> Iterator[Objection]:
    both = np.concatenate([memory.scores(), scores])
    ours = np.unique(both[np.isin(both[:, 0], scores[:, 0])], axis=0)
    models = np.unique(ours[:, 0], return_counts=True)[1]
    if models.max(initial=0) > policy.models_per_individual:
        yield Objection(
            f"some of these individuals were scored by {policy.models_per_individual} models or "
            "sets of sites (models_per_individual in this site's policy): more would tell their "
            "features. Their earlier scores stay. Leave them out, or this site raises "
            "models_per_individual"
        )
