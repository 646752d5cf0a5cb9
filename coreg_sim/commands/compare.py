"""coreg-sim compare: every schedule beside the centralised closed form."""

from typing import Any, cast

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from coreg_core.outcomes import Outcome
from coreg_core.plan import Agreement, Form, Iteration
from coreg_core.rounds import SCHEDULE_NAMES, ScheduleName
from coreg_sim import additive
from coreg_sim.commands.options import (
    DEFAULT_COUPLING,
    FORMS,
    OBJECTIVES,
    Address,
    Coupling,
    Data,
    Drop,
    FormOption,
    JsonOption,
    Labelled,
    MaxRounds,
    ObjectiveName,
    On,
    PredictionTolerance,
    Seed,
    Sites,
    SitesPerActor,
    Target,
    Threads,
    Tolerance,
    Unlabelled,
    Views,
    check,
    place,
    plain,
    problem_of,
)
from coreg_sim.simulate import close_enough, plan_for, simulate
from coreg_wire import output


def compare(
    sites: Sites = 4,
    labelled: Labelled = 50,
    unlabelled: Unlabelled = None,
    views: Views = "5",
    coupling: Coupling = DEFAULT_COUPLING,
    form: FormOption = "exact",
    tolerance: Tolerance = 1e-10,
    prediction_tolerance: PredictionTolerance = None,
    max_rounds: MaxRounds = 10_000,
    data: Data = None,
    target: Target = None,
    drop: Drop = None,
    seed: Seed = 0,
    threads: Threads = 1,
    objective_name: ObjectiveName = "agreement",
    on: On = "process",
    address: Address = None,
    sites_per_actor: SitesPerActor = None,
    as_json: JsonOption = False,
) -> None:
    """Run every schedule on the same problem, beside the centralised closed form; exit code 3 unless all converge.

    With --objective additive: messages alone beside the dense oracle, to the default tolerance and to 1e-10.
    """
    check("form", form, FORMS)
    check("objective", objective_name, OBJECTIVES)
    problem = problem_of(data, target, drop or [], sites, labelled, unlabelled, views, seed)
    if objective_name == "additive":
        with place(on, address, sites_per_actor) as there:
            code = additive.compare(problem, threads, there.carry, as_json=as_json)
        raise typer.Exit(code)
    objective = Agreement(form=cast(Form, form), coupling=(coupling,))
    within = close_enough(problem, prediction_tolerance)
    iterations = [
        Iteration(cast(ScheduleName, name), tolerance, within, max_rounds, threads) for name in SCHEDULE_NAMES
    ]
    plans = [plan_for(problem, objective, iteration) for iteration in iterations]
    with place(on, address, sites_per_actor) as there:
        truth = there.closed_form(problem, plans[0])
        results = [simulate(problem, plan, carry=there.carry) for plan in plans]
    rows = [
        {
            **plain(result),
            "true_gap": result.objective - truth.objective,
            "true_error": float(np.linalg.norm(result.predictions - truth.predictions, axis=1).max()),
        }
        for result in results
    ]
    if as_json:
        closed = {"objective": truth.objective, "disagreement": truth.disagreement, "seconds": round(truth.seconds, 6)}
        output.print_json({"closed_form": closed, "schedules": rows})
    else:
        _print_table(rows, truth.objective, truth.seconds)
    raise typer.Exit(0 if all(r.outcome is Outcome.CONVERGED for r in results) else 3)


def _print_table(rows: list[dict[str, Any]], objective: float, seconds: float) -> None:
    table = Table(box=None, header_style="bold")
    headings = ("schedule", "stop", "rounds", "in series", "numbers sent", "seconds", "certified gap", "true gap")
    for heading in (*headings, "certified error", "true error"):
        table.add_column(heading, justify="left" if heading in ("schedule", "stop") else "right")
    for r in rows:
        table.add_row(
            r["schedule"],
            r["stop"].lower(),
            str(r["rounds"]),
            str(r["steps_in_series"]),
            f"{r['numbers_sent']:,}",
            f"{r['seconds']:.3f}",
            f"{r['certified_gap']:.1e}",
            f"{r['true_gap']:.1e}",
            f"{r['certified_prediction_bound']:.1e}",
            f"{r['true_error']:.1e}",
        )
    Console(width=140).print(table)
    typer.echo(f"closed form: Q* = {objective:.12g} in {seconds:.3f} s; seconds include factoring each site's data")
    rounding = 64 * np.finfo(float).eps * objective
    typer.echo(f"a true gap is the difference of two objectives: below {rounding:.0e} or so it is their rounding")
