"""coreg-sim run: one simulated federation. coreg-sim compare: each schedule beside the centralised closed form."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from coordinator.observers.terminal import HEADINGS, PLAIN, cells
from coreg_core.agreement.schedules import SCHEDULE_NAMES
from coreg_core.errors import UsageError
from coreg_core.objectives.additive import Additive
from coreg_core.objectives.agreement import Agreement, Form
from coreg_core.objectives.setting import Aggregation, Iteration, ScheduleName
from coreg_core.outcomes import Notice, exit_code, told
from coreg_core.plan import Plan, plan_fault
from coreg_sim.problems import Problem, generated, partitioned, read_views
from coreg_sim.simulate import (
    ClosedForm,
    Hosting,
    Simulated,
    closed_form,
    held_out_errors,
    in_process,
    plan_for,
    rmse,
    simulate,
    typical_size,
)
from coreg_wire.terminal.command_line import human_bytes, print_json

Sites = Annotated[int, typer.Option("--sites", min=1, help="Number of sites.")]
Labelled = Annotated[int, typer.Option("--labelled", min=1, help="Labelled instances at each site.")]
Unlabelled = Annotated[
    int | None,
    typer.Option(
        "--unlabelled", min=1, help="Shared unlabelled instances [500; of a views.toml two thirds of the other rows]."
    ),
]
Views = Annotated[
    str,
    typer.Option(
        "--views", help="Features of each site (generated data), or a views.toml with the columns of each site."
    ),
]
CouplingOption = Annotated[float, typer.Option("--coupling", min=0, help="λ.")]
FormOption = Annotated[Form, typer.Option("--form", help="The form of the views.")]
ScheduleOption = Annotated[ScheduleName, typer.Option("--schedule", help="The schedule of the rounds.")]
Tolerance = Annotated[float, typer.Option("--tolerance", min=0, help="Stop at this certified gap, relative to Σ‖y‖².")]
PredictionTolerance = Annotated[
    float,
    typer.Option(
        "--prediction-tolerance",
        min=0,
        help="Stop at this certified error of the predictions, in units of a typical label per instance.",
    ),
]
MaxRounds = Annotated[int, typer.Option("--max-rounds", min=1, help="Maximum number of rounds (sweeps).")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of the data and of the draw.")]
ObjectiveOption = Annotated[
    Literal["agreement", "additive"],
    typer.Option("--objective", help="additive: the sites learn parts of a sum; or agreement, as in the paper."),
]
KernelOption = Annotated[
    Literal["gaussian", "linear"], typer.Option("--kernel", help="Of each site's features; linear: the columns.")
]
RowsPerFeature = Annotated[
    int, typer.Option("--rows-per-feature", min=5, max=1000, help="Labelled rows for each feature of a site.")
]
Noise = Annotated[float, typer.Option("--noise", min=0, max=1, help="Noise on the opened second moments.")]
LabelNoise = Annotated[
    float, typer.Option("--label-noise", min=0, max=10, help="Noise on the labels, in errors of the local model.")
]
PrivateRows = Annotated[bool, typer.Option("--private-rows", help="Only its own site knows a labelled row.")]
Threads = Annotated[int, typer.Option("--threads", min=1, help="BLAS threads.")]
On = Annotated[
    Literal["process", "ray"], typer.Option("--on", help="Run the sites in this process, or on Ray (extra sim).")
]
Address = Annotated[
    str | None, typer.Option("--address", help="The Ray cluster, auto or HOST:PORT [a new Ray on this machine].")
]
SitesPerActor = Annotated[
    int | None, typer.Option("--sites-per-actor", min=1, help="Sites in one Ray process [sites divided by cores].")
]
AggregationOption = Annotated[
    Aggregation | None,
    typer.Option(
        "--aggregation",
        help="Of an agreement: plaintext, or secure (masked) with the same results to the bit [plaintext].",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

DEFAULTS, DEFAULT_COUPLING = Additive(), Agreement().coupling[0]
OPTIONS = {
    "agreement": ("coupling", "schedule", "form", "tolerance", "prediction_tolerance", "max_rounds", "aggregation"),
    "additive": ("kernel", "rows_per_feature", "noise", "label_noise", "private_rows"),
}


def _problem(
    sites: int, labelled: int, unlabelled: int | None, views: str, seed: int, *, common: bool = False
) -> Problem:
    """Generated, or a table split by a views.toml; ``common``: labelled rows are shared."""
    if not views.isdigit():
        return partitioned(read_views(Path(views)), labelled, unlabelled, seed, common=common)
    return generated(sites, labelled, unlabelled or 500, int(views), seed, common=common)


@contextmanager
def _place(
    on: str, address: str | None, sites_per_actor: int | None
) -> Iterator[tuple[Hosting, Callable[[Problem, Plan], ClosedForm]]]:
    """The host of the sites while the block runs, and its closed form."""
    if on == "process":
        if address is not None or sites_per_actor is not None:
            raise UsageError("--address and --sites-per-actor need Ray. Add --on ray.")
        yield in_process, closed_form
        return
    from coreg_sim.over_ray import OverRay, connected

    with connected(address, instead="leave --on ray out") as cluster:
        over_ray = OverRay(cluster, sites_per_actor)
        yield over_ray, over_ray.closed_form


class _Printing:
    """Prints one row for each answered question."""

    def __init__(self, *, as_json: bool):
        self._as_json, self._lost = as_json, False
        if not as_json:
            typer.echo(PLAIN.format(*HEADINGS))

    def __call__(self, notice: Notice) -> None:
        left = notice.name == "left"
        if left and notice.fields["lost"] and not self._lost:
            typer.echo(f"{notice.site} and all sites of its process: {notice.fields['reason']}", err=True)
        self._lost = left  # hundreds of sites can be lost at once, so print one line
        if notice.name != "round":
            return
        if self._as_json:
            print_json(notice.to_dict())
        else:
            typer.echo(PLAIN.format(*cells(notice.fields)))


def run(
    context: typer.Context,
    sites: Sites = 4,
    labelled: Labelled = 50,
    unlabelled: Unlabelled = None,
    views: Views = "5",
    coupling: CouplingOption = DEFAULT_COUPLING,
    schedule: ScheduleOption = SCHEDULE_NAMES[0],
    form: FormOption = "exact",
    tolerance: Tolerance = 1e-10,
    prediction_tolerance: PredictionTolerance = 1e-5,
    max_rounds: MaxRounds = 10_000,
    seed: Seed = 0,
    threads: Threads = 1,
    objective: ObjectiveOption = "additive",
    kernel: KernelOption = DEFAULTS.kernel,
    rows_per_feature: RowsPerFeature = DEFAULTS.rows_per_feature,
    noise: Noise = DEFAULTS.noise,
    label_noise: LabelNoise = DEFAULTS.label_noise,
    private_rows: PrivateRows = False,
    aggregation: AggregationOption = None,
    on: On = "process",
    address: Address = None,
    sites_per_actor: SitesPerActor = None,
    as_json: JsonOption = False,
) -> None:
    """Simulate one federation, and print each step and the sites' errors on held-out rows. Exit code 3 if it does not converge.

    Coupling, schedule, form, tolerances, max-rounds and aggregation are options of --objective agreement. Kernel,
    rows-per-feature, noises and private-rows are options of --objective additive.
    """

    def given(name: str) -> bool:
        return getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"

    if not views.isdigit() and given("sites"):
        raise UsageError(f"--sites: {views} names the sites. Leave the option out.")
    for other in OPTIONS.keys() - {objective}:
        for name in filter(given, OPTIONS[other]):
            raise UsageError(f"--{name.replace('_', '-')} needs --objective {other}.")
    problem = _problem(
        sites,
        labelled,
        unlabelled,
        views,
        seed,
        common=objective == "additive" and not private_rows,
    )
    if objective == "additive":
        terms = Additive(kernel, rows_per_feature=rows_per_feature, noise=noise, label_noise=label_noise)
        plan = plan_for(problem, terms, Iteration(threads=threads))
    else:
        iteration = Iteration(schedule, tolerance, prediction_tolerance, max_rounds, threads)
        plan = plan_for(problem, Agreement(form=form, coupling=(coupling,)), iteration, aggregation=aggregation)
    if (fault := plan_fault(plan)) is not None:
        raise UsageError(fault)
    with _place(on, address, sites_per_actor) as (hosting, _):
        result = simulate(problem, plan, _Printing(as_json=as_json), hosting)
    found = {**figures(result), **errors(problem, result)}
    if as_json:
        print_json({"event": "finished", **found})
    else:
        typer.echo("\n".join([told(result.outcome, result.reason), *lines(found)]))
    raise typer.Exit(exit_code(result.outcome))


def compare(
    sites: Sites = 4,
    labelled: Labelled = 50,
    unlabelled: Unlabelled = None,
    views: Views = "5",
    coupling: CouplingOption = DEFAULT_COUPLING,
    form: FormOption = "exact",
    tolerance: Tolerance = 1e-10,
    prediction_tolerance: PredictionTolerance = 1e-5,
    max_rounds: MaxRounds = 10_000,
    seed: Seed = 0,
    threads: Threads = 1,
    on: On = "process",
    address: Address = None,
    sites_per_actor: SitesPerActor = None,
    as_json: JsonOption = False,
) -> None:
    """Run each schedule of the agreement beside the closed form. All solve the same problem. Exit code 3 unless all converge."""
    problem = _problem(sites, labelled, unlabelled, views, seed)
    with _place(on, address, sites_per_actor) as (hosting, closed_form):
        iterations = [Iteration(name, tolerance, prediction_tolerance, max_rounds, threads) for name in SCHEDULE_NAMES]
        plans = [plan_for(problem, Agreement(form=form, coupling=(coupling,)), each) for each in iterations]
        truth = closed_form(problem, plans[0])
        results = [simulate(problem, plan, hosting=hosting) for plan in plans]
    rows = [
        {
            **figures(result),
            "true_gap": result.objective - truth.objective,
            "true_error": float(np.linalg.norm(result.predictions - truth.predictions, axis=1).max()),
        }
        for result in results
    ]
    if as_json:
        closed = {"objective": truth.objective, "disagreement": truth.disagreement, "seconds": round(truth.seconds, 6)}
        within = prediction_tolerance * typical_size(problem, Agreement())
        print_json({"closed_form": closed, "error": within, "schedules": rows})
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
            human_bytes(r["bytes_sent"]),
            f"{r['seconds']:.3f}",
            *(f"{r[key]:.1e}" for key in ("certified_gap", "true_gap", "certified_prediction_bound", "true_error")),
        )
    Console(width=160).print(table)
    rounding = 64 * np.finfo(float).eps * objective
    typer.echo(
        f"closed form: Q* = {objective:.12g} in {seconds:.3f} s; seconds include factoring each site's data\n"
        f"true gap: the difference of two objectives. Values below about {rounding:.0e} are rounding errors"
    )


# --- the figures of a run, as JSON values and as text ---

MODELS = ("joined", "score")  # that a verdict compares with the local model


def figures(run: Simulated) -> dict[str, Any]:
    """The figures of one run, as JSON values."""
    additive = isinstance(run.plan.objective, Additive)
    found = {
        "schedule": "additive" if additive else run.plan.iteration.name,
        "stop": run.outcome.name,
        "steps_in_series": len(run.taken),
        "numbers_sent": run.numbers_sent,
        "bytes_sent": run.bytes_sent,
        "seconds": round(run.seconds, 6),
    }
    if additive:
        return found
    return found | {
        "rounds": run.rounds,
        "certified_gap": run.certified_gap,
        "certified_prediction_bound": run.certified_prediction_bound,
        "objective": run.objective,
    }


def errors(problem: Problem, run: Simulated) -> dict[str, Any]:
    """The sites' errors on held-out rows; of an agreement also those of the mean prediction."""
    if isinstance(run.plan.objective, Additive):
        return {"sites": _sites(problem, run)}
    together, of_mean = held_out_errors(problem, run.solutions)
    alone, alone_of_mean = held_out_errors(problem, run.alone)
    return {"rmse_sites": together, "rmse_sites_alone": alone, "rmse_mean": of_mean, "rmse_mean_alone": alone_of_mean}


