"""The end of a run: its outcome is recorded, its sites fetch their models, and it is closed.

Handlers of a `RunUpdate`; the table that calls them is in dispatch.py. The end is recorded before it is sent to the first site.
The run is closed when all sites have fetched it or the timeout has passed. After a crash in between, delivery continues.
"""

from coordinator.machine import notices
from coordinator.machine.events import (
    Breached,
    Countersign,
    DeadlinePassed,
    HeadCountersigned,
    Interrupted,
    Received,
    SiteLost,
)
from coordinator.machine.phases import Phase, Timeouts, Transition
from coordinator.machine.records import Closed, Delivered, Ended, HeadSigned
from coordinator.machine.run import Run, RunUpdate, Volatile
from coordinator.machine.state import RunState
from coreg_core.protocol.messages import Dismissed, Fetched, Finished, Head, Leaving
from coreg_core.protocol.outcomes import Outcome

# Late sites do not invalidate what was computed. Such a run is not recorded as ended if an attempt began, and the same
# command resumes it.
RESUMABLE = (Outcome.STALLED, Outcome.TOO_FEW_SITES)


def end(update: RunUpdate, outcome: Outcome, reason: str, heads: tuple[Head, ...] = ()) -> None:
    """Record the outcome, send it to all sites, and wait until they have it.

    ``heads`` are the sites' last heads. A site that receives them has its models.
    """
    recorded = update.recorded
    if outcome not in RESUMABLE or recorded.attempt < 0:
        update.record(Ended(outcome, reason, heads))
    update.take(Transition.ENDED)
    update.notify(notices.RunEnded(update.run.name, outcome, reason))
    receivers = recorded.participants or tuple(sorted(update.live.here))
    update.change(ending=(outcome, reason), receivers=receivers, steps={}, answers={})
    deliver(update)


def deliver(update: RunUpdate) -> None:
    """Send the end to connected sites. If there are models, disconnected sites are awaited too."""
    live, recorded = update.live, update.recorded
    away = frozenset(live.receivers) - live.here
    lost = frozenset[str]() if recorded.has_models else away
    update.change(fetched=live.fetched | recorded.excluded.keys() | lost)
    # A site without an offer in this session may be a new process, which needs the plan before the end.
    told = live.ready if recorded.has_models else live.here
    for site in live.receivers:
        if site in told:
            send_end(update, site)
    for site in sorted(live.here - set(live.receivers)):
        send_end(update, site)  # it was late, or was dropped and did not rejoin
    if update.run.awaited:
        update.deadline(update.run.timeouts.round)
    else:
        _close(update)


def send_end(update: RunUpdate, site: str) -> None:
    """Send `Finished` with the heads, by which sites verify that all agree; `Dismissed` if the run ended without this site."""
    recorded = update.recorded
    assert update.live.ending is not None
    outcome, reason = update.live.ending
    if recorded.participants and site not in recorded.participants:
        why = f"{site}: the run ended ({outcome.name.lower()}) with {', '.join(recorded.participants)}, and without this site."
        update.send(site, Dismissed(update.run.name, Outcome.STALLED, why))
        return
    heads = () if recorded.ended is None else recorded.ended.heads
    update.send(site, Finished(update.run.name, outcome, reason, heads))


def unfetched(recorded: RunState) -> frozenset[str]:
    """The participants of an ended run that have not fetched its models."""
    if not recorded.has_models:
        return frozenset()
    return frozenset(recorded.participants) - recorded.fetched - recorded.excluded.keys()


def needs_nothing(update: RunUpdate, site: str) -> bool:
    """Whether a run that is delivered to others again has been fetched by this site: it may take part in another run now."""
    live, recorded = update.live, update.recorded
    return live.phase is Phase.DELIVERING and site in recorded.fetched and site not in live.receivers


def resumed(recorded: RunState, timeouts: Timeouts, only: frozenset[str] | None) -> RunUpdate:
    """Deliver the end of a run that an earlier process ended, or that a site connects for."""
    assert recorded.ended is not None
    ending = (recorded.ended.outcome, recorded.ended.reason)
    receivers = recorded.participants if recorded.has_models else ()
    if only is not None:  # the others have their models, and have forgotten the run
        receivers = tuple(site for site in receivers if site in unfetched(recorded))
    live = Volatile(Phase.DELIVERING, attempt=max(recorded.attempt, 0), ending=ending, receivers=receivers)
    update = RunUpdate(Run(recorded, live, timeouts))
    if only is None:
        update.notify(notices.DeliveryTakenUp(recorded.plan.run, update.run.awaited, timeouts.round))
    else:
        update.change(fetched=frozenset(recorded.participants) - only)
    deliver(update)
    return update


def fetched(update: RunUpdate, event: Received[Fetched]) -> None:
    """A site has stored the end and its models. The head of its ledger is countersigned first."""
    if event.site in update.recorded.participants and event.message.signature:
        update.actions.append(Countersign(event.site, event.message))
    else:
        _has_fetched(update, event.site)


def countersigned(update: RunUpdate, event: HeadCountersigned) -> None:
    """The head of a site's ledger is recorded before the site receives its countersignature."""
    if event.signed.receipt.signature:
        update.record(event.signed)
    _has_fetched(update, event.signed.site, event.signed)


def _has_fetched(update: RunUpdate, site: str, signed: HeadSigned | None = None) -> None:
    awaited = site in update.run.awaited
    if site in unfetched(update.recorded):
        update.record(Delivered(site))
    if signed is not None:
        if signed.receipt.reason:
            update.notify(notices.LedgerDoubtful(update.run.name, site, signed.receipt.reason))
        update.send(site, signed.receipt)
    if awaited:
        not_waited_for(update, site)


def not_waited_for(update: RunUpdate, site: str) -> None:
    update.change(fetched=update.live.fetched | {site})
    if not update.run.awaited:
        _close(update)


def left(update: RunUpdate, event: Received[Leaving] | SiteLost) -> None:
    """A session ended during delivery. The site stays awaited if there is a model for it."""
    site = event.site
    if site not in update.live.here:
        return
    update.gone(site)
    if site in update.run.awaited:
        update.notify(departure(update, event))
        if not update.recorded.has_models:
            not_waited_for(update, site)


def departure(update: RunUpdate, event: Received[Leaving] | SiteLost | Breached) -> notices.Left:
    reason = event.message.reason if isinstance(event, Received) else event.reason
    return notices.Left(update.run.name, event.site, reason, lost=not isinstance(event, Received))


def out_of_time(update: RunUpdate, _event: DeadlinePassed) -> None:
    """Stop waiting. A site that has not fetched its model receives it when it connects again."""
    update.notify(notices.NotFetched(update.run.name, update.run.awaited))
    _close(update)


def interrupted(update: RunUpdate, _event: Interrupted) -> None:
    """The operator stops the process. The outcome stays, and the same command continues delivery."""
    assert update.live.ending is not None
    update.finish(Transition.INTERRUPTED, *update.live.ending)


def _close(update: RunUpdate) -> None:
    assert update.live.ending is not None
    if update.recorded.ended is not None:
        update.record(Closed())
    update.finish(Transition.CLOSED, *update.live.ending)
