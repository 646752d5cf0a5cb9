"""Membership of a run: sites join, offer, are dropped, rejoin, are dismissed or excluded.

Handlers of a `RunUpdate`; the table that calls them is in dispatch.py. An attempt is proposed to every connected site and
begins with the offers of its members. The next attempt begins when a member is lost, returns as a new process, or rejoins.

Before the first attempt the offers are compared when all of them are here: the first one can be the wrong one.
"""

from collections.abc import Mapping
from math import isinf
from typing import TypeAlias

from coordinator.machine import delivery, notices
from coordinator.machine.events import Breached, Expect, Received, SiteJoined, SiteLost
from coordinator.machine.phases import InvalidTransition, Phase, Transition
from coordinator.machine.records import AttemptBegan, SiteExcluded
from coordinator.machine.run import RunUpdate
from coordinator.machine.state import RunState
from coreg_core.protocol.messages import Approval, Dismissed, Leaving, Offer, PlanRefused, Proposal, Step
from coreg_core.protocol.outcomes import Outcome

# --- sessions -----------------------------------------------------------------------------------------------------


def enrol(update: RunUpdate, event: SiteJoined) -> None:
    """A session opened before the plan went out."""
    if _arrived(update, event.hello.site) and not update.run.awaited:
        propose(update)


def invite(update: RunUpdate, event: SiteJoined) -> None:
    """A session opened after the plan was sent: send it again."""
    site = event.hello.site
    if delivery.needs_nothing(update, site):
        return
    if _arrived(update, site):
        if site in delivery.unfetched(update.recorded):  # not awaited so far: loaded for another site, or timed out
            update.change(fetched=update.live.fetched - {site})
        if update.live.phase is Phase.DELIVERING and site in update.run.awaited and site not in update.live.invited:
            update.deadline(update.run.timeouts.plan)  # it must factor its data before it can fetch its model
        update.change(invited=update.live.invited | {site})
        send_proposal(update, site, update.live.attempt)


def _arrived(update: RunUpdate, site: str) -> bool:
    if (exclusion := update.recorded.excluded.get(site)) is not None:
        reason = f"{site}: no longer in this run: {exclusion.reason}"
        update.send(site, Dismissed(update.run.name, exclusion.outcome, reason))
        update.notify(notices.SiteDismissed(update.run.name, site, reason, excluded=True))
        return False
    update.arrived(site)
    here, of = len(update.live.here), len(update.plan.sites)
    update.notify(notices.Joined(update.run.name, site, here, of))
    return True


def left(update: RunUpdate, event: Received[Leaving] | SiteLost | Breached) -> None:
    """A session ended. An awaited site stays awaited until the deadline."""
    was_here = event.site in update.live.here
    update.gone(event.site)
    if was_here:
        update.notify(delivery.departure(update, event))


# --- attempts -----------------------------------------------------------------------------------------------------


def propose(update: RunUpdate, attempt: int | None = None) -> None:
    """Send the plan to all connected sites, with the number of a new attempt. Each site offers or refuses."""
    recorded, here = update.recorded, tuple(sorted(update.live.here))
    number = max(recorded.attempt + 1, update.live.attempt) if attempt is None else attempt
    update.take(Transition.PROPOSED)
    nothing: dict[str, Step] = {}
    unasked: dict[str, bool] = {}
    update.change(invited=frozenset(here), attempt=number, ready=frozenset(), offers={}, steps=nothing, answers={})
    update.change(approvals=unasked)
    update.notify(notices.PlanSent(update.run.name, here, update.run.timeouts.plan))
    update.deadline(update.run.timeouts.plan)
    for site in here:
        send_proposal(update, site, number)


def send_proposal(update: RunUpdate, site: str, attempt: int) -> None:
    approval = update.run.timeouts.approval
    update.send(site, Proposal(update.run.name, attempt, update.plan, 0.0 if isinf(approval) else approval))


