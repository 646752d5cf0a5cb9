"""coreg-sim: a federation before anyone signs. Through the real machines, in one process."""

import json
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from coordinator.driver import Lap
from coordinator.notices import Notice, QuestionAnswered
from coordinator.observers.rows import HEADINGS, PLAIN, cells, row
from coreg_core.errors import UsageError
from coreg_core.outcomes import Outcome, told
from coreg_core.plan import Agreement, Form, Iteration
from coreg_core.rounds import SCHEDULE_NAMES, ScheduleName
from coreg_sim import additive
from coreg_sim.papers.runner import NAMES, find, run_experiment
from coreg_sim.problems import Problem, from_table, generated
from coreg_sim.simulate import Simulated, Steps, closed_form, held_out_errors, plan_for, simulate
from coreg_wire import console

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Simulate a federation on this machine, through the same machines that the service runs.",
)

Sites = Annotated[int, typer.Option("--sites", min=1, help="How many sites.")]
Labelled = Annotated[int, typer.Option("--labelled", min=1, help="Labelled instances of each site.")]
Unlabelled = Annotated[
    int | None,
    typer.Option("--unlabelled", min=1, help="Shared unlabelled instances [500; two thirds of a table's rest]."),
]
Views = Annotated[int, typer.Option("--views", min=1, help="Features of each site's view (generated data).")]
Coupling = Annotated[float, typer.Option("--coupling", min=0, help="λ.")]
FormOption = Annotated[str, typer.Option("--form", help="exact, semi-parametric, landmarks or linear.")]
Tolerance = Annotated[float, typer.Option("--tolerance", min=0, help="Certified gap over Σ‖y‖².")]
PredictionTolerance = Annotated[
    float, typer.Option("--prediction-tolerance", min=0, help="Certified error of the predictions (2-norm).")
]
MaxRounds = Annotated[int, typer.Option("--max-rounds", min=1, help="Most rounds (sweeps).")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Of the data and of the draw.")]
Data = Annotated[Path | None, typer.Option("--data", help="A CSV or Parquet table instead of generated data.")]
Drop = Annotated[list[str] | None, typer.Option("--drop", help="A column of it to leave out, as an id; repeatable.")]
Target = Annotated[str | None, typer.Option("--target", help="Its target column.")]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON, for machines.")]
ObjectiveOption = Annotated[
    str, typer.Option("--objective", help="agreement (the paper's), or additive: sites learn parts that add up.")
]
Threads = Annotated[int, typer.Option("--threads", min=1, help="BLAS threads.")]

OBJECTIVES = ("agreement", "additive")
FORMS: tuple[str, ...] = get_args(Form)
DEFAULT_COUPLING = Agreement().coupling[0]


def _problem(
    data: Path | None,
    target: str | None,
    drop: list[str],
    sites: int,
    labelled: int,
    unlabelled: int | None,
    views: int,
    seed: int,
) -> Problem:
    if data is None:
        return generated(sites, labelled, unlabelled or 500, views, seed)
    if target is None:
        raise UsageError("--data needs --target, the column to predict.")
    return from_table(data, target, sites, labelled, unlabelled, seed, drop)


def _check(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UsageError(f"--{name} {value}: choose one of {', '.join(allowed)}.")


class _Printing(Steps):
    """Rows as they come."""

    def __init__(self, *, as_json: bool):
        super().__init__()
        self._as_json = as_json
        if not as_json:
            typer.echo(PLAIN.format(*HEADINGS))

    def notice(self, notice: Notice, measured: Lap) -> None:
        """Printed, and kept."""
        super().notice(notice, measured)
        if not isinstance(notice, QuestionAnswered):
            return
        values = row(notice, measured)
        if self._as_json:
            console.print_json({"event": "round", **values})
        else:
            typer.echo(PLAIN.format(*cells(values)))


@app.command()
def run(
    sites: Sites = 16,
    labelled: Labelled = 50,
    unlabelled: Unlabelled = None,
    views: Views = 5,
    coupling: Coupling = DEFAULT_COUPLING,
    schedule: Annotated[str, typer.Option("--schedule", help=", ".join(SCHEDULE_NAMES) + ".")] = SCHEDULE_NAMES[0],
    form: FormOption = "exact",
    tolerance: Tolerance = 1e-10,
    prediction_tolerance: PredictionTolerance = 1e-6,
    max_rounds: MaxRounds = 10_000,
    data: Data = None,
    target: Target = None,
    drop: Drop = None,
    seed: Seed = 0,
    threads: Threads = 1,
    objective_name: ObjectiveOption = "agreement",
    as_json: JsonOption = False,
) -> None:
    """Simulate one federation and watch it converge; exit code 3 when it does not.

    Under --objective additive the options of the agreement (coupling, schedule, form, tolerances, rounds) have no meaning.
    """
    _check("schedule", schedule, SCHEDULE_NAMES)
    _check("form", form, FORMS)
    _check("objective", objective_name, OBJECTIVES)
    problem = _problem(data, target, drop or [], sites, labelled, unlabelled, views, seed)
    if objective_name == "additive":
        raise typer.Exit(additive.run(problem, _Printing(as_json=as_json), threads, as_json=as_json))
    objective = Agreement(form=cast(Form, form), coupling=(coupling,))
    name = cast(ScheduleName, schedule)
    plan = plan_for(problem, objective, Iteration(name, tolerance, prediction_tolerance, max_rounds, threads))
    result = simulate(problem, plan, _Printing(as_json=as_json))
    errors, error_of_mean = held_out_errors(problem, result.solutions)
    alone, alone_of_mean = held_out_errors(problem, result.alone)
    summary = {
        **_plain(result),
        "rmse_sites": errors,
        "rmse_sites_alone": alone,
        "rmse_mean": error_of_mean,
        "rmse_mean_alone": alone_of_mean,
    }
    if as_json:
        console.print_json({"event": "finished", **summary})
    else:
        typer.echo(told(result.outcome, ""))
        typer.echo(
            f"{result.rounds} rounds, {result.steps_in_series} steps in series, {result.numbers_sent} numbers sent, "
            f"{result.seconds:.2f} s; Q - Q* <= {result.certified_gap:.2e}"
        )
        typer.echo(
            f"held-out rmse, mean over sites: {np.mean(alone):.4f} alone, {np.mean(errors):.4f} together; "
            f"of the sites' mean prediction: {alone_of_mean:.4f} alone, {error_of_mean:.4f} together"
        )
    raise typer.Exit(0 if result.outcome is Outcome.CONVERGED else 3)


@app.command()
def compare(
    sites: Sites = 4,
    labelled: Labelled = 50,
    unlabelled: Unlabelled = None,
    views: Views = 5,
    coupling: Coupling = DEFAULT_COUPLING,
    form: FormOption = "exact",
    tolerance: Tolerance = 1e-10,
    prediction_tolerance: PredictionTolerance = 1e-6,
    max_rounds: MaxRounds = 10_000,
    data: Data = None,
    target: Target = None,
    drop: Drop = None,
    seed: Seed = 0,
    threads: Threads = 1,
    objective_name: ObjectiveOption = "agreement",
    as_json: JsonOption = False,
) -> None:
    """Run every schedule on the same problem, beside the centralised closed form; exit code 3 unless all converge.

    With --objective additive: messages alone beside the dense oracle, to the default tolerance and to 1e-10.
    """
    _check("form", form, FORMS)
    _check("objective", objective_name, OBJECTIVES)
    problem = _problem(data, target, drop or [], sites, labelled, unlabelled, views, seed)
    if objective_name == "additive":
        raise typer.Exit(additive.compare(problem, threads, as_json=as_json))
    objective = Agreement(form=cast(Form, form), coupling=(coupling,))
    iterations = [
        Iteration(cast(ScheduleName, name), tolerance, prediction_tolerance, max_rounds, threads)
        for name in SCHEDULE_NAMES
    ]
    plans = [plan_for(problem, objective, iteration) for iteration in iterations]
    truth = closed_form(problem, plans[0])
    results = [simulate(problem, plan) for plan in plans]
    rows = [
        {
            **_plain(result),
            "true_gap": result.objective - truth.objective,
            "true_error": float(np.linalg.norm(result.predictions - truth.predictions, axis=1).max()),
        }
        for result in results
    ]
    if as_json:
        closed = {"objective": truth.objective, "disagreement": truth.disagreement, "seconds": round(truth.seconds, 6)}
        console.print_json({"closed_form": closed, "schedules": rows})
    else:
        _print_table(rows, truth.objective, truth.seconds)
    raise typer.Exit(0 if all(r.outcome is Outcome.CONVERGED for r in results) else 3)


@app.command()
def tables(
    directory: Annotated[Path, typer.Argument(help="Made when absent.")],
    seed: Annotated[int, typer.Option("--seed", min=0, help="Another draw of patients.")] = 0,
) -> None:
    """Write the demonstration's tables (scikit-learn's diabetes study, three sites) and its federation.toml."""
    from coreg_sim.demo import federation_toml
    from coreg_sim.diabetes import deal

    directory.mkdir(parents=True, exist_ok=True)
    dealt = deal(directory, seed)
    (directory / "federation.toml").write_text(federation_toml(sorted(dealt.tables)), encoding="utf-8")
    for path in (*dealt.tables.values(), *dealt.held_out.values(), directory / "federation.toml"):
        typer.echo(str(path))


@app.command()
def paper(
    name: Annotated[str, typer.Argument(metavar="NAME", help=", ".join(NAMES) + ", or all.")],
    data: Annotated[
        Path, typer.Option("--data", help="The folder of data sets: one CSV each, listed in manifest.json.")
    ],
    quick: Annotated[bool, typer.Option("--quick", help="A small form of it, which shows that it runs.")] = False,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Processes; more than 1 needs Ray (extra sim).")] = 1,
    out: Annotated[Path, typer.Option("--out", help="Folder for the results; a killed run goes on there.")] = Path(
        "paper-out"
    ),
    fetch: Annotated[bool, typer.Option("--fetch", help="Fetch from OpenML what the folder lacks.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run a paper's experiment on real data, and show its table beside what comes out here."""
    from coreg_sim.papers import pool as pools
    from coreg_sim.papers.report import show, waiting

    experiments = [find(each) for each in (NAMES if name == "all" else (name,))]
    if fetch:
        wanted = tuple(dict.fromkeys(each for experiment in experiments for each in experiment.sets))
        for lacking in pools.fetch(wanted, data):
            typer.echo(f"{lacking}: not on OpenML in a form that can be read; its rows will be absent.", err=True)
    pool = pools.Pool(data)
    for experiment in experiments:
        with waiting(experiment.name) as progress:
            outcome = run_experiment(experiment, pool, out, quick=quick, jobs=jobs, progress=progress)
        if as_json:
            console.print_json(json.loads(outcome.path.read_text(encoding="utf-8")))
        else:
            show(experiment, outcome)


def _plain(result: Simulated) -> dict[str, Any]:
    return {
        "schedule": result.schedule,
        "stop": result.outcome.name,
        "rounds": result.rounds,
        "steps_in_series": result.steps_in_series,
        "numbers_sent": result.numbers_sent,
        "seconds": round(result.seconds, 6),
        "certified_gap": result.certified_gap,
        "certified_prediction_bound": result.certified_prediction_bound,
        "objective": result.objective,
    }


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


def main() -> None:
    """The console script."""
    raise SystemExit(console.run(app, "coreg-sim"))
