"""coreg-sim sweep: couplings, splits, numbers of sites and seeds, each beside the sites' own models."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, TypeVar, cast

import typer

from coreg_core.agreement.schedules import SCHEDULE_NAMES, ScheduleName
from coreg_core.errors import BadData, StorageError, UsageError
from coreg_core.protocol.plan import MOST_COLUMNS, Form
from coreg_sim.cli.options import (
    FORMS,
    PLACES,
    WITHOUT_RAY,
    Address,
    Data,
    Drop,
    FormOption,
    JsonOption,
    MaxRounds,
    PredictionTolerance,
    Target,
    Tolerance,
    Views,
    check,
)
from coreg_sim.federation.jobs import Where, run_jobs
from coreg_wire.terminal import output

N = TypeVar("N", int, float)
COUPLINGS = "0,0.001,0.003,0.01,0.03,0.1,0.3,1"


def sweep(
    couplings: Annotated[str, typer.Option("--couplings", help="λ, several: one run trains them all.")] = COUPLINGS,
    sites: Annotated[str, typer.Option("--sites", help="How many sites, several.")] = "4",
    splits: Annotated[
        str,
        typer.Option(
            "--splits", help="LABELLED:UNLABELLED, several: rows of each site, and shared rows (may be empty)."
        ),
    ] = "20:",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Draws of each; intervals are over them.")] = 10,
    form: FormOption = "exact",
    schedule: Annotated[str, typer.Option("--schedule", help=", ".join(SCHEDULE_NAMES) + ".")] = SCHEDULE_NAMES[0],
    tolerance: Tolerance = 1e-8,
    prediction_tolerance: PredictionTolerance = None,
    max_rounds: MaxRounds = 10_000,
    views: Views = "5",
    data: Data = None,
    target: Target = None,
    drop: Drop = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for the results; a killed sweep goes on there.")] = Path(
        "sweep-out"
    ),
    on: Annotated[
        str, typer.Option("--on", help="process: one draw after another; ray: on every core of it.")
    ] = "process",
    address: Address = None,
    as_json: JsonOption = False,
) -> None:
    """Try couplings, splits and numbers of sites over many draws: a table with intervals, and a plot."""
    from coreg_sim.federation.sweep import Split, Sweep
    from coreg_sim.federation.views_file import read_views
    from coreg_sim.papers.report import show_tables, waiting  # polars takes a second to import
    from coreg_sim.plot import svg

    check("form", form, FORMS)
    check("schedule", schedule, SCHEDULE_NAMES)
    check("on", on, PLACES)
    if on == "process" and address is not None:
        raise UsageError("--address is Ray's: add --on ray.")
    own = None if views.isdigit() else views
    if own is not None and (data is not None or target is not None or drop):
        raise UsageError(
            f"--views {own} names table, target and columns itself; leave --data, --target and --drop out."
        )
    if data is not None and target is None:
        raise UsageError("--data needs --target, the column to predict.")
    lambdas = _several("couplings", couplings, float, 0)
    if len(lambdas) > MOST_COLUMNS:
        raise UsageError(f"--couplings: {len(lambdas)}; at most {MOST_COLUMNS} in one run.")
    asked = Sweep(
        couplings=lambdas,
        sites=(0,) if own is not None else _several("sites", sites, int, 1),
        splits=tuple(Split(*_split(each)) for each in splits.split(",")),
        seeds=seeds,
        form=cast(Form, form),
        schedule=cast(ScheduleName, schedule),
        tolerance=tolerance,
        prediction_tolerance=prediction_tolerance,
        max_rounds=max_rounds,
        features=5 if own is not None else int(views),
        data=None if data is None else str(data.resolve()),
        target=target,
        drop=tuple(drop or ()),
        views=None if own is None else str(Path(own).resolve()),
        digest=_digest(
            [Path(own), read_views(Path(own)).data] if own is not None else [data] if data is not None else []
        ),
    )
    where = Where(1 if on == "process" else None, address, WITHOUT_RAY)
    try:
        out.mkdir(parents=True, exist_ok=True)
        with waiting("sweep") as progress:
            done, resumed = run_jobs(asked, asked.jobs(), out / "sweep.jsonl", where, progress)
        report = asked.report({key: each.result for key, each in done.items()})
        told = {"sweep": asdict(asked), "jobs": len(done), "report": asdict(report)}
        (out / "sweep.json").write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        (out / "sweep.svg").write_text(svg(report.plots[0]), encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{out}: cannot be written ({error.strerror}). Name another folder with --out.") from None
    if as_json:
        output.print_json(told)
        return
    show_tables(report)
    seconds = sum(each.seconds for each in done.values())
    earlier = f", {resumed} of them from an earlier sweep" if resumed else ""
    typer.echo(
        f"{len(done)} draws{earlier}, {seconds:.0f} s of one core in all; {out / 'sweep.json'}, {out / 'sweep.svg'}"
    )


def _digest(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        try:
            digest.update(file.read_bytes())
        except OSError as error:
            raise BadData(f"{file}: cannot be read ({error.strerror}).") from None
    return digest.hexdigest()


def _several(name: str, text: str, kind: type[N], least: N) -> tuple[N, ...]:
    try:
        values = tuple(kind(each) for each in text.split(","))
    except ValueError:
        raise UsageError(f"--{name} {text}: numbers with commas between them, as 1,2,5.") from None
    if len(set(values)) != len(values) or not all(least <= value < float("inf") for value in values):
        raise UsageError(f"--{name} {text}: each once, finite, and at least {least}.")
    return values


def _split(text: str) -> tuple[int, int | None]:
    labelled, _, unlabelled = text.partition(":")
    try:
        parsed = int(labelled), int(unlabelled) if unlabelled else None
    except ValueError:
        parsed = 0, None
    if parsed[0] < 1 or (parsed[1] is not None and parsed[1] < 1):
        raise UsageError(f"--splits {text}: LABELLED:UNLABELLED, as 20:500, or 20: for all that is left.")
    return parsed
