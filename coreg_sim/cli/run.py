"""coreg-sim run: one simulated federation."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import typer

from coordinator.observers.terminal import StepTable, work_after
from coreg_core.additive.site_model import SiteModel
from coreg_core.errors import SingularSystem, UsageError
from coreg_core.objectives.additive import Additive
from coreg_core.objectives.agreement import Agreement, Form
from coreg_core.outcomes import Notice, end_sentence, exit_code
from coreg_core.plan import plan_fault
from coreg_core.terms import Iteration, SolverName
from coreg_sim.closed_form import closed_form, closed_form_fault, distance_from_closed_form
from coreg_sim.problems import Problem, generated, partitioned, read_views, same_condition
from coreg_sim.simulate import (
    Hosting,
    Simulated,
    held_out_errors,
    in_process,
    plan_for,
    rmse,
    simulate,
)
from coreg_wire.terminal.command_line import human_bytes, print_json
from coreg_wire.terminal.progress import WorkLine
from coreg_wire.terminal.text import echo
from site_agent.machine.results import AdditiveResult
from site_agent.models.figures import Values
from site_agent.models.findings import partners_of

LABELLED = 50  # labels of a site
FEW = 20  # labels of a site that an agreement helps
SHARED = 500
DEFAULT_COUPLING = Agreement().coupling[0]
OF_AGREEMENT = ("coupling", "solver", "form", "tolerance", "max_rounds")  # options


@contextmanager
def _hosting(on: str, address: str | None) -> Iterator[Hosting]:
    """The host of the sites while the block runs."""
    if on == "process":
        if address is not None:
            raise UsageError("--address needs Ray. Add --on ray.")
        yield in_process
        return
    from coreg_sim.over_ray import OverRay, connected

    with connected(address, instead="leave --on ray out") as cluster:
        yield OverRay(cluster)


def _generated(
    objective: str, sites: int, n: int | None, m: int | None, columns: int, seed: int
) -> Problem:
    """Generated data on which the objective is useful."""
    if objective == "agreement":
        return same_condition(sites, n or FEW, m or SHARED, columns, seed)
    return generated(sites, n or LABELLED, m or SHARED, columns, seed, common=True)


class _Printing:
    """Prints one row for each answered question."""

    def __init__(self, *, as_json: bool):
        self._as_json = as_json
        self._table = StepTable()
        self._work = WorkLine()

    def __call__(self, notice: Notice) -> None:
        if self._as_json:
            if notice.name == "round":
                print_json(notice.to_dict())
            return
        if notice.name != "round":
            self._work.show("the sites prepare their rows")
            return
        self._work.hide()
        for line in self._table.lines(notice.fields):
            echo(line)
        self._work.show(work_after(notice.fields["phase"]))

    def end(self) -> None:
        self._work.hide()


def run(
    context: typer.Context,
    sites: Annotated[int, typer.Option(min=1, help="Number of sites.")] = 4,
    labelled: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Labelled instances at each site [50; 20 for generated data of an agreement].",
        ),
    ] = None,
    unlabelled: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Shared instances [500; of a views.toml two thirds of the other rows].",
        ),
    ] = None,
    views: Annotated[
        str,
        typer.Option(
            help=(
                "Features of each site (generated data), or a views.toml with the columns of each"
                " site."
            ),
        ),
    ] = "5",
    coupling: Annotated[float, typer.Option(min=0, help="λ.")] = DEFAULT_COUPLING,
    solver: Annotated[
        SolverName, typer.Option(help="The solver of the rounds.")
    ] = "conjugate-gradients",
    form: Annotated[Form, typer.Option(help="The form of the views.")] = "exact",
    tolerance: Annotated[
        float,
        typer.Option(min=0, help="Stop at this certified gap, relative to Σ‖y‖²."),
    ] = 1e-10,
    max_rounds: Annotated[
        int, typer.Option(min=1, help="Maximum number of rounds (sweeps).")
    ] = 10_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the data and of the draw.")] = 0,
    objective: Annotated[
        Literal["agreement", "additive"],
        typer.Option(
            help="additive: the sites learn parts of a sum; or agreement, as in the paper.",
        ),
    ] = "additive",
    on: Annotated[
        Literal["process", "ray"],
        typer.Option(help="Run the sites in this process, or on Ray (extra sim)."),
    ] = "process",
    address: Annotated[
        str | None,
        typer.Option(help="The Ray cluster, auto or HOST:PORT [a new Ray on this machine]."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Simulate one federation, and print each step and the sites' errors on held-out rows.

    Exit code 3 if it does not converge.

    An agreement also prints its largest distance from the centralised closed form. Its generated
    data are noisy measurements of one hidden condition, with few labels at each site.

    Coupling, solver, form, tolerance and max-rounds are options of --objective agreement.
    """

    def given(name: str) -> bool:
        return getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"

    if not views.isdigit() and given("sites"):
        raise UsageError(f"--sites: {views} names the sites. Leave the option out.")
    of_agreement = [name.replace("_", "-") for name in OF_AGREEMENT if given(name)]
    if objective == "additive" and of_agreement:
        raise UsageError(f"--{of_agreement[0]} needs --objective agreement.")
    if views.isdigit():
        problem = _generated(objective, sites, labelled, unlabelled, int(views), seed)
    else:
        file = read_views(Path(views))
        common = objective == "additive"
        problem = partitioned(file, labelled or LABELLED, unlabelled, seed, common=common)
    plan = plan_for(problem, Additive())
    if objective == "agreement":
        iteration = Iteration(solver, tolerance, 1e-5, max_rounds)
        plan = plan_for(problem, Agreement(form=form, coupling=(coupling,)), iteration)
    fault = plan_fault(plan)
    if fault is not None:
        raise UsageError(fault)
    with _hosting(on, address) as hosting:
        printing = _Printing(as_json=as_json)
        try:
            result = simulate(problem, plan, printing, hosting)
        finally:
            printing.end()
    values = {**figures(result), **errors(problem, result), **oracle(problem, result)}
    if as_json:
        print_json({"event": "finished", **values})
    else:
        echo("\n".join([end_sentence(result.outcome, result.reason), *lines(values)]))
    raise typer.Exit(exit_code(result.outcome))


