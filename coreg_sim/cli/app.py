"""The command coreg-sim: simulate a federation with the product's own state machines, in one
process or over Ray.
"""

import typer

from coreg_sim.cli.benefit import benefit
from coreg_sim.cli.run import run
from coreg_wire.terminal import command_line

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help=(
        "Simulate a federation on this machine or on a Ray cluster, with the state machines of the"
        " service."
    ),
)
app.command()(run)
app.command(context_settings={"allow_extra_args": True})(benefit)


def main() -> None:
    raise SystemExit(command_line.run(app, "coreg-sim"))
