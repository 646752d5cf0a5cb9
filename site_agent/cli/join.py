"""join: this site's key, certificate and configuration, from an invitation."""

import shlex
import sys
import tomllib
from pathlib import Path
from typing import Annotated

import typer

from coreg_core.errors import UsageError

PENDING = 5  # the exit code if the certificate is not ready


def join(
    invitation: Annotated[
        str | None,
        typer.Argument(
            help="The line from the coordinator's operator, or a file with it; - or nothing: standard input.",
            metavar="INVITATION",
        ),
    ] = None,
    folder: Annotated[Path, typer.Option("--folder", help="The folder of this site.")] = Path(),
) -> None:
    """Join a federation by an invitation. It makes this site's key (which never leaves), gets a certificate, writes agent.toml.

    The command can be repeated with the same invitation, for example after a broken connection. A new invitation replaces an
    expired certificate. Existing agent.toml and policy.toml stay unchanged.
    """
    from coreg_wire.identity.invitation import parse_invitation
    from site_agent.config.settings import start
    from site_agent.identity.enrolment import join as redeem
    from site_agent.identity.identity import AUTHORITY, CERTIFICATE, KEY

    given = parse_invitation(_line(invitation))
    joined = redeem(given, folder / "identity")
    if isinstance(joined, str):
        typer.echo(f"{joined} Run the same command again after that.", err=True)
        raise typer.Exit(PENDING)
    typer.echo(f"{joined.name}: joined, certificate valid until {joined.not_after:%Y-%m-%d}")
    typer.echo(f"  {', '.join(str(folder / 'identity' / name) for name in (KEY, CERTIFICATE, AUTHORITY))}")
    agent = folder / "agent.toml"
    for path, written in start(folder, given.address).items():
        typer.echo(f"  {path}{'' if written else ': exists, unchanged'}")
    if (other := _coordinator(agent)) != given.address:
        typer.echo(
            f"warning: {agent} has coordinator = {other!r}, and the invitation is from {given.address!r}. Correct that line.",
            err=True,
        )
    where = "" if folder == Path() else f"cd {shlex.quote(str(folder))}; "
    typer.echo(f"next: {where}coreg-agent --data local.csv")


def _line(given: str | None) -> str:
    """The first word with the scheme of an invitation: in the argument, in its file, or in standard input."""
    from coreg_wire.identity.invitation import SCHEME

    if given is None or given == "-":
        if sys.stdin.isatty():
            typer.echo("Paste the invitation:", err=True)
        text, where = sys.stdin.readline() if sys.stdin.isatty() else sys.stdin.read(), "Standard input"
    elif given.startswith(SCHEME):
        return given
    else:
        try:
            text, where = Path(given).read_text(encoding="utf-8"), "The file"
        except (OSError, ValueError):  # without the argument: it can be a damaged invitation with its secret
            raise UsageError(
                f"The argument is neither an invitation ({SCHEME}…) nor a file that can be read."
            ) from None
    if not (found := [word for word in text.split() if word.startswith(SCHEME)]):
        raise UsageError(f"{where} has no invitation ({SCHEME}…).")
    return found[0]


def _coordinator(path: Path) -> object:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8")).get("coordinator")
    except (OSError, ValueError):
        return None  # the next command names the fault
