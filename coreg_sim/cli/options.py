"""Options and values that the commands share."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from coreg_core.agreement.objective import ScheduleName
from coreg_core.errors import UsageError
from coreg_core.protocol.plan import Aggregation, Agreement, Form, Plan
from coreg_sim.federation.problems import Problem, from_table, generated
from coreg_sim.federation.simulate import ClosedForm, Hosting, closed_form, in_process

Sites = Annotated[int, typer.Option("--sites", min=1, help="How many sites.")]
Labelled = Annotated[int, typer.Option("--labelled", min=1, help="Labelled instances of each site.")]
Unlabelled = Annotated[
    int | None,
    typer.Option("--unlabelled", min=1, help="Shared unlabelled instances [500; two thirds of a table's rest]."),
]
Views = Annotated[
    str,
    typer.Option("--views", help="Features of each site (generated data), or a views.toml: who has which columns."),
]
CouplingOption = Annotated[float, typer.Option("--coupling", min=0, help="λ.")]
FormOption = Annotated[Form, typer.Option("--form", help="The form of the views.")]
ScheduleOption = Annotated[ScheduleName, typer.Option("--schedule", help="The schedule of the rounds.")]
Tolerance = Annotated[float, typer.Option("--tolerance", min=0, help="Certified gap over Σ‖y‖².")]
PredictionTolerance = Annotated[
    float | None,
    typer.Option(
        "--prediction-tolerance", min=0, help="Certified error of the predictions (2-norm) [1e-5 √m: 1e-5 an instance]."
    ),
]
MaxRounds = Annotated[int, typer.Option("--max-rounds", min=1, help="Most rounds (sweeps).")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Of the data and of the draw.")]
Data = Annotated[Path | None, typer.Option("--data", help="A CSV or Parquet table instead of generated data.")]
Drop = Annotated[list[str] | None, typer.Option("--drop", help="A column of it to leave out, as an id; repeatable.")]
Target = Annotated[str | None, typer.Option("--target", help="Its target column.")]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON, for machines.")]
ObjectiveOption = Annotated[
    Literal["agreement", "additive"],
    typer.Option("--objective", help="agreement (the paper's), or additive: sites learn parts that add up."),
]
Threads = Annotated[int, typer.Option("--threads", min=1, help="BLAS threads.")]
On = Annotated[
    Literal["process", "ray"], typer.Option("--on", help="Where the sites are: this process, or Ray (extra sim).")
]
Address = Annotated[
    str | None,
    typer.Option("--address", help="A Ray cluster to join, auto or HOST:PORT; without it Ray is started here."),
]
SitesPerActor = Annotated[
    int | None, typer.Option("--sites-per-actor", min=1, help="Sites in one process of Ray [sites over cores].")
]
AggregationOption = Annotated[
    Aggregation,
    typer.Option(
        "--aggregation",
        help="plaintext, or secure: masked as between organisations. The same bits, and the cost of masking.",
    ),
]

DEFAULT_COUPLING = Agreement().coupling[0]
WITHOUT_RAY = "leave --on ray out"


def problem_of(
    data: Path | None,
    target: str | None,
    drop: list[str] | None,
    sites: int,
    labelled: int,
    unlabelled: int | None,
    views: str,
    seed: int,
) -> Problem:
    """The sites' data: generated, a table whose columns go to the sites in turn, or a table divided by a views.toml."""
    check_table(data, target, drop, views)
    if not views.isdigit():
        from coreg_sim.federation.views_file import partitioned, read_views  # here: polars takes a second to import

        return partitioned(read_views(Path(views)), labelled, unlabelled, seed)
    if data is None or target is None:
        return generated(sites, labelled, unlabelled or 500, int(views), seed)
    return from_table(data, target, sites, labelled, unlabelled, seed, drop or [])


def check_table(data: Path | None, target: str | None, drop: list[str] | None, views: str) -> None:
    """Raise a UsageError where the options of a table do not go together."""
    if not views.isdigit() and (data is not None or target is not None or drop):
        raise UsageError(
            f"--views {views} names table, target and columns itself; leave --data, --target and --drop out."
        )
    if data is not None and target is None:
        raise UsageError("--data needs --target, the column to predict.")


@dataclass(frozen=True)
class Place:
    """Where the sites are, and how the closed form is computed there."""

    hosting: Hosting = in_process
    closed_form: Callable[[Problem, Plan], ClosedForm] = closed_form


@contextmanager
def place(on: str, address: str | None, sites_per_actor: int | None) -> Iterator[Place]:
    """Where the sites will be, for as long as the block lasts."""
    if on == "process":
        if address is not None or sites_per_actor is not None:
            raise UsageError("--address and --sites-per-actor are Ray's: add --on ray.")
        yield Place()
        return
    from coreg_sim.over_ray import OverRay
    from coreg_sim.ray_cluster import connected

    with connected(address, instead=WITHOUT_RAY) as cluster:
        over_ray = OverRay(cluster, sites_per_actor)
        yield Place(over_ray, over_ray.closed_form)
