"""coreg-sim benefit: the benefit of joining on a table of the user's own, for each method and
site.
"""

import sys
import textwrap
import zlib
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coreg_core.errors import UsageError
from coreg_wire.terminal.command_line import print_json
from coreg_wire.terminal.text import echo
from site_agent.config.options import OWN, with_settings

if TYPE_CHECKING:
    from coreg_sim.benefit.own import OwnTable
    from coreg_sim.benefit.partition import AttributeTable, Regime
    from coreg_sim.benefit.trial import SiteOutcome

ADVICE = (
    "Correct it, or use --na-values, or the keys dates, categorical, separator or decimal of"
    " views.toml."
)
SENTENCES = 110  # columns of a finding in a file or a wide terminal


@with_settings(without=frozenset({"target", "id", "unlabelled", "scale", "labels", *OWN}))
def benefit(
    context: typer.Context,
    given: dict[str, Any],
    target: Annotated[str | None, typer.Option(help="The column to predict.")] = None,
    views: Annotated[
        Path | None,
        typer.Option(help="A views.toml with your table, its target and the columns of each site."),
    ] = None,
    regimes: Annotated[
        str,
        typer.Option(
            help="Labels of each site, with commas: n10, n20, … n1000, M2, M5, M8, rich, one.",
        ),
    ] = "n20,n50",
    draws: Annotated[int, typer.Option(min=1, help="Divisions of the table for each regime.")] = 10,
    jobs: Annotated[int, typer.Option(min=1, help="Processes on this machine.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure on your own table whether joining pays.

    Rows and columns are divided over simulated sites, and each method is compared with each site
    alone. Give --data and --target, or --views.
    """
    from coreg_sim.benefit.verdict import HEADING, LEAST, by_site, figures, findings

    source = _source(context, given, target, views)
    names = [name for name, _ in source.sites]
    chosen = _chosen(regimes, len(names))
    table, leaks = _table(source, advised=views is not None)
    chosen = _large_enough(table, chosen, len(names))
    outcomes = _simulate(table, chosen, draws, jobs)
    report = list(HEADING)
    values = {}
    few = {}
    for regime in chosen:
        labelled = [site for site in outcomes[regime.name] if site.labels]
        report += findings(regime, labelled)
        values[regime.name] = figures(labelled)
        n = sum(regime.labels)
        if n < LEAST:
            few[regime.name] = n
    if names:
        report += [by_site(regime, outcomes[regime.name], names) for regime in chosen]
    report += _doubts(source, leaks)
    if as_json:
        print_json({"regimes": values, "findings": report, "refused_by_default": few})
        return
    for sentence in report:
        echo(_wrapped(sentence))


def _source(
    context: typer.Context, given: dict[str, Any], target: str | None, views: Path | None
) -> "OwnTable":
    """The table that the command names; UsageError: it names none, or several."""
    if context.args:
        text = "Write several names with commas and without spaces, as in --regimes n20,n50."
        if Path(context.args[0]).exists():
            text = f"Give a table with --data {context.args[0]}."
        raise UsageError(f"unexpected {' '.join(context.args)}. {text}")
    from coreg_sim.benefit.own import OwnTable  # scikit-learn and polars take one second to import
    from site_agent.config.settings import inputs_of

    options = {key: value for key, value in (given | {"target": target}).items() if value}
    if views is None:
        if "data" not in options or "target" not in options:
            raise UsageError(
                "Name your table and the column to predict: --data FILE --target COLUMN, or"
                " --views FILE."
            )
        return OwnTable(inputs_of(options))
    typed = {
        key: value
        for key, value in options.items()
        if getattr(context.get_parameter_source(key), "name", "") == "COMMANDLINE"
    }  # no COREG_DATA of an agent
    if typed.keys() - {"positive", "na_values"}:
        raise UsageError(
            f"{views} names the table and its columns. Leave out --data, --target and the like."
        )
    return OwnTable.divided(views, **typed)


def _table(source: "OwnTable", *, advised: bool) -> "tuple[AttributeTable, tuple[str, ...]]":
    """The table, and sentences about columns that can be the target itself; prints all doubts.

    ``advised``: errors advise keys of views.toml, which other options would contradict.
    """
    from site_agent.data.sources import BadTable

    try:
        table, sentences, leaks = source.read()
    except BadTable as error:
        if not advised:
            raise
        raise error.advised(_advice) from None
    for sentence in (*sentences, *leaks):
        echo(f"{source.name}: {sentence}", err=True)
    return table, leaks


def _advice(todo: str) -> str:
    """Advice for a table of a views.toml, instead of options that it does not have."""
    if "--" in todo and "--positive" not in todo:
        return ADVICE
    return todo


def _chosen(names: str, n_sites: int) -> "list[Regime]":
    """The regimes of these names, at so many sites (0: as many as the regime has); UsageError for
    an unknown one.
    """
    from coreg_sim.benefit.partition import REGIMES, SITES

    chosen = list(dict.fromkeys(names.split(",")))
    unknown = [name for name in chosen if name not in REGIMES]
    if unknown:
        raise UsageError(f"--regimes {unknown[0]}: no such regime. There are {', '.join(REGIMES)}.")
    if not n_sites:
        return [REGIMES[name] for name in chosen]
    refused = [name for name in chosen if name in SITES]
    if refused:
        raise UsageError(
            f"--regimes {', '.join(refused)}: about the number of sites, which --views has fixed."
        )
    return [REGIMES[name].with_sites(n_sites) for name in chosen]


def _large_enough(table: "AttributeTable", regimes: "list[Regime]", n_sites: int) -> "list[Regime]":
    """The regimes that the table has enough rows for; prints the others. UsageError: none is."""
    from coreg_sim.benefit.partition import REGIMES, fits, needs

    divided = n_sites > 0
    size = f"{len(table.y)} rows with a target, {len(table.attributes)} columns"
    small = [needs(regime, divided=divided) for regime in regimes if not fits(table, regime)]
    if len(small) == len(regimes):
        least = REGIMES["n10"].with_sites(n_sites or 3)
        raise UsageError(
            f"The table is too small: {size}. {'; '.join(small)}. Choose other --regimes (the"
            f" smallest: {needs(least, divided=divided)})."
        )
    for sentence in small:
        echo(f"{sentence}: left out. Yours has {size}.", err=True)
    return [regime for regime in regimes if fits(table, regime)]


def _simulate(
    table: "AttributeTable", regimes: "list[Regime]", draws: int, jobs: int
) -> "dict[str, list[SiteOutcome]]":
    """All sites of all draws of each regime. A line for every tenth goes to standard error."""
    from sklearn.utils.parallel import Parallel, delayed

    from coreg_sim.benefit.partition import partition
    from coreg_sim.benefit.trial import trial

    # Each regime has its own seed. Otherwise all regimes of a draw would have the same columns.
    seeds = {regime.name: zlib.crc32(regime.name.encode()) for regime in regimes}
    trials = list(product(range(draws), regimes))
    tasks = (
        delayed(trial)(partition(table, regime, (draw, 0, seeds[regime.name])), draw)
        for draw, regime in trials
    )
    outcomes: dict[str, list[SiteOutcome]] = {regime.name: [] for regime in regimes}
    done = Parallel(jobs, return_as="generator")(tasks)
    for count, ((_, regime), sites) in enumerate(zip(trials, done, strict=True), 1):
        outcomes[regime.name] += sites
        if 10 * count // len(trials) > 10 * (count - 1) // len(trials):
            print(f"benefit: {count} of {len(trials)} federations", file=sys.stderr, flush=True)  # noqa: T201
    return outcomes


def _doubts(source: "OwnTable", leaks: tuple[str, ...]) -> list[str]:
    """Reasons to doubt the verdict that no figure shows."""
    out = [f"The verdict may be void: {leak}" for leak in leaks]
    if len(source.sites) == 2:
        out.append(
            "With two sites each can compute the answers of the other. Use at least three, or two"
            " that trust each other."
        )
    if not source.sites:
        out.append(
            "The columns were divided over the sites at random. If all of them are yours, the"
            " verdict is about such a division, and cannot tell what the partners' columns would"
            " bring."
        )
    return out


def _wrapped(sentence: str) -> str:
    """A sentence in lines; the lines of a table below it stay."""
    first, *table = sentence.split("\n")
    return "\n".join([textwrap.fill(f"- {first}", SENTENCES, break_on_hyphens=False), *table])
