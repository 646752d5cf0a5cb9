"""init, invite, revoke: the certificate authority and the sites' invitations."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from coordinator.cli.options import federation_file
from coreg_core.errors import UsageError
from coreg_wire.terminal.command_line import as_owner
from coreg_wire.terminal.text import echo

if TYPE_CHECKING:
    from coreg_wire.identity.invitation import Invitation

FolderArgument = Annotated[Path, typer.Argument(help="The federation's folder.")]


def init(
    folder: Annotated[Path, typer.Argument(help="Created if it does not exist.")],
    host: Annotated[
        list[str] | None,
        typer.Option(
            help=(
                "A name or address that sites dial; repeatable. The invitations have the first."
                " The coordinator then listens on all addresses of the machine. With loopback"
                " addresses alone it listens on this machine only."
            ),
        ),
    ] = None,
    site: Annotated[list[str] | None, typer.Option(help="Name of a site; repeatable.")] = None,
    name: Annotated[str, typer.Option(help="Name of the federation.")] = "",
    target: Annotated[
        str,
        typer.Option(help="The column to predict, for sites that name no other column."),
    ] = "",
    id_column: Annotated[
        str,
        typer.Option("--id", help="The column with the ids, for sites that name no other column."),
    ] = "",
    task: Annotated[
        Literal["regression", "classification"] | None,
        typer.Option(help="classification: a yes/no target, or classes."),
    ] = None,
    port: Annotated[
        int,
        typer.Option(min=1, max=65534, help="Where sites connect; they enrol at the next port."),
    ] = 7600,
    renew_server: Annotated[
        bool,
        typer.Option(
            "--renew-server",
            help=(
                "Only sign the server's certificate again. Keys stay, and so do its names unless"
                " --host is given."
            ),
        ),
    ] = False,
) -> None:
    """Create a federation: its authority, federation.toml, and an invitation for each site.

    With --target and --id a site needs `coreg-agent --data TABLE` and no other option.

    An existing federation.toml stays.
    """
    from coordinator.authority.pki import reissue_server, server_names
    from coordinator.service.create import Choices, create

    as_owner(folder / "federation.toml")
    if renew_server:
        until = reissue_server(folder, host or None)
        echo(
            f"{folder / 'coordinator.pem'} is valid until {until:%Y-%m-%d}, for"
            f" {', '.join(server_names(folder))}"
        )
        return
    file = folder / "federation.toml"
    choices = Choices(name=name, target=target, id=id_column, task=task or "")
    written, invitations = create(folder, host or [], site or [], choices, port=port)
    echo(f"{file}: {'written' if written else 'exists, unchanged'}")
    for invitation in invitations:
        _show(invitation)
    if len(invitations) == 2:
        echo(
            "two sites: each can compute the other's part of a score. For scores both sites write"
            " scores_of_two = true into policy.toml"
        )
    where = shlex.quote(str(folder))
    echo(f"next: send each site its line, and run `coreg-coordinator run {where}`")


def invite(
    folder: FolderArgument, site: Annotated[str, typer.Argument(help="A site of federation.toml.")]
) -> None:
    """Print a new invitation for a site. It replaces the site's open one. No restart is needed."""
    from coordinator.authority.invitations import invite as make
    from coordinator.config.federation_toml import read_configuration

    file = federation_file(folder)
    configuration = read_configuration(file)
    if site not in configuration.federation.sites:
        raise UsageError(
            f"{file} does not list {site!r}. Add it to [federation] sites first. A coordinator that"
            " serves reads the file again at SIGHUP."
        )
    as_owner(configuration.service.identity)
    _show(make(configuration.service.identity, site, configuration.service.listen))


def _show(invitation: "Invitation") -> None:
    """The line stands alone, since a secret in a command is in the shell's history and in `ps`."""
    from coordinator.authority.invitations import VALID

    echo(
        f"{invitation.site} (valid {VALID.days} days, once): type `coreg-agent join`, and paste"
        f" below it\n  {invitation}"
    )


def revoke(folder: FolderArgument, site: Annotated[str, typer.Argument(help="The site.")]) -> None:
    """Revoke a site's certificate and invitation.

    `serve` ends its session within a second; `run` at its next connection.
    """
    from coordinator.authority.authorised import ALLOW_LIST
    from coordinator.authority.invitations import withdraw
    from coordinator.config.federation_toml import read_configuration
    from coreg_core.names import check_site_name

    file = federation_file(folder)
    # federation.toml is read only where the list is elsewhere: a fault in it must not prevent this.
    identity = (
        file.parent
        if (file.parent / ALLOW_LIST).exists()
        else read_configuration(file).service.identity
    )
    as_owner(identity)
    if not withdraw(identity, check_site_name(site)):
        raise UsageError(
            f"{site} has no certificate and no invitation in {identity}; nothing was changed."
        )
    echo(
        f"{site}: revoked, it cannot connect. `coreg-coordinator invite {folder} {site}` lets it"
        " join again."
    )
    echo(
        f"next: remove {site} from [federation] sites and from studies, then send SIGHUP. Runs wait"
        " for it otherwise. On the shared individuals of earlier runs the other sites refuse to go"
        " on without it, unless membership changes were allowed"
        " (docs/how-to/operate-a-coordinator.md)."
    )


COMMANDS: tuple[Callable[..., None], ...] = (init, invite, revoke)
