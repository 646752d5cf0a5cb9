"""init, sign, revoke: the certificate authority."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from coordinator.authority.pki import create_authority, reissue_server, server_names, sign_request
from coordinator.cli.options import IdentityOption
from coreg_core.errors import UsageError
from coreg_wire.identity.keys import words


def init(
    directory: Annotated[Path, typer.Argument(help="Created if it does not exist.")],
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            help="A name or address that sites dial; repeatable. federation.toml then listens on all addresses of the "
            "machine. Without it, on loopback only.",
        ),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the federation, for federation.toml.")] = None,
    site: Annotated[
        list[str] | None, typer.Option("--site", help="Name of a site, for federation.toml; repeatable.")
    ] = None,
    renew_server: Annotated[
        bool,
        typer.Option(
            "--renew-server",
            help="Only sign the server's certificate again. Keys stay, and so do its names unless --host is given.",
        ),
    ] = False,
) -> None:
    """Create an authority and a sample federation.toml. The coordinator's own certificate is created too."""
    if renew_server:
        until = reissue_server(directory, host or None)
        names = ", ".join(server_names(directory))
        typer.echo(f"{directory / 'coordinator.pem'} is valid until {until:%Y-%m-%d}, for {names}")
        return
    from coordinator.config.sample import sample as text_of
    from coreg_wire.files.disk import write_whole

    fingerprint = create_authority(directory, host or [])
    sample = directory / "federation.toml"
    if not sample.exists():
        write_whole(sample, text_of(name, site or [], remote=bool(host)).encode(), mode=0o600)
    typer.echo(f"authority: {directory / 'ca.pem'}\n  fingerprint {fingerprint}")
    typer.echo(f"configuration: {sample}")
    edit = "" if site else "edit its [federation] sites; "
    typer.echo(
        f"next: {edit}each site runs `coreg-agent enroll --name NAME` and sends its request; "
        f"sign it with `coreg-coordinator sign --identity {directory} --name NAME REQUEST`"
    )


def sign(
    request: Annotated[Path, typer.Argument(help="The site's request, site.csr.")],
    identity: IdentityOption = Path(),
    name: Annotated[str | None, typer.Option("--name", help="Refuse a request under another name.")] = None,
    output: Annotated[Path | None, typer.Option("--output", help="The certificate to write [NAME.pem].")] = None,
    days: Annotated[int, typer.Option("--days", min=1, help="Days of validity.")] = 365,
) -> None:
    """Sign a site's request and let it join. The certificate goes back to the site. No restart is needed."""
    signed = sign_request(identity, request, output, days, name)
    if signed.replaced:
        typer.echo(f"{signed.name}: its earlier key was replaced and cannot connect any more", err=True)
    typer.echo(f"{signed.name}: {signed.certificate_path}, valid until {signed.not_after:%Y-%m-%d}")
    typer.echo(
        f"  key fingerprint {words(signed.key_fingerprint)} (compare it with the site's operator)\n  {signed.key_fingerprint}"
    )
    if _listed(identity, signed.name) == "":
        typer.echo(
            f"  {identity / 'federation.toml'} does not list {signed.name} in sites: it cannot join before you add it and reload"
        )
    typer.echo(
        f"next: send {signed.certificate_path} to the site, which runs `coreg-agent enroll --install "
        f"{signed.certificate_path.name}` (with its --identity, if that is not ./identity)"
    )


def revoke(
    name: Annotated[str, typer.Argument(help="The site.")],
    identity: IdentityOption = Path(),
) -> None:
    """Remove a site from the allow-list. A running coordinator ends its session within a second; `run` at its next connection."""
    from coordinator.authority.authorised import revoke as take_off
    from coordinator.service.daemon import BELL
    from coreg_wire.files.disk import ring

    if not take_off(identity, name):
        raise UsageError(f"{name} is not listed in {identity}; nothing was changed.")
    ring(identity / BELL)
    typer.echo(f"{name}: revoked, it cannot connect. `coreg-coordinator sign` lists it again.")
    listed = _listed(identity, name)
    file = identity / "federation.toml"
    if listed == "":
        todo = f"{file} does not list it. Remove {name} from studies"
    else:
        todo = (
            f"{f'{file}, {listed}' if listed else 'federation.toml may list it'}. Remove {name} there and from studies"
        )
    typer.echo(
        f"next: {todo}, then send SIGHUP. Runs wait for it otherwise. On the shared individuals of earlier runs the other sites "
        "refuse to go on without it, unless membership changes were allowed (docs/how-to/add-lose-or-replace-a-site.md)."
    )


def _listed(identity: Path, name: str) -> str | None:
    """Where federation.toml beside the authority lists a site; "" if it does not, None without that file."""
    federation = identity / "federation.toml"
    if not federation.exists():
        return None
    lines = federation.read_text(encoding="utf-8").splitlines()
    found = (i for i, line in enumerate(lines, 1) if re.search(rf"""^[^#]*["']{re.escape(name)}["']""", line))
    return next((f"line {i}, still lists it: {lines[i - 1].strip()}" for i in found), "")


COMMANDS: tuple[Callable[..., None], ...] = (init, sign, revoke)
