"""init, enroll, peers: this site's configuration, its key and certificate, and the keys of its peers."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from coreg_core.errors import Refused, UsageError
from coreg_wire.identity.keys import words
from coreg_wire.terminal.command_line import as_owner
from coreg_wire.terminal.output import print_json
from site_agent.cli.service import JsonOption
from site_agent.config.starter import POLICY, agent_toml
from site_agent.identity.identity import certificate_in, check_identity, enrol, install

IdentityOption = Annotated[
    Path,
    typer.Option(
        "--identity", envvar="COREG_IDENTITY", readable=False, help="The site's key and certificate; the ledger too."
    ),
]


def enroll(
    name: Annotated[str | None, typer.Option("--name", help="The site's name, as in federation.toml.")] = None,
    identity: IdentityOption = Path("identity"),
    install_bundle: Annotated[
        Path | None, typer.Option("--install", help="The coordinator's answer, NAME.pem.")
    ] = None,
) -> None:
    """Create this site's key and certificate request. Then --install the coordinator's answer. The key never leaves."""
    if install_bundle is not None:
        before = certificate_in(identity)
        installed = install(identity, install_bundle)
        typer.echo(f"{installed.name}: installed in {identity}, valid until {installed.not_after:%Y-%m-%d}")
        typer.echo(
            "next: "
            + ("pin the other sites (`coreg-agent peers`); then " if before is None else "")
            + "`coreg-agent check --config agent.toml`"
        )
        return
    if name is None:
        if (identity / "site.pem").exists():
            found = check_identity(identity)
            typer.echo(f"{found.name}: enrolled in {identity}, valid until {found.not_after:%Y-%m-%d}")
            return
        raise UsageError("needs --name, the site's name in federation.toml; or --install NAME.pem.")
    made = enrol(identity, name)
    typer.echo(f"{made.name}: {made.request_path}{' (with the key that was there)' if made.reused_key else ''}")
    _show_key(made.key_fingerprint)
    typer.echo(
        f"next: send {made.request_path.name} to the coordinator's operator, and read out the words by telephone; "
        f"then run `coreg-agent enroll --identity {identity} --install {made.name}.pem` with the answer"
    )


def _show_key(fingerprint: str) -> None:
    typer.echo(f"  key fingerprint {words(fingerprint)}\n  {fingerprint}")


def peers(
    certificates: Annotated[
        list[Path] | None,
        typer.Argument(help="Certificates of other sites: NAME.pem, as `coreg-coordinator sign` wrote them."),
    ] = None,
    identity: IdentityOption = Path("identity"),
    policy: Annotated[
        Path | None,
        typer.Option(
            "--policy", envvar="COREG_POLICY", help="policy.toml, to compare its [peers] with [./policy.toml]."
        ),
    ] = None,
    pin: Annotated[
        bool, typer.Option("--pin", help="Print the [peers] of policy.toml for this site and the given certificates.")
    ] = False,
    write: Annotated[
        Path | None, typer.Option("--write", help="With --pin: edit the [peers] of this policy.toml in place.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the fingerprints of this site and its peers. Compare the words by telephone; then --pin the peers' keys.

    Answers are summed with pinned sites only. A certificate proves that the coordinator's authority signed a key. Only the other
    organisation can confirm the key: call it and compare the words.
    """
    from site_agent.consent.policy import read_policy
    from site_agent.identity.peers import peer_of, pins, write_pins

    if not (identity / "site.pem").exists():
        raise UsageError(
            f"{identity.absolute()}: no certificate of this site. If the site is enrolled, go to its folder, or give --identity. "
            f"Otherwise run `coreg-agent enroll --identity {identity} --name NAME`, then "
            f"`coreg-agent enroll --identity {identity} --install NAME.pem` with the coordinator's answer."
        )
    if write is not None and not pin:
        raise UsageError("--write needs --pin: `coreg-agent peers --pin --write policy.toml NAME.pem …`.")
    if policy is None and write is None and Path("policy.toml").is_file():
        policy = Path("policy.toml")
    pinned = read_policy(policy or (write if write is not None and write.exists() else None)).peers
    paths = {path.resolve(): path for path in (identity / "site.pem", *(certificates or ()))}
    found = {peer.name: peer for peer in (peer_of(path, pinned) for path in paths.values())}
    own = next(iter(found))
    if found[own].another_key:  # a pin of this site's earlier key has no effect, and is replaced
        found[own] = replace(found[own], pinned=None)
    if write is not None:
        if write.exists():
            as_owner(write)
        added = write_pins(write, list(found.values()))
        typer.echo(f"{write}: pinned {', '.join(added) or 'no new site'}")
        typer.echo(
            f"If you have not compared the words by telephone, delete these sites from [peers] in {write} and call first. "
            "An agent that serves reads the pins when it is reloaded (SIGHUP)."
        )
        return
    if pin:
        typer.echo(pins(list(found.values())))
        return
    for name in (own, *sorted((found.keys() | pinned.keys()) - {own})):
        peer = found.get(name)
        fingerprint, verdict = (pinned[name], "pinned") if peer is None else (peer.fingerprint, peer.verdict)
        if policy is None:
            verdict = "not compared with a policy (give --policy)"
        if as_json:
            told = {"site": name, "fingerprint": fingerprint, "words": words(fingerprint), "verdict": verdict}
            print_json({"event": "peer", **told})
        else:
            who = "this site: you read these words" if name == own else "its operator reads these words"
            typer.echo(f"{name} ({who}): {verdict}\n  {words(fingerprint)}\n  {fingerprint}")
    if changed := [name for name, peer in found.items() if policy is not None and peer.another_key]:
        who = ", ".join(changed)
        typer.echo(
            f"next: call {who}. If its operator confirms a new key, pin it again. Otherwise do not run.", err=True
        )
        raise typer.Exit(Refused.exit_code)


