"""policy.toml: the limits of this site's consent. Every plan is checked against it before any computation.

Every refusal names the policy's key, so that both operators can act on it. It leaves the site, so it holds no figure of the
site's rows.
"""

from pathlib import Path
from typing import Annotated, Literal, assert_never

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from coreg_core.names import ScheduleName
from coreg_core.protocol.plan import (
    Additive,
    Aggregation,
    Agreement,
    Alignment,
    Form,
    Plan,
    PlanKernel,
    Scoring,
)
from coreg_wire.files.toml_file import file_faults, read_toml, toml
from site_agent.machine.factoring import FACTOR_MEMORY
from site_agent.machine.site import max_questions
from site_agent.machine.site_data import PrivateData
from site_agent.policy.members import against_one_operator
from site_agent.policy.units import kernel_of, scaled

_DEFAULTS = " This policy has only default values. If the site has a policy.toml, give it with --policy."
_LINEAR = ": as many answers as there are features reveal the shared rows up to a linear map"
COUNTED = 0.1  # least noise on sums of a site whose entries are counts
# Limits of an additive plan: what a smaller value would disclose.
_DISCLOSES = {
    "rows_per_feature": "members would learn more of each label and row",
    "noise": "members could compute yes/no columns",
    "label_noise": "a lying member, or members together, could read labels",
    "least_labels": "sums would disclose rows of a site with few labels",
    "least_rows": "members could compute yes/no labels and columns of few rows",
}


