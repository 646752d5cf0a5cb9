"""Create the folder of a federation: federation.toml, the authority, and an invitation for each
site.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from string import Template

from coordinator.authority.invitations import invite
from coordinator.authority.pki import create_authority
from coordinator.config.federation_toml import read_configuration
from coreg_core.errors import CoregError, UsageError
from coreg_wire.files.disk import make_private_folder, write_whole
from coreg_wire.files.toml_file import toml
from coreg_wire.identity.credentials import is_loopback
from coreg_wire.identity.invitation import Invitation

PORT = 7600
FILE = """\
# A federation. Start one run with `coreg-coordinator run`. docs/reference/federation-toml.md lists
# every key.

[federation]
name = $name
# The sites' names. Each joins by its invitation. A run starts when all of them are connected.
sites = $sites
# Two columns that every table has: the one to predict, and the one with the ids of individuals.
# A site that has other names gives --target and --id, or writes them into its agent.toml.
$target
$id
# Fewest sites of a run (default: all). On dropout of a site: "wait" or "continue" without it.
# min_sites = 3
# on_dropout = "wait"

[model]
# "additive": the score of an instance is a sum of one part of each site. It pays where sites have
# different columns of the same instances (docs/research/benefit.md).
objective = "additive"
# task: "regression" for a number, "classification" for a yes/no target; then each site gives
# --positive VALUE, the value of its table that means yes.
$task
# With three to 20 classes, also name all of them: classes = ["low", "middle", "high"]
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
listen = $listen
# The directory with ca.pem, coordinator.key, coordinator.pem and authorised-sites.
identity = "."
store = "runs.sqlite"
"""


@dataclass(frozen=True)
class Choices:
    """What its operator chooses of a new federation.toml; "" leaves a comment in place of a key."""

    name: str = ""
    target: str = ""
    id: str = ""
    task: str = ""


# The lines of the keys that were not chosen.
COMMENTED = {
    "target": '# target = "outcome"',
    "id": '# id = "patient"',
    "task": '# task = "regression"',
}


def create(
    folder: Path,
    hosts: Sequence[str],
    sites: Sequence[str],
    choices: Choices = Choices(),
    *,
    port: int = PORT,
) -> tuple[bool, list[Invitation]]:
    """Whether federation.toml was written, and the invitations.

    An existing file stays, so choices for it are an error.
    """
    file = folder / "federation.toml"
    written = not file.exists()
    _check_choices(file, written, sites, choices)
    try:
        if written:
            make_private_folder(folder)
            text = file_of(choices, sites, port, remote=not all(map(is_loopback, hosts)))
            write_whole(file, text.encode(), mode=0o600)
        configuration = read_configuration(file)
        listed = sites if written else configuration.federation.sites
        if strangers := [site for site in sites if site not in listed]:
            raise UsageError(
                f"{file} exists and does not list {', '.join(strangers)}. Add it to [federation]"
                " sites first."
            )
        create_authority(folder, hosts)
    except CoregError:
        if written:
            file.unlink(missing_ok=True)
        raise
    return written, [invite(folder, site, configuration.service.listen) for site in listed]


def _check_choices(file: Path, written: bool, sites: Sequence[str], choices: Choices) -> None:
    """A new file needs sites; an old one stays, so choices for it would have no effect."""
    if written and not sites:
        raise UsageError(
            f"{file} does not exist. Name the sites of the new federation: --site NAME, once for"
            " each."
        )
    chosen = [name for name, value in asdict(choices).items() if value]
    if not written and chosen:
        raise UsageError(
            f"{file} exists and stays as it is, so --{', --'.join(chosen)} would have no effect."
            " Set these keys in the file, and leave the options out."
        )


def file_of(
    choices: Choices, sites: Sequence[str], port: int = PORT, *, remote: bool = False
) -> str:
    """federation.toml with its comments; ``remote``: sites connect from other machines."""
    host = "0.0.0.0" if remote else "127.0.0.1"  # noqa: S104 - sites are elsewhere
    lines = dict(COMMENTED)
    for key, value in asdict(choices).items():
        if value and key in lines:
            lines[key] = f"{key} = {toml(value)}"
    return Template(FILE).substitute(
        lines,
        name=toml(choices.name or "federation"),
        sites=toml(list(sites)),
        listen=toml(f"{host}:{port}"),
    )
