"""`run`: the service with one study in its queue, which exits when the queue is empty."""

import dataclasses
from pathlib import Path

from coordinator.config.federation_toml import Configuration
from coordinator.config.study_toml import Trained
from coordinator.driver import Observer
from coordinator.machine.events import Finish
from coordinator.service.daemon import ServiceOptions, serve
from coordinator.store.runs import Queue
from coordinator.store.status import store_of
from coordinator.store.summaries import Summaries
from coreg_core.errors import UsageError
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan, aligns_for, plan_from_dict
from coreg_wire.clock import timestamp
from coreg_wire.transport.service import check_free

ABANDONED = "abandoned: a new run was requested (--new)"
TRAININGS = ("agreement", "additive")  # the objectives whose runs have models
TRAINED = ("CONVERGED", "MAX_ROUNDS", "STAGNATED")  # the outcomes with models


def run(
    path: Path,
    configuration: Configuration,
    plan: Plan,
    options: ServiceOptions,
    observer: Observer,
    *,
    new: bool,
) -> Finish:
    """Carry out one plan: begin its unfinished run again, or start a new one; return its end.

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
        if summary.ended is None and not aligns_for(summary.run):
            if not new and store.has_begun(summary.run):  # a run without an attempt has nothing to lose
                raise UsageError(
                    f"run {summary.run} in {store.path} is unfinished and has another plan. Run it with its own "
                    "configuration, or give --new to abandon it."
                )
            store.close_run(plan_from_dict(summary.plan), Outcome.INTERRUPTED, ABANDONED, timestamp())
    queue.submit(plan, timestamp())
    return plan


def trained_run(store: Path, run: str) -> Trained:
    """The run whose models are scored: the one with this prefix, or the latest run with models."""
    if not store.exists():
        raise UsageError(f"{store}: no such run store; train first, or give --store.")
    summaries = Summaries(store)
    try:
        candidates = [summaries.find(run)] if run else summaries.runs()
        for summary in candidates:
            objective = summary.plan["objective"]["name"]  # a scoring and an alignment have results, and no model
            if objective in TRAININGS and summary.stop in TRAINED:
                return Trained(summary.run, objective, summaries.begun(summary.run).participants)
    finally:
        summaries.close()
    found = f"run {candidates[0].run} has no models" if run else "no run has models"
    raise UsageError(f"{store}: {found}. Train first (`coreg-coordinator run`).")
