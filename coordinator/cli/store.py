"""backup, prune, ledger-checkpoints: maintenance of the run store."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from coordinator.cli.options import JsonOption, StoreOption, existing
from coreg_wire.terminal import output
from coreg_wire.terminal.output import human_bytes


def backup(
    destination: Annotated[Path, typer.Argument(help="A new file.")],
    store: StoreOption = Path("runs.sqlite"),
) -> None:
    """Copy the run store into one file. The copy has mode 0600, and its integrity is checked. A coordinator can be running."""
    from coordinator.store.maintenance import back_up

    found = back_up(existing(store), destination)
    typer.echo(f"{destination}: {found.runs} runs, {human_bytes(found.bytes)}, integrity checked")


def prune(
    days: Annotated[float, typer.Option("--days", min=0, help="Prune runs that ended more days ago than this.")],
    store: StoreOption = Path("runs.sqlite"),
) -> None:
    """Remove the rounds of old runs and shrink the file. Plans, outcomes and final figures stay."""
    from coordinator.store.maintenance import prune as forget

    done = forget(existing(store), days)
    typer.echo(f"{store}: {done.runs} runs pruned, {human_bytes(done.bytes)} freed")


def ledger_checkpoints(
    site: Annotated[str | None, typer.Option("--site", help="Only this site.")] = None,
    run: Annotated[str | None, typer.Option("--run", help="Only this run; a prefix of its name is enough.")] = None,
    store: StoreOption = Path("runs.sqlite"),
    as_json: JsonOption = False,
) -> None:
    """Show the checkpoints of the sites' ledgers. Each end of a run has one: signed by the site, countersigned here.

    A site verifies its ledger against them and finds lines that were removed from its end: send it the output of
    `coreg-coordinator ledger-checkpoints --site NAME --json` for `coreg-agent ledger --verify --checkpoints FILE`.
    """
    from coordinator.cli.format import checkpoint_line, went_back
    from coordinator.store.summaries import Summaries

    opened = Summaries(existing(store), read_only=True)
    named = None if run is None else opened.find(run).run
    found = opened.checkpoints(run=named, site=site)
    for told in found:
        if as_json:
            output.print_json(dataclasses.asdict(told))
        else:
            typer.echo(checkpoint_line(told))
    for warning in went_back(found):
        typer.echo(warning, err=True)


COMMANDS: tuple[Callable[..., None], ...] = (backup, prune, ledger_checkpoints)
