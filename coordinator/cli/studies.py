"""plan, submit, cancel, runs, show: studies and their runs."""

import dataclasses
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.cli.options import (
    FederationArgument,
    JsonOption,
    StoreArgument,
    StoreOption,
    StudyOption,
    federation_file,
    planned,
    run_store,
    waits_now,
)
from coordinator.store.schema import Values
from coreg_core.errors import UsageError
from coreg_core.plan import aligns_for
from coreg_wire.terminal.command_line import as_owner, human_bytes, print_json
from coreg_wire.terminal.text import echo

if TYPE_CHECKING:
    from coordinator.machine.records import HeadSigned
    from coordinator.store.runs import RunStore, RunSummary
    from coreg_core.plan import Plan


def plan(federation: FederationArgument = Path(), study: StudyOption = None) -> None:
    """Print the plan as JSON. `coreg-agent check --plan` reads it at each site."""
    from coordinator.config.federation_toml import read_configuration

    print_json(planned(read_configuration(federation), study).to_dict())


def submit(
    study: Annotated[Path, typer.Argument(help="study.toml.")],
    federation: Annotated[
        Path,
        typer.Option(
            envvar="COREG_FEDERATION",
            help="federation.toml of the study, or its folder.",
            callback=federation_file,
        ),
    ] = Path(),
    rehearse: Annotated[
        bool,
        typer.Option(
            "--rehearse",
            help="End once every site has said whether it takes part; nothing is computed.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Queue a run of a study. A coordinator that serves the store starts it; it need not run
    yet.

    A rehearsal checks the plan at every site, asks for approval, and aligns the ids if the study
    has an alignment. No site gives an answer about its rows, and no training is counted.
    """
    from coordinator.authority.authorised import unsigned
    from coordinator.config.federation_toml import read_configuration
    from coordinator.store.runs import RunStore
    from coreg_wire.clock import timestamp
    from coreg_wire.files.disk import is_held

    if not federation.exists():
        raise UsageError(f"{federation}: no such file. Name the federation: --federation FOLDER.")
    configuration = read_configuration(federation)
    path = configuration.service.store
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent}: no such folder for the run store.")
    as_owner(path if path.exists() else federation)
    plan = dataclasses.replace(planned(configuration, study), rehearsal=rehearse)
    identity = configuration.service.identity
    if (identity / "ca.pem").exists() and (warning := unsigned(identity, plan.sites)):
        echo(f"warning: {warning}", err=True)
    with closing(RunStore(path)) as queue:
        before = queue.submit(plan, timestamp())
    up = is_held(path)
    if as_json:
        print_json({"run": plan.run, "study": plan.study, "before": before, "serving": up})
    else:
        what = "rehearsal" if rehearse else "run"
        echo(f"{what} {plan.run} of study {plan.study} is in the queue, {before} before it")
        if not up:
            echo(
                f"no coordinator serves {path}: start one with `coreg-coordinator serve"
                f" {federation}`",
                err=True,
            )


def cancel(
    run: Annotated[str, typer.Argument(help="A run, or a prefix of its name.")],
    federation: StoreOption = Path(),
    reason: Annotated[
        str, typer.Option(help="The reason that its sites receive.")
    ] = "cancelled by the operator",
) -> None:
    """End a run, queued or under way. A cancelled run does not begin again."""
    from coordinator.store.runs import RunStore
    from coreg_wire.clock import timestamp
    from coreg_wire.files.disk import is_held

    store = run_store(federation)
    as_owner(store)
    with closing(RunStore(store)) as queue:
        whole, begun = queue.cancel(run, reason, timestamp())
    when = "now" if is_held(store) else "when a coordinator serves again"
    echo(f"run {whole} {'ends ' + when if begun else 'will not begin'}")


def runs(federation: StoreArgument = Path(), as_json: JsonOption = False) -> None:
    """List the queue and every run, the latest first. --json also has the alignments of ids
    (RUN-ids-N).
    """
    from coordinator.store.runs import RunStore

    store = run_store(federation)
    opened = RunStore(store, read_only=True)
    queued = opened.waiting()
    begun = opened.runs()
    waits = waits_now(store)
    waiting = {
        summary.run: waits.get(summary.run, "") if summary.stop is None else "" for summary in begun
    }  # the status is up to 5 s old
    if as_json:
        for plan, at in reversed(queued):
            print_json(
                {
                    "run": plan.run,
                    "federation": plan.federation,
                    "submitted": at,
                    "plan": plan.to_dict(),
                }
            )
        for summary in begun:
            print_json({**dataclasses.asdict(summary), "waiting": waiting[summary.run]})
        return
    lines = [queued_line(plan, at) for plan, at in reversed(queued)]
    lines += [queued_line(plan, at, "cancelled") for plan, at in reversed(opened.cancelled())]
    lines += [
        run_line(summary, waiting[summary.run]) for summary in begun if not aligns_for(summary.run)
    ]
    for line in lines or ["no runs yet"]:
        echo(line)


def show(
    run: Annotated[str, typer.Argument(help="A run, or a prefix of its name.")],
    federation: StoreOption = Path(),
    as_json: JsonOption = False,
) -> None:
    """Show a run: plan, steps with figures (--json: all), phases, outcome, and where each site's
    ledger stood at the end.

    A site finds lines that were removed from its ledger with the output of `coreg-coordinator show
    RUN --json`: `coreg-agent ledger --verify --checkpoints FILE`.
    """
    from coordinator.store.runs import RunStore

    store = run_store(federation)
    opened = RunStore(store, read_only=True)
    name = opened.name_of(run)
    try:
        summary, rounds = opened.show(name)
    except UsageError:  # it has not begun
        line = None if as_json else _line_in_queue(opened, name)
        if line is None:
            raise
        echo(line)
        return
    checkpoints = opened.checkpoints(summary.run)
    phases = opened.phases(summary.run)
    waiting = waits_now(store).get(summary.run, "") if summary.stop is None else ""
    if as_json:
        details = {
            "rounds": rounds,
            "phases": phases,
            "checkpoints": [dataclasses.asdict(signed) for signed in checkpoints],
            "waiting": waiting,
        }
        print_json({**dataclasses.asdict(summary), **details})
        return
    lines = [
        f"run {summary.run} of {summary.federation}: {summary.started} to"
        f" {summary.ended or '(unfinished)'}",
        *_plan_lines(summary.plan),
        *_convergence_lines(rounds),
        *map(_phase_line, filter(itemgetter("phase"), phases)),
        *map(checkpoint_line, checkpoints),
    ]
    if waiting:
        lines.append(waiting)
    if summary.stop is not None:
        why = f": {summary.reason}" if summary.reason else ""
        lines.append(f"{summary.stop.lower()}{why}")
    for line in lines:
        echo(line)


def _line_in_queue(opened: "RunStore", run: str) -> str | None:
    for state, listed in (("queued", opened.waiting()), ("cancelled", opened.cancelled())):
        for plan, submitted in listed:
            if plan.run == run:
                return queued_line(plan, submitted, state)
    return None


def _plan_lines(plan: Values) -> Iterator[str]:
    """The plan of a run in the sections of federation.toml."""
    sections = {"membership": "federation", "objective": "model", "iteration": "solver"}
    agreement = plan.get("objective", {}).get("name") == "agreement"
    for name, value in plan.items():
        if name == "iteration" and not agreement:
            continue  # it has no meaning
        if isinstance(value, dict):
            yield f"  [{sections.get(name, name)}]"
            for term, chosen in value.items():
                yield f"    {term} = {json.dumps(chosen, ensure_ascii=False)}"
        elif name not in ("run", "federation") and value:
            yield f"  {name} = {value}"


def _convergence_lines(rounds: list[Values]) -> Iterator[str]:
    """A table of the steps that have figures, if there are any."""
    from coordinator.observers.terminal import StepTable

    steps = [
        step
        for step in map(_worst, rounds)
        if step["residual"] is not None or step["gap"] is not None
    ]
    table = StepTable()
    for step in steps:
        yield from table.lines(step)


def _phase_line(phase: Values) -> str:
    size = human_bytes(phase["bytes"])
    return f"{phase['phase']}: {phase['steps']} steps, {size}, {phase['seconds']:.2f} s"


def _worst(values: Values) -> Values:
    """The stored lists (one number per column) reduced to the worst column, for `cells`."""
    from coordinator.machine.records import worst

    shown = dict(values, step=values["number"])
    for name in ("residual", "gap"):
        shown[name] = worst(values[name])
    return shown


# --- lines


def run_line(summary: "RunSummary", waiting: str = "") -> str:
    """A line for a run that began, and one for the reason of its end; ``waiting`` is what it waits
    for.
    """
    stop = (summary.stop or "unfinished").lower()
    gap = "" if summary.gap is None else f"gap {summary.gap:.0e}"
    line = (
        f"{summary.run}  {summary.started}  {stop:<13} {summary.rounds:>6} rounds  {gap:<9} "
        f" {_of(summary.plan)}"
    )
    reason = f"\n    {summary.reason}" if summary.reason and stop != "converged" else ""
    if waiting:
        line += f"  {waiting}"
    return line + reason


def queued_line(plan: "Plan", submitted: str, state: str = "queued") -> str:
    """A line for a run that has not begun."""
    return f"{plan.run}  {submitted}  {state:<13} {'':>13}  {'':<9} {_of(plan.to_dict())}"


def _of(plan: Values) -> str:
    """Study or federation, objective, number of sites."""
    kind = plan["objective"]["name"]
    if plan.get("rehearsal"):
        kind = f"rehearsal of {kind}"
    sites = len(plan["membership"]["sites"])
    return f"{plan['study'] or plan['federation']} ({kind}; {sites} sites)"


def checkpoint_line(signed: "HeadSigned") -> str:
    """A line for where a site's ledger stood."""
    receipt = signed.receipt
    site = signed.site
    head = receipt.head
    return (
        f"ledger of {site}: {head.lines} lines up to {head.last[:16]}…, signed by {site} {head.at},"
        f" countersigned {receipt.at}, run {receipt.run}"
    )


COMMANDS: tuple[Callable[..., None], ...] = (plan, submit, cancel, runs, show)
