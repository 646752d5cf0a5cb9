"""`run`: the service with one study in its queue, which exits when the queue is empty."""

import dataclasses
from pathlib import Path

from coordinator.config.federation_toml import Configuration
from coordinator.config.study_toml import Trained
from coordinator.driver import Observer
from coordinator.machine.events import Finish
from coordinator.machine.records import AttemptBegan, Ended
from coordinator.service.daemon import ServiceOptions, serve
from coordinator.store.queue import Queue
from coordinator.store.status import store_of
from coordinator.store.summaries import RunSummary, Summaries
from coreg_core.errors import UsageError
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan, plan_from_dict
from coreg_wire.clock import timestamp
from coreg_wire.transport.addresses import check_free

ABANDONED = "abandoned: a new run was requested (--new)"
TRAININGS = ("agreement", "additive")  # the objectives whose runs have models


def run(
    path: Path,
    configuration: Configuration,
    plan: Plan,
    options: ServiceOptions,
    observer: Observer,
    *,
    new: bool,
) -> Finish:
    """Carry out one plan: resume its unfinished run, or start a new one; return its end.

    ``new`` abandons unfinished runs, and starts a new one.
    """
    store = configuration.service.store
    check_free(configuration.service.listen)  # before the run is queued
    with store_of(store):
        summaries, queue = Summaries(store), Queue(store)
        try:
            chosen = choose_run(summaries, queue, plan, new=new)
        finally:
            summaries.close()
            queue.close()
        finish = serve(path, configuration, options, [observer], only=chosen)
        return finish or _on_record(store, chosen.run)


def _on_record(store: Path, run: str) -> Finish:
    """The end of a run that was interrupted, or was cancelled without being active."""
    summaries = Summaries(store, read_only=True)
    try:
        summary = summaries.find(run)
    except UsageError:
        return Finish(run, Outcome.INTERRUPTED, "")
    finally:
        summaries.close()
    outcome = Outcome.INTERRUPTED if summary.stop is None else Outcome[summary.stop]
    return Finish(run, outcome, summary.reason or "")


def choose_run(store: Summaries, queue: Queue, plan: Plan, *, new: bool) -> Plan:
    """The unfinished run of this plan, the queued one, or a new one, which is queued."""
    if not new:
        if (summary := store.latest(plan.digest)) is not None:
            return dataclasses.replace(plan, run=summary.run)
        if queued := [waiting for waiting, _ in queue.waiting() if waiting.digest == plan.digest]:
            return queued[0]
    for summary in store.runs():
        if summary.closed is None:
            # A run without an attempt has nothing to lose and nothing to resume.
            if not new and store.has_begun(summary.run):
                raise UsageError(_unfinished(store, summary))
            store.close_run(plan_from_dict(summary.plan), Outcome.INTERRUPTED, ABANDONED, timestamp())
    queue.submit(plan, timestamp())
    return plan


def _unfinished(store: Summaries, summary: RunSummary) -> str:
    if summary.ended is not None:
        return (
            f"run {summary.run} in {store.path} has another plan and has ended ({summary.stop}), but not all of its sites "
            "have fetched its result. Run it with its own configuration to deliver it, or give --new: sites still receive "
            "it when they connect."
        )
    return (
        f"run {summary.run} in {store.path} is unfinished and has another plan. Run it with its own configuration, or give "
        "--new to abandon it."
    )


def trained_run(store: Path, run: str) -> Trained:
    """The run whose models are scored: the one with this prefix, or the latest run with models."""
    if not store.exists():
        raise UsageError(f"{store}: no such run store; train first, or give --store.")
    summaries = Summaries(store)
    try:
        candidates = [summaries.find(run)] if run else summaries.runs()
        for summary in candidates:
            if summary.ended is None or summary.plan["objective"]["name"] not in TRAININGS:
                continue  # a scoring and an alignment have results, and no model
            records = summaries.records(summary.run)
            sites = [record.participants for record in records if isinstance(record, AttemptBegan)]
            if sites and any(isinstance(record, Ended) and record.heads for record in records):
                return Trained(summary.run, summary.plan["objective"]["name"], sites[-1])
    finally:
        summaries.close()
    found = f"run {candidates[0].run} has no models" if run else "no run has models"
    raise UsageError(f"{store}: {found}. Train first (`coreg-coordinator run`).")
