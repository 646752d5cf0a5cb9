"""coreg-agent: parse, build, run, and name the next step. Everything else is in other rooms."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from coreg_core.errors import UsageError
from coreg_core.numerics.allocation import keep_freed_memory
from coreg_core.protocol.outcomes import exit_code
from coreg_wire.identity.keys import ask_twice
from coreg_wire.terminal import command_line
from coreg_wire.terminal.output import print_json
from site_agent.cli import models, service
from site_agent.cli.ledger import ledger
from site_agent.config.settings import read_settings, with_settings
from site_agent.identity.identity import check_identity, enrol, install, renew
from site_agent.service.console import Watching

# polars, SciPy and gRPC take a second or two to import: each command imports what it needs, when it runs.

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

for _command in (*models.COMMANDS, *service.COMMANDS):
    app.command()(_command)

NEEDED = ("data", "target", "id", "coordinator")
IdentityOption = Annotated[
    Path, typer.Option("--identity", envvar="COREG_IDENTITY", help="The site's key and certificate; the ledger too.")
]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", envvar="COREG_CONFIG", help="agent.toml: any of these options, without dashes."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object a line, for machines.")]


@app.callback(invoke_without_command=True)
@with_settings()
def root(
    context: typer.Context,
    given: dict[str, Any],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take part in a federation with this organisation's own table. Without a command: join, and write the model.

    What leaves this machine (the ledger has a line for each message): this site's name and its release of coreg; with the
    plan, how many shared, unlabelled instances there are, a digest of their ids, two numbers (b_v, which bounds a spectral
    number of the features, and the sum of squares of the targets, as the plan transforms them) and a salted digest of the
    data; to each question a prediction for each shared instance; and the texts of refusals and of faults. No record does.
    """
    if context.invoked_subcommand is not None:
        return
    # A container may say everything in its environment; where nothing is said at all, help is the answer.
    if len(sys.argv) == 1 and config is None and not any(given.values()):
        typer.echo(context.get_help())
        raise typer.Exit(2)
    from site_agent.service.join import join

    watcher = Watching(as_json=as_json)
    try:
        joined = join(read_settings(config, given, NEEDED), watcher.note, watcher.message)
    finally:
        watcher.close()
    sent = {kind: {"messages": s.messages, "numbers": s.numbers} for kind, s in sorted(joined.sent.items())}
    outcome = joined.result.outcome
    if as_json:
        print_json(
            {
                "event": "finished",
                "site": joined.site,
                "stop": outcome.name,
                "reason": joined.result.reason,
                "models": [str(p) for p in joined.models],
                "sent": sent,
                "label_bearing_vectors": joined.label_bearing.messages,
                "findings": list(joined.result.findings),
                "ledger": str(joined.ledger),
            }
        )
    else:
        said = ", ".join(f"{s['messages']} {kind} ({s['numbers']} numbers)" for kind, s in sent.items())
        watcher.note(
            f"what left this machine: {said}; labels in {joined.label_bearing.messages} of these vectors; "
            f"every entry is in {joined.ledger}"
        )
        for path in joined.models:
            watcher.note(f"model: {path}")
        if joined.models:
            watcher.note(
                f"next: coreg-agent predict --model {joined.models[0]} --data new.csv --output predictions.csv"
            )
    raise typer.Exit(exit_code(outcome))


_VERDICTS = {True: "ok", False: "WRONG", None: "skipped"}


