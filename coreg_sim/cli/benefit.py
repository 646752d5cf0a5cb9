"""coreg-sim benefit: does joining pay, on real tables? Every method beside each site alone."""

import json
import platform
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from coreg_core.errors import StorageError, UsageError, require_scikit_learn
from coreg_sim.cli.options import JsonOption
from coreg_sim.federation.jobs import Where, run_jobs
from coreg_wire.terminal import output


def benefit(
    data: Annotated[
        Path | None,
        typer.Option("--data", help="A folder of data sets with manifest.json; without it scikit-learn's diabetes."),
    ] = None,
    sets: Annotated[
        str | None, typer.Option("--sets", help="Which, by name; also chosen-on, judged-on (docs/benefit.md) [all].")
    ] = None,
    regimes: Annotated[
        str | None, typer.Option("--regimes", help="How they are dealt, by name: n20,M5,rich,... [all].")
    ] = None,
    draws: Annotated[int | None, typer.Option("--draws", min=1, help="Of each set and regime [3; 2 if quick].")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="At most a thousand rows of each table, fewer draws.")] = False,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Processes; more than 1 needs Ray (extra sim).")] = 1,
    out: Annotated[Path, typer.Option("--out", help="Folder for the results; a killed study goes on there.")] = Path(
        "benefit-out"
    ),
    as_json: JsonOption = False,
) -> None:
    """Deal federations from real tables, and set every method beside each site alone: gains, losses, forecasts.

    Needs the extra `estimators`.
    """
    require_scikit_learn("benefit")
    from coreg_sim.benefit.report import calibration, report
    from coreg_sim.benefit.study import CHOSEN_ON, study
    from coreg_sim.benefit.summary import headline, seats  # scikit-learn and polars take a second to import
    from coreg_sim.papers.report import show_tables, waiting

    asked = study(data, sets, regimes, draws=draws, quick=quick)
    stem = "benefit-quick" if quick else "benefit"
    try:
        out.mkdir(parents=True, exist_ok=True)
        with waiting("benefit") as progress:
            done, resumed = run_jobs(asked, asked.jobs(), out / f"{stem}.jsonl", Where(jobs), progress)
        found = seats({key: each.result for key, each in done.items()})
        if not found:
            raise UsageError(
                f"none of {', '.join(asked.sets)} has the rows and columns for any of {', '.join(asked.regimes)}."
            )
        absent = [name for name in asked.sets if name not in {seat.set for seat in found}]
        honest = [seat for seat in found if seat.counted and seat.set not in CHOSEN_ON]
        told = {
            "study": {**asdict(asked), "folder": None},
            "federations": sum(bool(each.result) for each in done.values()),
            "seconds": round(sum(each.seconds for each in done.values()), 1),
            "absent": absent,
            "versions": {name: version(name) for name in ("coreg-federation", "numpy", "scipy", "scikit-learn")},
            "python": platform.python_version(),
            "headline": headline(found),
            "calibration": calibration(honest),
            "report": asdict(report(found)),
        }
        path = out / f"{stem}.json"
        path.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{out}: cannot be written ({error.strerror}). Name another folder with --out.") from None
    for name in absent:
        typer.echo(f"{name}: too few rows or columns for any of these regimes.", err=True)
    if as_json:
        output.print_json(told["headline"])
        return
    show_tables(report(found))
    earlier = f", {resumed} of {len(done)} jobs from an earlier run" if resumed else ""
    typer.echo(f"{told['federations']} federations{earlier}, {told['seconds']:.0f} s of one core in all; {path}")