def init(
    policy: Annotated[Path, typer.Option("--policy", envvar="COREG_POLICY", help="The policy to write.")] = Path(
        "policy.toml"
    ),
    config: Annotated[Path, typer.Option("--config", envvar="COREG_CONFIG", help="The configuration to write.")] = Path(
        "agent.toml"
    ),
    data: Annotated[
        str | None, typer.Option("--data", help="The site's table: its notation is written into agent.toml.")
    ] = None,
    service: Annotated[bool, typer.Option("--service", help="For `serve`: a section for each data set.")] = False,
) -> None:
    """Write a commented agent.toml and policy.toml. Existing files stay unchanged."""
    shown: dict[str, Any] = {}
    if data is not None:
        from site_agent.data.prepare import notation_shown  # polars takes one second to import
        from site_agent.data.sources import source_of

        source = source_of(data)
        found, left = notation_shown(source)
        for fault in left:
            typer.echo(fault, err=True)
        shown = {
            "notation": found,
            "table": os.path.relpath(source, config.parent) if isinstance(source, Path) else data,
        }
    agent = agent_toml(os.path.relpath(policy, config.parent), service=service, **shown)
    written = [path for path, text in ((config, agent), (policy, POLICY)) if _created(path, text)]
    if not written:
        raise UsageError(
            f"{config} and {policy} exist already and stay unchanged. Give other paths (--config, --policy)."
        )
    for path in (config, policy):
        typer.echo(f"{path}: {'written' if path in written else 'exists, unchanged'}")
    keys = "table, target, id and coordinator" if service else "data, target, id and coordinator"
    typer.echo(f"next: edit {keys} in {config}; then `coreg-agent enroll --name NAME`, unless this site is enrolled")


def _created(path: Path, text: str) -> bool:
    """Write a new file (mode 0600); False if it exists."""
    try:
        with path.open("x", encoding="utf-8") as file:
            path.chmod(0o600)
            file.write(text)
    except FileExistsError:
        return False
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror}).") from None
    return True


COMMANDS: tuple[Callable[..., None], ...] = (init, enroll, peers)
