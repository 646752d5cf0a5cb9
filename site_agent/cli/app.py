"""The command coreg-agent."""

import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coreg_core.numerics.threads import keep_freed_memory
from coreg_core.protocol.outcomes import exit_code
from coreg_wire.terminal import command_line
from coreg_wire.terminal.output import print_json
from site_agent.cli import ledger, models, service
from site_agent.cli.join import join as join_command
from site_agent.cli.service import JsonOption
from site_agent.config.options import with_settings

if TYPE_CHECKING:
    from site_agent.service.app import Joined
    from site_agent.service.console import OperatorConsole

# polars, SciPy, gRPC and pydantic take a second to import, so each command imports them when it runs.

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)

for _command in (*models.COMMANDS, *service.COMMANDS):
    app.command()(_command)
app.command("join")(join_command)
app.command()(ledger.ledger)
app.add_typer(models.app, name="models")

NEEDED = ("data", "coordinator")
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        envvar="COREG_CONFIG",
        readable=False,
        help="agent.toml: any of these options, without dashes [./agent.toml].",
    ),
]


@app.callback(invoke_without_command=True)
@with_settings()
def root(
    context: typer.Context, given: dict[str, Any], config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """Take part in one run of a federation with this organisation's own table. Without a command: join and write the model.

    A site types two commands: `coreg-agent join INVITATION` once, then `coreg-agent --data local.csv`. Before anything leaves, it
    shows the plan and asks; with new members it shows eight words, which all operators compare by telephone.

    The ledger has a line for each message that leaves this machine: the site's name and release; the number of shared
    instances, a digest of their ids and a salted digest of the data; for each step, encrypted numbers about the shared
    instances; the texts of refusals and faults. No record leaves.
    """
    if context.invoked_subcommand is not None:
        return
    # A container can set everything in its environment. With no setting at all, show the help.
    if len(sys.argv) == 1 and config is None and not any(given.values()):
        typer.echo(context.get_help())
        raise typer.Exit(2)
    from site_agent.service.app import join

    joined, console = _take_part(config, given, join, as_json=as_json)
    sent = {kind: {"messages": s.messages, "numbers": s.numbers} for kind, s in sorted(joined.sent.items())}
    result = joined.result
    if as_json:
        _print_end(
            joined,
            models=[str(p) for p in joined.written],
            sent=sent,
            label_bearing_vectors=joined.label_bearing.messages,
            findings=[] if result is None else list(result.findings),
            words_compared=not joined.unseen,
        )
    else:
        listed = ", ".join(f"{s['messages']} {kind} ({s['numbers']} numbers)" for kind, s in sent.items())
        labels = (
            f"{joined.label_bearing.messages} vectors among these, and some scalars, were computed from labels too"
            if "Answer" in sent
            else "no answer was computed from labels"
        )
        console.note(f"what left this machine: {listed}; {labels}; all entries are in {joined.ledger}")
        for path in joined.written:
            console.note(f"model: {path}")
        if joined.unseen:
            console.note("the eight words were NOT compared (--accept-words): any site of this run can be an invention")
        if joined.outcome.good and not joined.written:
            console.note("an earlier process of this agent has written the model of this run")
        if joined.written and result is not None and result.plan is not None:
            console.note(
                f"next: coreg-agent report --model {joined.written[0]}; "
                f"coreg-agent predict --model {joined.written[0]} --data new.csv --output predictions.csv"
            )
    raise typer.Exit(exit_code(joined.outcome))


def _take_part(
    config: Path | None, given: dict[str, Any], run: "Callable[..., Joined]", *, as_json: bool
) -> "tuple[Joined, OperatorConsole]":
    from site_agent.config.settings import read_settings
    from site_agent.service.console import OperatorConsole, Terminal

    console = OperatorConsole(as_json=as_json)
    try:
        settings = read_settings(config, given, NEEDED)
        asked = Terminal(consents=not settings.yes, before=console.close)
        return run(settings, observer=console, asked=asked), console
    finally:
        console.close()


def _print_end(joined: "Joined", **fields: Any) -> None:
    reason = "" if joined.result is None else joined.result.reason
    about = {"event": "finished", "site": joined.site, "stop": joined.outcome.name, "reason": reason}
    print_json({**about, **fields, "ledger": str(joined.ledger)})


_VERDICTS = {True: "ok", False: "WRONG"}


@app.command("check")
@with_settings(without=frozenset({"local_model", "ledger", "connect_timeout", "words", "yes", "accept_words"}))
def check_command(
    given: dict[str, Any],
    config: ConfigOption = None,
    plan: Annotated[
        Path | None,
        typer.Option("--plan", help="Check this plan against policy and table. `coreg-coordinator plan` writes it."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check everything before joining. It reads versions, table, policy, identity, connection and TLS, disk.

    Without --data it reads ./agent.toml. Without --coordinator the connection is not checked. With --plan the command also
    lists every reason against that plan, with the line of policy.toml that would allow it, if there is one. With
    sections [data.NAME] in --config it reads every data set.

    All faults of a table are listed at once. With --json each has the fields file, row (its first line), rows (how many),
    column, kind (never the cell itself) and do. A check that is not possible has null under "ok".
    """
    from site_agent.config.settings import DEFAULT_FILE, read_settings
    from site_agent.service.preflight import check

    config = DEFAULT_FILE if config is None and DEFAULT_FILE.is_file() else config

    def show(text: str, good: bool | None, fields: Mapping[str, Any]) -> None:
        if as_json:
            print_json({"event": "check", "ok": good, "text": text, **fields})
        elif good is None:
            typer.echo(text)
        else:
            typer.echo(f"{'WARN' if fields.get('warning') else _VERDICTS[good]:<6} {text}")

    raise typer.Exit(check(read_settings(config, given, ("data",)), show, plan, [config] if config else []))


# What only a training takes.
_OF_TRAINING = frozenset(
    {"target", "output", "local_model", "categorical", "dates", "drop", "scale", "labels", "positive"}
)


@app.command("score")
@with_settings(without=_OF_TRAINING | {"unlabelled", "na_values"})
def score_command(
    given: dict[str, Any],
    model: Annotated[Path, typer.Option("--model", help="This site's model of the run to score with.")],
    output: Annotated[
        Path, typer.Option("--output", help="The output file, CSV or Parquet. A new file has mode 0600.")
    ] = Path("scores.csv"),
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Score shared instances together with the other sites. Each site sends its part for the same ids and receives the sum.

    --data has the id column and the model's columns. If all features of a row are empty, this site has no record of that
    instance. The members learn which ones it has. Only the receivers read the sum of the parts. The ledger lists
    both. The policy must have scoring = true.
    """
    from site_agent.service.app import score

    joined, console = _take_part(config, given, partial(score, model=model, output=output), as_json=as_json)
    sent = sum(s.numbers for s in joined.sent.values())
    result = joined.result
    rows = 0 if result is None or result.scores is None else len(result.scores)
    if as_json:
        _print_end(joined, rows=rows, output=str(joined.written[0]) if joined.written else None, numbers_sent=sent)
    elif joined.written:
        console.note(
            f"{rows} scores in {', '.join(map(str, joined.written))}; {sent} numbers left this machine ({joined.ledger})"
        )
    else:
        console.note(f"no scores for this site; {sent} numbers left this machine ({joined.ledger})")
    raise typer.Exit(exit_code(joined.outcome))


def main() -> None:
    """The console script."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # our notices report failed connections
    keep_freed_memory()
    raise SystemExit(command_line.run(app, "coreg-agent"))
