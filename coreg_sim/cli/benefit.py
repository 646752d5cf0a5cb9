"""coreg-sim benefit: the benefit of joining on a table of the user's own, for each method and site."""

import re
import sys
import textwrap
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coreg_core.errors import UsageError
from coreg_wire.files.toml_file import unknown_key
from coreg_wire.terminal.command_line import print_json

if TYPE_CHECKING:
    from coreg_sim.benefit.own import OwnTable
    from coreg_sim.benefit.partition import AttributeTable, Regime
    from coreg_sim.benefit.trial import SiteOutcome

ADVICE = (
    "Correct it, or use --drop, --dates, --categorical, --na-values, --separator or --decimal (or keys of views.toml)."
)
SENTENCES = 110  # columns of a finding in a file or a wide terminal


def listed(values: list[str] | None) -> list[str]:
    """The values of a repeatable option; one value can hold several, with commas."""
    return [name for value in values or () for name in value.split(",") if name]


def benefit(
    context: typer.Context,
    data: Annotated[Path | None, typer.Option("--data", help="Your table (CSV, Parquet).")] = None,
    target: Annotated[str | None, typer.Option("--target", help="The target column of the table.")] = None,
    positive: Annotated[
        str,
        typer.Option("--positive", help="The value of a yes/no target that means 1. A target of 0 and 1 needs none."),
    ] = "",
    drop: Annotated[
        list[str] | None,
        typer.Option(
            "--drop",
            callback=listed,
            help="A column of the table to leave out, such as an id; repeatable, or NAME,NAME.",
        ),
    ] = None,
    dates: Annotated[
        list[str] | None,
        typer.Option("--dates", help="The format of a column of dates, such as 'when=%d/%m/%Y'; repeatable [found]."),
    ] = None,
    categorical: Annotated[
        list[str] | None,
        typer.Option(
            "--categorical", callback=listed, help="A column of texts, also if most look like numbers; repeatable."
        ),
    ] = None,
    na_values: Annotated[
        list[str] | None,
        typer.Option(
            "--na-values",
            callback=listed,
            help="A text that means a missing value, instead of NA and NULL; repeatable, or TEXT,TEXT.",
        ),
    ] = None,
    separator: Annotated[
        str | None, typer.Option("--separator", help="What separates the columns: ',', ';' or tab [found].")
    ] = None,
    decimal: Annotated[str | None, typer.Option("--decimal", help="The decimal mark: . or , [found].")] = None,
    views: Annotated[
        Path | None,
        typer.Option("--views", help="A views.toml with your table, its target and the columns of each site."),
    ] = None,
    regimes: Annotated[
        str,
        typer.Option("--regimes", help="Labels of each site, with commas: n10, n20, … n1000, M2, M5, M8, rich, one."),
    ] = "n20,n50",
    draws: Annotated[int, typer.Option("--draws", min=1, help="Divisions of the table for each regime.")] = 10,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Processes on this machine.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure on your own table whether joining pays.

    Rows and columns are divided over simulated sites, and each method is compared with each site alone."""
    if context.args:
        text = "Write several names with commas and without spaces, as in --regimes n20,n50."
        if Path(context.args[0]).exists():
            text = f"Give a table with --data {context.args[0]}."
        raise UsageError(f"unexpected {' '.join(context.args)}. {text}")
    from coreg_sim.benefit.own import OwnTable  # scikit-learn and polars take one second to import
    from coreg_sim.benefit.partition import REGIMES, fits, needs
    from coreg_sim.benefit.verdict import HEADING, LEAST, by_site, figures, findings
    from site_agent.data.sources import BadTable

    if views is not None:
        if data or target or drop or dates or categorical or separator or decimal:
            raise UsageError(
                f"{views} names the table, its target and columns. Leave out --data, --target and the like."
            )
        source = OwnTable.divided(views, positive, tuple(na_values or ()))
    elif data is None or target is None:
        raise UsageError(
            "Name your table and the column to predict: --data FILE --target COLUMN, or --views views.toml."
        )
    else:
        columns = (tuple(drop or ()), tuple(dates or ()), positive, tuple(categorical or ()), tuple(na_values or ()))
        source = OwnTable(str(data), target, *columns, separator, decimal)
    names, chosen = [name for name, _ in source.sites], _chosen(regimes, divided=bool(source.sites))
    chosen = [regime.with_sites(len(names) or len(regime.labels)) for regime in chosen]
    try:
        table, sentences, leaks = source.read()
    except BadTable as error:  # its advice is for a site that has an agent.toml
        raise error.advised(lambda todo: ADVICE if "--" in todo else todo) from None
    for sentence in (*sentences, *leaks):
        typer.echo(f"{source.path}: {sentence}", err=True)
    size = f"{len(table.y)} rows with a target, {len(table.attributes)} columns"
    small = [needs(regime, divided=bool(names)) for regime in chosen if not fits(table, regime)]
    chosen = [regime for regime in chosen if fits(table, regime)]
    if not chosen:
        least = REGIMES["n10"].with_sites(len(names) or 3)
        raise UsageError(
            f"The table is too small: {size}. {'; '.join(small)}. Choose other --regimes (the smallest: "
            f"{needs(least, divided=bool(names))})."
        )
    for sentence in small:
        typer.echo(f"{sentence}: left out. Yours has {size}.", err=True)
    found = _simulate(table, chosen, draws, jobs)
    told, values = list(HEADING), {}
    for regime in chosen:
        labelled = [site for site in found[regime.name] if site.labels]
        told += findings(regime, labelled)
        values[regime.name] = figures(labelled)
    told += [by_site(regime, found[regime.name], names) for regime in chosen if names]
    told += _doubts(source, leaks)
    if as_json:
        few = {regime.name: sum(regime.labels) for regime in chosen if sum(regime.labels) < LEAST}
        print_json({"regimes": values, "findings": told, "refused_by_default": few})
        return
    for sentence in told:
        typer.echo(_wrapped(sentence))


def _chosen(names: str, *, divided: bool) -> "list[Regime]":
    """The regimes of these names; UsageError for an unknown one."""
    from coreg_sim.benefit.partition import REGIMES, SITES

    chosen = list(dict.fromkeys(names.split(",")))
    for name in chosen:
        if name in REGIMES:
            continue
        sizes = [each for each in REGIMES if re.fullmatch(r"n\d+", each)]
        told = unknown_key(name, REGIMES, "regime")
        if re.fullmatch(r"n\d+", name):  # n30 is nearest to n20 as a number, and to n50 as a text
            nearest = min(sizes, key=lambda size: abs(int(size[1:]) - int(name[1:])))
            told = f"unknown regime; did you mean {nearest}?"
        raise UsageError(f"--regimes {name}: {told} There are {', '.join(REGIMES)}.")
    if refused := [name for name in chosen if divided and name in SITES]:
        raise UsageError(f"--regimes {', '.join(refused)}: about the number of sites, which --views has fixed.")
    return [REGIMES[name] for name in chosen]


def _simulate(
    table: "AttributeTable", regimes: "list[Regime]", draws: int, jobs: int
) -> "dict[str, list[SiteOutcome]]":
    """All sites of all draws of each regime. A line for every tenth goes to standard error."""
    from sklearn.utils.parallel import Parallel, delayed

    from coreg_sim.benefit.partition import partition
    from coreg_sim.benefit.trial import trial

    # Each regime has its own seed. Otherwise all regimes of a draw would have the same columns.
    asked = [
        (regime, draw, (draw, zlib.crc32(b""), zlib.crc32(regime.name.encode())))
        for draw in range(draws)
        for regime in regimes
    ]
    tasks = (delayed(trial)(partition(table, regime, seed), draw) for regime, draw, seed in asked)
    found: dict[str, list[SiteOutcome]] = {regime.name: [] for regime in regimes}
    done = Parallel(jobs, return_as="generator")(tasks)
    for count, ((regime, *_), sites) in enumerate(zip(asked, done, strict=True), 1):
        found[regime.name] += sites
        if 10 * count // len(asked) > 10 * (count - 1) // len(asked):
            print(f"benefit: {count} of {len(asked)} federations", file=sys.stderr, flush=True)  # noqa: T201
    return found


def _doubts(source: "OwnTable", leaks: tuple[str, ...]) -> list[str]:
    """Reasons to doubt the verdict that no figure shows."""
    out = [f"The verdict may be void: {leak}" for leak in leaks]
    if len(source.sites) == 2:
        out.append(
            "With two sites each can compute the answers of the other. Use at least three, or two that trust each other."
        )
    if not source.sites:
        out.append(
            "The columns were divided over the sites at random. If all of them are yours, the verdict is about such a "
            "division, and cannot tell what the partners' columns would bring."
        )
    return out


def _wrapped(sentence: str) -> str:
    """A sentence in lines; the lines of a table stay."""
    first, *rest = sentence.split("\n")
    lines = textwrap.wrap(first, SENTENCES, initial_indent="- ", break_on_hyphens=False)
    for line in rest:
        words = line.lstrip()
        long = textwrap.wrap(words, SENTENCES, initial_indent=line[: -len(words)], break_on_hyphens=False)
        lines += long if len(line) > SENTENCES else [line]
    return "\n".join(lines)
