"""How a run ends: its outcome written down, its sites' models fetched, and nobody waited for for ever.

Handlers of a `Reaction`; the table that calls them is in machine.py. The end is on record before the first site hears of it, and
the run is closed only when everybody has it, or has not come for it in time: killed in between, it goes on delivering.
"""

from collections.abc import Mapping

from coordinator.machine import notices, slow_links
from coordinator.machine.events import Flow
from coordinator.machine.phases import Turn
from coordinator.machine.records import Closed, Delivered, Ended, HeadSigned
from coordinator.machine.run import Reaction
from coreg_core.protocol.messages import Dismissed, Finished
from coreg_core.protocol.outcomes import Outcome

# Sites that were late are no fault of what was computed: with its rounds on record, such a run is not written down as
# ended, and the same command takes it up.
RESUMABLE = (Outcome.STALLED, Outcome.TOO_FEW_SITES)


def end(reaction: Reaction, outcome: Outcome, reason: str) -> None:
    """The run has an outcome: write it down, tell everybody, and wait until they have it."""
    recorded = reaction.recorded
    given_up = set(reaction.run.awaited) if outcome in RESUMABLE else set()
    resumable = outcome in RESUMABLE and recorded.computation is not None
    if not resumable:
        reaction.record(Ended(outcome, reason, recorded.models))
    reaction.take(Turn.ENDED)
    reaction.notify(notices.RunEnded(reaction.run.name, outcome, reason))
    receivers = recorded.participants or tuple(sorted(reaction.live.here))
    reaction.change(ending=(outcome, reason), receivers=receivers, ask=None, asked=(), answers={}, held={}, trials={})
    deliver(reaction, frozenset(given_up))


def deliver(reaction: Reaction, given_up: frozenset[str] = frozenset()) -> None:
    """Send the end to those who are here. Where there are models, those who are away are waited for too."""
    live, recorded = reaction.live, reaction.recorded
    away = frozenset(live.receivers) - live.here
    lost = away if recorded.models is None else given_up
    reaction.change(fetched=live.fetched | recorded.excluded.keys() | lost)
    # A site that has not accepted the plan in this session takes no vector of it: it gets the end once it has.
    told = live.here if recorded.models is None else live.ready
    for site in live.receivers:
        if site in told:
            send_end(reaction, site)
    for site in sorted(live.here - set(live.receivers)):
        send_end(reaction, site)  # it came late, or was dropped and not taken back: it hears so
    if reaction.run.awaited:
        reaction.deadline(reaction.run.clocks.round)
    else:
        _close(reaction)


def send_end(reaction: Reaction, site: str) -> None:
    """`Finished`, with the targets that the site's models answer to, where there are any; or that it ended without this site."""
    recorded = reaction.recorded
    assert reaction.live.ending is not None
    outcome, reason = reaction.live.ending
    models = recorded.models
    if recorded.participants and site not in recorded.participants:
        why = f"{site}: the run ended ({outcome.name.lower()}) with {', '.join(recorded.participants)}, and without this site."
        reaction.send(site, Dismissed(reaction.run.name, Outcome.STALLED, why))
        return
    if models is None:
        reaction.send(site, Finished(reaction.run.name, outcome, reason))
        return
    assert recorded.computation is not None, "models before any membership"
    told = recorded.computation.told(models, recorded.participants.index(site))
    finished = Finished(reaction.run.name, outcome, reason, told.columns, told.targets, told.forecast)
    reaction.send(site, finished)


def fetched(reaction: Reaction, site: str, signed: HeadSigned | None = None) -> None:
    """A site has the end, and its models on its disk; its ledger's head is kept before it hears that it is."""
    awaited = site in reaction.run.awaited
    if signed is not None and signed.receipt.signature:
        reaction.record(signed)
    if awaited and reaction.recorded.ended is not None:
        reaction.record(Delivered(site))
    if signed is not None:
        if not signed.receipt.signature:
            reaction.notify(notices.NotCountersigned(reaction.run.name, site, signed.receipt.reason))
        reaction.send(site, signed.receipt)
    if awaited:
        not_waited_for(reaction, site)


def not_waited_for(reaction: Reaction, site: str) -> None:
    reaction.change(fetched=reaction.live.fetched | {site})
    if not reaction.run.awaited:
        _close(reaction)


def left(reaction: Reaction, site: str, reason: str, *, lost: bool) -> None:
    """A session ended while models are fetched: where there is one for it, it may come back for it."""
    if site not in reaction.live.here:
        return
    reaction.gone(site)
    if site in reaction.run.awaited:
        reaction.notify(notices.Left(reaction.run.name, site, reason, lost))
        if reaction.recorded.models is None:
            not_waited_for(reaction, site)


def out_of_time(reaction: Reaction, flows: Mapping[str, Flow]) -> None:
    """Who has not come for its model, and is not being sent it, can fetch it later, as long as the store has it."""
    if slow_links.waits(reaction, flows):
        return
    reaction.notify(notices.NotFetched(reaction.run.name, reaction.run.awaited))
    _close(reaction)


def interrupted(reaction: Reaction) -> None:
    """The operator will not wait; the outcome stands, and the same command goes on delivering."""
    assert reaction.live.ending is not None
    reaction.finish(Turn.INTERRUPTED, *reaction.live.ending)


def _close(reaction: Reaction) -> None:
    assert reaction.live.ending is not None
    if reaction.recorded.ended is not None:
        reaction.record(Closed())
    reaction.finish(Turn.CLOSED, *reaction.live.ending)
