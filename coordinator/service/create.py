"""Create the folder of a federation: federation.toml, the authority, and an invitation for each
site.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from coordinator.authority.invitations import invite
from coordinator.authority.pki import create_authority
from coordinator.config.federation_toml import read_configuration
from coreg_core.errors import CoregError, UsageError
from coreg_wire.files.disk import make_private_folder, write_whole
from coreg_wire.identity.credentials import is_loopback
from coreg_wire.identity.invitation import Invitation

PORT = 7600
FILE = """\
# A federation. Start one run with `coreg-coordinator run`. docs/reference/federation-toml.md lists
# every key.

[federation]
name = NAME
# The sites' names. Each joins by its invitation. A run starts when all of them are connected.
sites = SITES
# Fewest sites of a run (default: all). On dropout of a site: "wait" or "continue" without it.
# min_sites = 3
# on_dropout = "wait"

[model]
# "additive": the score of an instance is a sum of one part of each site. It pays where sites have
# different columns of the same instances (docs/research/benefit.md). For a yes/no target add the
# line task = "classification"; sites give --positive VALUE.
objective = "additive"
# The agreement instead: each site keeps its own model, and their predictions on the shared
# instances are drawn together. Each site keeps the strength that its own labels choose, or 0.
# objective = "agreement"
# coupling = [0.001, 0.01, 0.1]

[privacy]
# "secure": this coordinator receives encrypted sums (three sites or more).
# "plaintext": it receives each answer, and labels of known rows follow from them. Every policy has
# to allow that.
aggregation = "secure"
# Decide before the first run. false: on the same shared instances no site can be added, lost or
# replaced later. true: it can, and a member can compute the answers of that site from the two sums.
# Every policy has to allow it.
membership_changes = false

[service]
# Where sites connect: "127.0.0.1:7600" is this machine only, "0.0.0.0:7600" all of its addresses.
# Sites enrol at the next port.
listen = "ADDRESS"
# The directory with ca.pem, coordinator.key, coordinator.pem and authorised-sites.
identity = "."
store = "runs.sqlite"
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
                    f"{file} does not exist. Name the sites of the new federation: --site NAME,"
                    " once for each."
                )
            make_private_folder(folder)
            text = file_of(
                name or "federation", sites, port, remote=not all(map(is_loopback, hosts))
            )
            write_whole(file, text.encode(), mode=0o600)
        configuration = read_configuration(file)
        listed = sites if written else configuration.federation.sites
        if strangers := [each for each in sites if each not in listed]:
            raise UsageError(
                f"{file} exists and does not list {', '.join(strangers)}. Add it to [federation]"
                " sites first."
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
