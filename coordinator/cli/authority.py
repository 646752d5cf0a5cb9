"""encrypt-keys, renew-authority: what is done to an authority that is there already. Making it is `init`, and signing `sign`."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from coordinator.authority.pki import encrypt_keys as encrypt
from coreg_wire.identity.keys import ask_twice

DirectoryArgument = Annotated[Path, typer.Argument(help="The authority's.")]


def encrypt_keys(directory: DirectoryArgument) -> None:
    """Encrypt the keys of the authority and the server with a passphrase, or give them another one at a terminal.

    It comes from the file that COREG_PASSPHRASE_FILE names, from COREG_PASSPHRASE, or from a terminal, as everywhere.
    """
    for path in encrypt(directory, ask_twice(f"the keys in {directory}")):
        typer.echo(f"{path} is encrypted; without its passphrase it is lost")


def renew_authority(
    directory: DirectoryArgument,
    days: Annotated[int, typer.Option("--days", min=1, help="How long the new authority is valid.")] = 3650,
    lost: Annotated[
        bool, typer.Option("--lost", help="Its key is lost, or has run out: operators compare the new fingerprint.")
    ] = False,
    finish: Annotated[
        bool, typer.Option("--finish", help="End a renewal: the new authority alone is trusted, by the server too.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="With --finish: shut out who has no new certificate.")] = False,
) -> None:
    """Put a new authority in the place of one that runs out or is lost, while sites of either may join; then --finish.

    Between the two every site renews its certificate (`coreg-agent enroll --renew`, `sign --renew`). `serve` reads the
    authority's files again on SIGHUP, without ending a session.
    """
    from coordinator.authority import renewal

    if finish:
        until = renewal.finish_authority(directory, force=force)
        typer.echo(f"{directory}: the new authority alone is trusted; coordinator.pem is its, until {until:%Y-%m-%d}")
        typer.echo("next: SIGHUP to `coreg-coordinator serve`, or start it again")
        return
    made = renewal.renew_authority(directory, days, lost=lost)
    typer.echo(
        f"new authority: {directory / 'ca.pem'}, until {made.not_after:%Y-%m-%d}\n  fingerprint {made.fingerprint}"
    )
    if not made.linked:
        typer.echo(
            "  nothing vouches for it: read it to each site's operator, who gives it to `enroll --install --authority`"
        )
    typer.echo(
        f"next: SIGHUP to `coreg-coordinator serve`; each site ({', '.join(made.sites) or 'none yet'}) runs `coreg-agent enroll "
        f"--renew`, sends site.csr, and installs the answer of `coreg-coordinator sign --renew --identity {directory} REQUEST`; "
        f"then `coreg-coordinator renew-authority {directory} --finish`"
    )


COMMANDS: tuple[Callable[..., None], ...] = (encrypt_keys, renew_authority)
