"""Text for a terminal: what another party or a file wrote moves no cursor and changes no colour."""

from typing import Any

import typer

_KEPT = "\n\t"


def visible(text: str) -> str:
    """The text with each control character as its escape, such as \\x1b; lines and tabs stay."""
    return "".join(
        c if c.isprintable() or c in _KEPT else c.encode("unicode_escape").decode() for c in text
    )


def echo(message: Any = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a line on standard output or error; control characters are shown, not sent."""
    typer.echo(visible(str(message)), err=err, nl=nl)