@app.command("check")
@with_settings(without=frozenset({"alone", "ledger", "patience"}))
def check_command(
    given: dict[str, Any],
    config: ConfigOption = None,
    plan: Annotated[
        Path | None,
        typer.Option("--plan", help="A plan to hold policy and table to, as `coreg-coordinator plan` prints it."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say what would be used and what is wrong, before joining: versions, table, policy, identity, network and TLS, disk.

    With --plan also everything for which this site would refuse that plan, and what its numbers are in units of these rows.
    --config may be the file of an agent that serves: every data set of it is read.

    All faults of a table are told at once. With --json each has fields: file, row (its first line), rows (how many), column, kind
    (what was found there, never the cell itself) and do. What could not be checked is skipped (null under "ok").
    """
    from site_agent.config.agent_toml import serves, settings_that_serve
    from site_agent.service.preflight import check

    def show(text: str, good: bool | None, fields: Mapping[str, Any]) -> None:
        if as_json:
            print_json({"event": "check", "ok": good, "text": text, **fields})
        else:
            typer.echo(f"{_VERDICTS[good]:<6} {text}")

    if config is not None and serves(config):
        settings, data_sets = settings_that_serve(config, given)
        raise typer.Exit(check(settings, show, plan, data_sets))
    raise typer.Exit(check(read_settings(config, given, NEEDED), show, plan))


@app.command()
def enroll(
    name: Annotated[str | None, typer.Option("--name", help="The site's name, as in federation.toml.")] = None,
    identity: IdentityOption = Path("identity"),
    install_bundle: Annotated[
        Path | None, typer.Option("--install", help="The coordinator's answer, NAME.pem.")
    ] = None,
    renewal: Annotated[
        bool,
        typer.Option("--renew", help="Ask for another certificate over the one in use, which works until --install."),
    ] = False,
    new_key: Annotated[
        bool, typer.Option("--new-key", help="With --renew: for another key. Peers pin it anew.")
    ] = False,
    authority: Annotated[
        str | None,
        typer.Option("--authority", help="With --install: a new authority's fingerprint, as its operator read it out."),
    ] = None,
    encrypt: Annotated[
        bool,
        typer.Option(
            "--encrypt-keys",
            help="Encrypt the key, an old one too: passphrase from COREG_PASSPHRASE_FILE, COREG_PASSPHRASE or a terminal.",
        ),
    ] = False,
) -> None:
    """Make this site's key and its certificate request; then --install the coordinator's answer. The key never leaves."""
    if install_bundle is not None:
        installed = install(identity, install_bundle, authority=authority)
        typer.echo(f"{installed.name}: installed in {identity}, valid until {installed.not_after:%Y-%m-%d}")
        typer.echo("next: coreg-agent check --data … --target … --id … --coordinator HOST:PORT")
        return
    if renewal:
        asked = renew(identity, new_key=new_key)
        typer.echo(
            f"{asked.name}: {asked.request_path}, for {'the key that it has' if asked.reused_key else 'a new key'}"
        )
        typer.echo(f"  key fingerprint {asked.key_fingerprint}")
        typer.echo(
            f"next: send {asked.request_path.name} to the coordinator's operator, who runs `coreg-coordinator sign --renew`, and "
            f"`coreg-agent enroll --identity {identity} --install {asked.name}.pem` with the answer"
            + (
                ""
                if asked.reused_key
                else "; send it to your peers too, for `coreg-agent peers --policy policy.toml site.csr`"
            )
        )
        return
    if name is None:
        if (identity / "site.pem").exists():
            found = check_identity(identity)
            typer.echo(f"{found.name}: enrolled in {identity}, valid until {found.not_after:%Y-%m-%d}")
            return
        raise UsageError("needs --name, the site's name in federation.toml; or --install NAME.pem.")
    made = enrol(identity, name, secret=ask_twice(f"{identity / 'site.key'}") if encrypt else None)
    typer.echo(f"{made.name}: {made.request_path}{' (with the key that was there)' if made.reused_key else ''}")
    typer.echo(f"  key fingerprint {made.key_fingerprint}")
    typer.echo(
        f"next: send {made.request_path.name} to the coordinator's operator, tell the fingerprint by telephone, and "
        f"`coreg-agent enroll --identity {identity} --install {made.name}.pem` with the answer"
    )


@app.command()
def peers(
    certificates: Annotated[
        list[Path] | None,
        typer.Argument(help="Certificates of other sites: NAME.pem, as `coreg-coordinator sign` wrote them."),
    ] = None,
    identity: IdentityOption = Path("identity"),
    policy: Annotated[
        Path | None, typer.Option("--policy", envvar="COREG_POLICY", help="policy.toml, to compare its [peers] with.")
    ] = None,
    pin: Annotated[
        bool, typer.Option("--pin", help="Print the [peers] of policy.toml for this site and the given certificates.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show this site's fingerprint and its peers', in words to read over the telephone, and whether the policy pins them.

    Answers are summed with pinned sites alone. A certificate says what the coordinator's authority signed; that a key is another
    organisation's only that organisation can say: call it, and let it read its words.
    """
    from site_agent.identity.peers import peer_of, pins, words
    from site_agent.policy.policy import read_policy

    if not (identity / "site.pem").exists():
        raise UsageError(
            f"{identity}: no certificate of this site. First `coreg-agent enroll --identity {identity} --name NAME`, and "
            f"`coreg-agent enroll --identity {identity} --install NAME.pem` with the coordinator's answer."
        )
    pinned = read_policy(policy).peers
    paths = {path.resolve(): path for path in (identity / "site.pem", *(certificates or ()))}
    found = {peer.name: peer for peer in (peer_of(path, pinned) for path in paths.values())}
    if pin:
        typer.echo(pins(list(found.values())))
        return
    for name in sorted(found.keys() | pinned.keys()):
        peer = found.get(name)
        fingerprint, verdict = (pinned[name], "pinned") if peer is None else (peer.fingerprint, peer.verdict)
        if as_json:
            told = {"site": name, "fingerprint": fingerprint, "words": words(fingerprint), "verdict": verdict}
            print_json({"event": "peer", **told})
        else:
            typer.echo(f"{name}: {verdict}\n  {words(fingerprint)}\n  {fingerprint}")


@app.command("score")
@with_settings(
    without=frozenset({"target", "unlabelled", "output", "alone", "categorical", "dates", "drop", "scale", "labels"})
)
def score_command(
    given: dict[str, Any],
    model: Annotated[Path, typer.Option("--model", help="This site's model of the run that is scored with.")],
    output: Annotated[
        Path, typer.Option("--output", help="CSV or Parquet. A new file is for its owner alone (mode 0600).")
    ] = Path("scores.csv"),
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Score shared instances together with the other sites: all list the same ids, each sends its part, and the sum comes back.

    --data has the id column and the model's columns. Where every feature's cell of a row is empty, this site has no record of
    that instance. What leaves is one number for each instance (the ledger has it); what the coordinator learns is what each
    site says, and the sum. The policy has to allow it (scoring = true).
    """
    from site_agent.service.score import score

    watcher = Watching(as_json=as_json)
    try:
        settings = read_settings(config, given, ("data", "id", "coordinator"))
        scored = score(settings, model, output, watcher.note, watcher.message)
    finally:
        watcher.close()
    outcome, sent = scored.result.outcome, sum(s.numbers for s in scored.sent.values())
    if as_json:
        told = {"site": scored.site, "stop": outcome.name, "reason": scored.result.reason, "rows": scored.rows}
        where = None if scored.output is None else str(scored.output)
        print_json({"event": "finished", **told, "output": where, "numbers_sent": sent, "ledger": str(scored.ledger)})
    elif scored.output is not None:
        watcher.note(
            f"{scored.rows} scores in {scored.output}; {sent} numbers left this machine, as {scored.ledger} has it"
        )
    else:
        watcher.note(f"no scores for this site; {sent} numbers left this machine, as {scored.ledger} has it")
    raise typer.Exit(exit_code(outcome))


app.command()(ledger)


def main() -> None:
    """The console script."""
    keep_freed_memory()
    raise SystemExit(command_line.run(app, "coreg-agent"))
