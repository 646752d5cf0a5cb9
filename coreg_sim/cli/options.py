"""What the commands share: options, where the data and the sites are, and how a run's figures are told."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from coreg_core.errors import UsageError
from coreg_core.protocol.plan import Agreement, Answers, Form, Plan, Wire
from coreg_sim.federation.problems import Problem, from_table, generated
from coreg_sim.federation.simulate import Carry, ClosedForm, Simulated, closed_form, in_process

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
Coupling = Annotated[float, typer.Option("--coupling", min=0, help="λ.")]
FormOption = Annotated[str, typer.Option("--form", help="exact, semi-parametric, landmarks or linear.")]
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
ObjectiveName = Annotated[
    str, typer.Option("--objective", help="agreement (the paper's), or additive: sites learn parts that add up.")
]
Threads = Annotated[int, typer.Option("--threads", min=1, help="BLAS threads.")]
On = Annotated[str, typer.Option("--on", help="Where the sites are: process (this one) or ray (extra sim).")]
Address = Annotated[
    str | None,
    typer.Option("--address", help="A Ray cluster to join, auto or HOST:PORT; without it Ray is started here."),
]
SitesPerActor = Annotated[
    int | None, typer.Option("--sites-per-actor", min=1, help="Sites in one process of Ray [sites over cores].")
]

AnswersOption = Annotated[
    str,
    typer.Option(
        "--answers",
        help="clear, or sums: masked as between organisations. The same bits (but for --wire float32), and the work of masking.",
    ),
]
WireOption = Annotated[
    str, typer.Option("--wire", help="float64; or float32 for search directions, of conjugate gradients alone.")
]

ANSWERS: tuple[str, ...] = get_args(Answers)
WIRES: tuple[str, ...] = get_args(Wire)
OBJECTIVES = ("agreement", "additive")
FORMS: tuple[str, ...] = get_args(Form)
PLACES = ("process", "ray")
DEFAULT_COUPLING = Agreement().coupling[0]
WITHOUT_RAY = "leave --on ray out"


def check(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """One of the words that there are.

    Raises
    ------
    UsageError
        It is none; the message lists them.
    """
    if value not in allowed:
        raise UsageError(f"--{name} {value}: choose one of {', '.join(allowed)}.")


def problem_of(
    data: Path | None,
    target: str | None,
    drop: list[str],
    sites: int,
    labelled: int,
    unlabelled: int | None,
    views: str,
    seed: int,
) -> Problem:
    """The sites' data: generated, a table's columns dealt out in turn, or a table parted by a views.toml.

    Raises
    ------
    UsageError
        Options that do not go together.
    BadData
        A table that cannot be parted so.
    """
    if not views.isdigit():
        from coreg_sim.federation.views_file import parted, read_views  # here: polars takes a second to import

        if data is not None or target is not None or drop:
            raise UsageError(
                f"--views {views} names table, target and columns itself; leave --data, --target and --drop out."
            )
        return parted(read_views(Path(views)), labelled, unlabelled, seed)
    if data is None:
        return generated(sites, labelled, unlabelled or 500, int(views), seed)
    if target is None:
        raise UsageError("--data needs --target, the column to predict.")
    return from_table(data, target, sites, labelled, unlabelled, seed, drop)


@dataclass(frozen=True)
class Place:
    """Where the sites are, and how the closed form is computed there."""

    carry: Carry = in_process
    closed_form: Callable[[Problem, Plan], ClosedForm] = closed_form


@contextmanager
def place(on: str, address: str | None, sites_per_actor: int | None) -> Iterator[Place]:
    """Where the sites will be, for as long as the block lasts.

    Raises
    ------
    UsageError
        Options that do not go together, or Ray is not installed.
    Unreachable
        Ray does not start, or no cluster answers.
    """
    check("on", on, PLACES)
    if on == "process":
        if address is not None or sites_per_actor is not None:
            raise UsageError("--address and --sites-per-actor are Ray's: add --on ray.")
        yield Place()
        return
    from coreg_sim import over_ray

    with over_ray.connected(address, instead=WITHOUT_RAY) as cluster:
        yield Place(over_ray.OverRay(cluster, sites_per_actor), partial(over_ray.closed_form, cluster))


def plain(result: Simulated) -> dict[str, Any]:
    """A run's figures, for JSON."""
    return {
        "schedule": result.schedule,
        "stop": result.outcome.name,
        "rounds": result.rounds,
        "steps_in_series": result.steps_in_series,
        "numbers_sent": result.numbers_sent,
        "bytes_sent": result.bytes_sent,
        "seconds": round(result.seconds, 6),
        "certified_gap": result.certified_gap,
        "certified_prediction_bound": result.certified_prediction_bound,
        "objective": result.objective,
    }
