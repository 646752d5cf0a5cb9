"""serve, run, web, sites, status: the coordinator's process, and how it is."""

import shlex
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from coordinator.cli.options import (
    FederationArgument,
    InsecureOption,
    JsonOption,
    ListenOption,
    OtherIdentityOption,
    OtherStoreOption,
    PortFileOption,
    StoreOption,
    StudyOption,
    existing,
    planned,
    warn_of_unsigned,
)
from coreg_core.errors import Unreachable, UsageError
from coreg_wire.terminal import output
from coreg_wire.terminal.command_line import need_extra

WebOption = Annotated[
    str | None,
    typer.Option("--web", help="HOST:PORT of a page for a browser; off by default. Beyond loopback it needs a token."),
]
TokenOption = Annotated[Path | None, typer.Option("--web-token-file", help="A file with the token of the page.")]


def serve(
    federation: FederationArgument = Path(),
    listen: ListenOption = None,
    store: OtherStoreOption = None,
    identity: OtherIdentityOption = None,
    insecure: InsecureOption = False,
    port_file: PortFileOption = None,
    metrics: Annotated[
        str | None, typer.Option("--metrics", help="HOST:PORT on loopback where Prometheus reads /metrics.")
    ] = None,
    web: WebOption = None,
    web_token_file: TokenOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Log lines as JSON.")] = False,
) -> None:
    """Run the federation as a service. Sites stay connected, and runs come from the queue (`submit`). Logs go to stderr.

    Unfinished runs begin again with the same sites. SIGTERM drains: no run starts, and unfinished runs begin again at the next
    start. SIGHUP reads the list of sites and the certificates again; sessions stay open.
    """
    from coordinator.config.federation_toml import with_service
    from coordinator.observers.terminal import LogLines
    from coordinator.service.daemon import ServiceOptions
    from coordinator.service.daemon import serve as stay
    from coordinator.store.status import store_of
    from coreg_wire.terminal.logs import last_line, make_log

    log = make_log(as_json=as_json)
    with last_line(log, as_json=as_json), ExitStack() as held:
        configuration = with_service(federation, listen, store, identity)
        if not insecure:
            warn_of_unsigned(
                configuration.federation.sites, configuration.service.identity, quiet=True
            )  # the log has it
        options = ServiceOptions(insecure, port_file, metrics, web, _token(web_token_file))
        if web is not None:
            need_extra("web", "starlette", "uvicorn")
        held.enter_context(store_of(configuration.service.store))
        stay(federation, configuration, options, [LogLines(log).notice])


