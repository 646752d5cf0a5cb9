"""One run from configuration to exit code: which run, which certificates, and the driver with its signals."""

import asyncio
import dataclasses
import shlex
import signal
from collections.abc import Callable
from pathlib import Path

from coordinator.authority.pki import expiry_warnings
from coordinator.config.federation_toml import Configuration
from coordinator.driver import Memory, NoMemory, drive, utc_now
from coordinator.machine.events import Event, Finish, Interrupted
from coordinator.machine.federation import begin
from coordinator.machine.records import Ended, MembershipChanged
from coordinator.machine.state import Recorded, resume
from coordinator.observers import AnyObserver
from coordinator.service.access import Door
from coordinator.store.runs import RunStore, RunSummary
from coordinator.store.schema import FORMAT, exclusive
from coreg_core.errors import UsageError
from coreg_core.numerics.threads import pin_threads
from coreg_core.protocol.outcomes import exit_code
from coreg_core.protocol.plan import Plan, plan_fault


@dataclasses.dataclass(frozen=True)
class Serving:
    """What the operator asked for, beside the configuration.

    ``new`` abandons an unfinished run; ``deliver`` names a finished one, whose models may be fetched again.
    """

    insecure: bool = False
    new: bool = False
    deliver: str | None = None
    port_file: Path | None = None


def choose_run(store: RunStore, plan: Plan, *, new: bool) -> Recorded:
    """The run of the same plan that is not closed, or a new one, written down.

    Raises
    ------
    UsageError
        a run of another plan, or of another release, is unfinished, and ``new`` was not said.
    """
    unfinished = [summary for summary in store.runs() if summary.closed is None]
    if not new and (run := store.unfinished(plan.digest)) is not None:
        return resume(dataclasses.replace(plan, run=run), store.records(run))
    for summary in unfinished:
        # Nobody was asked anything in a run that had no question: there is nothing to lose, and nothing to take up.
        if not new and (summary.format != FORMAT or store.has_begun(summary.run)):
            raise UsageError(_unfinished(store, summary))
        store.abandon(summary.run, utc_now())
    store.begin(plan, utc_now())
    return Recorded(plan)


def _unfinished(store: RunStore, summary: RunSummary) -> str:
    if summary.format != FORMAT:
        return (
            f"run {summary.run} in {store.path} was left unfinished by an older release of coreg-federation, which this one "
            "cannot take up. Finish it with that release, or give --new to abandon it."
        )
    if summary.ended is not None:
        return (
            f"run {summary.run} in {store.path} has another plan and is over ({summary.stop}), but not all of its sites have "
            "fetched their models. Run it with its own configuration to deliver them, or give --new: they can still be "
            f"fetched later with --deliver {summary.run}."
        )
    return (
        f"run {summary.run} in {store.path} is unfinished and has another plan. Run it with its own "
        "configuration, or give --new to abandon it."
    )


def deliver_again(store: RunStore, plan: Plan, run: str) -> Recorded:
    """A finished run of this plan, whose sites may fetch their models once more.

    Raises
    ------
    UsageError
        there is no such run, it is unfinished, it has another plan, or no models.
    """
    summary = store.find(run)
    ours = dataclasses.replace(plan, run=summary.run)
    if summary.ended is None:
        raise UsageError(f"run {summary.run} is unfinished: give the same command without --deliver.")
    if summary.format != FORMAT:
        raise UsageError(f"run {summary.run} is of an older release of coreg-federation, which kept no models.")
    recorded = resume(ours, store.records(summary.run))
    if any(accepted.plan_digest != ours.digest for accepted in recorded.accepted.values()):
        raise UsageError(f"run {summary.run} had another plan. Give the federation.toml that it was run with.")
    if recorded.models is None:
        raise UsageError(f"run {summary.run} ended without models ({summary.stop}); there is nothing to fetch.")
    return dataclasses.replace(recorded, fetched=frozenset(), closed=False)


