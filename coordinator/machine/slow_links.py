"""Links that are slow and not gone: whose vector is on its way is waited for, and named; for how long, its length
decides.

A `round` is a site's time to compute. Where its question, or its answer, takes longer than that on the wire, the
deadline moves: the site has ``round`` from the moment at which its question went out in full, and a vector has twice
the time that it takes at `Timeouts.min_bandwidth`. Both are finite, so that no wait is for ever.
"""

from collections.abc import Mapping

from coordinator.machine import notices
from coordinator.machine.events import Flow
from coordinator.machine.phases import Timeouts
from coordinator.machine.run import RunUpdate

# Bytes that a link may hold and nobody see: a window and a piece on their way to the site, and the first piece of its answer. Of
# a slow one, whose pieces are small: a link that carried 2 MB/s when the vector began, and then all but nothing, is not waited
# for.
UNSEEN = 1 << 18
# Of a round: a question that went out at once leaves so little of it that the deadline is not moved.
LITTLE = 0.05


def time_left(flow: Flow, timeouts: Timeouts) -> float:
    """Seconds for which a site is still waited for by what its link carries: twice bytes/bandwidth in all, or a round's rest."""
    if flow.whole:
        unseen = 2 * min(flow.of, UNSEEN) / timeouts.min_bandwidth
        return timeouts.round + unseen - flow.seconds
    return 2 * flow.of / timeouts.min_bandwidth - flow.seconds


def waits(update: RunUpdate, flows: Mapping[str, Flow]) -> bool:
    """Whether somebody who is waited for is only slow: the deadline moves then, and the link is named."""
    run, timeouts = update.run, update.run.timeouts
    late = {site: flows[site] for site in run.awaited if site in flows and site in update.live.here}
    left = {site: time_left(flow, timeouts) for site, flow in late.items()}
    longest = max(left.values(), default=0.0)
    moves = longest > LITTLE * timeouts.round
    for site, flow in late.items():
        if not flow.whole:
            more = max(left[site], 0.0) if moves else 0.0
            update.notify(notices.SlowLink(run.name, site, flow.to_site, flow.moved, flow.of, flow.seconds, more))
    if moves:
        update.deadline(min(longest, timeouts.round))
    return moves
