"""Create the folder of a federation: federation.toml, the authority, and an invitation for each site."""

from collections.abc import Sequence
from pathlib import Path

from coordinator.authority.invitations import invite
from coordinator.authority.pki import create_authority
from coordinator.config.federation_toml import read_configuration
from coordinator.config.sample import sample
from coreg_core.errors import CoregError, UsageError
from coreg_wire.files.disk import write_whole
from coreg_wire.identity.invitation import Invitation

PORT = 7600


def create(
    folder: Path,
    hosts: Sequence[str],
    sites: Sequence[str],
    name: str | None = None,
    *,
    port: int = PORT,
    offline: bool = False,
) -> tuple[bool, list[Invitation]]:
    """Whether federation.toml was written (an existing one stays), and the invitations. ``offline``: see `create_authority`.

    Raises
    ------
    UsageError
        there is an authority already, or the existing federation.toml does not list a site.
    """
    file = folder / "federation.toml"
    written = not file.exists()
    try:
        if written:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(file, sample(name, sites, port, remote=bool(hosts)).encode(), mode=0o600)
        configuration = read_configuration(file)
        listed = sites if written else configuration.federation.sites
        if strangers := [each for each in sites if each not in listed]:
            raise UsageError(
                f"{file} exists and does not list {', '.join(strangers)}. Add it to [federation] sites first."
            )
        create_authority(folder, list(hosts), offline=folder / "offline" if offline else None)
    except CoregError:
        if written:
            file.unlink(missing_ok=True)
        raise
    return written, [invite(folder, each, configuration.service.listen) for each in listed]