def serve(configuration: Configuration, observer: AnyObserver, serving: Serving) -> int:
    """Serve one run to its end; the exit code.

    Raises
    ------
    CoregError
        of every kind; see the operator's guide.
    """
    service = configuration.service
    door = _door(service.identity, observer, insecure=serving.insecure)
    service.store.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(service.store):
        store = RunStore(service.store)
        try:
            plan = configuration.plan()
            # Before a run is folded again from its records: with other threads than it began with, sums round differently, and
            # the question that was open would be another one under the same number.
            pin_threads(plan.iteration.threads)
            if serving.deliver is not None:
                recorded = deliver_again(store, plan, serving.deliver)
            else:
                recorded = choose_run(store, plan, new=serving.new)
            end = _drive(configuration, observer, serving, store, recorded, door)
            observer.finished(end, show_command(recorded.plan.run, service.store))
            return exit_code(end.outcome)
        finally:
            observer.close()
            store.close()


def trained_run(store: RunStore, run: str | None) -> tuple[RunSummary, tuple[str, ...]]:
    """The run whose models score together, and the sites that have one: the latest that has models, unless one is named.

    Raises
    ------
    UsageError
        there is none.
    """
    candidates = store.runs() if run is None else [store.find(run)]
    for summary in candidates:
        records = store.records(summary.run) if summary.ended is not None and summary.format == FORMAT else []
        sites = [record.participants for record in records if isinstance(record, MembershipChanged)]
        if sites and any(isinstance(record, Ended) and record.models is not None for record in records):
            return summary, sites[-1]
    what = "has no run" if run is None else f"has {candidates[0].run}, which is no run"
    raise UsageError(f"{store.path} {what} whose sites have models; train first (`coreg-coordinator run`).")


def score(configuration: Configuration, observer: AnyObserver, serving: Serving, run: str | None) -> int:
    """Serve one scoring together to its end; the exit code. Nothing of it is kept: the sites' ledgers tell of it.

    Raises
    ------
    CoregError
        of every kind; see the operator's guide.
    """
    service = configuration.service
    if not service.store.exists():
        raise UsageError(f"{service.store}: no such run store; score where the run was served, or give --store.")
    store = RunStore(service.store)
    try:
        summary, sites = trained_run(store, run)
    finally:
        store.close()
    objective = summary.plan["objective"].get("name", "agreement")
    plan = configuration.scoring_plan(summary.run, "additive" if objective == "additive" else "agreement", sites)
    if (fault := plan_fault(plan)) is not None:
        raise UsageError(f"[scoring] {fault}")
    door = _door(service.identity, observer, insecure=serving.insecure)
    try:
        end = _drive(configuration, observer, serving, NoMemory(), Recorded(plan), door)
        observer.finished(end, f"coreg-coordinator show {summary.run}")
        return exit_code(end.outcome)
    finally:
        observer.close()


def _door(identity: Path, observer: AnyObserver, *, insecure: bool) -> Door:
    door = Door.of(identity, insecure=insecure)
    for warning in () if insecure else expiry_warnings(identity):
        observer.warning(warning)
    return door


def _drive(
    configuration: Configuration,
    observer: AnyObserver,
    serving: Serving,
    store: Memory,
    recorded: Recorded,
    door: Door,
) -> Finish:
    listen, run = configuration.service.listen, recorded.plan.run
    pin_threads(recorded.plan.iteration.threads)  # scoring comes here by itself
    transport = door.transport(listen, configuration.timeouts)

    def on_listening(emit: Callable[[Event], None]) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, emit, Interrupted())
        observer.listening(listen.rpartition(":")[0], transport.port)
        if serving.port_file is not None:
            serving.port_file.write_text(f"{transport.port}\n", encoding="ascii")

    begun = begin(recorded, configuration.clocks())
    return asyncio.run(drive(begun, transport, store, observer, on_start=on_listening))[run]


def show_command(run: str, store: Path) -> str:
    """What shows the run again when it is pasted, wherever the store is."""
    where = "" if store == Path("runs.sqlite") else f" --store {shlex.quote(str(store))}"
    return f"coreg-coordinator show {run}{where}"
