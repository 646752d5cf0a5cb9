"""The files that `coreg-agent join` writes: agent.toml and policy.toml (docs/reference/policy-toml.md)."""

from pathlib import Path

from coreg_core.errors import StorageError

AGENT = """\
# The configuration of a site's agent. Paths are relative to this file. The command line and COREG_* override it.

coordinator = "COORDINATOR"  # HOST:PORT
identity = "identity"  # folder of key, certificate and ledger
policy = "policy.toml"
# words = "…"  # the eight words of the sites, after all operators have compared them
# connect_timeout = 600  # seconds
# output = "model.coreg"  # the model file; it holds labelled rows

# This site's table: CSV, Parquet, or 'sqlite:PATH?SELECT …'. Rows with an empty target are the shared unlabelled instances.
# data = "local.csv"
# target = "y"  # the column to predict; else that of the study
# id = "id"  # the column that identifies an instance; the same ids at every site
# unlabelled = "shared.csv"  # a separate table of the shared instances
# categorical = ["ward"]  # columns to one-hot encode although they look numeric
# separator = ";"  # without it the file shows it, as decimal and dates
# decimal = ","
# drop = ["comment"]

# Only for `coreg-agent serve`: instead of `data` and the keys below it, a section for each data set. A study names it, as in
# its key data = "patients".
# models = "models"  # folder of the models; they hold labelled rows
# approval = "ask"  # each run waits for `coreg-agent approve`
# [data.patients]
# table = "local.csv"
# dates = {admitted = "%d/%m/%Y"}  # any key of a table
"""

# A test holds the commented values to the defaults of `Policy`.
POLICY = """\
# The policy of this site. The agent refuses every plan against it.
# A commented key has its default value. Each key: docs/reference/policy-toml.md; what members can compute under the defaults:
# docs/concepts/privacy.md.
# scoring = true  # score together: members learn of whom this site has a record, receivers the sum of the parts
# alignment = true  # all sites find the ids that they share; each learns it of its own ids
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
"""


def start(folder: Path, coordinator: str) -> dict[Path, bool]:
    """Write agent.toml and policy.toml, with mode 0600; whether each was written. Existing files stay.

    Raises
    ------
    StorageError
        a file cannot be written.
    """
    files = {folder / "agent.toml": AGENT.replace("COORDINATOR", coordinator), folder / "policy.toml": POLICY}
    return {path: _created(path, text) for path, text in files.items()}


def _created(path: Path, text: str) -> bool:
    """Write a new file (mode 0600); False if it exists."""
    try:
        with path.open("x", encoding="utf-8") as file:
            path.chmod(0o600)
            file.write(text)
    except FileExistsError:
        return False
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({error.strerror}).") from None
    return True
