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
    Plan,
    Scoring,
)
from coreg_wire.files.toml_file import file_faults, read_toml, toml
from site_agent.machine.site_data import PrivateData
from site_agent.policy.units import faults_of_scale

_DEFAULTS = " This policy has only default values. If the site has a policy.toml, give it with --policy."
COUNTED = 0.1  # least noise on sums of a site whose entries are counts
# Limits of every agent: a plan beyond them holds the machine longer, or discloses more, than a study needs.
COUPLING_MAX, MOST_COUPLINGS, MOST_THREADS = 100.0, 64, 64
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
    # With "block-coordinate-descent" the members read each site's predictions (docs/concepts/threat-model.md).
    solvers: tuple[ScheduleName, ...] = Field(
        default=("conjugate-gradients", "block-coordinate-descent"), min_length=1, strict=False
    )
    # "secure": the coordinator receives encrypted sums. "plaintext": it receives each answer of this site.
    aggregation: Aggregation = "secure"
    # The sites that answers are summed with: name = fingerprint, as `coreg-agent peers` prints it at that site.
    peers: dict[str, Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]] = Field(default_factory=dict)
    # A secret of the sites, unknown to the coordinator. It keys the digest of the shared ids; an unkeyed digest confirms a guess.
    ids_secret: str | None = Field(default=None, min_length=16)
    # Allow sums over other sets of sites; single answers follow from their differences. Plan and every site must allow it.
    membership_changes: bool = False
    # What members of each objective can compute: docs/concepts/threat-model.md.
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
                own = self._agreement(plan) + ([] if data is None else faults_of_scale(terms, data))
            case Additive() as terms:
                name, own = "additive", self._additive(terms, data)
            case Scoring() as terms:
                name, own = terms.trained, self._scoring(plan)
            case Alignment() as terms:
                own = self._alignment(terms)
            case _:
                assert_never(plan.objective)
        checks = [*self._of_every_plan(plan, max_rounds, name), *self._of_sums(plan), *own]
        return [text for is_broken, text in checks if is_broken]

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
                plan.iteration.threads > MOST_THREADS,
                f"threads = {plan.iteration.threads} is above {MOST_THREADS}, the limit of every agent",
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

    def _additive(self, terms: Additive, data: PrivateData | None) -> list[tuple[bool, str]]:
        counts = data is not None and (data.Z.shape[1] < self.least_columns or _has_two_values(data))
        limits = {key: (getattr(terms, key), getattr(self, key)) for key in _DISCLOSES}
        return [
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

    def _agreement(self, plan: Plan) -> list[tuple[bool, str]]:
        couplings, solver = plan.couplings, plan.iteration.name
        return [
            (solver not in self.solvers, f'solver "{solver}" is not in solvers = {toml(self.solvers)}'),
            (
                max(couplings) > COUPLING_MAX,
                f"coupling = {toml(couplings)} is above {COUPLING_MAX:g}, the limit of every agent: answers would reveal labels "
                "of shared instances",
            ),
            (
                len(couplings) > MOST_COUPLINGS,
                f"{len(couplings)} couplings are more than {MOST_COUPLINGS}, the limit of every agent",
            ),
        ]


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
