"""The files that `coreg-agent init` writes: agent.toml, and policy.toml for a preset (docs/reference/policy-toml.md)."""

from typing import Literal, TypeAlias

Preset: TypeAlias = Literal["strict", "partners"]

_AGENT = """\
# The configuration of a site's agent. Paths are relative to this file. The command line and COREG_* override it.

coordinator = "127.0.0.1:7600"  # HOST:PORT
identity = "identity"  # folder of key, certificate and ledger
policy = POLICY
# connect_timeout = 600  # seconds
OWN
# This site's table: CSV, Parquet, or 'sqlite:PATH?SELECT …'. Rows with an empty target are the shared unlabelled instances.
TABLE = "local.csv"
target = "y"  # the column to predict
id = "id"  # the column that identifies an instance; the same ids at every site
# shared = SHARED  # the shared ids
# unlabelled = "shared.csv"  # a separate table of the shared instances
# categorical = ["ward"]  # columns to one-hot encode although they look numeric
# dates = ["admitted:days+weekday"]
# drop = ["comment"]
"""
_ONE_RUN = """\
output = "model.coreg"  # the model file; it holds labelled rows
"""
_SERVICE = """\
models = "models"  # folder of the models; they hold labelled rows
# approval = "ask"  # each run waits for `coreg-agent approve`

# One section for each data set. Studies name it: data = "patients". Keep the sections at the end of the file.
[data.patients]"""

_CHOSEN: dict[Preset, str] = {
    "strict": """\
# The policy of this site. The agent refuses every plan against it.
# Preset "strict", of the agreement: members of a run read its sums and nothing else. One set of instances has one response
# operator (docs/concepts/glossary.md), so no algebra can separate the sums into single sites. This excludes paths of couplings
# and changes of membership.
members_may_learn = "sums"
aggregation = "secure"
objectives = ["agreement", "additive"]
# Of the additive objective: more rows and more noise than the defaults.
rows_per_feature = 20
noise = 0.1
label_noise = 1.0
least_labels = 50
least_rows = 500
openings = 1
least_columns = 3
""",
    "partners": """\
# The policy of this site. The agent refuses every plan against it.
# Preset "partners": members of a run read its sums and are trusted. In an agreement a member could compute this site's
# predictions on the shared instances, and how they react to a target. It could not compute labels of other rows or features.
members_may_learn = "operators"
aggregation = "secure"
objectives = ["agreement", "additive"]
scoring = true
alignment = true
""",
}
# Defaults, as comments: a test holds them to `Policy`.
_DEFAULTS = """\
max_rounds = 10000
min_sites = 2  # members_may_learn = "sums" needs 3 in any case
coupling_min = 0.0
coupling_max = 100.0
max_couplings = 64
max_threads = 64
forms = ["exact", "semi-parametric", "linear"]
kernels = ["gaussian", "laplacian", "linear"]
schedules = ["conjugate-gradients", "block-coordinate-descent"]
bandwidth_min = 0.5  # times the median distance of this site's labelled rows
bandwidth_max = 10.0
ridge_min = 0.01  # times the mean of the kernel over the labelled rows
ridge_max = 1.0  # times the sum of the kernel
label_share_max = 0.95  # largest share of one label in a sum at one shared instance
membership_changes = false  # true: on the same individuals sites can be added, lost or replaced. Decide before the first run
scoring = false  # true: score together; one number for each shared instance leaves
alignment = false  # true: all sites find the ids that they share; each learns it of its own ids
max_alignment_ids = 100000  # each id that a site lists tests whether all others have it
scores_of_two = false  # true: scores of two sites, where each can compute the other's part
models_per_individual = 5  # most models, or sets of sites, that score an individual in its life
rows_per_feature = 10  # of additive plans, as the keys below: fewest labelled rows for each feature
noise = 0.01  # least noise on opened entries, for features whose largest row norm is 1
label_noise = 0.5  # least noise on labels, in left-out errors of the local model
least_labels = 20  # fewest labels of a site that sends any
least_rows = 150  # fewest labelled individuals of all sites
openings = 3  # most trainings that open sums of the same rows
least_columns = 2  # a site with fewer needs noise = 0.1
"""


def files_of(preset: Preset, policy: str, *, service: bool = False) -> tuple[str, str]:
    """The texts of agent.toml (for `serve`, or for one run) and policy.toml; ``policy``: its path, as agent.toml names it."""
    chosen = _CHOSEN[preset]
    keys = {line.partition(" ")[0] for line in chosen.splitlines()}
    others = "".join(f"# {line}\n" for line in _DEFAULTS.splitlines() if line.partition(" ")[0] not in keys)
    own = (
        '# ids_secret = "at least 16 characters, the same at every site and unknown to the coordinator"\n\n'
        "# `coreg-agent peers --pin --write policy.toml NAME.pem …` adds the section [peers]. Keep it last.\n"
    )
    quoted = '"' + policy.replace("\\", "\\\\").replace('"', '\\"') + '"'
    agent = _AGENT.replace("OWN", _SERVICE if service else _ONE_RUN).replace("TABLE", "table" if service else "data")
    found = '"people"  # the study that aligned them:' if service else '"shared.json"  # from `coreg-agent align`:'
    agent = agent.replace("SHARED  #", found)
    return agent.replace("POLICY", quoted), f"{chosen}\n# Other keys with their defaults:\n{others}{own}"
