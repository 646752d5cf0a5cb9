"""coreg-sim compare: each schedule beside the centralised closed form."""

from typing import Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from coreg_core.agreement.schedules import SCHEDULE_NAMES
from coreg_core.objectives.agreement import Agreement
from coreg_core.objectives.setting import Iteration
from coreg_sim.cli import figures
from coreg_sim.cli import options as o
from coreg_sim.federation.simulate import plan_for, simulate, typical_size
from coreg_wire.terminal import output


def compare(
    sites: o.Sites = 4,
    labelled: o.Labelled = 50,
    unlabelled: o.Unlabelled = None,
    views: o.Views = "5",
    coupling: o.CouplingOption = o.DEFAULT_COUPLING,
    form: o.FormOption = "exact",
    tolerance: o.Tolerance = 1e-10,
    prediction_tolerance: o.PredictionTolerance = 1e-5,
    max_rounds: o.MaxRounds = 10_000,
    data: o.Data = None,
    target: o.Target = None,
    positive: o.Positive = "",
    drop: o.Drop = None,
    dates: o.Dates = None,
    categorical: o.Categorical = None,
    na_values: o.NaValues = None,
    separator: o.Separator = None,
    decimal: o.Decimal = None,
    seed: o.Seed = 0,
    threads: o.Threads = 1,
    on: o.On = "process",
    address: o.Address = None,
    sites_per_actor: o.SitesPerActor = None,
    as_json: o.JsonOption = False,
) -> None:
    """Run each schedule of the agreement beside the closed form. All solve the same problem. Exit code 3 unless all converge."""
    problem = o.problem_of(
        o.table_of(data, target, drop, dates, views, positive, categorical, na_values, separator, decimal),
        sites,
        labelled,
        unlabelled,
        views,
        seed,
    )
    with o.place(on, address, sites_per_actor) as (hosting, closed_form):
        iterations = [Iteration(name, tolerance, prediction_tolerance, max_rounds, threads) for name in SCHEDULE_NAMES]
        plans = [plan_for(problem, Agreement(form=form, coupling=(coupling,)), each) for each in iterations]
        truth = closed_form(problem, plans[0])
        results = [simulate(problem, plan, hosting=hosting) for plan in plans]
    rows = [
        {
            **figures.figures(result),
            "true_gap": result.objective - truth.objective,
            "true_error": float(np.linalg.norm(result.predictions - truth.predictions, axis=1).max()),
        }
        for result in results
    ]
    if as_json:
        closed = {"objective": truth.objective, "disagreement": truth.disagreement, "seconds": round(truth.seconds, 6)}
        within = prediction_tolerance * typical_size(problem, Agreement())
        output.print_json({"closed_form": closed, "error": within, "schedules": rows})
    else:
        _print_table(rows, truth.objective, truth.seconds)
    raise typer.Exit(0 if all(r.outcome.good for r in results) else 3)


def _print_table(rows: list[dict[str, Any]], objective: float, seconds: float) -> None:
    table = Table(box=None, header_style="bold")
    headings = ("schedule", "stop", "rounds", "in series", "bytes sent", "seconds", "certified gap", "true gap")
    for heading in (*headings, "certified error", "true error"):
        table.add_column(heading, justify="left" if heading in ("schedule", "stop") else "right")
    for r in rows:
        table.add_row(
            r["schedule"],
            r["stop"].lower(),
            str(r["rounds"]),
            str(r["steps_in_series"]),
            output.human_bytes(r["bytes_sent"]),
            f"{r['seconds']:.3f}",
            *(f"{r[key]:.1e}" for key in ("certified_gap", "true_gap", "certified_prediction_bound", "true_error")),
        )
    Console(width=160).print(table)
    rounding = 64 * np.finfo(float).eps * objective
    typer.echo(
        f"closed form: Q* = {objective:.12g} in {seconds:.3f} s; seconds include factoring each site's data\n"
        f"true gap: the difference of two objectives. Values below about {rounding:.0e} are rounding errors"
    )
