"""coreg-agent: parse, build, run, and name the next step."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from coreg_core.numerics.allocation import keep_freed_memory
from coreg_core.protocol.outcomes import exit_code
from coreg_wire.terminal import command_line
from coreg_wire.terminal.output import print_json
from site_agent.cli import identity, ledger, models, service
from site_agent.cli.service import JsonOption
from site_agent.config.settings import read_settings, with_settings

# polars, SciPy and gRPC take a second or two to import: each command imports what it needs, when it runs.

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

for _command in (*models.COMMANDS, *service.COMMANDS, *identity.COMMANDS):
    app.command()(_command)
app.command()(ledger.ledger)
app.add_typer(models.app, name="models")

NEEDED = ("data", "target", "id", "coordinator")
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", envvar="COREG_CONFIG", help="agent.toml: any of these options, without dashes."),
]


@app.callback(invoke_without_command=True)
@with_settings()
def root(
    context: typer.Context,
    given: dict[str, Any],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take part in one run of a federation with this organisation's own table. Without a command: join and write the model.

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
    from site_agent.service.console import OperatorConsole

    console = OperatorConsole(as_json=as_json)
    try:
        joined = join(read_settings(config, given, NEEDED), console)
    finally:
        console.close()
    sent = {kind: {"messages": s.messages, "numbers": s.numbers} for kind, s in sorted(joined.sent.items())}
    result = joined.result
    if as_json:
        print_json(
            {
                "event": "finished",
                "site": joined.site,
                "stop": joined.outcome.name,
                "reason": "" if result is None else result.reason,
                "models": [str(p) for p in joined.written],
                "sent": sent,
                "label_bearing_vectors": joined.label_bearing.messages,
                "findings": [] if result is None else list(result.findings),
                "ledger": str(joined.ledger),
            }
        )
    else:
        listed = ", ".join(f"{s['messages']} {kind} ({s['numbers']} numbers)" for kind, s in sent.items())
        console.note(
            f"what left this machine: {listed}; labels in {joined.label_bearing.messages} of these vectors; "
            f"every entry is in {joined.ledger}"
        )
        for path in joined.written:
            console.note(f"model: {path}")
        if joined.written:
            console.note(
                f"next: coreg-agent predict --model {joined.written[0]} --data new.csv --output predictions.csv"
            )
    raise typer.Exit(exit_code(joined.outcome))


_VERDICTS = {True: "ok", False: "WRONG", None: "skipped"}


@app.command("check")
@with_settings(without=frozenset({"local_model", "ledger", "connect_timeout"}))
def check_command(
    given: dict[str, Any],
    config: ConfigOption = None,
    plan: Annotated[
        Path | None,
        typer.Option("--plan", help="A plan to check, from `coreg-coordinator plan`."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check everything before joining: versions, table, policy, identity, network and TLS, disk.

    With --plan, list every reason for which this site would refuse the plan, and the plan's numbers in units of these
    rows. Reasons from the ledger come first: earlier answers on the same instances exclude other sites and terms.
    With sections [data.NAME] in --config, every data set is read.

    All faults of a table are listed at once. With --json each has the fields file, row (its first line), rows (their number),
    column, kind (of the fault, never the cell itself) and do. Skipped checks have null under "ok".
    """
    from site_agent.service.preflight import check

    def show(text: str, good: bool | None, fields: Mapping[str, Any]) -> None:
        if as_json:
            print_json({"event": "check", "ok": good, "text": text, **fields})
        else:
            typer.echo(f"{_VERDICTS[good]:<6} {text}")

    raise typer.Exit(check(read_settings(config, given, ("data", "target", "id")), show, plan))


@app.command("score")
@with_settings(
    without=frozenset(
        {"target", "unlabelled", "output", "local_model", "categorical", "dates", "drop", "scale", "labels"}
    )
)
def score_command(
    given: dict[str, Any],
    model: Annotated[Path, typer.Option("--model", help="This site's model of the trained run.")],
    output: Annotated[Path, typer.Option("--output", help="CSV or Parquet; a new file has mode 0600.")] = Path(
        "scores.csv"
    ),
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Score shared instances together with the other sites. Each sends its part for the same ids and receives the sum.

    --data has the id column and the model's columns. A row with empty features is an instance without a record at this site. One
    number for each instance leaves this machine. The policy must allow it (scoring = true).
    """
    from site_agent.service.app import score
    from site_agent.service.console import OperatorConsole

    console = OperatorConsole(as_json=as_json)
    try:
        joined = score(read_settings(config, given, ("data", "id", "coordinator")), model, output, console)
    finally:
        console.close()
    sent = sum(s.numbers for s in joined.sent.values())
    result = joined.result
    rows = 0 if result is None or result.scores is None else len(result.scores)
    if as_json:
        print_json(
            {
                "event": "finished",
                "site": joined.site,
                "stop": joined.outcome.name,
                "reason": "" if result is None else result.reason,
                "rows": rows,
                "output": str(joined.written[0]) if joined.written else None,
                "numbers_sent": sent,
                "ledger": str(joined.ledger),
            }
        )
    elif joined.written:
        console.note(
            f"{rows} scores in {', '.join(map(str, joined.written))}; {sent} numbers left this machine ({joined.ledger})"
        )
    else:
        console.note(f"no scores for this site; {sent} numbers left this machine ({joined.ledger})")
    raise typer.Exit(exit_code(joined.outcome))


def main() -> None:
    """The console script."""
    keep_freed_memory()
    raise SystemExit(command_line.run(app, "coreg-agent"))