class Policy(BaseModel):
    """The keys of policy.toml. The defaults allow a plan with the defaults of federation.toml."""

    # Strict: a consent is not guessed from a text. `strict=False` below lets a list of TOML be a tuple.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    max_rounds: int = Field(default=10_000, ge=1)
    min_sites: int = Field(default=2, ge=1)
    coupling_min: float = Field(default=0.0, ge=0)
    coupling_max: float = Field(default=100.0, ge=0)
    # For couplings in units of Σn_v/(2M²m); the two keys above do not apply to them.
    max_couplings: int = Field(default=64, ge=1)
    max_threads: int = Field(default=64, ge=1)
    # GiB of Cholesky factors, one for each coupling of a path in the exact form. One factor is always allowed.
    factor_memory: float = Field(default=FACTOR_MEMORY, gt=0)
    # Answers to one plan on one set of instances, over all its runs. The default is 10 (max_rounds + 2) of the plan.
    max_questions: int | None = Field(default=None, ge=1)
    # Forms and kernels of the functions.
    forms: tuple[Form, ...] = Field(default=("exact", "semi-parametric", "linear"), min_length=1, strict=False)
    kernels: tuple[PlanKernel, ...] = Field(default=("gaussian", "laplacian", "linear"), min_length=1, strict=False)
    schedules: tuple[ScheduleName, ...] = Field(
        default=("conjugate-gradients", "block-coordinate-descent"), min_length=1, strict=False
    )
    # Limits in units of this site's labelled rows (site_agent/policy/units.py). bandwidth: times their median distance.
    bandwidth_min: float = Field(default=0.5, gt=0)
    bandwidth_max: float = Field(default=10.0, gt=0)
    # ridge: at least so many times the mean of the kernel there ...
    ridge_min: float = Field(default=0.01, ge=0)
    # ... and at most so many times the sum of the kernel.
    ridge_max: float = Field(default=1.0, gt=0)
    # Largest share of one label of this site in the variance of a sum at one shared instance (site_agent/machine/leverage.py).
    label_share_max: float = Field(default=0.95, gt=0, le=1)
    # "secure": the coordinator receives encrypted sums. "plaintext": it receives each answer of this site.
    aggregation: Aggregation = "secure"
    # Members read the sums. "sums": one operator for each set of instances, so that no algebra separates the sums.
    # "operators": a member can compute this site's operator and predictions on the shared instances.
    members_may_learn: Literal["sums", "operators"] = "sums"
    # The sites that answers are summed with: name = fingerprint, as `coreg-agent peers` prints it at that site.
    peers: dict[str, Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]] = Field(default_factory=dict)
    # A secret of the sites, unknown to the coordinator. It keys the digest of the shared ids; an unkeyed digest confirms a guess.
    ids_secret: str | None = Field(default=None, min_length=16)
    # Allow sums over other sets of sites; single answers follow from their differences. Plan and every site must allow it.
    membership_changes: bool = False
    # The additive objective discloses second moments (docs/concepts/threat-model.md), so it must be listed.
    objectives: tuple[Literal["agreement", "additive"], ...] = Field(default=("agreement",), min_length=1, strict=False)
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
    scoring: bool = False
    # ... also of two sites, where each can compute the other's part.
    scores_of_two: bool = False
    # Models, or sets of sites, that score an individual in its life: each tells more of its features.
    models_per_individual: int = Field(default=5, ge=1)
    # Allow alignments of ids: this site learns which of its ids all sites have, and the others learn it of theirs; ...
    alignment: bool = False
    # ... of plans that let each site list at most so many ids. A site can insert ids to test whether others have them.
    max_alignment_ids: int = Field(default=100_000, ge=1)

    @field_validator("peers", mode="before")
    @classmethod
    def _names(cls, peers: object) -> object:
        """Find two mistakes that TOML hides: a key of the policy below [peers], and an unquoted name with a dot."""
        for name, value in peers.items() if isinstance(peers, dict) else ():
            if name in cls.model_fields:
                raise ValueError(f"{name} is a key of the policy, not a site. Move its line above [peers]")
            if isinstance(value, dict):
                raise ValueError(f'write a name with a dot in quotes: "{name}.{next(iter(value), "…")}" = …')
        return peers

    @field_validator("peers")
    @classmethod
    def _distinct(cls, peers: dict[str, str]) -> dict[str, str]:
        for site, fingerprint in peers.items():
            other = next((s for s, f in peers.items() if f == fingerprint and s != site), None)
            if other is not None:
                raise ValueError(
                    f"{site} and {other} have the same fingerprint, so one pin is wrong. Delete both lines, and pin both again"
                )
        return peers

    def of_site(self, name: str, fingerprint: str) -> "Policy":
        """The policy with this site's own key among the pins, which can lack it or have an earlier one. Without pins as it is."""
        return self.model_copy(update={"peers": {**self.peers, name: fingerprint}}) if self.peers else self

    def objection(self, plan: Plan, data: PrivateData | None = None) -> str | None:
        """Every reason against the plan, or None; several are numbered. Without ``data``, only the plan's terms are checked."""
        reasons = self.objections(plan, data)
        if len(reasons) > 1:
            reasons = [f"({number}) {reason}" for number, reason in enumerate(reasons, 1)]
        default = _DEFAULTS if self == Policy() else ""
        return f"against this site's policy: the plan's {'; '.join(reasons)}.{default}" if reasons else None

    def objections(self, plan: Plan, data: PrivateData | None = None) -> list[str]:
        """Each reason: the plan's value, the policy's key, and what would be disclosed."""
        name, max_rounds = self.objectives[0], 1
        match plan.objective:
            case Agreement() as terms:
                name, max_rounds = "agreement", plan.iteration.max_rounds
                own = self._agreement(plan, terms) + ([] if data is None else self._of_scale(terms, data))
            case Additive() as terms:
                name, own = "additive", self._additive(terms, data)
            case Scoring() as terms:
                name, own = terms.trained, self._scoring(plan)
            case Alignment() as terms:
                own = self._alignment(terms)
            case _:
                assert_never(plan.objective)
        checks = [*self._of_every_plan(plan, max_rounds, name), *self._of_sums(plan), *own]
        one_operator = against_one_operator(plan, data) if plan.masked and self.members_may_learn == "sums" else []
        return [*one_operator, *(text for is_broken, text in checks if is_broken)]

    def _scoring(self, plan: Plan) -> list[tuple[bool, str]]:
        return [
            (
                not self.scoring,
                "scoring together is not allowed (scoring = false; to consent, set scoring = true and reload)",
            ),
            (
                plan.membership.min_sites < 3 and not self.scores_of_two,
                f"min_sites = {plan.membership.min_sites} would let one site compute another's part of a score "
                "(scores_of_two = false)",
            ),
        ]

    def _alignment(self, terms: Alignment) -> list[tuple[bool, str]]:
        return [
            (
                not self.alignment,
                "alignment of ids is not allowed (alignment = false; to consent, set alignment = true and reload)",
            ),
            (
                terms.max_ids > self.max_alignment_ids,
                f"max_ids = {terms.max_ids} is above max_alignment_ids = {self.max_alignment_ids}: each id that a site lists "
                "tests whether all others have it",
            ),
        ]

    def _of_every_plan(self, plan: Plan, max_rounds: int, objective: str) -> list[tuple[bool, str]]:
        return [
            (
                objective not in self.objectives,
                f'objective is "{objective}", and objectives = {toml(self.objectives)} does not list it',
            ),
            (
                max_rounds > self.max_rounds,
                f"max_rounds = {max_rounds} is above max_rounds = {self.max_rounds}",
            ),
            (
                plan.membership.min_sites < self.min_sites,
                f"min_sites = {plan.membership.min_sites} is below min_sites = {self.min_sites}",
            ),
            (
                plan.iteration.threads > self.max_threads,
                f"threads = {plan.iteration.threads} is above max_threads = {self.max_threads}",
            ),
        ]

    def _of_sums(self, plan: Plan) -> list[tuple[bool, str]]:
        unknown = [site for site in plan.sites if site not in self.peers]
        return [
            (
                not plan.masked and self.aggregation == "secure",
                'aggregation = "plaintext" would show the coordinator each of this site\'s answers, from which it can compute '
                'the labels of rows that it knows (aggregation = "secure")',
            ),
            (
                plan.privacy.membership_changes and not self.membership_changes,
                "membership_changes = true would allow sums over other sets of sites, whose differences reveal single answers "
                "(membership_changes = false)",
            ),
            (
                plan.masked and bool(unknown),
                f"sites {', '.join(unknown)} are not pinned in [peers]: compare their words by telephone, then run "
                f"`coreg-agent peers --pin --write policy.toml {' '.join(f'{name}.pem' for name in unknown)}`, and reload an "
                "agent that serves (SIGHUP)",
            ),
        ]

    def _of_kernel(self, kernel: str, tells: str = "") -> tuple[bool, str]:
        return (kernel not in self.kernels, f"kernel = {toml(kernel)} is not in kernels = {toml(self.kernels)}{tells}")

    def _of_scale(self, terms: Agreement, data: PrivateData) -> list[tuple[bool, str]]:
        """The plan's numbers in units of this site's rows. The texts leave the site, so they hold no figure of the rows."""
        here = scaled(terms, data)
        bandwidth, ridge = f"bandwidth = {toml(terms.bandwidth)}", f"ridge = {toml(terms.ridge)}"
        distance = "times the median distance of this site's labelled rows"
        return [
            (
                here.bandwidth is not None and here.bandwidth < self.bandwidth_min,
                f"{bandwidth} is below bandwidth_min = {self.bandwidth_min:g} {distance}: answers would reveal the label of each "
                "labelled row that is similar to a shared instance, and the other sites' parts of the sum could not hide it",
            ),
            (
                here.bandwidth is not None and here.bandwidth > self.bandwidth_max,
                f"{bandwidth} is above bandwidth_max = {self.bandwidth_max:g} {distance}: the kernel would be linear in the "
                "distance, and answers would reveal the distances of the shared rows",
            ),
            (
                here.ridge is not None and here.ridge < self.ridge_min,
                f"{ridge} is below ridge_min = {self.ridge_min:g} times the kernel's mean over this site's labelled rows: the "
                "model would pass through the labels, and answers would reveal those of rows similar to shared instances",
            ),
            (
                here.of_all is not None and here.of_all > self.ridge_max,
                f"{ridge} is above ridge_max = {self.ridge_max:g} times the kernel's sum over this site's labelled rows: the "
                "model would learn nothing from labels, and answers would reveal the Gram matrix of the shared rows",
            ),
        ]

    def _additive(self, terms: Additive, data: PrivateData | None) -> list[tuple[bool, str]]:
        counts = data is not None and (data.Z.shape[1] < self.least_columns or _has_two_values(data))
        limits = {key: (getattr(terms, key), getattr(self, key)) for key in _DISCLOSES}
        return [
            self._of_kernel(terms.kernel),
            *(
                (
                    found < least,
                    f"{key} = {found:g} is below {key} = {least:g}: {_DISCLOSES[key]}. The study can have {key} = {least:g}, or "
                    "this site a smaller limit",
                )
                for key, (found, least) in limits.items()
            ),
            (
                counts and terms.noise < COUNTED,
                f"noise = {terms.noise:g} is below {COUNTED:g}: this site has fewer columns than least_columns = "
                f"{self.least_columns}, or yes/no columns only, and its sums would be counts. The study can have "
                f"noise = {COUNTED:g}",
            ),
        ]

    def _agreement(self, plan: Plan, terms: Agreement) -> list[tuple[bool, str]]:
        couplings, schedule = plan.couplings, plan.iteration.name
        coupled = [c for c in couplings if not self.coupling_min <= c <= self.coupling_max]
        kernel = kernel_of(terms)
        return [
            self._of_kernel(kernel, _LINEAR if kernel == "linear" else ""),
            (terms.form not in self.forms, f"form = {toml(terms.form)} is not in forms = {toml(self.forms)}"),
            (schedule not in self.schedules, f'schedule "{schedule}" is not in schedules = {toml(self.schedules)}'),
            (
                bool(coupled),
                f"coupling = {coupled} is outside coupling_min = {self.coupling_min} to coupling_max = {self.coupling_max}",
            ),
            (
                len(couplings) > self.max_couplings,
                f"{len(couplings)} couplings are more than max_couplings = {self.max_couplings}",
            ),
        ]

    def questions(self, plan: Plan) -> int:
        """The most answers to a plan on one set of instances, over all its runs."""
        return self.max_questions or max_questions(plan)


def _has_two_values(data: PrivateData) -> bool:
    """Whether no column has more than two values."""
    pairs = zip(data.X.T, data.Z.T, strict=True)
    return all(len(np.unique(np.concatenate(pair))) <= 2 for pair in pairs)


def read_policy(path: Path | None) -> Policy:
    """policy.toml, checked; the defaults without one.

    Raises
    ------
    UsageError
        the file is missing, not TOML, or has unknown keys or values out of range.
    """
    if path is None:
        return Policy()
    try:
        return Policy.model_validate(read_toml(path))
    except ValidationError as error:
        raise file_faults(path, error, Policy.model_fields) from None
