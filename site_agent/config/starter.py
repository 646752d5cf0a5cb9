"""The files that `coreg-agent init` writes: agent.toml and policy.toml (docs/reference/policy-toml.md)."""

import json
from collections.abc import Mapping

_AGENT = """\
# The configuration of a site's agent. Paths are relative to this file. The command line and COREG_* override it.

coordinator = "127.0.0.1:7600"  # HOST:PORT
identity = "identity"  # folder of key, certificate and ledger
policy = POLICY
# connect_timeout = 600  # seconds
OWN
# This site's table: CSV, Parquet, or 'sqlite:PATH?SELECT …'. Rows with an empty target are the shared unlabelled instances.
TABLE = SOURCE
target = "y"  # the column to predict
id = "id"  # the column that identifies an instance; the same ids at every site
# shared = SHARED  # the shared ids
# unlabelled = "shared.csv"  # a separate table of the shared instances
# categorical = ["ward"]  # columns to one-hot encode although they look numeric
NOTATION
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

# A test holds the commented values to the defaults of `Policy`.
POLICY = """\
# The policy of this site. The agent refuses every plan against it.
# A commented key has its default value. Each key: docs/reference/policy-toml.md; what members can compute under the defaults:
# docs/concepts/threat-model.md.
scoring = true  # score together: members learn of whom this site has a record, receivers the sum of the parts
alignment = true  # all sites find the ids that they share; each learns it of its own ids

# objectives = ["agreement", "additive"]
# solvers = ["conjugate-gradients", "block-coordinate-descent"]  # of the agreement
# max_rounds = 10000
# min_sites = 2  # of two sites, each can compute the other's part of a sum
# aggregation = "secure"  # "plaintext": the coordinator reads each answer
# membership_changes = false  # true: on the same individuals sites can be added, lost or replaced. Decide before the first run
# scores_of_two = false  # true: scores of two sites, where each can compute the other's part
# models_per_individual = 5  # most models, or sets of sites, that score an individual in its life
# max_alignment_ids = 100000  # each id that a site lists tests whether all others have it
# rows_per_feature = 10  # of additive plans, as the keys below: fewest labelled rows for each feature
# noise = 0.01  # least noise on opened entries, for features whose largest row norm is 1
# label_noise = 0.5  # least noise on labels, in left-out errors of the local model
# least_labels = 20  # fewest labels of a site that sends any
# least_rows = 150  # fewest labelled individuals of all sites
# openings = 3  # most trainings that open sums of the same rows
# least_columns = 2  # a site with fewer needs noise = 0.1
# ids_secret = "at least 16 characters, the same at every site and unknown to the coordinator"

# `coreg-agent peers --pin --write policy.toml NAME.pem …` adds the section [peers]. Keep it last.
"""


_SAMPLES = {
    "separator": '";"  # without it the file shows it, as decimal and dates',
    "decimal": '","',
    "dates": '{admitted = "%d/%m/%Y"}',
}


def _toml(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # toml_file needs pydantic, which is slow to import


def agent_toml(
    policy: str,
    *,
    service: bool = False,
    table: str = "local.csv",
    notation: Mapping[str, str | dict[str, str]] | None = None,
) -> str:
    """The text of agent.toml, for `serve` or for one run.

    Parameters
    ----------
    policy
        the path of policy.toml in it.
    table, notation
        the site's table, and what it shows of its notation (`site_agent.data.prepare.notation_shown`).
    """
    lines, found = list[str](), notation or {}
    for key, sample in _SAMPLES.items():
        value = found.get(key)
        if isinstance(value, dict):
            value = (
                value and "{" + ", ".join(f"{_toml(name)} = {_toml(layout)}" for name, layout in value.items()) + "}"
            )
        elif value is not None:
            value = _toml(value)
        lines.append(f"{key} = {value}  # as the table shows" if value else f"# {key} = {sample}")
    quoted = _toml(policy)
    agent = _AGENT.replace("OWN", _SERVICE if service else _ONE_RUN).replace("TABLE", "table" if service else "data")
    agent = agent.replace("SOURCE", _toml(table)).replace("NOTATION", "\n".join(lines))
    shared = '"people"  # the study that aligned them:' if service else '"shared.json"  # from `coreg-agent align`:'
    return agent.replace("SHARED  #", shared).replace("POLICY", quoted)
