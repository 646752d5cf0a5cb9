"""The sentence of every notice."""

from math import isinf
from typing import assert_never

from coordinator.machine import notices as n
from coreg_core.protocol.outcomes import told

# Notices that an operator should read.
_GRAVE = (
    n.ApprovalAwaited,
    n.SiteDismissed,
    n.SessionRejected,
    n.AccessDenied,
    n.GoingOnWithout,
    n.Stalled,
    n.LedgerDoubtful,
    n.CertificateExpires,
    n.NotReloaded,
)


def is_warning(notice: n.Notice) -> bool:
    """Whether an operator should read it."""
    return isinstance(notice, _GRAVE)


def message_for(notice: n.Notice) -> str:
    """One sentence; empty for notices that a table shows."""
    match notice:
        case n.RunBegan(run=run, awaited=awaited, seconds=seconds):
            return f"run {run}: waiting for {', '.join(awaited)} to connect ({at_most(seconds)})"
        case n.RunTakenUp(run=run, attempts=attempts, awaited=awaited, seconds=seconds):
            after = f"after {attempts} attempt{'s' * (attempts != 1)}"
            return f"run {run} begins again {after}: waiting for {', '.join(awaited)} to connect ({at_most(seconds)})"
        case n.Joined(site=site, here=here, of=of):
            return f"{site} joined ({here} of {of})"
        case n.Left(site=site, reason=reason, lost=lost):
            return f"{site} {'lost' if lost else 'left'}: {reason}"
        case n.PlanSent(sites=sites, seconds=seconds):
            return f"plan sent to {', '.join(sites)} ({at_most(seconds)})"
        case n.PlanAcceptedBy(site=site):
            return f"{site} is ready: its policy allows the plan"
        case n.ApprovalAwaited(sites=sites, approved=approved, of=of, seconds=seconds):
            return f"waiting for approval by {', '.join(sites)} ({approved} of {of} approved, {at_most(seconds)})"
        case n.Approved(site=site):
            return f"the operator of {site} approved the plan"
        case n.SiteDismissed(reason=reason) | n.SessionRejected(reason=reason):
            return reason
        case n.AccessDenied(name=name, reason=reason):
            return f"rejected: {name or 'unknown peer'}: {reason}"
        case n.SessionOpened(site=site, release=release):
            return f"{site} is connected{f', with release {release}' if release else ''}"
        case n.SessionEnded(site=site, reason=reason):
            return f"{site} disconnected: {reason}"
        case n.GoingOnWithout(sites=sites, what=what):
            return f"continuing without {', '.join(sites)}, which did not {what}"
        case n.MembersAre(sites=sites):
            return f"{len(sites)} sites: {', '.join(sites)}"
        case n.AnswersInClear():
            return (
                "answers in the clear: this coordinator receives each site's predictions. Labels follow from them for every row "
                'with known features. With [privacy] aggregation = "secure" it receives encrypted sums only.'
            )
        case n.KeysChanged(sites=sites):
            return f"{', '.join(sites)} restarted, which interrupts this attempt"
        case n.Stalled(sites=sites, seconds=seconds):
            return f"stalled: waiting for {', '.join(sites) or 'enough sites'} ({at_most(seconds)})"
        case n.LedgerDoubtful(reason=reason):
            return reason
        case n.StepAnswered() | n.Stopped():
            return ""
        case n.Listening(host=host, port=port):
            return f"listening on {host}:{port}"
        case n.RunStarted(run=run, study=study, resumed=resumed):
            return f"run {run}{' of study ' * bool(study)}{study} {'begins again' if resumed else 'started'}"
        case n.CertificateExpires(reason=reason):
            return reason
        case n.Reloaded(sites=sites, max_concurrent_runs=limit):
            return f"configuration reloaded: {len(sites)} sites, max_concurrent_runs = {limit}"
        case n.NotReloaded(reason=reason):
            return f"configuration not reloaded: {reason}"
        case n.ServiceDraining(runs=runs):
            return f"draining{': ' * bool(runs)}{', '.join(runs)}"
        case n.RunEnded(outcome=outcome, reason=reason):
            return told(outcome, reason)
        case _:
            assert_never(notice)


def at_most(seconds: float) -> str:
    """A timeout as text."""
    return "no timeout" if isinf(seconds) else f"timeout {seconds:g} s"
