"""The command coreg-sim: simulate a federation with the product's own state machines, in one
process or over Ray.
"""

from pathlib import Path
from typing import Annotated

import typer

from coreg_sim.cli.benefit import benefit
from coreg_sim.cli.run import run
from coreg_wire.terminal import command_line
from coreg_wire.terminal.text import echo

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


@app.command()
def tables(
    directory: Annotated[Path, typer.Argument(help="The output folder; it is created if absent.")],
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the draw of patients.")] = 0,
) -> None:
    """Write the tables and studies of the demonstration: scikit-learn's diabetes study, split over
    three sites.
    """
    from coreg_sim.tables import write_tables
    from coreg_wire.files.disk import Disk

    Disk().make_folder(directory)
    data = write_tables(directory, seed)
    for path in (
        *data.tables.values(),
        *data.held_out.values(),
        *data.judged.values(),
        *data.studies.values(),
    ):
        echo(str(path))


def main() -> None:
    """The console script."""
    raise SystemExit(command_line.run(app, "coreg-sim"))
