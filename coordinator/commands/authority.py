"""encrypt-keys: what is done to an authority that is there already. Making it is `init`, and signing `sign`."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from coordinator.authority.pki import encrypt_keys as encrypt
from coreg_wire.keys import ask_twice

DirectoryArgument = Annotated[Path, typer.Argument(help="The authority's.")]


def encrypt_keys(directory: DirectoryArgument) -> None:
    """Encrypt the keys of the authority and the server with a passphrase, or give them another one at a terminal.

    It comes from the file that COREG_PASSPHRASE_FILE names, from COREG_PASSPHRASE, or from a terminal, as everywhere.
    """
    for path in encrypt(directory, ask_twice(f"the keys in {directory}")):
        typer.echo(f"{path} is encrypted; without its passphrase it is lost")


COMMANDS: tuple[Callable[..., None], ...] = (encrypt_keys,)
