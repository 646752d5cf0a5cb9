"""coreg-sim sweep: compare couplings, splits, numbers of sites and seeds with the sites' own models."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from coreg_core.agreement.schedules import SCHEDULE_NAMES
from coreg_core.errors import UsageError
from coreg_core.protocol.plan import MOST_COLUMNS
from coreg_sim.cli import options as o
from coreg_sim.study.jobs import JSON, Where, run_study
from coreg_wire.terminal import output

N = TypeVar("N", int, float)
COUPLINGS = "0,0.001,0.003,0.01,0.03,0.1,0.3,1"


def sweep(
    couplings: Annotated[
        str, typer.Option("--couplings", help="Comma-separated λ; one run trains all of them.")
    ] = COUPLINGS,
    sites: Annotated[str, typer.Option("--sites", help="Comma-separated numbers of sites.")] = "4",
    splits: Annotated[
        str,
        typer.Option(
            "--splits", help="Comma-separated LABELLED:UNLABELLED: rows of each site, and shared rows (can be empty)."
        ),
    ] = "20:",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Draws of each combination, for the intervals.")] = 10,
    form: o.FormOption = "exact",
    schedule: o.ScheduleOption = SCHEDULE_NAMES[0],
    tolerance: o.Tolerance = 1e-8,
    prediction_tolerance: o.PredictionTolerance = 1e-5,
    max_rounds: o.MaxRounds = 10_000,
    views: o.Views = "5",
    data: o.Data = None,
    target: o.Target = None,
    positive: o.Positive = "",
    drop: o.Drop = None,
    dates: o.Dates = None,
    categorical: o.Categorical = None,
    na_values: o.NaValues = None,
    out: Annotated[
        Path, typer.Option("--out", help="Folder for the results. An interrupted sweep resumes from it.")
    ] = Path("sweep-out"),
    on: o.On = "process",
    address: o.Address = None,
    as_json: o.JsonOption = False,
) -> None:
    """Compare couplings, splits and numbers of sites. The result has many draws, intervals and a plot.

    With --on ray the draws run on all cores of Ray.
    """
    from coreg_sim.federation.problems import file_digest
    from coreg_sim.federation.views_file import read_views
    from coreg_sim.study.terminal import show, waiting  # polars takes one second to import
    from coreg_sim.sweep import Split, Sweep
    from coreg_wire.terminal.svg import draw

    if on == "process" and address is not None:
        raise UsageError("--address needs Ray. Add --on ray.")
    table = o.table_of(data, target, drop, dates, views, positive, categorical, na_values)
    lambdas = _several("couplings", couplings, float, 0)
    if len(lambdas) > MOST_COLUMNS:
        raise UsageError(f"--couplings: {len(lambdas)} values. At most {MOST_COLUMNS} fit in one run.")
    own = None if views.isdigit() else Path(views)
    files = [own, read_views(own).data] if own is not None else [table.path] if table is not None else []
    asked = Sweep(
        couplings=lambdas,
        sites=(0,) if own is not None else _several("sites", sites, int, 1),
        splits=tuple(Split(*_split(each)) for each in splits.split(",")),
        seeds=seeds,
        form=form,
        schedule=schedule,
        tolerance=tolerance,
        prediction_tolerance=prediction_tolerance,
        max_rounds=max_rounds,
        features=5 if own is not None else int(views),
        table=table,
        views=None if own is None else str(own.resolve()),
        digest=file_digest(*files),
    )
    where = Where(1 if on == "process" else None, address, o.WITHOUT_RAY)

    def page(results: dict[str, dict[str, JSON]], _seconds: float) -> dict[str, JSON]:
        report = asked.report(results)
        (out / "sweep.svg").write_text(draw(report.plots[0]), encoding="utf-8")
        return {"sweep": asdict(asked), "jobs": len(results), "report": asdict(report)}

    with waiting("sweep") as progress:
        done = run_study(asked, out, "sweep", where, page, progress)
    if as_json:
        output.print_json(done.page)
    else:
        show(asked.report(done.results), f"{done.summary(len(done.results), 'draws')}, {out / 'sweep.svg'}")


def _several(name: str, text: str, kind: type[N], least: N) -> tuple[N, ...]:
    try:
        values = tuple(kind(each) for each in text.split(","))
    except ValueError:
        raise UsageError(f"--{name} {text}: write numbers separated by commas, for example 1,2,5.") from None
    if len(set(values)) != len(values) or not all(least <= value < float("inf") for value in values):
        raise UsageError(f"--{name} {text}: each value must be finite, at least {least}, and given once.")
    return values


def _split(text: str) -> tuple[int, int | None]:
    labelled, _, unlabelled = text.partition(":")
    try:
        parsed = int(labelled), int(unlabelled) if unlabelled else None
    except ValueError:
        parsed = 0, None
    if parsed[0] < 1 or (parsed[1] is not None and parsed[1] < 1):
        raise UsageError(
            f"--splits {text}: write LABELLED:UNLABELLED, for example 20:500, or 20: to share all other rows."
        )
    return parsed
