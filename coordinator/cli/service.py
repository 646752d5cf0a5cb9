"""serve, plan, submit, cancel, sites, revoke, status: a federation that stands, and what its operator says to it.

All but `serve` speak through the run store; they work whether or not a coordinator is up, and need nothing but the file.
"""

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from coordinator.cli.options import (
    FederationArgument,
    IdentityOption,
    InsecureOption,
    JsonOption,
    ListenOption,
    OtherIdentityOption,
    OtherStoreOption,
    PortFileOption,
    StoreOption,
    existing,
    open_queue,
)
from coreg_core.errors import Unreachable, UsageError
from coreg_wire.terminal import output

WebOption = Annotated[
    str | None,
    typer.Option("--web", help="HOST:PORT of pages for a browser; off without it, beyond loopback with a token alone."),
]
TokenOption = Annotated[
    Path | None, typer.Option("--web-token-file", help="A file with the token that the pages ask for.")
]


def serve(
    federation: FederationArgument,
    listen: ListenOption = None,
    store: OtherStoreOption = None,
    identity: OtherIdentityOption = None,
    insecure: InsecureOption = False,
    port_file: PortFileOption = None,
    follow: Annotated[bool, typer.Option("--follow", help="Also a line for each answered question.")] = False,
    metrics: Annotated[
        str | None, typer.Option("--metrics", help="HOST:PORT on loopback where Prometheus reads /metrics.")
    ] = None,
    web: WebOption = None,
    web_token_file: TokenOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="The log's lines as JSON.")] = False,
) -> None:
    """Keep the federation up: sites stay connected, and runs come from the queue (`submit`). The log is on standard error.

    Takes up by itself whatever was left unfinished. SIGTERM drains: nothing new begins, finished runs are delivered, runs under
    way stay on record for the next start. SIGHUP reads the list of sites and the certificates again; sessions go on.
    """
    from coordinator.config.federation_toml import with_service
    from coordinator.service.daemon import Standing, stand
    from coreg_wire.terminal.logs import make_log

    configuration = with_service(federation, listen, store, identity)
    standing = Standing(insecure, port_file, follow, metrics, web, _token(web_token_file))
    if web is not None:
        _with_extra()
    log = make_log(as_json=as_json)
    if not follow or as_json or not sys.stderr.isatty():
        raise typer.Exit(stand(federation, configuration, standing, log))
    from coordinator.observers.follow import Follow

    seen = Follow()  # on a terminal the rounds are drawn in place, and are no lines of the log
    with seen.live():
        code = stand(federation, configuration, dataclasses.replace(standing, follow=False), log, seen)
    raise typer.Exit(code)


def web(
    store: StoreOption = Path("runs.sqlite"),
    listen: Annotated[
        str, typer.Option("--listen", help="HOST:PORT; beyond loopback with a token alone.")
    ] = "127.0.0.1:7601",
    web_token_file: TokenOption = None,
) -> None:
    """Show a run store on pages for a browser, and change nothing in it: sites, queue, runs. Needs the extra `web`."""
    _with_extra()
    from coordinator.web.server import bound, server_of

    token = _token(web_token_file)
    existing(store)
    listening = bound(listen, token, "--listen")
    typer.echo(f"http://{listen.rpartition(':')[0]}:{listening.getsockname()[1]}/", err=True)
    server_of(store, token).run(sockets=[listening])


def _with_extra() -> None:
    from importlib.util import find_spec

    if missing := [name for name in ("starlette", "uvicorn", "jinja2") if find_spec(name) is None]:
        raise UsageError(f"the pages need {', '.join(missing)}: pip install 'coreg-federation[web]'.")


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


def plan(
    federation: FederationArgument,
    study: Annotated[Path | None, typer.Option("--study", help="study.toml, of a federation that stands.")] = None,
) -> None:
    """Print the plan that the sites would be asked to accept, as JSON: for `coreg-agent check --plan` at each of them."""
    from coordinator.config.federation_toml import read_configuration
    from coordinator.config.study_toml import study_plan

    configuration = read_configuration(federation)
    planned = configuration.plan() if study is None else study_plan(study, configuration)
    output.print_json(planned.to_dict())


