"""May this site do that? policy.toml, the limits of its consent; and one list of objections to a plan, before an offer, when the
others' counts are known, and for `check --plan`.

A reason leaves the site, so it holds no figure of its rows. It names the key of policy.toml and its limit, and what would be
disclosed.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, assert_never

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from scipy.spatial.distance import pdist

from coreg_core.arrays import Arr
from coreg_core.errors import Refused
from coreg_core.kernels import Linear
from coreg_core.objectives.additive import Additive
from coreg_core.objectives.agreement import Agreement
from coreg_core.objectives.alignment import Alignment
from coreg_core.objectives.scoring import Scoring
from coreg_core.objectives.setting import Aggregation, ScheduleName
from coreg_core.plan import Plan, plan_fault
from coreg_wire.files.toml_file import file_faults, read_toml, toml
from site_agent.consent.memory import Memory, Pairs, RowSet, SummedWith, changed_rows, over_budget
from site_agent.site_data import PrivateData


class Policy(BaseModel):
    """The keys of policy.toml. The defaults allow a plan with the defaults of federation.toml."""

    # Strict: a consent is not guessed from a text. `strict=False` below lets a list of TOML be a tuple.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    max_rounds: int = Field(default=10_000, ge=1)
    min_sites: int = Field(default=2, ge=1)
    # With "block-coordinate-descent" the members read each site's predictions (docs/concepts/privacy.md).
    solvers: tuple[ScheduleName, ...] = Field(
        default=("conjugate-gradients", "block-coordinate-descent"), min_length=1, strict=False
    )
    # "secure": the coordinator receives encrypted sums. "plaintext": it receives each answer of this site.
    aggregation: Aggregation = "secure"
    # A secret of the sites, unknown to the coordinator. It keys the digest of the shared ids; an unkeyed digest confirms a guess.
    ids_secret: str | None = Field(default=None, min_length=16)
    # Allow sums over other sets of sites; single answers follow from their differences. Plan and every site must allow it.
    membership_changes: bool = False
    # What members of each objective can compute: docs/concepts/privacy.md.
    objectives: tuple[Literal["agreement", "additive"], ...] = Field(
        default=("agreement", "additive"), min_length=1, strict=False
    )
    # The least values of the additive plan's terms of these names.
    rows_per_feature: int = Field(default=10, ge=5)
    noise: float = Field(default=0.01, ge=0)
    label_noise: float = Field(default=0.5, ge=0)
    least_labels: int = Field(default=20, ge=3)
    least_rows: int = Field(default=150, ge=10)
    # Additive trainings that can open sums of one set of rows, over all runs: averages remove noise.
    openings: int = Field(default=3, ge=1)
    # With fewer columns, or with yes/no columns only, this site's sums are counts, and need more noise.
    least_columns: int = Field(default=2, ge=1)
    # Allow joint scoring: this site's part of each score leaves encrypted, and the receivers of the plan read the sum.
    scoring: bool = True
    # ... also of two sites, where each can compute the other's part.
    scores_of_two: bool = False
    # Let the receivers of a score read this site's part of it, and not only the sum of all parts.
    contributions: bool = False
    # Models, or sets of sites, that score an individual in its life: each tells more of its features.
    models_per_individual: int = Field(default=5, ge=1)
    # Allow alignments of ids: this site learns which of its ids all sites have, and the others learn it of theirs; ...
    alignment: bool = True
    # ... of plans that let each site list at most so many ids. A site can insert ids to test whether others have them.
    max_alignment_ids: int = Field(default=100_000, ge=1)


def read_policy(path: Path | None) -> Policy:
    if path is None:
        return Policy()
    try:
        return Policy.model_validate(read_toml(path))
    except ValidationError as error:
        raise file_faults(path, error, Policy.model_fields) from None


# --- objections ---------------------------------------------------------------------------------------------------------

COUNTED = 0.1  # least noise on sums of a site whose entries are counts
# Limits of every agent: a plan beyond them holds the machine longer, or discloses more, than a study needs.
COUPLING_MAX, MOST_THREADS = 100.0, 64
# Limits of an additive plan: what a smaller value would disclose.
_DISCLOSES = {
    "rows_per_feature": "members would learn more of each label and row",
    "noise": "members could compute yes/no columns",
    "label_noise": "a lying member, or members together, could read labels",
    "least_labels": "sums would disclose rows of a site with few labels",
    "least_rows": "members could compute yes/no labels and columns of few rows",
}


@dataclass(frozen=True)
class Objection:
    """A reason against a plan; the lines of policy.toml that would allow it, if any; a figure for this site's operator alone."""

    reason: str
    allow: str = ""
    here: str = ""


