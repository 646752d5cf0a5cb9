"""coreg-sim benefit: the benefit of joining on real tables, for each method and site."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coreg_core.errors import UsageError, require_scikit_learn
from coreg_sim.cli.options import Address, Categorical, Dates, Drop, JsonOption, NaValues, Positive, Target
from coreg_sim.study.jobs import JSON, Where, run_study, software
from coreg_wire.terminal import output

if TYPE_CHECKING:
    from coreg_sim.benefit.summary import SiteOutcome
    from coreg_sim.study.report import Report


def benefit(
    context: typer.Context,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", help="Your table (CSV, Parquet), or a folder with manifest.json [scikit-learn's diabetes]."
        ),
    ] = None,
    target: Target = None,
    positive: Positive = "",
    drop: Drop = None,
    dates: Dates = None,
    categorical: Categorical = None,
    na_values: NaValues = None,
    views: Annotated[
        Path | None,
        typer.Option("--views", help="A views.toml with your table, its target and the columns of each site."),
    ] = None,
    sets: Annotated[
        str | None,
        typer.Option(
            "--sets", help="Names of data sets, or the groups chosen-on, judged-on (docs/research/benefit.md) [all]."
        ),
    ] = None,
    regimes: Annotated[
        str | None, typer.Option("--regimes", help="Names of partitions, with commas: n20,M5,rich,... [all].")
    ] = None,
    draws: Annotated[
        int | None, typer.Option("--draws", min=1, help="Draws of each set and regime [3; 2 if quick].")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Use at most 1000 rows of each table, and fewer draws.")
    ] = False,
    jobs: Annotated[
        int, typer.Option("--jobs", min=1, help="Processes on this machine; more than 1 needs Ray (extra sim).")
    ] = 1,
    address: Address = None,
    out: Annotated[
        Path, typer.Option("--out", help="Folder for the results. An interrupted study resumes from it.")
    ] = Path("benefit-out"),
    details: Annotated[bool, typer.Option("--details", help="Print the tables too: methods, regimes, sets.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure on real tables whether joining pays. Each method is compared with each site alone: gains, losses, forecasts.

    Needs the extra `estimators`.
    """
    if context.args:
        text = "Write several names with commas and without spaces, as in --regimes n20,n50."
        if Path(context.args[0]).exists():
            text = f"Give a table with --data {context.args[0]}."
        raise UsageError(f"unexpected {' '.join(context.args)}. {text}")
    require_scikit_learn("benefit")
    from coreg_sim.benefit.findings import by_site
    from coreg_sim.benefit.own import OwnTable
    from coreg_sim.benefit.partition import REGIMES, fits, needs
    from coreg_sim.benefit.report import calibration, report
    from coreg_sim.benefit.study import CHOSEN_ON, study, too_small
    from coreg_sim.benefit.summary import headline, site_outcomes  # scikit-learn and polars take one second to import
    from coreg_sim.study.terminal import show, waiting

    source: Path | OwnTable | None = data
    of_a_table = bool(target or drop or dates or positive or categorical or na_values)
    if views is not None:
        if data or target or drop or dates or categorical:
            raise UsageError(
                f"{views} names the table, its target and columns. Leave out --data, --target and the like."
            )
        source = OwnTable.divided(views, positive, tuple(na_values or ()))
    elif data is not None and not data.is_dir() and target is not None:
        columns = (tuple(drop or ()), tuple(dates or ()), positive, tuple(categorical or ()), tuple(na_values or ()))
        source = OwnTable(str(data), target, *columns)
    elif data is not None and data.is_file():
        raise UsageError(f"--data {data} is a table. Name the column to predict with --target.")
    elif of_a_table:
        raise UsageError(
            "--target, --positive, --drop, --dates, --categorical and --na-values are for a table. Name it: --data FILE."
        )
    leaks: tuple[str, ...] = ()
    if isinstance(source, OwnTable):
        _, sentences, leaks = source.read()
        for sentence in (*sentences, *leaks):
            typer.echo(f"{source.path}: {sentence}", err=True)
    names = [name for name, _ in source.sites] if isinstance(source, OwnTable) else []
    if address is not None and jobs != 1:
        raise UsageError("--jobs is for this machine, and --address for a cluster. Give one of them.")
    if sets is not None and isinstance(source, OwnTable):
        raise UsageError("--sets chooses from a folder. Leave it out.")
    if source is None:
        typer.echo("no --data: this is scikit-learn's diabetes table. For yours: --data FILE --target COLUMN", err=True)
    asked, page_name = study(source, sets, regimes, draws=draws, quick=quick), "benefit-quick" if quick else "benefit"
    if not set(others := _sets_of(out / f"{page_name}.json")) <= set(asked.sets):
        raise UsageError(
            f"{out / page_name}.json is of another study ({', '.join(others)}). Give another folder: --out."
        )
    small: list[str] = []
    if isinstance(source, OwnTable):  # before the first job; a folder's sets are read by the jobs
        small = [name for name in asked.regimes if not fits(source.read()[0], REGIMES[name], asked.rows)]
        if len(small) == len(asked.regimes):
            raise UsageError(too_small(asked, source, len(names)))
        for name in small:
            typer.echo(f"{needs(name, len(names))}: left out. Yours has {source.size()}.", err=True)

    def reported(found: "list[SiteOutcome]") -> "Report":
        whole = report(found, research=isinstance(source, Path))
        doubts = tuple(f"The verdict may be void: {leak}" for leak in leaks)
        if isinstance(source, OwnTable) and not source.sites:
            doubts += (
                "The columns were divided over the sites at random. If all of them are yours, the verdict is about such a "
                "division, and cannot tell what the partners' columns would bring.",
            )
        return replace(whole, findings=(*whole.findings, *(by_site(found, names) if names else ()), *doubts))

    def page(results: dict[str, dict[str, JSON]], seconds: float) -> dict[str, JSON]:
        found = site_outcomes(results)
        if not found:
            raise UsageError(too_small(asked, source, len(names)))
        return {
            "study": {**asdict(asked), "source": None},
            "federations": sum(map(bool, results.values())),
            "seconds": round(seconds, 1),
            "absent": [name for name in asked.sets if name not in {site.set for site in found}],
            **software(),
            "headline": headline(found),
            "calibration": calibration([site for site in found if site.counted and site.set not in CHOSEN_ON]),
            "report": asdict(reported(found)),
        }

    with waiting("benefit") as progress:
        done = run_study(
            asked,
            out,
            page_name,
            Where(jobs if address is None else None, address),
            page,
            progress,
        )
    for name in done.page["absent"]:
        typer.echo(f"{name}: too few rows or columns for any of these regimes.", err=True)
    used = {key.split("/")[-2] for key, result in done.results.items() if result}
    for name in asked.regimes:
        if name not in used and name not in small:
            typer.echo(f"{needs(name, len(names))}: left out.", err=True)
    if as_json:
        output.print_json({**done.page["headline"], "findings": list(done.page["report"]["findings"])})
    else:
        closing = done.summary(done.page["federations"], "federation" + "s" * (done.page["federations"] != 1))
        show(
            reported(site_outcomes(done.results)),
            closing if details else f"{closing}. Add --details for the tables.",
            details=details,
        )


def _sets_of(page: Path) -> tuple[str, ...]:
    """The data sets of an earlier result; () without one."""
    try:
        return tuple(json.loads(page.read_text(encoding="utf-8"))["study"]["sets"])
    except (OSError, ValueError, LookupError, TypeError):
        return ()
