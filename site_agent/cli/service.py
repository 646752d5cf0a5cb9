"""serve, pending, approve, refuse, runs, status: a serving agent, and its operator's commands.

All commands but `serve` read and write the agent's folders. They work while the agent is stopped
too.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import typer

from coreg_core.errors import Refused, Unreachable, UsageError
from coreg_core.outcomes import Outcome
from coreg_wire.clock import utc_now
from coreg_wire.terminal.command_line import as_owner, print_json
from coreg_wire.terminal.text import echo
from site_agent.config.options import ConfigOption, JsonOption

if TYPE_CHECKING:
    from site_agent.service.state_store import StateStore

RunArgument = Annotated[str, typer.Argument(help="A pending run, or a prefix of its name.")]


def serve(
    config: ConfigOption = None,
    coordinator: Annotated[
        str | None,
        typer.Option(envvar="COREG_COORDINATOR", help="HOST:PORT instead of the file's."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Stay connected and take part in runs.

    Each run names its data set. Logs go to stderr, with --json as JSON.

    Models go to models/STUDY/RUN. A data set is read again after its file changed. SIGTERM ends the
    agent. Restart it after a change of agent.toml or the policy.
    """
    from coreg_wire.terminal.service import last_line, make_log
    from site_agent.config.settings import NEEDED, read_settings
    from site_agent.service.app import serve as stay
    from site_agent.service.console import ServiceLog

    log = make_log(as_json=as_json)
    with last_line(log, as_json=as_json):
        stay(read_settings(config, {"coordinator": coordinator}, NEEDED), ServiceLog(log))


@contextmanager
def _state(config: Path | None) -> Iterator[tuple["StateStore", bool]]:
    """The state of the agent that serves, or served, with this configuration; and whether it
    runs. A damaged file is an error of the block.
    """
    from coreg_wire.files.disk import is_held
    from site_agent.config.settings import read_settings
    from site_agent.service.state_store import StateStore

    settings = read_settings(config, {})
    state = StateStore(settings.state_path)
    if not state.path.exists():
        raise Unreachable(
            f"no agent has served here (no state in {state.folder}). Go to the folder of the"
            " service, or give --config FILE."
        )
    with state.intact():
        yield state, is_held(settings.ledger_path)


