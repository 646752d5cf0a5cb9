"""The command coreg-agent."""

import os
import shlex
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from coreg_core.errors import UsageError
from coreg_core.outcomes import exit_code
from coreg_wire.terminal import command_line
from coreg_wire.terminal.command_line import print_json
from coreg_wire.terminal.text import echo
from site_agent.cli import ledger, models, service
from site_agent.config.options import ConfigOption, JsonOption, with_settings

if TYPE_CHECKING:
    from site_agent.service.app import Joined

# polars, SciPy, gRPC and pydantic take a second to import, so each command imports them when it
# runs.

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)

for _command in (*models.COMMANDS, *service.COMMANDS):
    app.command()(_command)
app.command()(ledger.ledger)


@app.callback(invoke_without_command=True)
@with_settings()
def root(
    context: typer.Context,
    given: dict[str, Any],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take part in one run of a federation with this organisation's own table.

    Without a command: join and write the model.

    A site types two commands: `coreg-agent join` once, and pastes the invitation below it; then
    `coreg-agent --data local.csv`. Before anything leaves, it shows the plan and asks; with new
    members it shows eight words, which all operators compare by telephone.

    The ledger has a line for each message that leaves this machine. No record leaves.
    """
    if (command := context.invoked_subcommand) is not None:
        _require_nothing_before(command, context)
        return
    # A container can set everything in its environment. With no setting at all, and no agent.toml,
    # show the help.
    unset = len(sys.argv) == 1 and config is None and not any(given.values())
    if unset and not Path("agent.toml").exists():
        echo(context.get_help())
        raise typer.Exit(2)
    _take_part(config, given, as_json=as_json)


def _require_nothing_before(command: str, context: typer.Context) -> None:
    """UsageError: options before a command have no effect."""
    typed = list[str]()
    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        if source is not None and source.name == "COMMANDLINE":
            typed.append(parameter.opts[0])
    if typed:
        raise UsageError(
            f"{', '.join(typed)} before {command} has no effect. Put {command} first;"
            f" `coreg-agent {command} --help` lists its options."
        )


def _take_part(
    config: Path | None,
    given: dict[str, Any],
    *,
    as_json: bool,
    kind: Literal["training", "scoring"] = "training",
) -> None:
    """Take part in one run, and print its end."""
    from site_agent.config.settings import NEEDED, read_settings
    from site_agent.service.app import join
    from site_agent.service.console import OperatorConsole, Terminal

    console = OperatorConsole(as_json=as_json)
    try:
        settings = read_settings(config, given, NEEDED)
        asked = Terminal(consents=not settings.yes, before=console.close)
        joined = join(settings, console, asked, kind)
    finally:
        console.close()
    if as_json:
        print_json({"event": "finished", **_fields(joined)})
    else:
        for text in result_sentences(joined):
            console.note(text)
    raise typer.Exit(exit_code(joined.outcome))


_KINDS = {".coreg": "model", ".csv": "scores", ".json": "shared ids"}  # of the files of a run


def _fields(joined: "Joined") -> dict[str, Any]:
    result = joined.result
    return {
        "site": joined.site,
        "stop": joined.outcome.name,
        "reason": "" if result is None else result.reason,
        "files": [str(path) for path in joined.written],
        "findings": [] if result is None else list(result.findings),
        "sent": {kind: asdict(sent) for kind, sent in sorted(joined.sent.items())},
        "words_compared": not joined.unseen,
        "ledger": str(joined.ledger),
    }


def result_sentences(joined: "Joined") -> Iterator[str]:
    numbers = sum(sent.numbers for sent in joined.sent.values())
    messages = sum(sent.messages for sent in joined.sent.values())
    yield (
        f"what left this machine: {numbers:,} numbers in {messages} messages; {joined.ledger} lists"
        " each, with what was computed from labels"
    )
    for path in joined.written:
        yield f"{_KINDS[path.suffix]}: {path}"
    if joined.unseen:
        yield (
            "the eight words were NOT compared (--accept-words): any site of this run can be an"
            " invention"
        )
    if not joined.written and joined.outcome.good:
        yield (
            "this run left no file here: this site receives no scores, or an earlier process stored"
            " the models"
        )
    models = [path for path in joined.written if path.suffix == ".coreg"]
    if models:
        yield f"next: {_next_commands(joined.result, models)}"


def _next_commands(result: Any, models: list[Path]) -> str:
    """What to type with the models of a training."""
    from site_agent.models.findings import Findings, of_additive
    from site_agent.models.report import recommended

    findings = of_additive(result) if hasattr(result, "judged") else Findings()
    advised = models[-1 if findings.alone == "local" else 0]
    commands = [
        f"coreg-agent report --model {models[0]}",
        f"coreg-agent predict --model {advised} --data new.csv --id NAME",
    ]
    if any("coreg-agent score" in text for text in recommended(findings)):
        commands.append("coreg-agent score --data new.csv --id NAME")
    return "; ".join(commands)


@app.command()
def join(
    invitation: Annotated[
        str | None,
        typer.Argument(
            help="A file with the operator's line [standard input: paste the line].",
            metavar="FILE",
        ),
    ] = None,
    folder: Annotated[Path, typer.Option(help="The folder of this site.")] = Path(),
) -> None:
    """Join a federation by an invitation, which is pasted or in a file.

    It makes this site's key (which never leaves), gets a certificate, and writes agent.toml.

    The command can be repeated with the same invitation, for example after a broken connection. A
    new invitation replaces an expired certificate. Existing agent.toml and policy.toml stay
    unchanged.
    """
    from coreg_wire.identity.invitation import parse_invitation
    from site_agent.config.settings import start
    from site_agent.identity.enrolment import join as redeem
    from site_agent.identity.identity import AUTHORITY, CERTIFICATE, KEY

    given = parse_invitation(_line(invitation))
    joined = redeem(given, folder / "identity")
    echo(f"{joined.name}: joined, certificate valid until {joined.not_after:%Y-%m-%d}")
    files = [str(folder / "identity" / name) for name in (KEY, CERTIFICATE, AUTHORITY)]
    echo(f"  {', '.join(files)}")
    agent = folder / "agent.toml"
    for path, written in start(folder, given.address).items():
        unchanged = "" if written else ": exists, unchanged"
        echo(f"  {path}{unchanged}")
    if (other := _coordinator(agent)) != given.address:
        echo(
            f"warning: {agent} has coordinator = {other!r}, and the invitation is from"
            f" {given.address!r}. Correct that line.",
            err=True,
        )
    where = "" if folder == Path() else f"cd {shlex.quote(str(folder))}; "
    echo(f"next: {where}coreg-agent check --data local.csv; coreg-agent --data local.csv")


def _line(given: str | None) -> str:
    """The invitation in the argument, in its file, or in standard input."""
    from coreg_wire.identity.invitation import SCHEME, invitation_in

    if given is None:
        where = "Standard input"
        text = _pasted()
    elif line := invitation_in(given):
        return line
    else:
        where = "The file"
        try:
            text = Path(given).read_text(encoding="utf-8")
        except (OSError, ValueError):
            # Without the argument: it can be a damaged invitation with its secret.
            raise UsageError(
                f"The argument is neither an invitation ({SCHEME}…) nor a file that can be read."
                " Copy the whole line that the coordinator's operator sent."
            ) from None
    line = invitation_in(text)
    if line is None:
        raise UsageError(f"{where} has no invitation ({SCHEME}…).")
    return line


def _pasted() -> str:
    if not sys.stdin.isatty():
        return sys.stdin.read()
    echo("Paste the invitation:", err=True)
    return sys.stdin.readline()


def _coordinator(path: Path) -> object:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig")).get("coordinator")
    except (OSError, ValueError):
        return None  # the next command names the fault


_VERDICTS = {True: "ok", False: "WRONG"}


@app.command("check")
@with_settings(without=frozenset({"ledger", "connect_timeout", "words", "yes", "accept_words"}))
def check_command(
    given: dict[str, Any],
    config: ConfigOption = None,
    plan: Annotated[
        Path | None,
        typer.Option(help="Check this plan too. `coreg-coordinator plan` writes it."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check everything before joining.

    It reads versions, table, policy, identity, connection and TLS, disk.

    Without --data it reads ./agent.toml. Without --coordinator the connection is not checked. With
    --plan the command also lists every reason against that plan, with the line of policy.toml that
    would allow it, if there is one. With sections [data.NAME] in --config it reads every data set.

    With --json a fault has fields for a program. Only `text` can hold a cell. A check that is not
    possible has null under "ok".
    """
    from site_agent.config.settings import DEFAULT_FILE, read_settings
    from site_agent.service.preflight import check

    config = DEFAULT_FILE if config is None and DEFAULT_FILE.is_file() else config

    def show(text: str, good: bool | None, fields: Mapping[str, Any]) -> None:
        if as_json:
            print_json({"event": "check", "ok": good, "text": text, **fields})
        elif good is None:
            echo(text)
        else:
            echo(f"{'WARN' if fields.get('warning') else _VERDICTS[good]:<6} {text}")

    raise typer.Exit(
        check(read_settings(config, given, ("data",)), show, plan, [config] if config else [])
    )


# What only a training takes.
_OF_TRAINING = frozenset({"target", "categorical", "dates", "drop", "scale", "labels", "positive"})


@app.command("score")
@with_settings(without=_OF_TRAINING | {"unlabelled", "na_values"})
def score_command(
    given: dict[str, Any],
    ids: Annotated[
        str | None,
        typer.Option(help="ID,ID,…: ask the agent that serves here, of a standing study."),
    ] = None,
    study: Annotated[
        str | None, typer.Option(help="The standing study [the only one]; with --ids.")
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Score shared instances together with the other sites.

    Each site sends its part for the same ids and receives the sum.

    --data has the id column and the model's columns. If all features of a row are empty, this site
    has no record of that instance. The members learn which ones it has. Only the receivers read the
    scores, in models/STUDY/RUN/scores.csv.

    With --ids the scores of single individuals are printed at once, by a standing study.
    """
    if ids is not None:
        from site_agent.cli.service import print_scores

        print_scores(config, ids, study, as_json=as_json)
        return
    _take_part(config, given, as_json=as_json, kind="scoring")


def main() -> None:
    """The console script."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # our notices report failed connections
    raise SystemExit(command_line.run(app, "coreg-agent"))