@dataclass(frozen=True, eq=False)
class Counts:
    """What is known of a run's others: its sites; then the labelled rows, and how many there are; of a scoring, its scores."""

    sites: frozenset[str] = frozenset()
    rows: RowSet | None = None
    labelled: int = 0
    scores: Pairs | None = None


def objections(
    plan: Plan,
    policy: Policy | None,
    data: PrivateData | None,
    memory: Memory,
    ids_digest: str,
    counts: Counts | None = None,
) -> list[Objection]:
    """Every reason against the plan, before an offer, or with ``counts`` before an answer; ``policy`` None in a simulation."""
    with memory.lock:
        if counts is not None:
            return list(_of_counts(plan, policy or Policy(), memory, ids_digest, counts))
        if (fault := plan_fault(plan)) is not None:
            return [Objection(f"the plan is not valid: {fault}")]
        found = [*_of_memory(plan, policy or Policy(), memory, ids_digest)]
        return found if policy is None else [*_of_terms(plan, policy, data), *found]


def trainings(
    plan: Plan, policy: Policy, data: PrivateData | None, memory: Memory
) -> dict[str, str]:
    """By heading, for the operator: no objection, because `_of_labelled` allows them where other sites have enough new labels."""
    if data is None or not isinstance(plan.objective, Additive):
        return {}
    times = memory.trainings(data)
    spent = ", so the run ends refused unless other sites have enough new labels (openings)"
    told = f"{times} so far, of at most {policy.openings}{spent * (times >= policy.openings)}"
    return {"trainings of these labelled rows": told}


def not_listed(plan: Plan, name: str) -> list[Objection]:
    reason = f"the plan does not list {name} among its sites, {', '.join(plan.sites)}"
    return [] if name in plan.sites else [Objection(reason)]


def refusal(found: Sequence[Objection], policy: Policy | None = None) -> str | None:
    if not found:
        return None
    reasons = [each.reason.removesuffix(".") for each in found]
    if len(reasons) > 1:
        reasons = [f"({number}) {reason}" for number, reason in enumerate(reasons, 1)]
    where = " These limits are in this site's policy.toml, or in the file of --policy."
    if policy == Policy():
        where = " This policy has only default values. A policy.toml beside agent.toml, or --policy FILE, changes them."
    return f"{'; '.join(reasons)}.{where * any(each.allow for each in found)}"


@dataclass(frozen=True, eq=False)
class Consent:
    """What one site's operator agrees to in a run: the policy, and the memory of what this site answered before."""

    policy: Policy | None
    memory: Memory
    clock: Callable[[], float]  # seconds

    @classmethod
    def simulated(cls) -> "Consent":
        """Of a simulation: it checks no term of a plan, and remembers no other run."""
        return cls(None, Memory(), lambda: 0.0)

    def require(self, plan: Plan, ids_digest: str, counts: Counts) -> None:
        found = objections(plan, self.policy, None, self.memory, ids_digest, counts)
        if (text := refusal(found)) is not None:
            raise Refused(text)

    def sum_with(self, plan: Plan, ids_digest: str, sites: Iterable[str]) -> None:
        """Check the sites of an attempt, and promise them to this run."""
        counts = Counts(frozenset(sites))
        with self.memory.lock:
            self.require(plan, ids_digest, counts)
            if plan.masked and plan.objective.one_set:
                now = SummedWith(counts.sites, plan.privacy.membership_changes)
                self.memory.reserve(plan.run, ids_digest, now)

    def open_moments(self, plan: Plan, ids_digest: str, counts: Counts) -> None:
        """Check the labelled rows, and note an opening of their moments, before the answer that opens them."""
        assert counts.rows is not None
        with self.memory.lock:
            self.require(plan, ids_digest, counts)
            times = self.memory.openings_of(counts.rows) + 1
            self.memory.opened(replace(counts.rows, openings=times), plan.run)

    def open_scores(self, plan: Plan, ids_digest: str, scores: Pairs) -> None:
        with self.memory.lock:
            self.require(plan, ids_digest, Counts(scores=scores))
            self.note_scores(plan, scores)

    def note_scores(self, plan: Plan, scores: Pairs) -> None:
        """Note scores that no rule forbids: those of a training have its openings as their limit."""
        with self.memory.lock:
            self.memory.scored(scores, plan.run)


