"""The command coreg-sim: simulate a federation with the product's own state machines, in one process or over Ray."""

from pathlib import Path
from typing import Annotated

import typer

from coreg_sim.cli.benefit import benefit
from coreg_sim.cli.compare import compare
from coreg_sim.cli.run import run
from coreg_wire.terminal import command_line

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Simulate a federation on this machine or on a Ray cluster, with the state machines of the service.",
)
app.command()(run)
app.command()(compare)
app.command(context_settings={"allow_extra_args": True})(benefit)


@app.command()
def tables(
    directory: Annotated[Path, typer.Argument(help="The output folder; it is created if absent.")],
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the draw of patients.")] = 0,
    configuration: Annotated[
        bool,
        typer.Option(
            "--configuration",
            help="Also the federation.toml, joined.toml, align.toml and policy.toml of docker compose.",
        ),
    ] = False,
    partly_shared: Annotated[
        bool,
        typer.Option(
            "--partly-shared",
            help="For the quickstart: all sites know the labelled patients, each knows nine in ten of the others, and one "
            "writes ids in capitals.",
        ),
    ] = False,
) -> None:
    """Write the tables of the demonstration. They are scikit-learn's diabetes study, split over three sites."""
    from coreg_sim import tables as written
    from site_agent.config.starter import POLICY

    directory.mkdir(parents=True, exist_ok=True)
    data = written.write_tables(directory, seed, partly_shared=partly_shared)
    texts = (
        {}
        if not configuration
        else {
            directory / "federation.toml": written.federation_toml("agreement", sorted(data.tables)),
            directory / "joined.toml": written.federation_toml("additive", sorted(data.tables)),
            directory / "align.toml": written.ALIGN,
            directory / "policy.toml": POLICY,
        }
    )
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    for path in (*data.tables.values(), *data.held_out.values(), *data.judged.values(), *texts):
        typer.echo(str(path))


def main() -> None:
    """The console script."""
    raise SystemExit(command_line.run(app, "coreg-sim"))
