"""coreg-coordinator: parse, build, run, and name the next step."""

import typer

from coordinator.cli import authority, service, studies
from coreg_wire.terminal import command_line

# The mathematics and gRPC take a second to import: each command imports what it needs, when it
# runs.

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Run a federation: its certificate authority, its studies, its run store.",
)

for _command in (*authority.COMMANDS, *service.COMMANDS, *studies.COMMANDS):
    app.command(_command.__name__.replace("_", "-"))(_command)


def main() -> None:
    raise SystemExit(command_line.run(app, "coreg-coordinator"))
