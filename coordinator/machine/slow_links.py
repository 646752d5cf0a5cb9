"""Slow links: the deadline of a round is extended while a vector is in transfer, in proportion to its length.

The timeout `round` is a site's time to compute. It starts when the site's question was sent in full. A vector in transfer has
twice the time that it needs at `Timeouts.min_bandwidth`. Both are finite, so that every wait ends.
"""

from collections.abc import Mapping

from coordinator.machine import notices
from coordinator.machine.events import Flow
from coordinator.machine.phases import Timeouts
from coordinator.machine.run import RunUpdate

# Bytes that can be in transit unobserved: a window and a piece to the site, and the first piece of its answer. The number holds
# for a slow link, whose pieces are small. A link that drops from 2 MB/s to almost nothing during a vector is not awaited.
UNSEEN = 1 << 18
# Fraction of a round below which the deadline is not moved: the remainder after a question that was sent at once.
LITTLE = 0.05


def time_left(flow: Flow, timeouts: Timeouts) -> float:
    """Seconds left for a site: of twice bytes/bandwidth during a transfer, of the round after it."""
    if flow.whole:
        unseen = 2 * min(flow.of, UNSEEN) / timeouts.min_bandwidth
        return timeouts.round + unseen - flow.seconds
    return 2 * flow.of / timeouts.min_bandwidth - flow.seconds


def waits(update: RunUpdate, flows: Mapping[str, Flow]) -> bool:
    """Extend the deadline if an awaited site has a slow link, and notify. True if it was extended."""
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