# --- before an offer ----------------------------------------------------------------------------------------------


def _of_memory(plan: Plan, policy: Policy, memory: Memory, ids_digest: str) -> Iterator[Objection]:
    most, given = plan.objective.most_answers(plan), memory.recall(plan, ids_digest).answered
    if given >= most:
        yield Objection(
            f"{given} answers to this plan on these instances are given, over all runs, of at most {most}. A plan with other "
            "terms is counted by itself"
        )
    if plan.membership.min_sites == len(plan.sites):  # other plans can run with fewer sites
        yield from _of_sites(plan, policy, memory, ids_digest, frozenset(plan.sites))


def _of_terms(plan: Plan, policy: Policy, data: PrivateData | None) -> Iterator[Objection]:
    match plan.objective:
        case Agreement() as terms:
            trained, own = "agreement", _of_agreement(plan, terms, policy, data)
        case Additive() as terms:
            trained, own = "additive", _of_additive(terms, policy, data)
        case Scoring() as terms:
            trained, own = terms.trained, _of_scoring(plan, terms, policy)
        case Alignment() as terms:
            trained, own = "", _of_alignment(terms, policy)
        case _:
            assert_never(plan.objective)
    if trained and trained not in policy.objectives:
        reason = f'the plan\'s objective is "{trained}", and objectives = {toml(policy.objectives)} does not list it'
        yield Objection(reason, f"objectives = {toml((*policy.objectives, trained))}")
    least, threads = plan.membership.min_sites, plan.iteration.threads
    if least < policy.min_sites:
        reason = f"the plan's min_sites = {least} is below min_sites = {policy.min_sites}"
        yield Objection(reason, f"min_sites = {least}")
    if threads > MOST_THREADS:
        yield Objection(
            f"the plan's threads = {threads} is above {MOST_THREADS}, the limit of every agent"
        )
    yield from _of_sums(plan, policy)
    yield from own
    if plan.align is not None:
        yield from _of_alignment(plan.align, policy)


def _of_sums(plan: Plan, policy: Policy) -> Iterator[Objection]:
    if not plan.masked and policy.aggregation == "secure":
        yield Objection(
            "the plan's aggregation = \"plaintext\" would show the coordinator each of this site's answers, from which it can "
            'compute the labels of rows that it knows (aggregation = "secure")',
            'aggregation = "plaintext"',
        )
    if plan.privacy.membership_changes and not policy.membership_changes:
        yield Objection(
            "the plan's membership_changes = true would allow sums over other sets of sites, whose differences reveal single "
            "answers (membership_changes = false)",
            "membership_changes = true",
        )


def _of_agreement(
    plan: Plan, terms: Agreement, policy: Policy, data: PrivateData | None
) -> Iterator[Objection]:
    solver, rounds, couplings = plan.iteration.name, plan.iteration.max_rounds, terms.coupling
    if solver not in policy.solvers:
        reason = f'the plan\'s solver "{solver}" is not in solvers = {toml(policy.solvers)}'
        yield Objection(reason, f"solvers = {toml((*policy.solvers, solver))}")
    if rounds > policy.max_rounds:
        reason = f"the plan's max_rounds = {rounds} is above max_rounds = {policy.max_rounds}"
        yield Objection(reason, f"max_rounds = {rounds}")
    if max(couplings) > COUPLING_MAX:
        yield Objection(
            f"the plan's coupling = {toml(couplings)} is above {COUPLING_MAX:g}, the limit of every agent: answers would reveal "
            "labels of shared instances"
        )
    yield from () if data is None else faults_of_scale(terms, data)


def _of_additive(terms: Additive, policy: Policy, data: PrivateData | None) -> Iterator[Objection]:
    for key, discloses in _DISCLOSES.items():
        found, least = getattr(terms, key), getattr(policy, key)
        if found < least:
            yield Objection(
                f"the plan's {key} = {found:g} is below {key} = {least:g}: {discloses}. The study can have {key} = {least:g}",
                f"{key} = {found:g}",
            )
    if data is not None and terms.noise < COUNTED and sends_counts(data, policy.least_columns):
        yield Objection(
            f"the plan's noise = {terms.noise:g} is below {COUNTED:g}: this site has fewer columns than least_columns = "
            f"{policy.least_columns}, or yes/no columns only, and its sums would be counts. The study can have noise = {COUNTED}"
        )