def approval(update: RunUpdate, event: Received[Approval]) -> None:
    """A site asks its operator, or its operator approved. After the approval it factors, under a new plan timeout."""
    site, message = event.site, event.message
    known = update.live.approvals.get(site)
    if (known, message.given) not in ((None, False), (False, True)) or site in update.live.ready:
        return  # a site repeats its message in every session; each counts once, so the wait has an end
    update.change(approvals={**update.live.approvals, site: message.given})
    if message.given:
        update.notify(notices.Approved(update.run.name, site))
        update.deadline(update.run.timeouts.plan)
    elif not wait_for_operators(update):
        _notify_operators(update)


def wait_for_operators(update: RunUpdate) -> bool:
    """Start the approval timeout if operators alone are awaited. True if it was started."""
    if update.live.operators or False not in update.live.approvals.values():
        return False  # first, since this runs after every offer and the rest is linear in the number of sites
    if not update.run.unapproved or update.run.unapproved != update.run.awaited:
        return False
    _notify_operators(update)
    update.deadline(update.run.timeouts.approval, operators=True)
    return True


def _notify_operators(update: RunUpdate) -> None:
    run, approved = update.run, len(update.live.ready)
    of = approved + len(run.awaited)
    update.notify(notices.ApprovalAwaited(run.name, run.unapproved, approved, of, run.timeouts.approval))


def offered(update: RunUpdate, event: Received[Offer]) -> None:
    """A site offers to take part, before the first step or between steps."""
    live, site, offer = update.live, event.site, event.message
    # These records can be older than the site's keys.
    if offer.attempt > live.attempt and live.phase is not Phase.DELIVERING:
        propose(update, offer.attempt + 1)
        return
    if offer.attempt < live.attempt or site in live.ready or not _agrees(update, site, offer):
        return
    known, most = live.offers.get(site), max((live.offers[s].n_unlabelled for s in live.ready), default=0)
    if offer.n_unlabelled > most:
        update.actions.append(Expect(update.run.name, update.plan.most_words(offer.n_unlabelled)))
    update.change(offers={**live.offers, site: offer}, ready=live.ready | {site})
    update.notify(notices.PlanAcceptedBy(update.run.name, site))
    _ask_again(update)
    match update.live.phase:
        case Phase.PLANNING | Phase.RETURNING:
            if site in live.late or site not in (update.recorded.participants or (site,)):
                update.change(proven=update.live.proven | {site})
            begin_if_complete(update)
        case Phase.ASKING | Phase.STALLED:
            if site not in update.recorded.participants:
                update.change(proven=update.live.proven | {site})
            elif known != offer:
                update.notify(notices.KeysChanged(update.run.name, live.attempt + 1, (site,)))
                propose(update)
            else:
                update.send(site, update.live.steps[site])
        case Phase.DELIVERING:
            if site in update.run.awaited:
                update.deadline(update.run.timeouts.round)
            delivery.send_end(update, site)
        case Phase.ENROLLING | Phase.DONE:
            raise AssertionError("the table has no handler for offers in these phases")


def _agrees(update: RunUpdate, site: str, offer: Offer) -> bool:
    if (offer.plan_digest, offer.site) != (update.plan.digest, site):
        exclude(update, site, Outcome.SITE_FAULT, f"{site} accepted a different plan from the one that was sent.")
        return False
    if update.plan.masked and not (offer.key and offer.signature):
        exclude(update, site, Outcome.SITE_FAULT, f"{site} accepted a plan with secure aggregation without keys.")
        return False
    if update.recorded.data.get(site, offer.data_digest) != offer.data_digest:
        told = (
            f"{site}: reconnected with different data or preprocessing, so its answers no longer fit this run. Start its "
            "agent with the data of this run, or start a new run (--new)."
        )
        dismiss(update, site, Outcome.REFUSED, told)
        return False
    if offer.n_unlabelled < 1:
        told = f"{site}: shares no unlabelled instance. Give rows with an empty target, or --unlabelled FILE."
        dismiss(update, site, Outcome.REFUSED, told)
        return False
    if not update.recorded.participants:
        return True  # `begin_if_complete` compares all offers of the first attempt
    others = [s for s in update.live.ready if s in update.recorded.participants]
    kinds = _kinds({**{s: update.live.offers[s] for s in others}, site: offer})
    if len(kinds) > 1:
        dismiss(update, site, Outcome.REFUSED, _difference(kinds))
    return len(kinds) == 1


_Kind: TypeAlias = tuple[int, str]  # number and digest of the shared instances