def submit(
    study: Annotated[Path, typer.Argument(help="study.toml.")],
    federation: Annotated[
        Path, typer.Option("--federation", envvar="COREG_FEDERATION", help="Whose study it is [federation.toml].")
    ] = Path("federation.toml"),
    store: OtherStoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put a run of a study into the queue of a coordinator that serves, or will."""
    from coordinator.config.federation_toml import with_service
    from coordinator.config.study_toml import study_plan
    from coordinator.driver import utc_now
    from coordinator.store.queue import Queue

    configuration = with_service(federation, None, store, None)
    plan = study_plan(study, configuration)
    path = configuration.service.store
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent}: no such folder for the run store; give --store.")
    queue = Queue(path)
    before = queue.submit(plan, utc_now())
    up = _is_up(path)
    queue.close()
    if as_json:
        output.print_json({"run": plan.run, "study": plan.study, "before": before, "serving": up})
        return
    typer.echo(f"run {plan.run} of study {plan.study} is in the queue, {before} before it")
    if not up:
        typer.echo(f"no coordinator serves {path}: start one with `coreg-coordinator serve {federation}`", err=True)


def cancel(
    run: Annotated[str, typer.Argument(help="A run, or the beginning of its name.")],
    store: StoreOption = Path("runs.sqlite"),
    reason: Annotated[str, typer.Option("--reason", help="What its sites are told.")] = "cancelled by the operator",
) -> None:
    """End a run, queued or under way, and leave the federation up. A run that is cancelled is not taken up again."""
    from coordinator.driver import utc_now

    queue = open_queue(store)
    whole, begun = queue.cancel(run, reason, utc_now())
    queue.close()
    up = _is_up(store)
    when = "now" if up else "when a coordinator serves again"
    typer.echo(f"run {whole} {'ends ' + when if begun else 'will not begin'}")


def sites(store: StoreOption = Path("runs.sqlite"), as_json: JsonOption = False) -> None:
    """Who is connected, since when, with which release; when their certificates end; why they were last turned away."""
    queue = open_queue(store)
    said, known = queue.said(), {a.site: a for a in queue.attendance()}
    queue.close()
    up = _is_up(store)
    from coordinator.store.queue import Attendance

    for site in sorted({*said.get("sites", ()), *known}):
        a = known.get(site) or Attendance(site, None, None, "", "", None, None)
        here = a.connected and up
        if as_json:
            listed = site in said.get("sites", ())
            seen = None if here else a.seen(said.get("told"))
            output.print_json({**dataclasses.asdict(a), "connected": here, "seen": seen, "listed": listed})
            continue
        if here:
            state = f"connected since {a.since}"
        elif a.connected:
            state = f"last seen {a.seen(said.get('told'))}, when the coordinator was last heard of"
        else:
            state = "never connected" if a.since is None else f"away since {a.ended}"
        typer.echo(
            f"{site:<20} {state}"
            + (f"  release {a.release}" if a.release else "")
            + (f"  certificate until {a.until[:10]}{_soon(a.until)}" if a.until else "")
        )
        if a.refusal is not None:
            typer.echo(f"{'':<20} last turned away {a.refused}: {a.refusal}")


def _soon(until: str) -> str:
    """How many days a certificate still has, where they are few."""
    from datetime import UTC, datetime

    days = (datetime.fromisoformat(until) - datetime.now(UTC)).days
    return f" (in {days} days: have it renewed)" if days < 30 else ""


def revoke(
    name: Annotated[str, typer.Argument(help="The site.")],
    identity: IdentityOption = Path(),
) -> None:
    """Take a site off the list of those that may join. Where `serve` runs, an open session of it is cut within a second."""
    from coordinator.authority.authorised import revoke as take_off

    if not take_off(identity, name):
        raise UsageError(f"{name} is not listed in {identity}; nothing was changed.")
    typer.echo(f"{name} may not join any more; `coreg-coordinator sign` lets it in again")


def status(store: StoreOption = Path("runs.sqlite"), as_json: JsonOption = False) -> None:
    """Whether a coordinator serves this store, and what it is doing. Exit code 7 where none is ready: for health checks."""
    from datetime import UTC, datetime

    from coordinator.service.daemon import TELL

    up = _is_up(existing(store))
    queue = open_queue(store)
    said, waiting = queue.said(), queue.waiting()
    connected = [a.site for a in queue.attendance() if a.connected] if up else []
    queue.close()
    age = None
    if "told" in said:
        age = (datetime.now(UTC) - datetime.fromisoformat(said["told"])).total_seconds()
    ready = up and said.get("state") == "ready" and age is not None and age < 6 * TELL
    told = {
        "ready": ready,
        "state": said.get("state", "never served") if up else "not running",
        "federation": said.get("federation"),
        "listen": said.get("listen") if up else None,
        "release": said.get("release"),
        "since": said.get("started") if up else None,
        "connected": connected,
        "of": said.get("sites", []),
        "runs": said.get("runs", []) if up else [],
        "stalled": said.get("parked", []) if up else [],
        "queued": [plan.run for plan, _ in waiting],
        "certificates": said.get("certificates", []) if up else [],
    }
    if as_json:
        output.print_json(told)
    else:
        typer.echo(f"{told['federation'] or store}: {told['state']}" + (f", on {told['listen']}" if up else ""))
        if up:
            typer.echo(f"  since {told['since']}, release {told['release']}")
            typer.echo(f"  {len(connected)} of {len(told['of'])} sites: {', '.join(connected) or 'none'}")
        for what in ("runs", "stalled", "queued"):
            if told[what]:
                typer.echo(f"  {what}: {', '.join(told[what])}")
        for warning in told["certificates"]:
            typer.echo(f"  {warning}")
    if not ready:
        raise typer.Exit(Unreachable.exit_code)


def _is_up(store: Path) -> bool:
    from coordinator.store.schema import is_held

    return is_held(store)


COMMANDS: tuple[Callable[..., None], ...] = (serve, web, plan, submit, cancel, sites, revoke, status)