def _of_scoring(plan: Plan, terms: Scoring, policy: Policy) -> Iterator[Objection]:
    if not policy.scoring:
        yield Objection("scoring together is not allowed (scoring = false)", "scoring = true")
    if plan.membership.min_sites < 3 and not policy.scores_of_two:
        yield Objection(
            f"the plan's min_sites = {plan.membership.min_sites} would let one site compute another's part of a score "
            "(scores_of_two = false)",
            "scores_of_two = true",
        )
    if terms.contributions and not policy.contributions:
        yield Objection(
            "the plan's contributions = true would show the receivers this site's part of each score, and not only the sum "
            "(contributions = false)",
            "contributions = true",
        )


def _of_alignment(terms: Alignment, policy: Policy) -> Iterator[Objection]:
    if not policy.alignment:
        yield Objection("alignment of ids is not allowed (alignment = false)", "alignment = true")
    if terms.max_ids > policy.max_alignment_ids:
        yield Objection(
            f"the plan's max_ids = {terms.max_ids} is above max_alignment_ids = {policy.max_alignment_ids}: each id that a site "
            "lists tests whether all others have it",
            f"max_alignment_ids = {terms.max_ids}",
        )


# --- when the others' counts are known ----------------------------------------------------------------------------


def _of_counts(
    plan: Plan, policy: Policy, memory: Memory, ids_digest: str, counts: Counts
) -> Iterator[Objection]:
    if counts.sites:
        yield from _of_sites(plan, policy, memory, ids_digest, counts.sites)
    if counts.rows is not None and isinstance(terms := plan.objective, Additive):
        yield from _of_labelled(plan, terms, policy, memory, counts.rows, counts.labelled)
    if counts.scores is not None:
        both = np.concatenate([memory.scores(), counts.scores])
        ours = np.unique(both[np.isin(both[:, 0], counts.scores[:, 0])], axis=0)
        if (
            np.unique(ours[:, 0], return_counts=True)[1].max(initial=0)
            > policy.models_per_individual
        ):
            yield Objection(
                f"some of these individuals were scored by {policy.models_per_individual} models or sets of sites "
                "(models_per_individual in this site's policy): more would tell their features. Their earlier scores stay. Leave "
                "them out, or this site raises models_per_individual"
            )


def _of_sites(
    plan: Plan, policy: Policy, memory: Memory, ids_digest: str, now: frozenset[str]
) -> Iterator[Objection]:
    """Sums over different sets of sites reveal single answers, since they are linear: S(a,b,c) + S(c,d,e) − S(a,b,d,e) = 2 S(c).

    If each site's answers on a set of instances go into sums over one set of sites only, no combination reveals a part.
    """
    if not (plan.masked and plan.objective.one_set):
        return
    consents = policy.membership_changes and plan.privacy.membership_changes
    earlier = {*memory.summed_with(ids_digest), *memory.reserved(plan.run, ids_digest)}
    before = [
        each.sites for each in earlier if each.sites != now and not (consents and each.may_change)
    ]
    if before:
        changed = min(before, key=lambda s: (len(s ^ now), sorted(s)))
        yield Objection(
            f"this site was summed with {', '.join(sorted(changed))} on these instances, and now with {', '.join(sorted(now))}. "
            f"The difference of the two sums reveals the answers of {', '.join(sorted(changed ^ now))} alone, also across runs. "
            "Continue with the same sites, or use other shared instances. For these instances it can no longer be allowed: "
            "membership_changes = true has to be in the first plan and in every policy "
            "(docs/how-to/operate-a-coordinator.md)"
        )


def _of_labelled(
    plan: Plan, terms: Additive, policy: Policy, memory: Memory, now: RowSet, labelled: int
) -> Iterator[Objection]:
    earlier, may_change = (
        memory.row_sets(),
        policy.membership_changes and plan.privacy.membership_changes,
    )
    if not may_change and (fault := changed_rows(now, earlier, terms.rows_per_feature)) is not None:
        yield Objection(fault)
    if (fault := over_budget(now, earlier, terms.rows_per_feature, labelled)) is not None:
        yield Objection(fault)
    times = memory.openings_of(now)
    if times >= policy.openings:
        yield Objection(
            f"sums of these labelled rows were opened {times} time{'s' * (times != 1)}, and openings = {policy.openings} in this "
            "site's policy: more would average out the noise. An earlier run's model stays. New labels allow another training",
            f"openings = {times + 1}",
        )


