"""coreg-agent ledger: show or verify the ledger of everything that left this machine."""

from collections import deque
from collections.abc import Mapping
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
_NOT_SHOWN = ("at", "kind", "run", "step", "previous", "certificate", "signature", "chain")


def ledger(
    path: Annotated[Path, typer.Argument(help="The ledger.")] = Path("identity/ledger.jsonl"),
    verify: Annotated[
        bool, typer.Option("--verify", help="Verify its signatures (exit code 8: a wrong one).")
    ] = False,
    checkpoints: Annotated[
        Path | None,
        typer.Option(
            "--checkpoints", help="With --verify: from `coreg-coordinator show RUN --json`."
        ),
    ] = None,
    authority: Annotated[
        Path | None,
        typer.Option(
            "--authority", help="With --verify: the authority [ca.pem beside the ledger]."
        ),
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
    count, end = 0, 0
    for line in read_lines(path):
        count, end = line.number, line.end
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
    kind, said = str(entry["kind"]), ""
    match kind:
        case "Offer":
            many = entry.get("n_unlabelled") or 0
            said = f"takes part; {many} shared instances" if many > 1 else "takes part"
        case "Answer" if entry.get("numbers"):
            sums = {"sealed": "sealed", "in clear": "NOT SEALED"}.get(
                str(entry.get("sent")), str(entry.get("sent"))
            )
            labels = _LABELS.get(str(entry.get("labels")), f"labels: {entry.get('labels')}")
            said = (
                f"{entry['numbers']} number{'s' * (entry['numbers'] != 1)}, {sums}:"
                f" {entry.get('what')}; {labels}"
            )
        case "Answer":
            said = "no numbers: keys or progress"
        case "Fetched":
            ended = f" ({entry['outcome']})" if "outcome" in entry else ""
            said = (
                "confirmed the end of the"
                f" run{ended}{'; signed the ledger' if 'head' in entry else ''}"
            )
        case "Opened":
            said = (
                f"noted: moments of labelled rows opened, time {entry['openings']} for these rows"
            )
        case "Scored":
            said = (
                f"noted: {len(str(entry['individuals'])) * 3 // 64} individuals scored with others"
            )
        case "Asked":
            said = f"noted: {entry['by']} asked for scores of {entry['individuals']} individuals"
        case "Countersigned":
            said = (
                f"received: the coordinator signed the ledger's first {entry['head']['lines']}"
                " lines"
            )
        case "Approval":
            said = (
                "the site's operator approved"
                if entry.get("given")
                else "waits for the site's operator"
            )
        case _:
            said = ", ".join(
                f"{key}: {value}" for key, value in entry.items() if key not in _NOT_SHOWN
            )
    run = f"  run {entry['run']}" if "run" in entry else ""
    step = f" step {entry['step']}" if "step" in entry else ""
    at = str(entry["at"])[:19].replace("T", " ")
    return f"{at}  {kind:<13}{run}{step}  {said}"


def _must_exist(path: Path) -> None:
    if not path.exists():
        todo = "Go to the site's folder, or name the file: identity/ledger.jsonl there."
        raise UsageError(f"{path.absolute()}: no such ledger. {todo}")


def _verify(path: Path, checkpoints: Path | None, authority: Path | None, *, as_json: bool) -> None:
    from coreg_wire.identity.names import certificate_name
    from site_agent.ledger.audit import audit, read_record
    from site_agent.ledger.ledger import read_lines

    _must_exist(path)
    deque(
        read_lines(path), 0
    )  # a broken chain is told first, also where the certificates are missing
    authorities = _certificates(authority or path.parent / "ca.pem")
    own = path.parent / "site.pem"
    site = certificate_name(_certificates(own)[0], str(own)) if own.exists() else None
    record = [] if checkpoints is None else read_record(checkpoints, site)
    found = audit(path, authorities, site or (record[0].site if record else None), record)
    if as_json:
        print_json({"ledger": str(path), **asdict(found)})
    else:
        for text in sentences(path, found, compared=checkpoints is not None):
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


def sentences(path: Path, found: "Audited", *, compared: bool) -> list[str]:
    """The result of a verification in sentences."""
    both = "no line of it is signed by both sides yet: that comes at the end of a run"
    said = [
        f"{path}: {found.lines} lines, the chain is whole",
        both if found.both is None else _signed(found.both),
    ]
    if found.own is not None and found.own is not found.both:
        said.append(
            f"signed by {found.own.site} alone up to line {found.own.head.lines} (run"
            f" {found.own.run}); the coordinator may have the other signature (`coreg-coordinator"
            " show RUN`), and the next run's end brings both"
        )
    if found.after:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(found.after.items()))
        said.append(f"not yet signed: the last {sum(found.after.values())} lines ({kinds})")
    said.append(
        f"checkpoints of the coordinator's record that fit: {found.compared}"
        if compared
        else (
            "removed last lines would not show: --checkpoints compares with the coordinator's"
            " record"
        )
    )
    return said


def _signed(both: "SignedHead") -> str:
    from coreg_wire.identity.names import key_fingerprint
    from coreg_wire.identity.signatures import from_hex

    assert both.receipt is not None
    key: Any = from_hex(both.certificate, "the certificate").public_key()
    return (
        f"signed by {both.site} (key {key_fingerprint(key)[:16]}…) and countersigned by the"
        f" coordinator up to line {both.head.lines}, {both.receipt.at} (run {both.run})"
    )
