"""coreg-agent ledger: show or verify the ledger of everything that left this machine."""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coreg_core.errors import UsageError
from coreg_wire.terminal.command_line import print_json
from coreg_wire.terminal.text import echo
from site_agent.config.options import JsonOption

if TYPE_CHECKING:
    from site_agent.ledger.audit import Audited, SignedHead

# Of an answer, beside its kind; the file has the words on the left.
_LABELS = {
    "none": "not computed from labels",
    "in the scalars": "computed from labels too (sums)",
    "in the vectors": "computed from labels too",
}
_SENT = {"sealed": "sealed", "in clear": "NOT SEALED"}
_TEMPLATES = {
    "Opened": "noted: moments of labelled rows opened, time {openings} for these rows",
    "Asked": "noted: {by} asked for scores of {individuals} individuals",
    "Countersigned": "received: the coordinator signed the ledger's first {head[lines]} lines",
}
_NOT_SHOWN = ("at", "kind", "run", "step", "previous", "certificate", "signature", "chain")


def ledger(
    path: Annotated[Path, typer.Argument(help="The ledger.")] = Path("identity/ledger.jsonl"),
    verify: Annotated[
        bool, typer.Option("--verify", help="Verify its signatures (exit code 8: a wrong one).")
    ] = False,
    checkpoints: Annotated[
        Path | None,
        typer.Option(help="With --verify: from `coreg-coordinator show RUN --json`."),
    ] = None,
    authority: Annotated[
        Path | None,
        typer.Option(help="With --verify: the authority [ca.pem beside the ledger]."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what left this machine, and check the chain. Or verify the signatures of both sides.

    The chain reveals a line that was changed, removed or inserted. --verify also reveals a
    rewritten chain, and with --checkpoints removed last lines.
    """
    if verify:
        _verify(path, checkpoints, authority, as_json=as_json)
    else:
        _show(path, as_json=as_json)


def _show(path: Path, *, as_json: bool) -> None:
    from site_agent.ledger.ledger import read_lines

    _must_exist(path)
    count = 0
    end = 0
    for line in read_lines(path):
        count = line.number
        end = line.end
        if as_json:
            print_json(line.entry)
        else:
            echo(shown(line.entry))
    if cut := path.stat().st_size - end:
        echo(
            f"the last {cut} bytes are no whole line: an agent writes it now, or a crash cut it",
            err=True,
        )
    if not as_json:
        echo(
            f"{count} entries, times in UTC; the chain is whole up to the last line. Removed last"
            " lines do not show: use --verify with --checkpoints"
        )


def shown(entry: Mapping[str, Any]) -> str:
    """An entry as one line for people; --json has all of its fields."""
    run = f"  run {entry['run']}" if "run" in entry else ""
    step = f" step {entry['step']}" if "step" in entry else ""
    at = str(entry["at"])[:19].replace("T", " ")
    return f"{at}  {entry['kind']:<13}{run}{step}  {_meaning(entry)}"


def _meaning(entry: Mapping[str, Any]) -> str:
    kind = entry["kind"]
    if kind in _TEMPLATES:
        return _TEMPLATES[kind].format_map(entry)
    if kind in _MEANINGS:
        return _MEANINGS[kind](entry)
    return ", ".join(f"{key}: {entry[key]}" for key in entry if key not in _NOT_SHOWN)


def _offered(entry: Mapping[str, Any]) -> str:
    many = entry.get("n_unlabelled") or 0
    if many > 1:
        return f"takes part; {many} shared instances"
    return "takes part"


def _answered(entry: Mapping[str, Any]) -> str:
    count = entry.get("numbers")
    if not count:
        return "no numbers: keys or progress"
    numbers = "1 number" if count == 1 else f"{count} numbers"
    sent = entry.get("sent")
    labels = entry.get("labels")
    computed = _LABELS.get(str(labels), f"labels: {labels}")
    return f"{numbers}, {_SENT.get(str(sent), sent)}: {entry.get('what')}; {computed}"


def _fetched(entry: Mapping[str, Any]) -> str:
    ended = f" ({entry['outcome']})" if "outcome" in entry else ""
    signed = "; signed the ledger" if "head" in entry else ""
    return f"confirmed the end of the run{ended}{signed}"


def _scored(entry: Mapping[str, Any]) -> str:
    return f"noted: {len(str(entry['individuals'])) * 3 // 64} individuals scored with others"


def _approval(entry: Mapping[str, Any]) -> str:
    given = entry.get("given")
    if given:
        return "the site's operator approved"
    return "waits for the site's operator"


def _decided(entry: Mapping[str, Any]) -> str:
    decision = "approved" if entry["approved"] else "refused"
    return f"noted: {entry['by']} {decision} the plan; --json has what was shown"


_MEANINGS = {
    "Offer": _offered,
    "Answer": _answered,
    "Fetched": _fetched,
    "Scored": _scored,
    "Approval": _approval,
    "Decided": _decided,
}


def _must_exist(path: Path) -> None:
    if not path.exists():
        todo = "Go to the site's folder, or name the file: identity/ledger.jsonl there."
        raise UsageError(f"{path.absolute()}: no such ledger. {todo}")


def _verify(path: Path, checkpoints: Path | None, authority: Path | None, *, as_json: bool) -> None:
    from coreg_wire.identity.names import certificate_name
    from site_agent.ledger.audit import audit, read_record
    from site_agent.ledger.ledger import read_lines

    _must_exist(path)
    # A broken chain is reported first, also where the certificates are missing.
    deque(read_lines(path), 0)
    authorities = _certificates(authority or path.parent / "ca.pem")
    own = path.parent / "site.pem"
    site = certificate_name(_certificates(own)[0], str(own)) if own.exists() else None
    record = [] if checkpoints is None else read_record(checkpoints, site)
    if record:
        site = record[0].site
    audited = audit(path, authorities, site, record)
    if as_json:
        print_json({"ledger": str(path), **asdict(audited)})
        return
    for text in _sentences(path, audited, compared=checkpoints is not None):
        echo(text)


def _certificates(path: Path) -> list[Any]:
    from coreg_wire.identity.names import load_certificates

    try:
        return list(load_certificates(path.read_bytes(), str(path)))
    except OSError as error:
        raise UsageError(
            f"the chain is whole; its signatures were not verified: {path} cannot be read"
            f" ({error.strerror}). Give the ca.pem of the identity folder with --authority."
        ) from None


def _sentences(path: Path, audited: "Audited", *, compared: bool) -> Iterator[str]:
    """The result of a verification in sentences."""
    own = audited.own
    yield f"{path}: {audited.lines} lines, the chain is whole"
    if audited.both is None:
        yield "no line of it is signed by both sides yet: that comes at the end of a run"
    else:
        yield _signed(audited.both)
    if own is not None and own is not audited.both:
        yield (
            f"signed by {own.site} alone up to line {own.head.lines} (run {own.run}); the"
            " coordinator may have the other signature (`coreg-coordinator show RUN`), and the"
            " next run's end brings both"
        )
    if audited.after:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(audited.after.items()))
        yield f"not yet signed: the last {sum(audited.after.values())} lines ({kinds})"
    if compared:
        yield f"checkpoints of the coordinator's record that fit: {audited.compared}"
    else:
        yield (
            "removed last lines would not show: --checkpoints compares with the coordinator's"
            " record"
        )


def _signed(both: "SignedHead") -> str:
    from coreg_wire.identity.names import key_fingerprint
    from coreg_wire.identity.signatures import from_hex

    assert both.receipt is not None
    key: Any = from_hex(both.certificate, "the certificate").public_key()
    return (
        f"signed by {both.site} (key {key_fingerprint(key)[:16]}…) and countersigned by the"
        f" coordinator up to line {both.head.lines}, {both.receipt.at} (run {both.run})"
    )
