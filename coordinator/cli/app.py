"""coreg-coordinator: parse, build, run, and name the next step. Everything else is in other rooms."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.authority.pki import create_authority, reissue_server, server_names, sign_request
from coordinator.cli import authority, service, store
from coordinator.cli.options import (
    EncryptOption,
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
from coreg_core.numerics.allocation import keep_freed_memory
from coreg_wire.identity.keys import ask_twice
from coreg_wire.terminal import command_line, output

if TYPE_CHECKING:
    from coordinator.store.runs import RunStore

# The mathematics and gRPC take a second to import: each command imports what it needs, when it runs.

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Run a federation: an authority for its sites, the rounds, and the memory of runs.",
)

for _command in (*authority.COMMANDS, *service.COMMANDS, *store.COMMANDS):
    app.command()(_command)


@app.command()
def init(
    directory: Annotated[Path, typer.Argument(help="Made when absent.")],
    host: Annotated[
        list[str] | None,
        typer.Option("--host", help="A name or address that sites will dial; repeatable. Loopback is always added."),
    ] = None,
    renew_server: Annotated[
        bool,
        typer.Option(
            "--renew-server",
            help="Only sign the server's certificate anew; keys stay, and so do its names unless --host is given.",
        ),
    ] = False,
    encrypt: EncryptOption = False,
) -> None:
    """Make a certificate authority, the coordinator's certificate, and a sample federation.toml."""
    if renew_server:
        until = reissue_server(directory, host or None)
        names = ", ".join(server_names(directory))
        typer.echo(f"{directory / 'coordinator.pem'} is valid until {until:%Y-%m-%d}, for {names}")
        return
    from coordinator.config.sample import SAMPLE

    secret = ask_twice(f"the keys in {directory}") if encrypt else None
    mark = create_authority(directory, host or [], secret=secret)
    sample = directory / "federation.toml"
    if not sample.exists():
        sample.write_text(SAMPLE, encoding="utf-8")
    typer.echo(f"authority: {directory / 'ca.pem'}\n  fingerprint {mark}")
    typer.echo(f"sample configuration: {sample}")
    typer.echo(
        "next: edit its [federation] sites; each site runs `coreg-agent enroll --name NAME` and sends its request; "
        f"sign it with `coreg-coordinator sign --identity {directory} REQUEST`"
    )


@app.command()
def sign(
    request: Annotated[Path, typer.Argument(help="The site's request, site.csr.")],
    identity: IdentityOption = Path(),
    name: Annotated[str | None, typer.Option("--name", help="Refuse a request under another name.")] = None,
    output: Annotated[Path | None, typer.Option("--output", help="Where the answer goes [NAME.pem].")] = None,
    days: Annotated[int, typer.Option("--days", min=1, help="How long it is valid.")] = 365,
    renewal: Annotated[
        bool,
        typer.Option(
            "--renew", help="Only if the site's listed certificate vouches for it (`coreg-agent enroll --renew`)."
        ),
    ] = False,
) -> None:
    """Sign a site's request and let it join; the answer goes back to the site. No restart is needed."""
    signed = sign_request(identity, request, output, days, name, renewal=renewal)
    if signed.same_key is None and signed.replaced:
        typer.echo(f"{signed.name} had another certificate, which may no longer join", err=True)
    typer.echo(f"{signed.name}: {signed.certificate_path}, valid until {signed.not_after:%Y-%m-%d}")
    compare = (
        "compare it with the site's operator" if signed.same_key is None else "its listed certificate vouches for it"
    )
    typer.echo(f"  key fingerprint {signed.key_fingerprint} ({compare})")
    if signed.same_key is not None:
        kept = "the key is the one it had, and what its peers pinned holds"
        peers = kept if signed.same_key else "the key is new, and its peers pin it anew"
        typer.echo(f"  {peers}; the certificate so far counts until it runs out, or `sign` without --renew")
    typer.echo(f"next: the site runs `coreg-agent enroll --install {signed.certificate_path.name}`")


