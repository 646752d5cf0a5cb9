"""coreg-sim run: simulate one federation."""

import typer

from coordinator.observers.terminal import HEADINGS, PLAIN, cells
from coreg_core.agreement.schedules import SCHEDULE_NAMES
from coreg_core.errors import UsageError
from coreg_core.objectives.additive import Additive
from coreg_core.objectives.agreement import Agreement
from coreg_core.objectives.setting import Iteration
from coreg_core.protocol.outcomes import Notice, exit_code, told
from coreg_core.protocol.plan import plan_fault
from coreg_sim.cli import figures
from coreg_sim.cli import options as o
from coreg_sim.federation.simulate import plan_for, simulate
from coreg_wire.terminal import output

OPTIONS = {
    "agreement": ("coupling", "schedule", "form", "tolerance", "prediction_tolerance", "max_rounds", "aggregation"),
    "additive": ("kernel", "rows_per_feature", "noise", "label_noise", "private_rows"),
}


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
            output.print_json(notice.to_dict())
        else:
            typer.echo(PLAIN.format(*cells(notice.fields)))


def run(
    context: typer.Context,
    sites: o.Sites = 4,
    labelled: o.Labelled = 50,
    unlabelled: o.Unlabelled = None,
    views: o.Views = "5",
    coupling: o.CouplingOption = o.DEFAULT_COUPLING,
    schedule: o.ScheduleOption = SCHEDULE_NAMES[0],
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
    objective: o.ObjectiveOption = "additive",
    kernel: o.KernelOption = o.DEFAULTS.kernel,
    rows_per_feature: o.RowsPerFeature = o.DEFAULTS.rows_per_feature,
    noise: o.Noise = o.DEFAULTS.noise,
    label_noise: o.LabelNoise = o.DEFAULTS.label_noise,
    private_rows: o.PrivateRows = False,
    aggregation: o.AggregationOption = None,
    on: o.On = "process",
    address: o.Address = None,
    sites_per_actor: o.SitesPerActor = None,
    as_json: o.JsonOption = False,
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
    problem = o.problem_of(
        o.table_of(data, target, drop, dates, views, positive, categorical, na_values, separator, decimal),
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
    with o.place(on, address, sites_per_actor) as (hosting, _):
        result = simulate(problem, plan, _Printing(as_json=as_json), hosting)
    found = {**figures.figures(result), **figures.errors(problem, result)}
    if as_json:
        output.print_json({"event": "finished", **found})
    else:
        typer.echo("\n".join([told(result.outcome, result.reason), *figures.lines(found)]))
    raise typer.Exit(exit_code(result.outcome))
