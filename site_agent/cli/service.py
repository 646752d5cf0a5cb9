"""serve, pending, approve, refuse, models, runs, status, forget: an agent that stays, and what its operator says to it.

All but `serve` speak through the agent's folders; they work whether or not it is up.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from coreg_core.errors import Unreachable
from coreg_wire.terminal.output import print_json

FileOption = Annotated[
    Path,
    typer.Option("--config", envvar="COREG_CONFIG", help="agent.toml, with a section [data.NAME] for each data set."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object a line, for machines.")]
RunArgument = Annotated[str, typer.Argument(help="A run that waits, or the beginning of its name.")]
FILE = Path("agent.toml")


def serve(
    config: FileOption = FILE,
    coordinator: Annotated[
        str | None, typer.Option("--coordinator", envvar="COREG_COORDINATOR", help="HOST:PORT instead of the file's.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="No TLS; on a loopback address only.")] = False,
    name: Annotated[str | None, typer.Option("--name", help="The site's name, with --insecure.")] = None,
    metrics: Annotated[
        str | None, typer.Option("--metrics", help="HOST:PORT on loopback where Prometheus reads /metrics.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The log's lines as JSON.")] = False,
) -> None:
    """Stay connected, and take part in the runs that come, on the data sets that they name. The log is on standard error.

    Models go to models/STUDY/RUN, with a link models/STUDY/current. A data set is read again when its file has changed. SIGTERM
    ends the agent; SIGHUP reads agent.toml and the policy again.
    """
    from coreg_wire.terminal.logs import make_log
    from site_agent.service.app import Given
    from site_agent.service.app import serve as stay

    raise typer.Exit(stay(Given(config, coordinator, insecure, name, metrics), make_log(as_json=as_json)))


def _desk(config: Path) -> Any:
    from site_agent.config.agent_toml import read_service_settings
    from site_agent.service.state_dir import Desk

    return Desk(read_service_settings(config).state_path)


def _archive(config: Path) -> Any:
    from site_agent.config.agent_toml import read_service_settings
    from site_agent.models.store import Archive

    settings = read_service_settings(config)
    return Archive("", settings.models, settings.keep)


def pending(config: FileOption = FILE, as_json: JsonOption = False) -> None:
    """The plans that wait for this operator's consent (approval = "ask")."""
    from site_agent.session.wording import IN_THE_CLEAR

    for entry in _desk(config).pending():
        if as_json:
            print_json(entry)
            continue
        plan = entry["plan"]
        typer.echo(f"{plan['run']}  {plan.get('study', '')}  asked {entry['asked']}")
        if plan.get("privacy", {}).get("answers") == "clear":
            typer.echo(f"  the coordinator gets each site's answers IN THE CLEAR: {IN_THE_CLEAR}")
        for name, value in plan.items():
            if name not in ("run", "study"):
                typer.echo(f"  {name} = {value}")


def approve(run: RunArgument, config: FileOption = FILE) -> None:
    """Take part in a run that waits. The policy holds all the same."""
    from site_agent.service.state_dir import Decision

    typer.echo(f"run {_desk(config).decide(run, Decision(True, ''))}: approved")


def refuse(
    run: RunArgument,
    reason: Annotated[str, typer.Option("--reason", help="For the coordinator's operator; it leaves this machine.")],
    config: FileOption = FILE,
) -> None:
    """Do not take part in a run that waits."""
    from site_agent.service.state_dir import Decision

    typer.echo(f"run {_desk(config).decide(run, Decision(False, reason))}: refused")


def models(config: FileOption = FILE, as_json: JsonOption = False) -> None:
    """The models that this agent keeps, by study; a star marks the one in use (models/STUDY/current)."""
    for manifest in _archive(config).manifests():
        if as_json:
            print_json(manifest)
            continue
        mark = "*" if manifest["current"] else " "
        typer.echo(
            f"{mark} {manifest['study'] or 'unnamed'}  {manifest['run']}  {manifest['at']}  {manifest['stop'].lower()}"
        )
        for model in manifest["models"]:
            typer.echo(f"    {Path(manifest['folder']) / model['file']}")


def runs(config: FileOption = FILE, as_json: JsonOption = False) -> None:
    """The runs that ended at this site, the latest first."""
    for entry in reversed(list(_desk(config).history())):
        if as_json:
            print_json(entry)
        else:
            kept = f"{len(entry['models'])} models" if entry["models"] else "no model"
            typer.echo(f"{entry['run']}  {entry['at']}  {entry['stop'].lower():<13} {kept:<10} {entry['study']}")
            if entry.get("reason"):
                typer.echo(f"    {entry['reason']}")


def status(config: FileOption = FILE, as_json: JsonOption = False) -> None:
    """What the agent is doing. Exit code 7 where it does not run, or is not connected: for health checks."""
    from site_agent.config.agent_toml import read_service_settings
    from site_agent.ledger import is_written

    said = _desk(config).status() or {}
    up = is_written(read_service_settings(config).ledger_path)
    connected = up and said.get("connected_since") is not None
    if as_json:
        print_json({**said, "up": up, "connected": connected})
    elif not said:
        typer.echo("this agent has not served yet")
    else:
        since = said["connected_since"]
        doing = f"connected since {since}; waiting {said['waiting']}" if connected else said["waiting"]
        typer.echo(f"{said['site']}: {doing if up else 'not running'}")
        if (until := said.get("certificate_until")) is not None and (left := _days_until(until)) < 30:
            typer.echo(f"  the certificate runs out in {left} days: `coreg-agent enroll --renew`")
        for run, told in said["runs"].items() if up else ():
            typer.echo(f"  run {run} of {told['study'] or 'no study'}: {told['doing']}")
        for data, trouble in said["troubles"].items():
            typer.echo(f"  data set {data} cannot be used: {trouble}")
    if not connected:
        raise typer.Exit(Unreachable.exit_code)


def _days_until(moment: str) -> int:
    from datetime import UTC, datetime

    return (datetime.fromisoformat(moment) - datetime.now(UTC)).days


def forget(
    study: Annotated[str, typer.Argument(help="A study, as `coreg-agent models` names it.")],
    config: FileOption = FILE,
    keep: Annotated[int, typer.Option("--keep", min=0, help="So many of its latest runs stay.")] = 0,
) -> None:
    """Remove the models of a study from this machine. The ledger keeps what left it."""
    gone = _archive(config).forget(study, keep)
    typer.echo(f"{study}: {len(gone)} runs forgotten" + (f" ({', '.join(gone)})" if gone else ""))


COMMANDS: tuple[Callable[..., None], ...] = (serve, pending, approve, refuse, models, runs, status, forget)
