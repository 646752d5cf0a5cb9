"""serve, pending, approve, refuse, runs, status: a serving agent, and its operator's commands.

All commands but `serve` read and write the agent's folders. They work while the agent is stopped too.
"""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coreg_core.errors import Unreachable
from coreg_core.outcomes import Outcome
from coreg_wire.clock import utc_now
from coreg_wire.terminal.command_line import as_owner, print_json

if TYPE_CHECKING:
    from site_agent.service.state_dir import StateDir

FileOption = Annotated[
    Path,
    typer.Option(
        "--config",
        envvar="COREG_CONFIG",
        readable=False,
        help="agent.toml, with a section [data.NAME] for each data set.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object a line, for machines.")]
RunArgument = Annotated[str, typer.Argument(help="A pending run, or a prefix of its name.")]
FILE = Path("agent.toml")


def serve(
    config: FileOption = FILE,
    coordinator: Annotated[
        str | None, typer.Option("--coordinator", envvar="COREG_COORDINATOR", help="HOST:PORT instead of the file's.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="No TLS; on a loopback address only.")] = False,
    name: Annotated[str | None, typer.Option("--name", help="The site's name, with --insecure.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Log lines as JSON.")] = False,
) -> None:
    """Stay connected and take part in runs. Each run names its data set. Logs go to stderr.

    Models go to models/STUDY/RUN. A data set is read again after its file changed. SIGTERM ends the agent. Restart it after
    a change of agent.toml or the policy.
    """
    from coreg_wire.terminal.service import last_line, make_log
    from site_agent.config.settings import NEEDED, read_settings
    from site_agent.service.app import serve as stay
    from site_agent.service.console import ServiceLog

    log = make_log(as_json=as_json)
    with last_line(log, as_json=as_json):
        options = {"coordinator": coordinator, "insecure": insecure or None, "name": name}
        stay(read_settings(config, options, NEEDED), ServiceLog(log))


def state_of(config: Path, *, change: bool = False) -> "StateDir":
    """The state of the agent that serves, or served, with this configuration."""
    from site_agent.config.settings import read_settings
    from site_agent.service.state_dir import StateDir

    state = StateDir(read_settings(config, {}).state_path)
    if not state.folder.is_dir():
        raise Unreachable(
            f"no agent has served with {config} (no state in {state.folder}). Go to the folder of the service, or give "
            "--config FILE."
        )
    if change:
        as_owner(state.folder)
    return state


def pending(config: FileOption = FILE, as_json: JsonOption = False) -> None:
    """List the plans that wait for approval. For each: method, what leaves this machine, deadline (approval = "ask")."""
    from coreg_wire.files.disk import is_held
    from site_agent.config.settings import read_settings

    state = state_of(config)
    found = list(state.pending())
    if not found and not as_json:
        up = is_held(read_settings(config, {}).ledger_path)
        typer.echo("no run waits for approval" + ("" if up else "; the agent is not running: see `coreg-agent status`"))
    for entry in found:
        if as_json:
            print_json(entry)
            continue
        plan = entry["plan"]
        study = plan["study"] or plan["federation"]
        typer.echo(f"run {plan['run']} of {study}, received {entry['asked'][:16]}")
        for heading, text in entry["about"].items():
            typer.echo(f"  {heading}: " + (text.replace("; ", ";\n      ") if heading.startswith("leaves") else text))
        if entry["expires"] is not None:
            typer.echo(f"  approve before: {entry['expires'][:16]} UTC")
        typer.echo(f"  next: coreg-agent approve {plan['run']}, or coreg-agent refuse {plan['run']} --reason TEXT")


def approve(run: RunArgument, config: FileOption = FILE) -> None:
    """Approve a pending run. The policy still applies."""
    from site_agent.service.state_dir import Decision

    typer.echo(f"run {state_of(config, change=True).record_decision(run, Decision(True, ''))}: approved")


def refuse(
    run: RunArgument,
    reason: Annotated[str, typer.Option("--reason", help="Sent to the coordinator's operator.")],
    config: FileOption = FILE,
) -> None:
    """Refuse a pending run."""
    from site_agent.service.state_dir import Decision

    typer.echo(f"run {state_of(config, change=True).record_decision(run, Decision(False, reason))}: refused")


def runs(config: FileOption = FILE, as_json: JsonOption = False) -> None:
    """List the ended and refused runs, the latest first."""
    ended = list(state_of(config).history())
    if not ended and not as_json:
        typer.echo("no runs yet")
    for entry in reversed(ended):
        if as_json:
            print_json(entry)
        else:
            count = len(entry["models"])
            kinds = {".json": "list", ".csv": "score file"}
            what = next(
                (kinds[end] for end in kinds if any(Path(model).suffix == end for model in entry["models"])), "model"
            )
            kept = f"{count or 'no'} {what}{'s' * (count > 1)}"
            typer.echo(f"{entry['run']}  {entry['at']}  {entry['stop'].lower():<13} {kept:<10} {entry['study']}")
            if why := _why(entry):
                typer.echo(f"    {why}")


def status(config: FileOption = FILE, as_json: JsonOption = False) -> None:
    """Show the agent's state. Exit code 7 if it does not run or is not connected: for health checks.

    A problem that the operator has to mend is listed, and does not change the exit code.
    """
    from coreg_wire.files.disk import is_held
    from site_agent.config.settings import read_settings
    from site_agent.machine.agent import Stage

    found: dict[str, Any] = state_of(config).status() or {}
    up = is_held(read_settings(config, {}).ledger_path)
    connected = up and found.get("connected_since") is not None
    if as_json:
        print_json({**found, "up": up, "connected": connected})
    elif not found:
        typer.echo(f"no agent has served with {config} yet")
    else:
        since = found["connected_since"]
        idle = "" if found["runs"] else f"; waiting {found['waiting']}"
        process = f" (process {found['pid']})" if "pid" in found else ""
        doing = f"connected since {since}{idle}{process}" if connected else f"{found['waiting']}{process}"
        ended = None if up else found.get("ended")
        how = f"; ended {ended['at']} with exit code {ended['exit_code']}: {ended['reason']}" if ended else ""
        typer.echo(f"{found['site']}: {doing if up else 'not running'}{how}")
        if (until := found.get("certificate_until")) is not None and (left := _days_until(until)) < 30:
            when = f"expires in {left} days" if left >= 0 else f"EXPIRED on {until[:10]}"
            typer.echo(f"  the certificate {when}: ask the coordinator's operator for a new invitation")
        for run, told in found["runs"].items():
            todo = ": see `coreg-agent pending`" if told["doing"] == Stage.WAITING.value else ""
            if not up:
                todo = ", when the agent stopped. Start it again: it returns to the run if the coordinator still waits"
            typer.echo(f"  run {run} of {told['study'] or 'no study'}: {told['doing']}{todo}")
        for data, trouble in found["troubles"].items():
            typer.echo(f"  data set {data} cannot be used: {trouble}")
        for text in found.get("unresolved", ()):
            typer.echo(f"  {text}")
        if (last := next(iter(reversed(list(state_of(config).history()))), None)) is not None:
            faults = [text.partition(" (found ")[0] for text in (last.get("fault") or "", *found["troubles"].values())]
            known = faults[0] in faults[1:]
            why = "the fault of the data set above" if known else _why(last)
            typer.echo(f"  last run {last['run']}, {last['at']}: {last['stop'].lower()}{f': {why}' if why else ''}")
    if not connected:
        raise typer.Exit(Unreachable.exit_code)


def _why(entry: dict[str, Any]) -> str:
    """Why a run ended, with the fault that only this site knows; of a refusal also the next step."""
    from site_agent.machine.notices import after_refusal

    why: str = entry.get("fault") or entry.get("reason") or ""
    return after_refusal(why) if entry["stop"] == Outcome.REFUSED.name and why else why


def _days_until(moment: str) -> int:
    return (datetime.fromisoformat(moment) - utc_now()).days


COMMANDS: tuple[Callable[..., None], ...] = (serve, pending, approve, refuse, runs, status)
