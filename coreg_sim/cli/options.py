"""Options shared by the commands."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer

from coreg_core.errors import UsageError
from coreg_core.names import ScheduleName
from coreg_core.objectives.additive import Additive
from coreg_core.objectives.agreement import Agreement, Form
from coreg_core.objectives.setting import Aggregation
from coreg_core.protocol.plan import Plan
from coreg_sim.federation.problems import Problem, TableSource, from_table, generated, partitioned, read_views
from coreg_sim.federation.simulate import ClosedForm, Hosting, closed_form, in_process

Sites = Annotated[int, typer.Option("--sites", min=1, help="Number of sites.")]
Labelled = Annotated[int, typer.Option("--labelled", min=1, help="Labelled instances at each site.")]
Unlabelled = Annotated[
    int | None,
    typer.Option(
        "--unlabelled", min=1, help="Shared unlabelled instances [500; for a table two thirds of the other rows]."
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
Data = Annotated[Path | None, typer.Option("--data", help="A CSV or Parquet table instead of generated data.")]


def listed(values: list[str] | None) -> list[str]:
    """The values of a repeatable option; one value can hold several, with commas."""
    return [name for value in values or () for name in value.split(",") if name]


Drop = Annotated[
    list[str] | None,
    typer.Option(
        "--drop", callback=listed, help="A column of the table to leave out, such as an id; repeatable, or NAME,NAME."
    ),
]
Dates = Annotated[
    list[str] | None,
    typer.Option("--dates", help="The format of a column of dates, such as 'when=%d/%m/%Y'; repeatable [found]."),
]
Separator = Annotated[
    str | None, typer.Option("--separator", help="What separates the columns: ',', ';' or tab [found].")
]
Decimal = Annotated[str | None, typer.Option("--decimal", help="The decimal mark: . or , [found].")]
Categorical = Annotated[
    list[str] | None,
    typer.Option(
        "--categorical", callback=listed, help="A column of texts, also if most look like numbers; repeatable."
    ),
]
NaValues = Annotated[
    list[str] | None,
    typer.Option(
        "--na-values",
        callback=listed,
        help="A text that means a missing value, instead of NA and NULL; repeatable, or TEXT,TEXT.",
    ),
]
Target = Annotated[str | None, typer.Option("--target", help="The target column of the table.")]
Positive = Annotated[
    str, typer.Option("--positive", help="The value of a yes/no target that means 1. A target of 0 and 1 needs none.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
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

DEFAULTS, DEFAULT_COUPLING = Additive(), Agreement().coupling[0]
WITHOUT_RAY = "leave --on ray out"


def problem_of(
    table: TableSource | None,
    sites: int,
    labelled: int,
    unlabelled: int | None,
    views: str,
    seed: int,
    *,
    common: bool = False,
) -> Problem:
    """Generated, a table with its columns dealt in turn, or one split by a views.toml; ``common``: labelled rows are shared."""
    if not views.isdigit():
        return partitioned(read_views(Path(views)), labelled, unlabelled, seed, common=common)
    if table is None:
        return generated(sites, labelled, unlabelled or 500, int(views), seed, common=common)
    return from_table(table, sites, labelled, unlabelled, seed, common=common)


def table_of(
    data: Path | None,
    target: str | None,
    drop: list[str] | None,
    dates: list[str] | None,
    views: str = "",
    positive: str = "",
    categorical: list[str] | None = None,
    na_values: list[str] | None = None,
    separator: str | None = None,
    decimal: str | None = None,
) -> TableSource | None:
    """The table that the options name, if they do; a UsageError if they contradict each other."""
    given = data is not None or target or drop or dates or positive or categorical or na_values or separator or decimal
    if views and not views.isdigit() and given:
        raise UsageError(
            f"--views {views} names table, target and columns. Leave out the options of a table (--data, --target and others)."
        )
    if not given:
        return None
    if data is None or not target:
        raise UsageError("A table needs --data FILE and --target, the column to predict.")
    columns = (tuple(drop or ()), tuple(dates or ()), positive, tuple(categorical or ()), tuple(na_values or ()))
    return TableSource(str(data.resolve()), target, *columns, separator, decimal)


Place = tuple[Hosting, Callable[[Problem, Plan], ClosedForm]]  # the host of the sites, and its closed form


@contextmanager
def place(on: str, address: str | None, sites_per_actor: int | None) -> Iterator[Place]:
    """The host of the sites while the block runs."""
    if on == "process":
        if address is not None or sites_per_actor is not None:
            raise UsageError("--address and --sites-per-actor need Ray. Add --on ray.")
        yield in_process, closed_form
        return
    from coreg_sim.over_ray import OverRay, connected

    with connected(address, instead=WITHOUT_RAY) as cluster:
        over_ray = OverRay(cluster, sites_per_actor)
        yield over_ray, over_ray.closed_form