# --- the figures of a run, as JSON values and as text ---

MODELS = ("joined", "score")  # that a verdict compares with the local model


def figures(run: Simulated) -> Values:
    additive = isinstance(run.plan.objective, Additive)
    values = {
        "solver": "additive" if additive else run.plan.iteration.name,
        "stop": run.outcome.name,
        "steps_in_series": len(run.taken),
        "numbers_sent": run.numbers_sent,
        "bytes_sent": run.bytes_sent,
        "seconds": round(run.seconds, 6),
    }
    if additive:
        return values
    return values | {
        "rounds": run.rounds,
        "certified_gap": run.certified_gap,
        "certified_prediction_bound": run.certified_prediction_bound,
        "objective": run.objective,
    }


def errors(problem: Problem, run: Simulated) -> Values:
    """The sites' errors on held-out rows."""
    if isinstance(run.plan.objective, Additive):
        return {"sites": _sites(problem, run)}
    return {
        "rmse_sites": held_out_errors(problem, run.solutions),
        "rmse_sites_alone": held_out_errors(problem, run.alone),
    }


def oracle(problem: Problem, run: Simulated) -> Values:
    """An agreement's distance from the centralised closed form, or why there is none."""
    if isinstance(run.plan.objective, Additive):
        return {}
    fault = closed_form_fault(problem, run.plan)
    if fault:
        return {"closed_form": fault}
    try:
        exact = closed_form(problem, run.plan)
    except SingularSystem as error:
        return {"closed_form": f"The centralised closed form has no solution: {error}"}
    return {
        "closed_form": "",
        "closed_form_distance": distance_from_closed_form(problem, run, exact),
        "closed_form_seconds": round(exact.seconds, 6),
    }