def _sites(problem: Problem, run: Simulated) -> dict[str, dict[str, Any]]:
    """Of each site: its labels, the errors of its models on held-out rows (None: no such model), and its verdict."""
    models, found = [result.additive for result in run.results if result.additive is not None], {}
    mine = list(zip(models, problem.held_out, strict=True))
    total = np.sum([model.part(model.phi(X), range(len(models))) for model, X in mine], axis=0)
    for name, result, (model, X) in zip(run.plan.sites, run.results, mine, strict=True):
        judged = result.judged
        assert judged is not None
        predicted = (model.alone(X), model.predict(X), model.score(total, X))
        found[name] = {
            "labels": len(judged.labels),
            "rmse": {
                key: None if each is None else rmse(each, problem.held_out_y)
                for key, each in zip(("local", *MODELS), predicted, strict=True)
            },
            "forecast": {key: asdict(gain) for key, gain in judged.verdict.gains.items()},
            "recommended": judged.verdict.recommended,
        }
    return found


def lines(found: dict[str, Any]) -> list[str]:
    """The figures and errors of a run, as text."""
    sent = (
        f"{found['steps_in_series']} steps in series, {found['numbers_sent']} numbers sent "
        f"({human_bytes(found['bytes_sent'])}), {found['seconds']:.2f} s"
    )
    if "sites" in found:
        return [sent, *_table(found["sites"])]
    joined, alone = np.mean(found["rmse_sites"]), np.mean(found["rmse_sites_alone"])
    harmed = (
        "This coupling makes the sites worse. For columns that are divided among the sites, use the additive objective. "
        "`coreg-sim benefit` compares the methods."
    )
    return [
        f"{found['rounds']} rounds, {sent}; Q - Q* <= {found['certified_gap']:.2e}",
        f"root mean square error on held-out rows, mean over sites: {alone:.4f} alone, {joined:.4f} joined",
        f"root mean square error of the sites' mean prediction: {found['rmse_mean_alone']:.4f} alone, "
        f"{found['rmse_mean']:.4f} joined",
        *([harmed] if joined > alone else []),
    ]


def _table(sites: dict[str, dict[str, Any]]) -> list[str]:
    """A row for each site: errors, their change against the local model, and the forecast of the change."""
    width = max(map(len, sites))
    out = [
        "root mean square error on held-out rows, its change against the local model, and the site's own forecast of it",
        f"{'':<{width}} {'labels':>6} {'local':>8}"
        + "".join(f" {name:>8} {'change':>8} {'forecast':>15}" for name in MODELS)
        + "  recommended",
    ]
    for name, site in sites.items():
        local = site["rmse"]["local"]
        cells = [f"{name:<{width}} {site['labels']:>6} {'-' if local is None else f'{local:.4f}':>8}"]
        for key in MODELS:
            error, told = site["rmse"][key], site["forecast"].get(key)
            change = "-" if local is None else f"{100 * (error / local - 1):+.1f} %"
            forecast = "-" if told is None else f"{100 * told['change']:+.1f} ± {100 * told['standard_error']:.1f} %"
            cells.append(f"{error:>8.4f} {change:>8} {forecast:>15}")
        out.append(f"{' '.join(cells)}  {site['recommended']}")
    return out