def _kind(offer: Offer) -> _Kind:
    return offer.n_unlabelled, offer.ids_digest


def _kinds(offers: Mapping[str, Offer]) -> dict[_Kind, list[str]]:
    """The sites of each kind of offer."""
    kinds: dict[_Kind, list[str]] = {}
    for site in sorted(offers):
        kinds.setdefault(_kind(offers[site]), []).append(site)
    return kinds


def _difference(kinds: Mapping[_Kind, list[str]]) -> str:
    """How shared instances of these sites differ, and what to do."""
    at = {kind: ", ".join(sites) for kind, sites in kinds.items()}
    if len({number for number, _ in kinds}) > 1:
        what = "; ".join(f"{kind[0]} at {names}" for kind, names in at.items())
        todo = (
            "If an alignment found the ids, each site names its list (--shared FILE, or `shared` in agent.toml). Otherwise "
            "compare the id columns."
        )
        what = f"the sites list different numbers of shared instances: {what}. All sites must list the same. {todo}"
    else:
        digest = "; ".join(f"{kind[1][:12]} at {names}" for kind, names in at.items())
        what = f"the ids of the {min(kinds)[0]} shared instances differ (digests: {digest}). Compare the id columns."
    return f"{what} Then reload or restart the agent that was wrong."


def agreeing(update: RunUpdate, members: list[str]) -> list[str]:
    """These sites, if their offers agree. Otherwise the run's members, the majority or none; the others are dismissed."""
    kinds = _kinds({site: update.live.offers[site] for site in members})
    if len(kinds) < 2:
        return members
    joined = set(update.recorded.participants)
    kept = next((g for g in kinds.values() if joined & set(g) or 2 * len(g) > len(members)), [])
    for site in members:
        if site not in kept:
            dismiss(update, site, Outcome.REFUSED, _difference(kinds))
            update.change(aside=update.live.aside | {site})
    return kept


def _ask_again(update: RunUpdate) -> None:
    """Propose the plan again to the sites whose lists differed: a site is new or was corrected, or is excluded."""
    if update.recorded.participants or not update.live.aside:
        return
    for site in sorted(update.live.aside):
        update.arrived(site)
        send_proposal(update, site, update.live.attempt)
    update.deadline(update.run.timeouts.plan)  # they factor their data again


def refused(update: RunUpdate, event: Received[PlanRefused]) -> None:
    """A site's policy or data do not allow the plan."""
    exclude(update, event.site, Outcome.REFUSED, f"{event.site} refused the plan: {event.message.reason}")


def counted_on(update: RunUpdate) -> list[str]:
    """Sites that are ready and that are members or can become members: before the first attempt all, later rejoining sites.

    Late sites count only if there are too few without them.
    """
    live, members = update.live, set(update.recorded.participants) - update.recorded.excluded.keys()
    may = (members - live.late) | set(returning(update)) if update.recorded.participants else live.ready
    if len(may) < update.plan.membership.min_sites:
        may = may | members
    return sorted(live.ready & may)


def begin_if_complete(update: RunUpdate) -> None:
    """Begin the attempt if no site is awaited and enough sites have offered."""
    members = counted_on(update)
    if not update.run.awaited and len(members) >= update.plan.membership.min_sites:
        if len(kept := agreeing(update, members)) == len(members):
            begin(update, kept)
    else:
        wait_for_operators(update)


def begin(update: RunUpdate, participants: list[str]) -> None:
    """Begin an attempt with these sites, which have offered, and send the roster to each."""
    plan, recorded, live = update.plan, update.recorded, update.live
    members = tuple(sorted(participants))
    if len(members) < plan.membership.min_sites:
        raise InvalidTransition(f"{members} are fewer than {plan.membership.min_sites}.")
    back = {s: recorded.returns.get(s, 0) + 1 for s in members if s in recorded.dropped}
    out = {s: recorded.steps for s in recorded.participants if s not in members}
    dropped = {**{s: q for s, q in recorded.dropped.items() if s not in back}, **out}
    changed = members != recorded.participants
    data = {**recorded.data, **{s: live.offers[s].data_digest for s in members}}
    update.record(AttemptBegan(live.attempt, members, recorded.steps, data, {**recorded.returns, **back}, dropped))
    update.change(proven=update.live.proven - set(members), late=frozenset())
    if changed:
        update.notify(notices.MembersAre(update.run.name, live.attempt, members))
    roster = tuple(live.offers[s] for s in members)
    ask(update, dict.fromkeys(members, Step(update.run.name, live.attempt, 0, roster)))


