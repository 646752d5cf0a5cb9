"""policy.toml: the limits of what a site's operator agrees to."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coreg_core.terms import Aggregation, ScheduleName
from coreg_wire.files.toml_file import file_faults, read_toml


class Policy(BaseModel):
    """The keys of policy.toml. The defaults allow a plan with the defaults of federation.toml."""

    # Strict: a consent is not guessed from a text. `strict=False` lets a list of TOML be a tuple.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    max_rounds: int = Field(default=10_000, ge=1)
    min_sites: int = Field(default=2, ge=1)
    # With "block-coordinate-descent" the members read each site's predictions
    # (docs/concepts/privacy.md).
    solvers: tuple[ScheduleName, ...] = Field(
        default=("conjugate-gradients", "block-coordinate-descent"), min_length=1, strict=False
    )
    # "secure": the coordinator receives encrypted sums. "plaintext": each answer of this site.
    aggregation: Aggregation = "secure"
    # A secret of the sites, unknown to the coordinator. It keys the digest of the shared ids; an
    # unkeyed digest confirms a guess.
    ids_secret: str | None = Field(default=None, min_length=16)
    # Allow sums over other sets of sites; single answers follow from their differences. Plan and
    # every site must allow it.
    membership_changes: bool = False
    # What members of each objective can compute: docs/concepts/privacy.md.
    objectives: tuple[Literal["agreement", "additive"], ...] = Field(
        default=("agreement", "additive"), min_length=1, strict=False
    )
    # The least values of the additive plan's terms of these names.
    rows_per_feature: int = Field(default=10, ge=5)
    noise: float = Field(default=0.01, ge=0)
    label_noise: float = Field(default=0.5, ge=0)
    # The largest one of a plan, for labels of yes and no, and for numbers with a label_range.
    label_epsilon: float = Field(default=4.0, gt=0)
    least_labels: int = Field(default=20, ge=3)
    least_rows: int = Field(default=150, ge=10)
    # Additive trainings that can open sums of one set of rows, over all runs: averages remove
    # noise.
    openings: int = Field(default=3, ge=1)
    # With fewer columns, or with yes/no columns only, this site's sums are counts, and need more
    # noise.
    least_columns: int = Field(default=2, ge=1)
    # Allow joint scoring: this site's part of each score leaves encrypted, and the receivers of the
    # plan read the sum.
    scoring: bool = True
    # ... also of two sites, where each can compute the other's part.
    scores_of_two: bool = False
    # Let the receivers of a score read this site's part of it, and not only the sum of all parts.
    contributions: bool = False
    # Individuals of this site's that one member asks the scores of in a day, of standing plans.
    scores_a_day: int = Field(default=1000, ge=1)
    # Models, or sets of sites, that score an individual in its life: each tells more of its
    # features.
    models_per_individual: int = Field(default=5, ge=1)
    # Allow alignments of ids: this site learns which of its ids all sites have, and the others
    # learn it of theirs; ...
    alignment: bool = True
    # ... of plans that let each site list at most so many ids. A site can insert ids to test
    # whether others have them.
    max_alignment_ids: int = Field(default=100_000, ge=1)


def read_policy(path: Path | None) -> Policy:
    """The policy in that file; the defaults without one."""
    if path is None:
        return Policy()
    try:
        return Policy.model_validate(read_toml(path))
    except ValidationError as error:
        raise file_faults(path, error, Policy.model_fields) from None