def run(
    federation: FederationArgument = Path(),
    study: StudyOption = None,
    listen: ListenOption = None,
    store: OtherStoreOption = None,
    identity: OtherIdentityOption = None,
    new: Annotated[bool, typer.Option("--new", help="Abandon an unfinished run and start a new one.")] = False,
    insecure: InsecureOption = False,
    port_file: PortFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Carry out one run and report its convergence. Exit when it is over.

    The plan is that of federation.toml, or of --study. An unfinished run of the same plan begins again with the same sites.
    """
    from coordinator.config.federation_toml import with_service
    from coordinator.observers.terminal import JsonLines, Plain, ProgressBar
    from coordinator.service import one_study
    from coordinator.service.daemon import ServiceOptions
    from coreg_core.protocol.outcomes import exit_code

    configuration = with_service(federation, listen, store, identity)
    plan = planned(configuration, study)
    if not insecure:
        warn_of_unsigned(plan.sites, configuration.service.identity)
    terminal = sys.stdout.isatty()
    observer = JsonLines() if as_json else ProgressBar(plan) if terminal else Plain()
    try:
        options = ServiceOptions(insecure, port_file)
        finish = one_study.run(federation, configuration, plan, options, observer.notice, new=new)
        observer.finished(finish, show_command(finish.run, configuration.service.store))
    finally:
        observer.close()
    raise typer.Exit(exit_code(finish.outcome))


def show_command(run: str, store: Path) -> str:
    """The command that shows this run, to be pasted."""
    where = "" if store == Path("runs.sqlite") else f" --store {shlex.quote(str(store))}"
    return f"coreg-coordinator show {run}{where}"


def web(
    store: StoreOption = Path("runs.sqlite"),
    listen: Annotated[
        str, typer.Option("--listen", help="HOST:PORT; beyond loopback it needs a token.")
    ] = "127.0.0.1:7610",
    web_token_file: TokenOption = None,
) -> None:
    """Show a run store in a browser, read-only: sites, studies, runs and notices on one page. Needs the extra `web`."""
    need_extra("web", "starlette", "uvicorn")
    from coordinator.web.server import bound, server_of

    token = _token(web_token_file)
    existing(store)
    listening = bound(listen, token, "--listen")
    typer.echo(f"http://{listen.rpartition(':')[0]}:{listening.getsockname()[1]}/", err=True)
    server_of(store, token).run(sockets=[listening])


def _token(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        token = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}).") from None
    if len(token) < 16:
        raise UsageError(f"{path}: a token has at least 16 characters.")
    return token


def sites(store: StoreOption = Path("runs.sqlite"), as_json: JsonOption = False) -> None:
    """List the sites and their connections. Also: release, end of certificate, and why a site was last rejected."""
    from coordinator.store.overview import sites_now
    from coordinator.store.status import Status

    status = Status(existing(store), read_only=True)
    service, known = status.service(), {site.site: site for site in status.sites()}
    status.close()
    for site in sites_now([*known.values()], service, up=_is_up(store)):
        if as_json:
            output.print_json(site)
            continue
        if site["connected"]:
            state = f"connected since {site['since']}"
        elif site["since"] is not None and site["ended"] is None:
            state = f"last seen {site['seen']}, at the coordinator's last status"
        else:
            state = "never connected" if site["since"] is None else f"disconnected since {site['ended']}"
        gone = "" if site["listed"] or "sites" not in service else "; not listed in [federation] sites"
        expiry = known[site["site"]].expiry if site["until"] else ""
        typer.echo(
            f"{site['site']:<20} {state}{gone}"
            + (f"  release {site['release']}" if site["release"] else "")
            + (f"  certificate until {site['until'][:10]}{expiry and f' ({expiry})'}" if site["until"] else "")
        )
        if site["refusal"] is not None and not (site["connected"] and (site["since"] or "") > (site["refused"] or "")):
            typer.echo(f"{'':<20} last rejected {site['refused']}: {site['refusal']}")


def status(
    store: StoreOption = Path("runs.sqlite"),
    complete: Annotated[
        bool,
        typer.Option(
            "--complete", help="Exit code 5 also if a site is not connected, a run is stalled or a reload failed."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what the coordinator of this store does. Exit code 7 if none is ready: for health checks.

    A missing site, a stalled run or a failed reload does not change the exit code, unless --complete is given.
    """
    from coordinator.store.overview import overview
    from coreg_core.protocol.outcomes import Outcome, exit_code

    found = overview(existing(store))
    connected, up = found["connected"], found["state"] != "not running"
    away = [name for name in found["of"] if name not in connected]
    if as_json:
        output.print_json(found)
    else:
        typer.echo(f"{found['federation'] or store}: {found['state']}" + (f", on {found['listen']}" if up else ""))
        if up:
            typer.echo(f"  since {found['since']}, release {found['release']}")
            missing = f"; missing: {', '.join(away)}" if away else ""
            typer.echo(f"  {len(connected)} of {len(found['of'])} sites: {', '.join(connected) or 'none'}{missing}")
        for what in ("runs", "queued"):
            if found[what]:
                typer.echo(f"  {what}: {', '.join(found[what])}")
        for run in found["stalled"]:
            typer.echo(
                f"  stalled: {run}, not connected: {', '.join(away) or 'no site now'}. It goes on when its sites are back; or: "
                f"coreg-coordinator cancel {run}"
            )
        for run, waiting_for in found["waiting"].items():
            typer.echo(f"  run {run}: {waiting_for}")
        for warning in found["certificates"]:
            typer.echo(f"  {warning}")
        if found["not_reloaded"]:
            typer.echo(f"  not reloaded: {found['not_reloaded']}")
    if not found["ready"]:
        raise typer.Exit(Unreachable.exit_code)
    if complete and (away or found["stalled"] or found["not_reloaded"]):
        raise typer.Exit(exit_code(Outcome.STALLED))


def _is_up(store: Path) -> bool:
    from coreg_wire.files.disk import is_held

    return is_held(store)


COMMANDS: tuple[Callable[..., None], ...] = (serve, run, web, sites, status)
