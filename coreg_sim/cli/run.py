"""coreg-sim run: one federation, and how it converges."""

from typing import Annotated, cast

import numpy as np
import typer

from coordinator.driver import Lap
from coordinator.machine.notices import Left, Notice, QuestionAnswered
from coordinator.observers.rows import HEADINGS, PLAIN, cells, row
from coreg_core.agreement.schedules import SCHEDULE_NAMES, ScheduleName
from coreg_core.errors import UsageError
from coreg_core.protocol.outcomes import Outcome, told
from coreg_core.protocol.plan import Agreement, Answers, Form, Iteration, Wire, plan_fault
from coreg_sim.cli.options import (
    ANSWERS,
    DEFAULT_COUPLING,
    FORMS,
    OBJECTIVES,
    WIRES,
    Address,
    AnswersOption,
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
from coreg_sim.federation.simulate import Steps, close_enough, held_out_errors, plan_for, simulate
from coreg_wire.terminal import output


class _Printing(Steps):
    """Rows as they come."""

    def __init__(self, *, as_json: bool):
        super().__init__()
        self._as_json, self._lost = as_json, False
        if not as_json:
            typer.echo(PLAIN.format(*HEADINGS))

    def notice(self, notice: Notice, measured: Lap) -> None:
        """Printed, and kept."""
        super().notice(notice, measured)
        if isinstance(notice, Left) and notice.lost and not self._lost:
            typer.echo(f"{notice.site} and whoever is with it: {notice.reason}", err=True)
        self._lost = isinstance(notice, Left)  # hundreds may be lost at once: the first speaks for them
        if not isinstance(notice, QuestionAnswered):
            return
        values = row(notice, measured)
        if self._as_json:
            output.print_json({"event": "round", **values})
        else:
            typer.echo(PLAIN.format(*cells(values)))


def run(
    sites: Sites = 16,
    labelled: Labelled = 50,
    unlabelled: Unlabelled = None,
    views: Views = "5",
    coupling: Coupling = DEFAULT_COUPLING,
    schedule: Annotated[str, typer.Option("--schedule", help=", ".join(SCHEDULE_NAMES) + ".")] = SCHEDULE_NAMES[0],
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
    answers: AnswersOption = "clear",
    wire: WireOption = "float64",
    on: On = "process",
    address: Address = None,
    sites_per_actor: SitesPerActor = None,
    as_json: JsonOption = False,
) -> None:
    """Simulate one federation and watch it converge; exit code 3 when it does not.

    Under --objective additive the agreement's own options (coupling, schedule, form, tolerances, rounds, wire) have no meaning.
    """
    check("schedule", schedule, SCHEDULE_NAMES)
    check("form", form, FORMS)
    check("objective", objective_name, OBJECTIVES)
    check("answers", answers, ANSWERS)
    check("wire", wire, WIRES)
    told_of = cast(Answers, answers)
    problem = problem_of(data, target, drop or [], sites, labelled, unlabelled, views, seed)
    if objective_name == "additive":
        with place(on, address, sites_per_actor) as there:
            code = additive.run(problem, _Printing(as_json=as_json), threads, there.carry, told_of, as_json=as_json)
        raise typer.Exit(code)
    objective = Agreement(form=cast(Form, form), coupling=(coupling,))
    name = cast(ScheduleName, schedule)
    within = close_enough(problem, prediction_tolerance)
    iteration = Iteration(name, tolerance, within, max_rounds, threads, cast(Wire, wire))
    plan = plan_for(problem, objective, iteration, answers=told_of)
    if (fault := plan_fault(plan)) is not None:
        said = "" if wire == "float64" else f" --wire {wire}"
        raise UsageError(f"--answers {answers}{said}: {fault}")
    with place(on, address, sites_per_actor) as there:
        result = simulate(problem, plan, _Printing(as_json=as_json), there.carry)
    errors, error_of_mean = held_out_errors(problem, result.solutions)
    alone, alone_of_mean = held_out_errors(problem, result.alone)
    summary = {
        **plain(result),
        "rmse_sites": errors,
        "rmse_sites_alone": alone,
        "rmse_mean": error_of_mean,
        "rmse_mean_alone": alone_of_mean,
    }
    if as_json:
        output.print_json({"event": "finished", **summary})
    else:
        typer.echo(told(result.outcome, ""))
        typer.echo(
            f"{result.rounds} rounds, {result.steps_in_series} steps in series, {result.numbers_sent} numbers sent "
            f"({output.human_bytes(result.bytes_sent)}), {result.seconds:.2f} s; Q - Q* <= {result.certified_gap:.2e}"
        )
        typer.echo(
            f"held-out rmse, mean over sites: {np.mean(alone):.4f} alone, {np.mean(errors):.4f} together; "
            f"of the sites' mean prediction: {alone_of_mean:.4f} alone, {error_of_mean:.4f} together"
        )
    raise typer.Exit(0 if result.outcome is Outcome.CONVERGED else 3)
