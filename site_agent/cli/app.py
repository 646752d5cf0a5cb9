"""The command coreg-agent."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coreg_core.numerics.allocation import keep_freed_memory
from coreg_core.protocol.outcomes import exit_code
from coreg_wire.terminal import command_line
from coreg_wire.terminal.output import print_json
from site_agent.cli import identity, ledger, models, service
from site_agent.cli.service import JsonOption
from site_agent.config.options import with_settings

if TYPE_CHECKING:
    from site_agent.service.app import Joined

# polars, SciPy, gRPC and pydantic take a second to import, so each command imports them when it runs.

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)

for _command in (*models.COMMANDS, *service.COMMANDS, *identity.COMMANDS):
    app.command()(_command)
app.command()(ledger.ledger)
app.add_typer(models.app, name="models")

DEFAULT_CONFIG = Path("agent.toml")
NEEDED = ("data", "target", "id", "coordinator")
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", envvar="COREG_CONFIG", readable=False, help="agent.toml: any of these options, without dashes."
    ),
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

    A site normally uses, in this order: enroll, init, peers, check, and serve (or the command without a name for one run).

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
    from site_agent.config.settings import read_settings
    from site_agent.service.app import join
    from site_agent.service.console import OperatorConsole

    console = OperatorConsole(as_json=as_json)
    try:
        settings = read_settings(config, given, NEEDED)
        joined = join(settings, console)
    finally:
        console.close()
    sent = {kind: {"messages": s.messages, "numbers": s.numbers} for kind, s in sorted(joined.sent.items())}
    result = joined.result
    if as_json:
        _print_end(
            joined,
            models=[str(p) for p in joined.written],
            sent=sent,
            label_bearing_vectors=joined.label_bearing.messages,
            findings=[] if result is None else list(result.findings),
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
        if joined.outcome.good and not joined.written:
            console.note("an earlier process of this agent has written the model of this run")
        if joined.written and result is not None and result.plan is not None:
            every = settings.data
            inputs = every.get(result.plan.data, next(iter(every.values())))
            console.note(
                f"next: coreg-agent predict --model {joined.written[0]} --data new.csv --id {inputs.id} "
                "--output predictions.csv"
            )
    raise typer.Exit(exit_code(joined.outcome))


def _print_end(joined: "Joined", **fields: Any) -> None:
    reason = "" if joined.result is None else joined.result.reason
    about = {"event": "finished", "site": joined.site, "stop": joined.outcome.name, "reason": reason}
    print_json({**about, **fields, "ledger": str(joined.ledger)})


_VERDICTS = {True: "ok", False: "WRONG"}


@app.command("check")
@with_settings(without=frozenset({"local_model", "ledger", "connect_timeout"}))
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
    from site_agent.config.settings import read_settings
    from site_agent.service.preflight import check

    if config is None and not given.get("data") and DEFAULT_CONFIG.is_file():  # as `serve`, `status` and `pending`
        config = DEFAULT_CONFIG

    def show(text: str, good: bool | None, fields: Mapping[str, Any]) -> None:
        if as_json:
            print_json({"event": "check", "ok": good, "text": text, **fields})
        elif good is None:
            typer.echo(text)
        else:
            typer.echo(f"{'WARN' if fields.get('warning') else _VERDICTS[good]:<6} {text}")

    raise typer.Exit(
        check(read_settings(config, given, ("data", "target", "id")), show, plan, [config] if config else [])
    )


# What only a training takes.
_OF_TRAINING = frozenset(
    {
        "target",
        "shared",
        "output",
        "local_model",
        "categorical",
        "dates",
        "drop",
        "scale",
        "labels",
        "positive",
    }
)


@app.command("score")
@with_settings(without=(_OF_TRAINING - {"shared"}) | {"unlabelled", "na_values"})
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
    from site_agent.config.settings import read_settings
    from site_agent.service.app import score
    from site_agent.service.console import OperatorConsole

    console = OperatorConsole(as_json=as_json)
    try:
        settings = read_settings(config, given, ("data", "id", "coordinator"))
        if given["shared"] is None:  # in agent.toml it is about the training's table
            plain = {name: inputs.model_copy(update={"shared": None}) for name, inputs in settings.data.items()}
            settings = settings.model_copy(update={"data": plain})
        joined = score(settings, model, output, console)
    finally:
        console.close()
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


@app.command("align")
@with_settings(without=_OF_TRAINING)
def align_command(
    given: dict[str, Any],
    output: Annotated[
        Path, typer.Option("--output", help="The output file. It holds the shared ids: a new file has mode 0600.")
    ] = Path("shared.json"),
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the ids that all sites have. The others stay private. Train with them by --shared.

    This machine sends points that no single site can compute, and its part of an encrypted tally. The policy must have
    alignment = true.
    """
    from site_agent.config.settings import read_settings
    from site_agent.service.app import align
    from site_agent.service.console import OperatorConsole

    console = OperatorConsole(as_json=as_json)
    try:
        joined = align(read_settings(config, given, ("data", "id", "coordinator")), output, console)
    finally:
        console.close()
    result = joined.result
    aligned = None if result is None else result.aligned
    if as_json:
        _print_end(
            joined,
            shared=0 if aligned is None else len(aligned.ids),
            known_to={} if aligned is None else {str(sites): many for sites, many in aligned.known_to},
            output=str(joined.written[0]) if joined.written else None,
        )
    elif aligned is not None:
        console.note(f"{len(aligned.ids)} shared ids in {output}; the ledger is {joined.ledger}")
    raise typer.Exit(exit_code(joined.outcome))


def main() -> None:
    """The console script."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # our notices report failed connections
    keep_freed_memory()
    raise SystemExit(command_line.run(app, "coreg-agent"))