def ask(update: RunUpdate, steps: dict[str, Step]) -> None:
    """Send the next step to every connected participant. The others receive it when they reconnect."""
    update.take(Transition.ASKED)
    update.change(steps=steps, answers={})
    update.deadline(update.run.timeouts.round)
    for site, step in steps.items():
        if site in update.live.ready:
            update.send(site, step)


# --- dismissal, exclusion, dropout --------------------------------------------------------------------------------


def dismiss(update: RunUpdate, site: str, outcome: Outcome, reason: str, *, excluded: bool = False) -> None:
    """Dismiss the site: permanently (``excluded``), or until it reconnects with the fault corrected."""
    update.gone(site)
    update.change(dismissed={**update.live.dismissed, site: reason})
    update.change(approvals={name: given for name, given in update.live.approvals.items() if name != site})
    update.send(site, Dismissed(update.run.name, outcome, reason))
    update.notify(notices.SiteDismissed(update.run.name, site, reason, excluded))


def exclude(update: RunUpdate, site: str, outcome: Outcome, reason: str) -> None:
    """Exclude the site from this run permanently. Continue without it if the plan allows, otherwise end the run."""
    if update.live.phase is Phase.DELIVERING:
        dismiss(update, site, outcome, reason)
        delivery.not_waited_for(update, site)
        return
    _put_out(update, site, outcome, reason)
    _ask_again(update)
    recorded = update.recorded
    if site not in (recorded.participants or update.plan.sites):
        return  # not a member: the run does not depend on it
    if (last := cannot_go_on_without(recorded)) is not None:
        delivery.end(update, last.outcome, last.reason)
    elif update.live.phase in (Phase.ASKING, Phase.STALLED):
        propose(update)
    elif update.live.phase is not Phase.ENROLLING:
        begin_if_complete(update)
    elif not update.run.awaited:
        propose(update)


def cannot_go_on_without(recorded: RunState) -> SiteExcluded | None:
    """The exclusion that ends the run by its plan; None if the remaining sites can continue."""
    terms, counted = recorded.plan.membership, recorded.participants or recorded.plan.sites
    out = [recorded.excluded[s] for s in recorded.excluded if s in counted]
    too_few = len(counted) - len(out) < terms.min_sites
    return out[-1] if out and (too_few or (recorded.participants and terms.on_dropout == "wait")) else None


def _put_out(update: RunUpdate, site: str, outcome: Outcome, reason: str) -> None:
    update.record(SiteExcluded(site, outcome, reason))
    dismiss(update, site, outcome, reason, excluded=True)


def drop(update: RunUpdate, here: list[str]) -> None:
    """Continue with these sites. The others can rejoin later, at most ``max_rejoins`` times."""
    recorded, terms = update.recorded, update.plan.membership
    missing = [s for s in recorded.participants if s not in here]
    update.notify(notices.GoingOnWithout(update.run.name, tuple(missing), "answer in time"))
    for site in missing:
        if recorded.returns.get(site, 0) >= terms.max_rejoins:
            reason = f"{site}: did not answer in time after it rejoined {terms.max_rejoins} times."
            _put_out(update, site, Outcome.STALLED, reason)
    update.change(late=frozenset(missing))
    propose(update)


def returning(update: RunUpdate) -> list[str]:
    """Sites that can rejoin: they have answered or offered again, and a pause that doubles with each return is over."""
    plan, recorded, live = update.plan, update.recorded, update.live
    if plan.membership.on_dropout != "continue" or (plan.masked and not plan.privacy.membership_changes):
        return []
    return [
        s
        for s in sorted(live.proven & live.here)
        if s not in recorded.participants
        and s not in recorded.excluded
        and (s not in recorded.dropped or recorded.steps - recorded.dropped[s] >= 2 ** recorded.returns.get(s, 0))
    ]