def pending(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List the plans that wait for approval.

    For each: method, what leaves this machine, deadline (approval = "ask").
    """
    from site_agent.service.console import question_lines

    with _state(config) as (state, up):
        requests = state.pending()
        if not requests and not as_json:
            hint = "" if up else "; the agent is not running: see `coreg-agent status`"
            echo(f"no run waits for approval{hint}")
        for request in requests:
            if as_json:
                print_json(request)
                continue
            plan = request["plan"]
            run = plan["run"]
            study = plan["study"] or plan["federation"]
            echo(f"run {run} of {study}, received {request['asked'][:16]}")
            for line in question_lines(request["about"]):
                echo(line)
            if request["expires"] is not None:
                echo(f"  approve before: {request['expires'][:16]} UTC")
            refusal = f"coreg-agent refuse {run} --reason TEXT"
            echo(f"  next: coreg-agent approve {run}, or {refusal}")


def approve(
    run: RunArgument,
    words: Annotated[
        str,
        typer.Option(
            help="The eight words that the operators have compared [asked at a terminal]."
        ),
    ] = "",
    config: ConfigOption = None,
) -> None:
    """Show the plan of a pending run, and approve it. The policy still applies.

    At a terminal it asks first: for the eight words of members that are not confirmed yet, and
    whether to take part. The answer "n" refuses the run. Without a terminal the command approves,
    with --words where words are not confirmed.
    """
    from site_agent.service.console import operator_name, question_lines
    from site_agent.service.state_store import Decision

    with _state(config) as (state, _):
        as_owner(state.folder)
        name, request = state.pending_run(run)
        echo(f"The plan of run {name}:")
        for line in question_lines(request["about"]):
            echo(line)
        reason = _refusal(name, request, words)
        decision = Decision(not reason, reason, by=operator_name())
        state.record_decision(name, request, decision)
    if reason:
        echo(f"run {name}: refused: {reason}")
        raise typer.Exit(Refused.exit_code)
    confirmed = f", with the eight words {request['words']}" if request["words"] else ""
    echo(
        f"run {name}: approved{confirmed}. If what it showed has changed, `coreg-agent pending`"
        " lists it again"
    )


def _refusal(run: str, request: dict[str, Any], typed: str) -> str:
    """Why the operator refuses the plan that was shown, or "".

    UsageError: nobody has compared the words of members that this site does not know yet, so
    nothing is decided.
    """
    import asyncio

    from coreg_wire.identity.invitation import same_words
    from site_agent.service.approvals import news_of
    from site_agent.service.console import forget_typed, isatty, refusal_of

    words = str(request["words"])
    if words and typed:
        if not same_words(typed, words):
            raise UsageError(
                f"--words: run {run} has other words, and nothing is decided. Compare them again by"
                " telephone: if they differ, refuse the run (`coreg-agent refuse`)."
            )
        words = ""
    if isatty():
        forget_typed()
        news = news_of(request) if words else ""
        return asyncio.run(refusal_of(words, news, consents=True))
    if words:
        raise UsageError(
            f"nobody has compared the eight words of run {run} yet, and nothing is decided."
            " `coreg-agent pending` shows them. Compare them with the operators of all sites by"
            " telephone, then give them as --words."
        )
    return ""


def refuse(
    run: RunArgument,
    reason: Annotated[str, typer.Option(help="Sent to the coordinator's operator.")],
    config: ConfigOption = None,
) -> None:
    """Refuse a pending run."""
    from site_agent.service.console import operator_name
    from site_agent.service.state_store import Decision

    with _state(config) as (state, _):
        as_owner(state.folder)
        name, request = state.pending_run(run)
        state.record_decision(name, request, Decision(False, reason, by=operator_name()))
    echo(f"run {name}: refused")


def runs(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List the ended and refused runs, the latest first."""
    with _state(config) as (state, _):
        ended = state.history()
        if not ended and not as_json:
            echo("no runs yet")
        for entry in reversed(ended):
            if as_json:
                print_json(entry)
                continue
            count = len(entry["models"])
            files = "1 file" if count == 1 else f"{count or 'no'} files"
            stop = entry["stop"].lower()
            echo(f"{entry['run']}  {entry['at']}  {stop:<13} {files:<10} {entry['study']}")
            if why := _why(entry):
                echo(f"    {why}")


def print_scores(config: Path | None, ids: str, study: str | None, *, as_json: bool) -> None:
    """Ask the agent that serves with this configuration, as any program here can."""
    from site_agent.config.settings import read_settings

    address = read_settings(config, {}).listen
    if address is None:
        raise UsageError(
            'agent.toml has no `listen`. Write listen = "127.0.0.1:7610" into it, start'
            " `coreg-agent serve`, and type this in the same folder."
        )
    body = json.dumps({"ids": [text.strip() for text in ids.split(",")], "study": study or ""})
    request = Request(
        f"http://{address}/score", body.encode(), {"content-type": "application/json"}
    )
    try:
        with build_opener(ProxyHandler({})).open(request) as response:
            answer = json.load(response)
    except HTTPError as error:
        raise Refused(str(json.load(error)["error"])) from None
    except OSError as error:
        raise Unreachable(
            f"no agent answers at listen = {address} ({error}). Start `coreg-agent serve`."
        ) from None
    if as_json:
        print_json(answer)
        return
    for row in answer["scores"]:
        echo(f"{row['id']}  {told_score(row)}  ({' '.join(row['sites']) or row['from']})")
    echo(f"model: run {answer['model']}, for {answer['target']}", err=True)


def told_score(row: Any) -> str:
    """A score with its interval, or the most probable class with its probability."""
    score = row["score"]
    if isinstance(score, str):
        return f"{score}  {row[f'probability_{score}']:.3g}"
    ends = f"  {row['low']:.6g} to {row['high']:.6g}" if "low" in row else ""
    return f"{score:.6g}{ends}"


def status(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show the agent's state.

    Exit code 7 if it does not run or is not connected: for health checks.

    A problem that the operator has to mend is listed, and does not change the exit code.
    """
    with _state(config) as (state, up):
        shown = state.status() or {}
        connected = up and shown.get("connected_since") is not None
        standing = state.standing_studies()
        if as_json:
            print_json({**shown, "up": up, "connected": connected, "standing": standing})
        elif not shown:
            echo(f"no agent has served with {state.folder} yet")
        else:
            for line in _status_lines(shown, state.history(), up=up, connected=connected):
                echo(line)
            for study in standing:
                echo(
                    f"  standing study {study}: its runs need no further approval; scoring = false"
                    " in policy.toml refuses them"
                )
    if not connected:
        raise typer.Exit(Unreachable.exit_code)


def _status_lines(
    shown: dict[str, Any], history: list[dict[str, Any]], *, up: bool, connected: bool
) -> list[str]:
    lines = [f"{shown['site']}: {_doing(shown, up=up, connected=connected)}"]
    if shown["certificate_until"] is not None:
        lines += _certificate_lines(shown["certificate_until"])
    for run, state in shown["runs"].items():
        lines.append(f"  run {run} of {state['study'] or 'no study'}: {_stage(state, up=up)}")
    for data, trouble in shown["troubles"].items():
        lines.append(f"  data set {data} cannot be used: {trouble}")
    lines += [f"  {text}" for text in shown["unresolved"]]
    if history:
        last = history[-1]
        reason = _why(last)
        end = f"{last['stop'].lower()}: {reason}" if reason else last["stop"].lower()
        lines.append(f"  last run {last['run']}, {last['at']}: {end}")
    return lines


def _doing(shown: dict[str, Any], *, up: bool, connected: bool) -> str:
    process = f"(process {shown['pid']})"
    ended = shown["ended"]
    if connected:
        idle = "" if shown["runs"] else f"; waiting {shown['waiting']}"
        return f"connected since {shown['connected_since']}{idle} {process}"
    if up:
        return f"{shown['waiting']} {process}"
    if ended:
        return (
            f"not running; ended {ended['at']} with exit code {ended['exit_code']}:"
            f" {ended['reason']}"
        )
    return "not running"


def _certificate_lines(until: str) -> Iterator[str]:
    left = (datetime.fromisoformat(until) - utc_now()).days
    when = f"expires in {left} days" if left >= 0 else f"EXPIRED on {until[:10]}"
    if left < 30:
        yield f"  the certificate {when}: ask the coordinator's operator for a new invitation"


def _stage(state: dict[str, Any], *, up: bool) -> str:
    from site_agent.machine.agent import Stage

    if not up:
        return (
            f"{state['doing']}, when the agent stopped. Start it again: it returns to the run if"
            " the coordinator still waits"
        )
    todo = ": see `coreg-agent pending`" if state["doing"] == Stage.WAITING.value else ""
    return f"{state['doing']}{todo}"


def _why(entry: dict[str, Any]) -> str:
    """Why a run ended, with the fault that only this site knows; of a refusal also the next
    step.
    """
    from site_agent.machine.notices import after_refusal

    why: str = entry.get("fault") or entry.get("reason") or ""
    if entry["stop"] == Outcome.REFUSED.name and why:
        return after_refusal(why)
    return why


COMMANDS: tuple[Callable[..., None], ...] = (serve, pending, approve, refuse, runs, status)
