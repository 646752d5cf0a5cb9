"""coreg-sim storm: whole federations in simulated time, with faults."""

import time
from typing import Annotated

import typer

from coreg_sim.cli.options import JsonOption
from coreg_wire.terminal import output


def storm(
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Number of storms.")] = 100,
    first: Annotated[
        int, typer.Option("--from", min=0, help="The first seed. The same seed gives the same storm.")
    ] = 0,
    minutes: Annotated[float | None, typer.Option("--minutes", min=0.0, help="Begin no storm after this time.")] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Number of processes.")] = 2,
    as_json: JsonOption = False,
) -> None:
    """Search for defects in simulated time. The real daemons run over a simulated network, clock and crashes.

    A seed draws studies and faults: killed processes, power cuts, wrong clocks, revoked certificates, broken and silent
    connections, full disks, cancelled runs, an older store. In the end every run must have ended with the models of a run without
    faults, bit for bit. Every answer that left a site must be in its ledger. A seed that breaks this is shrunk to the faults that
    matter. Exit code 1 if there is one.
    """
    from coreg_sim.storm.batches import shrunk_story, storms

    began, count, seconds, answers, bad = time.monotonic(), 0, 0.0, 0, []
    for told in storms(first, seeds, jobs, minutes):
        count, seconds, answers = count + 1, seconds + told["seconds"], answers + told["answers"]
        if as_json:
            output.print_json({"event": "storm", **told})
        if told["broken"]:
            bad.append(told["seed"])
            found = shrunk_story(told["seed"])
            if as_json:
                output.print_json({"event": "shrunk", **found})
            else:
                typer.echo(
                    f"seed {told['seed']}:\n{found['story']}\n  " + "\n  ".join(found["broken"] or told["broken"])
                )
    took = time.monotonic() - began
    if as_json:
        output.print_json({"event": "finished", "storms": count, "broken": bad, "seconds": round(took, 1)})
    else:
        typer.echo(
            f"{count} storms, {seconds / 3600:.1f} simulated hours, {answers} answers, {took:.0f} s; "
            + (f"broken: seeds {', '.join(map(str, sorted(bad)))}" if bad else "every invariant held")
        )
    raise typer.Exit(1 if bad else 0)
