"""serve, run, status: the coordinator's process, and how it is."""

import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from coordinator.cli.options import (
    FederationArgument,
    JsonOption,
    ListenOption,
    PortFileOption,
    StoreArgument,
    StudyOption,
    planned,
    run_store,
)
from coordinator.store.schema import Values
from coreg_core.errors import Unreachable, UsageError
from coreg_wire.terminal.command_line import need_extra, print_json
from coreg_wire.terminal.text import echo

WebOption = Annotated[
    str | None,
    typer.Option(
        "--web",
        help="HOST:PORT of a page for a browser; off by default. Beyond loopback it needs a token.",
    ),
]
TokenOption = Annotated[
    Path | None, typer.Option("--web-token-file", help="Token of the page, read at each request.")
]


def serve(
    federation: FederationArgument = Path(),
    listen: ListenOption = None,
    port_file: PortFileOption = None,
    metrics: Annotated[
        str | None,
        typer.Option(help="HOST:PORT on loopback where Prometheus reads /metrics."),
    ] = None,
    web: WebOption = None,
    web_token_file: TokenOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Log lines as JSON.")] = False,
) -> None:
    """Run the federation as a service.

    Sites stay connected, and runs come from the queue (`submit`). Logs go to stderr.

    Unfinished runs begin again with the same sites. SIGTERM drains: no run starts, and unfinished
    runs begin again at the next start. SIGHUP reads the list of sites and the certificates again;
    sessions stay open.
    """
    from coordinator.config.federation_toml import read_configuration
    from coordinator.service.daemon import ServiceOptions
    from coordinator.service.daemon import serve as stay
    from coordinator.store.status import store_of
    from coreg_wire.terminal.service import last_line, log_notice, make_log

    log = make_log(as_json=as_json)
    with last_line(log, as_json=as_json), ExitStack() as held:
        configuration = read_configuration(federation, listen)
        token = partial(_token, web_token_file) if web_token_file else None
        if token and web is None:
            raise UsageError("--web-token-file alone shows no page. Give --web too.")
        options = ServiceOptions(port_file, metrics, web, token, listen)
        if web is not None:
            need_extra("web", "starlette", "uvicorn")
        held.enter_context(store_of(configuration.service.store))
        # Steps have no line in the log; the store has them.
        stay(
            federation,
            configuration,
            options,
            [partial(log_notice, log)],
        )


def run(
    federation: FederationArgument = Path(),
    study: StudyOption = None,
    listen: ListenOption = None,
    new: Annotated[
        bool, typer.Option("--new", help="Abandon an unfinished run and start a new one.")
    ] = False,
    port_file: PortFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Carry out one run and report its convergence. Exit when it is over.

    The plan is that of federation.toml, or of --study. An unfinished run of the same plan begins
    again with the same sites.
    """
    from coordinator.config.federation_toml import read_configuration
    from coordinator.observers.terminal import JsonLines, Plain
    from coordinator.service.daemon import ServiceOptions
    from coordinator.service.daemon import run as carry_out
    from coreg_core.outcomes import exit_code

    configuration = read_configuration(federation, listen)
    plan = planned(configuration, study)
    observer = JsonLines() if as_json else Plain()
    options = ServiceOptions(port_file, listen=listen)
    finish = carry_out(federation, configuration, plan, options, observer.notice, new=new)
    observer.finished(finish, show_command(finish.run, federation))
    raise typer.Exit(exit_code(finish.outcome))


def show_command(run: str, federation: Path) -> str:
    """The command that shows this run, to be pasted."""
    folder = federation.parent if federation.name == "federation.toml" else federation
    command = f"coreg-coordinator show {run}"
    if folder != Path():
        command += f" --federation {shlex.quote(str(folder))}"
    return command


def _token(path: Path) -> str:
    from coreg_wire.identity.signatures import check_private

    try:
        check_private(path)
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path}: cannot be read ({getattr(error, 'strerror', 'no text')})."
        ) from None
    if len(token) < 16:
        raise UsageError(f"{path}: a token has at least 16 characters.")
    return token


def status(federation: StoreArgument = Path(), as_json: JsonOption = False) -> None:
    """Show the coordinator of a federation, its sites and its runs.

    Exit code 7 if none is ready: for health checks.

    A missing site or a stalled run does not change the exit code.
    """
    from coordinator.store.status import overview

    store = run_store(federation)
    state = overview(store)
    away = [name for name in state["of"] if name not in state["connected"]]
    if as_json:
        print_json(state)
    else:
        for line in _lines(state, store, away):
            echo(line)
    if not state["ready"]:
        raise typer.Exit(Unreachable.exit_code)


def _lines(state: Values, store: Path, away: list[str]) -> Iterator[str]:
    """The overview for a person: the service, its sites, its runs, and warnings."""
    up = state["state"] != "not running"
    yield f"{state['federation'] or store}: {state['state']}" + (
        f", on {state['listen']}" if up else ""
    )
    if up:
        yield f"  since {state['since']}, release {state['release']}"
        yield f"  {len(state['connected'])} of {len(state['of'])} sites are connected"
    for site in state["sites"]:
        yield from _site_lines(site)
    for what in ("runs", "queued"):
        if state[what]:
            yield f"  {what}: {', '.join(state[what])}"
    for run in state["stalled"]:
        yield (
            f"  stalled: {run}, not connected: {', '.join(away) or 'no site now'}. It goes on when"
            " its sites are back, and ends after [timeouts] stall; or: coreg-coordinator cancel"
            f" {run}"
        )
    for run, waiting_for in state["waiting"].items():
        yield f"  run {run}: {waiting_for}"
    for warning in state["certificates"]:
        yield f"  {warning}"
    if state["not_reloaded"]:
        yield f"  not reloaded: {state['not_reloaded']}"


def _site_lines(site: Values) -> Iterator[str]:
    """The site's session, release and certificate; and why it was rejected, if that is newer than
    its session.
    """
    yield (
        f"  {site['site']:<20} {_session(site)}"
        + ("" if site["listed"] else "; not listed in [federation] sites")
        + (f"  release {site['release']}" if site["release"] else "")
        + (f"  certificate until {site['until'][:10]}" if site["until"] else "")
    )
    if site["refusal"] is not None and not (
        site["connected"] and (site["since"] or "") > (site["refused"] or "")
    ):
        yield f"  {'':<20} last rejected {site['refused']}: {site['refusal']}"


def _session(site: Values) -> str:
    """Whether the site is connected, and since when."""
    if site["connected"]:
        return f"connected since {site['since']}"
    if site["since"] is None:
        return "never connected"
    if site["ended"] is None:
        return f"last seen {site['seen']}, at the coordinator's last status"
    return f"disconnected since {site['ended']}"


COMMANDS: tuple[Callable[..., None], ...] = (serve, run, status)
