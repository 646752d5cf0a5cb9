"""coreg-sim compare: every schedule beside the centralised closed form."""

from dataclasses import replace
from typing import Any, cast

import numpy as np
import typer
from jaxtyping import Float64
from rich.console import Console
from rich.table import Table

from coreg_core.agreement.objective import consensus_weight
from coreg_core.agreement.schedules import SCHEDULE_NAMES, ScheduleName, make_schedule, run_in_memory
from coreg_core.agreement.schedules.block_coordinate_descent import SweepState
from coreg_core.agreement.schedules.schedule import Terms
from coreg_core.agreement.views import View
from coreg_core.numerics.arrays import Arr
from coreg_core.numerics.threads import pin_threads
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Agreement, Form, Iteration, Plan, Wire
from coreg_sim.cli.options import (
    DEFAULT_COUPLING,
    FORMS,
    OBJECTIVES,
    WIRES,
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
    WireOption,
    check,
    place,
    plain,
    problem_of,
)
from coreg_sim.federation import additive
from coreg_sim.federation.simulate import Simulated, close_enough, factored, plan_for, simulate
from coreg_wire.terminal import output


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
    wire: WireOption = "float64",
    on: On = "process",
    address: Address = None,
    sites_per_actor: SitesPerActor = None,
    as_json: JsonOption = False,
) -> None:
    """Run every schedule on the same problem, beside the centralised closed form; exit code 3 unless all converge.

    With --wire float32 conjugate gradients run once more, their search directions in float32. With --objective additive: messages
    alone beside the dense oracle, to the default tolerance and to 1e-10.
    """
    check("form", form, FORMS)
    check("objective", objective_name, OBJECTIVES)
    check("wire", wire, WIRES)
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
    if wire != "float64":
        iterations.insert(1, replace(iterations[0], wire=cast(Wire, wire)))
    plans = [plan_for(problem, objective, iteration) for iteration in iterations]
    with place(on, address, sites_per_actor) as there:
        truth = there.closed_form(problem, plans[0])
        results = [simulate(problem, plan, carry=there.carry) for plan in plans]
    pin_threads(threads)
    views_here = factored(problem.sites, plans[0])
    to_error = [
        rounds_to(within, views_here, plan, truth.predictions, result.rounds)
        for plan, result in zip(plans, results, strict=True)
    ]
    rows = [
        {
            **plain(result),
            "wire": plan.iteration.wire,
            "true_gap": result.objective - truth.objective,
            "true_error": _off(result, truth.predictions),
            "rounds_to_error": rounds,
        }
        for plan, result, rounds in zip(plans, results, to_error, strict=True)
    ]
    if as_json:
        closed = {"objective": truth.objective, "disagreement": truth.disagreement, "seconds": round(truth.seconds, 6)}
        output.print_json({"closed_form": closed, "error": within, "schedules": rows})
    else:
        _print_table(rows, within, truth.objective, truth.seconds)
    raise typer.Exit(0 if all(r.outcome is Outcome.CONVERGED for r in results) else 3)


class _NearEnough(Exception):
    """Ends a schedule from within: ``args`` are the rounds that it took."""


def rounds_to(error: float, views: list[View], plan: Plan, truth: Float64[Arr, "M m"], most: int) -> int | None:
    """The fewest rounds after which a schedule's models are that near the closed form's, whatever it could certify by then.

    The schedule runs with every view at hand, and after each round every site says what it would predict if that were the last.
    None where ``most`` rounds are not enough.
    """
    terms = Terms(plan.couplings, tuple(v.bound("tight") for v in views), 1.0, 0.0, 0.0, most)
    terms = replace(terms, singles=plan.iteration.wire == "float32")
    schedule = make_schedule(plan.iteration.name, terms)
    weight, seen = np.array([consensus_weight(plan.couplings[0], len(views))]), 0

    def look(state: Any) -> None:
        nonlocal seen
        if state.round == seen:
            return  # within a sweep
        seen = state.round
        if isinstance(state, SweepState):
            found = state.predictions[:, :, 0]
        else:
            found = np.array([view.respond(state.z, weight)[:, 0] for view in views])
        if float(np.linalg.norm(found - truth, axis=1).max()) <= error:
            raise _NearEnough(seen)

    try:
        run_in_memory(schedule, views, look)
    except _NearEnough as near:
        return int(near.args[0])
    return None


def _off(result: Simulated, truth: Float64[Arr, "M m"]) -> float:
    """The largest error of a site's predictions, in the 2-norm that certificates bound."""
    return float(np.linalg.norm(result.predictions - truth, axis=1).max())


def _print_table(rows: list[dict[str, Any]], error: float, objective: float, seconds: float) -> None:
    table = Table(box=None, header_style="bold")
    headings = ("schedule", "stop", "rounds", "in series", "bytes sent", "seconds", "certified gap", "true gap")
    for heading in (*headings, "certified error", "true error", f"rounds to {error:.0e}"):
        table.add_column(heading, justify="left" if heading in ("schedule", "stop") else "right")
    for r in rows:
        table.add_row(
            r["schedule"] if r["wire"] == "float64" else f"{r['schedule']}, {r['wire']}",
            r["stop"].lower(),
            str(r["rounds"]),
            str(r["steps_in_series"]),
            output.human_bytes(r["bytes_sent"]),
            f"{r['seconds']:.3f}",
            f"{r['certified_gap']:.1e}",
            f"{r['true_gap']:.1e}",
            f"{r['certified_prediction_bound']:.1e}",
            f"{r['true_error']:.1e}",
            "–" if r["rounds_to_error"] is None else str(r["rounds_to_error"]),
        )
    Console(width=160).print(table)
    typer.echo(f"closed form: Q* = {objective:.12g} in {seconds:.3f} s; seconds include factoring each site's data")
    typer.echo(f"rounds to {error:.0e}: until the true error is that small, whatever is certified by then")
    rounding = 64 * np.finfo(float).eps * objective
    typer.echo(f"a true gap is the difference of two objectives: below {rounding:.0e} or so it is their rounding")
