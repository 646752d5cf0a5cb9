"""The end of a run: it is recorded, and connected sites receive it.

Handlers of a `RunUpdate`; the table that calls them is in dispatch.py. A site has stored its result before its last answer, so
`Finished` only tells the end. A site that is away now receives it in the greeting of its next session.
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
from coordinator.machine.records import Ended, Transition
from coordinator.machine.run import RunUpdate
from coreg_core.protocol.messages import Fetched, Finished, Leaving
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import aligns_for

# Late sites do not end a run that has begun. Such an end is not recorded, and the run begins again.
RESUMABLE = (Outcome.STALLED, Outcome.TOO_FEW_SITES)


def end(update: RunUpdate, outcome: Outcome, reason: str, *, final: bool = False) -> None:
    """Record the outcome, unless the run can begin again, and send it to connected sites."""
    run = update.run
    begins_again = (run.participants or run.aligned) and not aligns_for(run.name)  # the run above aligns its ids anew
    if final := final or outcome not in RESUMABLE or not begins_again:
        update.record(Ended(outcome, reason))
    update.take(Transition.ENDED)
    update.notify(notices.run_ended(run.name, outcome, reason))
    update.change(ending=(outcome, reason), final=final, steps={}, answers={})
    for site in sorted(update.run.here):
        send_end(update, site)
    if update.run.awaited:
        update.deadline(run.timeouts.round)
    else:
        _close(update)


def send_end(update: RunUpdate, site: str) -> None:
    assert update.run.ending is not None
    update.send(site, Finished(update.run.name, *update.run.ending))


def fetched(update: RunUpdate, event: Received[Fetched]) -> None:
    """A site has received the end. The head of its ledger is countersigned first."""
    if event.site in update.run.participants and event.message.signature:
        update.change(signing=update.run.signing | {event.site})  # once it is signed, the site can leave
        update.actions.append(Countersign(event.site, event.message))
    else:
        _has_fetched(update, event.site)


def countersigned(update: RunUpdate, event: HeadCountersigned) -> None:
    """The head of a site's ledger is recorded before the site receives its countersignature."""
    site, receipt = event.signed.site, event.signed.receipt
    if receipt.signature:
        update.record(event.signed)
    if receipt.reason:
        update.notify(notices.ledger_doubtful(update.run.name, site, receipt.reason))
    update.send(site, receipt)
    update.change(signing=update.run.signing - {site})
    _has_fetched(update, site)


def _has_fetched(update: RunUpdate, site: str) -> None:
    update.change(fetched=update.run.fetched | {site})
    _close_if_complete(update)


def left(update: RunUpdate, event: Received[Leaving] | SiteLost | Breached) -> None:
    """A session ended. The site is not awaited."""
    departed(update, event)
    _close_if_complete(update)


def departed(update: RunUpdate, event: Received[Leaving] | SiteLost | Breached) -> None:
    """Note that a session ended."""
    if event.site in update.run.here:
        update.gone(event.site)
        reason = event.message.reason if isinstance(event, Received) else event.reason
        update.notify(notices.left(update.run.name, event.site, reason, lost=not isinstance(event, Received)))


def out_of_time(update: RunUpdate, _event: DeadlinePassed) -> None:
    """Stop waiting."""
    _close(update)


def interrupted(update: RunUpdate, _event: Interrupted) -> None:
    """The operator stops the process. The outcome stays."""
    assert update.run.ending is not None
    update.finish(Transition.INTERRUPTED, *update.run.ending)


def _close_if_complete(update: RunUpdate) -> None:
    if not update.run.awaited:
        _close(update)


def _close(update: RunUpdate) -> None:
    assert update.run.ending is not None
    update.finish(Transition.CLOSED, *update.run.ending)