# --- a plan's numbers in units of this site's own rows ----------------------------------------------------------------

# Rows for the median distance, evenly spaced over the table: two million pairs take 0.05 s.
MOST_ROWS = 2000
# No operator chooses these ranges: a plan that needs other numbers can use a rule.
BANDWIDTH_MIN, BANDWIDTH_MAX = 0.5, 10.0
RIDGE_MIN, RIDGE_MAX = 0.01, 1.0


def faults_of_scale(terms: Agreement, data: PrivateData) -> Iterator[Objection]:
    r"""Each broken limit: the reason, which leaves the site and so holds no figure of the rows, and this site's figure.

    A number can be harmless at one site and interpolate at another, so the ranges are multiples of this site's own:

        bandwidth / median distance of two labelled rows (squared for the gaussian), pairs that coincide left out
        ridge / mean k(x, x) over the labelled rows: how many labels the penalty is worth
        ridge / Σ k(x, x): how many times all labels together
    """
    kernel, rows = (
        "linear" if terms.form == "linear" else terms.kernel,
        data.X if len(data.X) else data.Z,
    )
    if kernel == "gaussian" and not isinstance(terms.bandwidth, str):
        unit = _distance(rows) or _distance(np.concatenate([rows, data.Z]))
        scaled = 1.0 if unit is None else terms.bandwidth / unit
        named, here = (
            f"the plan's bandwidth = {terms.bandwidth:g}",
            f"here it is {scaled:.3g} times that distance",
        )
        distance = "times the median distance of this site's labelled rows"
        if scaled < BANDWIDTH_MIN:
            what = "answers would reveal the label of each labelled row that is similar to a shared instance"
            masks = ", and the other sites' parts of the sum could not hide it"
            yield Objection(
                f"{named} is below {BANDWIDTH_MIN:g} {distance}: {what}{masks}", here=here
            )
        if scaled > BANDWIDTH_MAX:
            what = "the kernel would be linear in the distance: answers would reveal the distances of the shared rows"
            yield Objection(f"{named} is above {BANDWIDTH_MAX:g} {distance}: {what}", here=here)
    if not isinstance(terms.ridge, str):
        size = float(Linear().diagonal(rows).sum()) if kernel == "linear" else float(len(rows))
        if not (np.isfinite(size) and size > 0.0):
            return
        each, of_all, named = (
            terms.ridge * len(rows) / size,
            terms.ridge / size,
            f"the plan's ridge = {terms.ridge:g}",
        )
        if each < RIDGE_MIN:
            what = "the model would pass through the labels, and answers would reveal those of rows similar to shared instances"
            limit = f"below {RIDGE_MIN:g} times the kernel's mean over this site's labelled rows"
            yield Objection(
                f"{named} is {limit}: {what}", here=f"here it is {each:.3g} times that mean"
            )
        if of_all > RIDGE_MAX:
            what = "the model would learn nothing from labels: answers would reveal the Gram matrix of the shared rows"
            limit = f"above {RIDGE_MAX:g} times the kernel's sum over this site's labelled rows"
            yield Objection(
                f"{named} is {limit}: {what}", here=f"here it is {of_all:.3g} times that sum"
            )


def sends_counts(data: PrivateData, least_columns: int) -> bool:
    """Whether sums of these columns would be counts: few columns, or none with more than two values."""
    pairs = zip(data.X.T, data.Z.T, strict=True)
    return data.Z.shape[1] < least_columns or all(
        len(np.unique(np.concatenate(pair))) <= 2 for pair in pairs
    )


def _distance(rows: Arr) -> float | None:
    """The median squared distance over pairs of different rows; None without such a pair."""
    some = rows[np.unique(np.linspace(0, len(rows) - 1, min(len(rows), MOST_ROWS)).astype(int))]
    if len(some) < 2:
        return None
    apart = pdist(some, "sqeuclidean")
    apart = apart[apart > 0.0]
    return float(np.median(apart)) if apart.size and np.isfinite(apart).all() else None