@app.command()
def run(
    federation: FederationArgument,
    listen: ListenOption = None,
    store: OtherStoreOption = None,
    identity: OtherIdentityOption = None,
    new: Annotated[bool, typer.Option("--new", help="Abandon an unfinished run and start a new one.")] = False,
    deliver: Annotated[
        str | None,
        typer.Option("--deliver", help="No new run: let the sites of this finished run fetch their models once more."),
    ] = None,
    insecure: InsecureOption = False,
    port_file: PortFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Serve a run and report its convergence live; takes an unfinished run of the same plan up where it was.

    A run whose sites have not all fetched their models is unfinished too: the same command delivers them, and ends.
    """
    from coordinator.config.federation_toml import with_service
    from coordinator.observers import choose_observer
    from coordinator.service.run_once import Serving, serve

    configuration = with_service(federation, listen, store, identity)
    observer = choose_observer(as_json=as_json)
    raise typer.Exit(serve(configuration, observer, Serving(insecure, new, deliver, port_file)))


@app.command()
def score(
    federation: FederationArgument,
    of_run: Annotated[
        str | None,
        typer.Option("--run", help="Whose models score, or the beginning of its name [the latest with models]."),
    ] = None,
    listen: ListenOption = None,
    store: OtherStoreOption = None,
    identity: OtherIdentityOption = None,
    insecure: InsecureOption = False,
    port_file: PortFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Serve one scoring together: each site's part of every instance of a table that all list, summed, and the sum back.

    Every site that has a model of the run takes part. Nothing is written down here; [scoring] in federation.toml says what
    happens where a site lacks an instance, and who gets the scores.
    """
    from coordinator.config.federation_toml import with_service
    from coordinator.observers import choose_observer
    from coordinator.service.run_once import Serving
    from coordinator.service.run_once import score as serve_score

    configuration = with_service(federation, listen, store, identity)
    serving = Serving(insecure, port_file=port_file)
    raise typer.Exit(serve_score(configuration, choose_observer(as_json=as_json), serving, of_run))


def _open(store: Path) -> "RunStore":
    from coordinator.store.runs import RunStore

    return RunStore(existing(store))


@app.command()
def runs(store: StoreOption = Path("runs.sqlite"), as_json: JsonOption = False) -> None:
    """List every run in the store, the latest first; those in the queue, in which they wait, before them."""
    from coordinator.cli.format import queued_line, run_line

    opened = _open(store)
    queue = open_queue(store)
    for plan, submitted in reversed(queue.waiting()):
        if as_json:
            output.print_json(
                {"run": plan.run, "federation": plan.federation, "submitted": submitted, "plan": plan.to_dict()}
            )
        else:
            typer.echo(queued_line(plan, submitted))
    queue.close()
    for summary in opened.runs():
        if as_json:
            output.print_json(dataclasses.asdict(summary))
        else:
            typer.echo(run_line(summary))


@app.command()
def show(
    run: Annotated[str, typer.Argument(help="A run, or the beginning of its name.")],
    store: StoreOption = Path("runs.sqlite"),
    as_json: JsonOption = False,
) -> None:
    """Tell one run again: its plan, its rounds, its certificates, its end."""
    from coordinator.cli.format import head_line
    from coordinator.observers.rows import HEADINGS, PLAIN, Phases, cells

    opened = _open(store)
    summary, rounds = opened.show(run)
    heads = opened.heads(run=summary.run)
    if as_json:
        output.print_json({**dataclasses.asdict(summary), "rounds": rounds, "heads": heads})
        return
    typer.echo(f"run {summary.run} of {summary.federation}: {summary.started} to {summary.ended or '(unfinished)'}")
    for name, value in summary.plan.items():
        if isinstance(value, dict):
            typer.echo(f"  [{name}]")
            for term, chosen in value.items():
                typer.echo(f"    {term} = {chosen}")
        elif name not in ("run", "federation"):
            typer.echo(f"  {name} = {value}")
    typer.echo(PLAIN.format(*HEADINGS))
    phases = Phases()
    for values in map(_worst, rounds):
        phases.add(values)
        typer.echo(PLAIN.format(*cells(values)))
    for line in phases.lines():
        typer.echo(line)
    for told in heads:
        typer.echo(head_line(told))
    if summary.stop is not None:
        typer.echo(f"{summary.stop.lower()}{': ' + summary.reason if summary.reason else ''}")


def _worst(values: dict[str, Any]) -> dict[str, Any]:
    """The stored lists (one number a column) as `cells` wants them: the worst column."""
    shown = dict(values, bytes=values["bytes_sent"] + values["bytes_received"])
    for name in ("residual", "gap", "prediction_bound"):
        numbers = [x for x in values[name] or [] if x is not None]
        shown[name] = max(numbers) if numbers else None
    return shown


def main() -> None:
    """The console script."""
    keep_freed_memory()
    raise SystemExit(command_line.run(app, "coreg-coordinator"))
