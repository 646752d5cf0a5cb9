"""What is said of every notice, in one room: a line for a person."""

from math import isinf
from typing import assert_never

from coordinator.machine import notices as n
from coreg_core.protocol.outcomes import told

# What an operator should look at.
_GRAVE = (
    n.SiteDismissed,
    n.SessionRejected,
    n.SessionTurnedAway,
    n.GoingOnWithout,
    n.Stalled,
    n.NotCountersigned,
    n.SlowLink,
    n.NotFetched,
)


def is_grave(notice: n.Notice) -> bool:
    """Whether an operator should look at it."""
    return isinstance(notice, _GRAVE)


def worded(notice: n.Notice) -> str:
    """One sentence for the operator; empty where a table shows it better."""
    match notice:
        case n.RunBegan(run=run, awaited=awaited, seconds=seconds):
            return f"run {run}: waiting for {', '.join(awaited)}, {for_long(seconds)}"
        case n.RunTakenUp(run=run, question=question, awaited=awaited, seconds=seconds):
            return f"taking up run {run} at question {question}: waiting for {', '.join(awaited)}, {for_long(seconds)}"
        case n.DeliveryTakenUp(run=run, awaited=awaited, seconds=seconds):
            waiting = f": waiting for {', '.join(awaited)} to fetch models, {for_long(seconds)}" if awaited else ""
            return f"taking up run {run}, which is over{waiting}"
        case n.Joined(site=site, here=here, of=of):
            return f"{site} joined ({here} of {of})"
        case n.Left(site=site, reason=reason, lost=lost):
            return f"{site} {'lost' if lost else 'left'}: {reason}"
        case n.PlanSent(sites=sites, seconds=seconds):
            return f"plan sent to {', '.join(sites)}, whose answers are waited for {for_long(seconds)}"
        case n.PlanAcceptedBy(site=site):
            return f"{site} accepted the plan"
        case n.SiteDismissed(reason=reason) | n.SessionRejected(reason=reason):
            return reason
        case n.SessionTurnedAway(name=name, reason=reason):
            return f"turned away: {name or 'somebody'}: {reason}"
        case n.SessionOpened(site=site, release=release):
            return f"{site} is connected{f', with release {release}' if release else ''}"
        case n.SessionEnded(site=site, reason=reason):
            return f"{site} is not connected any more: {reason}"
        case n.GoingOnWithout(sites=sites, what=what):
            return f"going on without {', '.join(sites)}, who did not {what}"
        case n.MembersAre(sites=sites):
            return f"{len(sites)} sites: {', '.join(sites)}"
        case n.AnswersInClear():
            return (
                "answers in the clear: whoever holds this coordinator or its memory learns each site's predictions and "
                "response, and "
                'from them the labels of every row whose features it knows; [privacy] answers = "sums" gives sums alone'
            )
        case n.KeysChanged(sites=sites):
            return f"{', '.join(sites)} came back with new keys: everybody answers the open question again, under other masks"
        case n.Stalled(sites=sites, seconds=seconds):
            return f"stalled: waiting for {', '.join(sites) or 'enough sites'}, {for_long(seconds)}"
        case n.NotCountersigned(reason=reason):
            return f"not countersigned: {reason}"
        case n.SlowLink(site=site, to_site=to_site, moved=moved, of=of, seconds=seconds, more=more):
            what = "of what was sent to it went out" if to_site else "of its answer arrived"
            rate = moved / 1e3 / max(seconds, 1e-9)
            link = f"{site}: {moved / 1e6:.3g} of {of / 1e6:.3g} MB {what} in {seconds:.0f} s: {rate:.3g} kB/s"
            if more > 0:
                return f"{link}; its link is slow, and the rest is waited for, {more:.0f} s at most"
            return f"{link}; slower than [timeouts] least_bandwidth allows, and not waited for any longer"
        case n.NotFetched(sites=sites):
            return (
                f"{', '.join(sites)} did not fetch the run's end in time; "
                "`coreg-coordinator run --deliver RUN` waits for them again"
            )
        case n.QuestionAnswered():
            return ""
        case n.RunEnded(outcome=outcome, reason=reason):
            return told(outcome, reason)
        case _:
            assert_never(notice)


def for_long(seconds: float) -> str:
    """For how long somebody is waited for."""
    return "for as long as it takes" if isinf(seconds) else f"{seconds:g} s at most"
