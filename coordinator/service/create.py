"""Create the folder of a federation: federation.toml, the authority, and an invitation for each site."""

import json
from collections.abc import Sequence
from pathlib import Path

from coordinator.authority.invitations import invite
from coordinator.authority.pki import create_authority
from coordinator.config.federation_toml import read_configuration
from coreg_core.errors import CoregError, UsageError
from coreg_wire.files.disk import write_whole
from coreg_wire.identity.invitation import Invitation

PORT = 7600
FILE = """\
# A federation. Start one run with `coreg-coordinator run`. docs/reference/federation-toml.md lists every key.

[federation]
name = NAME
# The sites' names. Each joins by its invitation. A run starts when all of them are connected.
sites = SITES
# Fewest sites of a run (default: all). On dropout of a site: "wait" or "continue" without it.
# min_sites = 3
# on_dropout = "wait"

[model]
# "additive": the score of an instance is a sum of one part of each site. It pays where sites have different columns of the same
# instances (docs/research/benefit.md).
objective = "additive"
# Ten labelled rows for each feature of a site, and noise on what is opened: a larger value discloses less.
# rows_per_feature = 10
# noise = 0.01
# label_noise = 0.5
# Fewest labels of a site that sends any, and of all sites together.
# least_labels = 20
# least_rows = 150

# The agreement instead: each site keeps its own model, and their predictions on the shared instances are drawn together.
# objective = "agreement"
# "exact" (up to about 10 000 shared instances), "semi-parametric" (up to millions) or "linear".
# form = "exact"
# kernel = "gaussian"
# Strength of the agreement. 0 trains every site alone. A list, as [0.001, 0.01], trains several at once, 0 included.
# coupling = 0.01
# Units of the labels at each site: "centred" or "standardised".
# label_units = "centred"

# Only for the agreement:
# [schedule]
# name = "conjugate-gradients"
# Stop at this certified gap, relative to Σ‖y‖², and at this certified error of every prediction.
# tolerance = 1e-10
# prediction_tolerance = 1e-6
# max_rounds = 1000

[privacy]
# "secure": this coordinator receives encrypted sums (three sites or more).
# "plaintext": it receives each answer, and labels of known rows follow from them. Every policy has to allow that.
aggregation = "secure"
# Decide before the first run. false: on the same shared instances no site can be added, lost or replaced later. true: it can,
# and a member can compute the answers of that site from the two sums. Every policy has to allow it.
membership_changes = false

[service]
# Where sites connect: "127.0.0.1:7600" is this machine only, "0.0.0.0:7600" all of its addresses. Sites enrol at the next port.
listen = "ADDRESS"
# The directory with ca.pem, coordinator.key, coordinator.pem and authorised-sites.
identity = "."
store = "runs.sqlite"

[timeouts]
# Seconds for all sites to connect, to check the plan and factor their data, for a site's operator to approve (24 h), for the
# answers of a round, and for missing sites to reconnect. "unlimited" is allowed for all but round.
join = 600
plan = 600
approval = 86400
round = 60
stall = 600
"""


def create(
    folder: Path,
    hosts: Sequence[str],
    sites: Sequence[str],
    name: str | None = None,
    *,
    port: int = PORT,
) -> tuple[bool, list[Invitation]]:
    """Whether federation.toml was written (an existing one stays), and the invitations."""
    file = folder / "federation.toml"
    written = not file.exists()
    try:
        if written:
            if not sites:
                raise UsageError(
                    f"{file} does not exist. Name the sites of the new federation: --site NAME, once for each."
                )
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(file, file_of(name or "federation", sites, port, remote=bool(hosts)).encode(), mode=0o600)
        configuration = read_configuration(file)
        listed = sites if written else configuration.federation.sites
        if strangers := [each for each in sites if each not in listed]:
            raise UsageError(
                f"{file} exists and does not list {', '.join(strangers)}. Add it to [federation] sites first."
            )
        create_authority(folder, hosts)
    except CoregError:
        if written:
            file.unlink(missing_ok=True)
        raise
    return written, [invite(folder, each, configuration.service.listen) for each in listed]


def file_of(name: str, sites: Sequence[str], port: int = PORT, *, remote: bool = False) -> str:
    """federation.toml with its comments; ``remote``: sites connect from other machines."""
    host = "0.0.0.0" if remote else "127.0.0.1"  # noqa: S104 - sites are elsewhere
    text = FILE.replace("ADDRESS", f"{host}:{port}")
    return text.replace("NAME", json.dumps(name), 1).replace("SITES", json.dumps(list(sites)), 1)