def _sites(problem: Problem, run: Simulated) -> dict[str, Values]:
    """Of each site: its labels, the errors of its models on held-out rows (None: no such model),
    and its verdict.
    """
    results = [result for result in run.results if isinstance(result, AdditiveResult)]
    mine = []
    for result, X in zip(results, problem.held_out, strict=True):
        assert isinstance(result.model, SiteModel)
        mine.append((result.model, X))
    parts = [model.part(model.phi(X), range(len(mine))) for model, X in mine]
    total = np.sum(parts, axis=0)
    out = dict[str, Values]()
    for name, result, (model, X) in zip(run.plan.sites, results, mine, strict=True):
        judged = result.judged
        predicted = (model.alone(X), model.predict(X), model.score(total, X))
        errors = dict[str, float | None]()
        for key, values in zip(("local", *MODELS), predicted, strict=True):
            errors[key] = None if values is None else rmse(values, problem.held_out_y)
        out[name] = {
            "labels": len(judged.labels),
            "rmse": errors,
            "forecast": {key: asdict(gain) for key, gain in judged.verdict.gains.items()},
            "recommended": judged.verdict.recommended,
            "partners": partners_of(result.partners),
        }
    return out


def lines(values: Values) -> list[str]:
    """The figures and errors of a run, as text."""
    sent = (
        f"{values['steps_in_series']} steps in series, {values['numbers_sent']} numbers sent "
        f"({human_bytes(values['bytes_sent'])}), {values['seconds']:.2f} s"
    )
    if "sites" in values:
        return [sent, *_table(values["sites"])]
    joined = np.mean(values["rmse_sites"])
    alone = np.mean(values["rmse_sites_alone"])
    out = [
        f"{values['rounds']} rounds, {sent}; Q - Q* <= {values['certified_gap']:.2e}",
        (
            f"root mean square error on held-out rows, mean over sites: {alone:.4f} alone,"
            f" {joined:.4f} joined"
        ),
    ]
    if joined > alone:
        out.append(
            "This coupling makes the sites worse. For columns that are divided among the sites, use"
            " the additive objective. `coreg-sim benefit` compares the methods."
        )
    out.append(values["closed_form"] or _distance(values))
    return out


def _distance(values: Values) -> str:
    return (
        "largest distance of a prediction from the centralised closed form, which reads all data:"
        f" {values['closed_form_distance']:.0e} standard deviations of the labels"
    )


def _table(sites: dict[str, Values]) -> list[str]:
    """A row for each site: errors, their change against the local model, and the forecast of the
    change.
    """
    headings = ["", "labels", "local"]
    for model in MODELS:
        headings += [model, "change", "forecast"]
    rows = [[*headings, "recommended"]]
    rows += [_row(name, site) for name, site in sites.items()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    out = [
        "root mean square error on held-out rows, its change against the local model, and the"
        " site's own forecast of it"
    ]
    for name, *cells, recommended in rows:
        line = name.ljust(widths[0])
        for cell, width in zip(cells, widths[1:-1], strict=True):
            line += f" {cell:>{width}}"
        out.append(f"{line}  {recommended}")
    return out


def _row(name: str, site: Values) -> list[str]:
    cells = [name, str(site["labels"]), _error(site["rmse"]["local"])]
    errors = site["rmse"]
    for model in MODELS:
        forecast = _forecast(site["forecast"].get(model))
        cells += [_error(errors[model]), _change(errors, model), forecast]
    return [*cells, site["recommended"]]


def _error(error: float | None) -> str:
    if error is None:
        return "-"
    return f"{error:.4f}"


def _change(errors: dict[str, float | None], model: str) -> str:
    error = errors[model]
    local = errors["local"]
    if error is None or local is None:
        return "-"
    return f"{100 * (error / local - 1):+.1f} %"


def _forecast(forecast: dict[str, float] | None) -> str:
    if forecast is None:
        return "-"
    change = 100 * forecast["change"]
    error = 100 * forecast["standard_error"]
    return f"{change:+.1f} ± {error:.1f} %"
