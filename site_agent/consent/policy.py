"""policy.toml: the limits of what a site's operator agrees to."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coreg_core.terms import Aggregation, SolverName
from coreg_wire.files.toml_file import file_faults, read_toml, toml


class Policy(BaseModel):
    """The keys of policy.toml. The defaults allow a plan with the defaults of federation.toml.

    What members can compute under them: docs/concepts/privacy.md.
    """

    # Strict: a consent is not guessed from a text. `strict=False` lets a list of TOML be a tuple.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    max_rounds: int = Field(
        default=10_000,
        ge=1,
        description="Most rounds of a plan.",
    )
    min_sites: int = Field(
        default=2,
        ge=1,
        description=(
            "Smallest `min_sites` of a plan. Of two sites, each can compute the other's part of a "
            "sum."
        ),
    )
    solvers: tuple[SolverName, ...] = Field(
        default=("conjugate-gradients", "block-coordinate-descent"),
        min_length=1,
        strict=False,
        description=(
            "Allowed `[solver] name`s of an agreement. With `block-coordinate-descent` members "
            "read this site's predictions."
        ),
    )
    aggregation: Aggregation = Field(
        default="secure",
        description="`secure` refuses plans in plaintext. `plaintext` allows both.",
    )
    ids_secret: str | None = Field(
        default=None,
        min_length=16,
        description=(
            "Key of the digest of the shared ids: at least 16 characters, the same at every site, "
            "unknown to the coordinator."
        ),
    )
    membership_changes: bool = Field(
        default=False,
        description=(
            "Allow sums over another set of sites on the same instances. Decide before the first "
            "run."
        ),
    )
    objectives: tuple[Literal["agreement", "additive"], ...] = Field(
        default=("agreement", "additive"),
        min_length=1,
        strict=False,
        description="Allowed objectives.",
    )
    rows_per_feature: int = Field(
        default=10,
        ge=5,
        description="Smallest `rows_per_feature` of a plan (additive).",
    )
    noise: float = Field(
        default=0.01,
        ge=0,
        description="Smallest `noise` of a plan (additive).",
    )
    label_noise: float = Field(
        default=0.5,
        ge=0,
        description="Smallest `label_noise` of a plan (additive).",
    )
    label_epsilon: float = Field(
        default=4.0,
        gt=0,
        description="Largest `label_epsilon` of a plan (additive).",
    )
    least_labels: int = Field(
        default=20,
        ge=3,
        description="Smallest `least_labels` of a plan (additive).",
    )
    least_rows: int = Field(
        default=150,
        ge=10,
        description="Smallest `least_rows` of a plan (additive).",
    )
    openings: int = Field(
        default=3,
        ge=1,
        description="Most trainings that open sums of the same labelled rows (additive).",
    )
    least_columns: int = Field(
        default=2,
        ge=1,
        description=(
            "A site with fewer columns, or with yes/no columns only, needs `noise = 0.1` "
            "(additive)."
        ),
    )
    scoring: bool = Field(
        default=True,
        description=(
            "Take part in joint scoring, and in the scores that end a training. If false, a"
            " training still tells each site the scores of its own labelled individuals."
        ),
    )
    scores_of_two: bool = Field(
        default=False,
        description="Score with one other site too: each can then compute the other's part.",
    )
    contributions: bool = Field(
        default=False,
        description=(
            "Let the receivers of a score read this site's part of it, and not only the sum of "
            "all parts."
        ),
    )
    scores_a_day: int = Field(
        default=1000,
        ge=1,
        description="Most individuals whose scores a member asks for in a day (`standing`).",
    )
    models_per_individual: int = Field(
        default=5,
        ge=1,
        description="Most models, or sets of sites, that score an individual in its life.",
    )
    alignment: bool = Field(
        default=True,
        description="Take part in alignments of ids.",
    )
    max_alignment_ids: int = Field(
        default=100_000,
        ge=1,
        description=(
            "Largest `max_ids` of an alignment. Each id that a site lists tests whether all "
            "others have it."
        ),
    )


def changed_keys(policy: Policy) -> str:
    """The keys that differ from the defaults, without the secret."""
    values = policy.model_dump(exclude_defaults=True)
    changed = [
        f"{key} = {'(not shown)' if key == 'ids_secret' else toml(value)}"
        for key, value in values.items()
    ]
    return f"keys that differ from the defaults: {', '.join(changed) or 'none'}"


def read_policy(path: Path | None) -> Policy:
    """The policy in that file; the defaults without one."""
    if path is None:
        return Policy()
    try:
        return Policy.model_validate(read_toml(path))
    except ValidationError as error:
        raise file_faults(path, error, Policy.model_fields) from None


def template() -> str:
    """The first policy.toml of a site: each key with its meaning and its default, as comments."""
    lines = [
        "# The policy of this site. The agent refuses every plan against it. A commented key has",
        "# its default value. What members can compute under them: docs/concepts/privacy.md.",
        "# The defaults allow much. For records of patients or clients begin with these:",
        '#   min_sites = 3, objectives = ["additive"], label_noise = 1.0, openings = 1,',
        '#   scoring = false; and approval = "ask" in agent.toml.',
        "# The study then needs label_noise = 1.0 too.",
    ]
    for name, field in Policy.model_fields.items():
        value = "at least 16 characters" if field.default is None else field.default
        lines += ["", f"# {field.description}", f"# {name} = {toml(value)}"]
    return "\n".join([*lines, ""])
