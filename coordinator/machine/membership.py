"""Who takes part in a run: joining, accepting the plan, being dropped, taken back, dismissed or excluded.

Handlers of a `RunUpdate`; the table that calls them is in machine.py.
"""

import math

from coordinator.machine import delivery, notices, questions
from coordinator.machine.computation import computation_of
from coordinator.machine.events import Expect
from coordinator.machine.phases import Phase, Transition
from coordinator.machine.records import MembershipChanged, SiteExcluded
from coordinator.machine.run import RunUpdate
from coordinator.machine.state import RunState
from coreg_core.agreement.schedules.schedule import FinalTargets
from coreg_core.errors import UsageError
from coreg_core.protocol.messages import Dismissed, PlanAccepted, PlanRefused
from coreg_core.protocol.outcomes import Outcome

# --- sessions -----------------------------------------------------------------------------------------------------


def enrol(update: RunUpdate, site: str) -> None:
    """A session opened before the plan went out."""
    if _arrived(update, site) and not update.run.awaited:
        send_plan(update)


def invite(update: RunUpdate, site: str) -> None:
    """A session opened after the plan went out: here it is once more."""
    if _arrived(update, site):
        if site in delivery.unfetched(update.recorded):  # loaded on demand for another site, or given up before
            update.change(fetched=update.live.fetched - {site})
        if update.live.phase is Phase.DELIVERING and site in update.run.awaited and site not in update.live.invited:
            update.deadline(update.run.timeouts.plan)  # it has to factor its data before it can take its model
        update.change(invited=update.live.invited | {site})
        update.send(site, update.plan)


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


def left(update: RunUpdate, site: str, reason: str, *, lost: bool) -> None:
    """A session ended; whoever is waited for still is, until the deadline."""
    if site in update.live.here:
        update.gone(site)
        update.notify(notices.Left(update.run.name, site, reason, lost))


def send_plan(update: RunUpdate) -> None:
    """Enough are here: each shall accept the plan, or refuse."""
    here = tuple(sorted(update.live.here))
    update.take(Transition.PLAN_SENT)
    update.change(invited=frozenset(here))
    update.notify(notices.PlanSent(update.run.name, here, update.run.timeouts.plan))
    update.deadline(update.run.timeouts.plan)
    for site in here:
        update.send(site, update.plan)


# --- the plan -----------------------------------------------------------------------------------------------------


def accepted(update: RunUpdate, site: str, acceptance: PlanAccepted) -> None:
    """A site agreed to the plan, before the rounds or in the middle of them."""
    if site in update.live.ready or not _agrees(update, site, acceptance):
        return
    live = update.live
    if not live.ready:  # it is the first who says how many instances there are
        rows, columns = update.plan.widest(acceptance.n_unlabelled)
        update.actions.append(Expect(update.run.name, rows, columns))
    update.change(accepted={**live.accepted, site: acceptance}, ready=live.ready | {site})
    update.notify(notices.PlanAcceptedBy(update.run.name, site))
    match update.live.phase:
        case Phase.PLANNING | Phase.RETURNING:
            if not update.run.awaited:
                begin(update)
        case Phase.ASKING | Phase.STALLED:
            if _other_keys(update):
                rekey(update)
            else:
                questions.put_to(update, site)
        case Phase.DELIVERING:
            if site in update.run.awaited:
                update.deadline(update.run.timeouts.round)
            delivery.send_end(update, site)
        case Phase.ENROLLING | Phase.DONE:
            raise AssertionError("the table lets no acceptance through here")


def _agrees(update: RunUpdate, site: str, acceptance: PlanAccepted) -> bool:
    if acceptance.plan_digest != update.plan.digest:
        exclude(update, site, Outcome.SITE_FAULT, f"{site} accepted another plan than the one it was sent.")
        return False
    if update.plan.masked and not acceptance.key:
        exclude(update, site, Outcome.SITE_FAULT, f"{site} accepted a plan of sums without a key for its masks.")
        return False
    stated = (acceptance.bound, acceptance.squared_norm, acceptance.rounding)
    if not all(0 <= number < math.inf for number in stated):
        told = f"{site}: bound, squared norm and rounding are finite numbers of at least 0."
        exclude(update, site, Outcome.SITE_FAULT, told)
        return False
    if (reason := _unlike_before(update, site, acceptance) or _unlike_others(update, site, acceptance)) is not None:
        dismiss(update, site, Outcome.REFUSED, reason)
        return False
    return True


def _unlike_before(update: RunUpdate, site: str, now: PlanAccepted) -> str | None:
    earlier = update.recorded.accepted.get(site) or update.live.accepted.get(site)
    # Before the first question nothing was computed with what a site had, so it may come back with something else.
    alike = earlier is not None and earlier.without_key == now.without_key
    if earlier is None or alike or update.recorded.computation is None:
        return None
    what = "thread count" if earlier.threads != now.threads else "data (or how they are preprocessed)"
    return (
        f"{site}: came back with another {what} than it joined with, so its answers no longer fit this run. "
        "Start its agent with what it had, or start a new run (--new)."
    )


def _unlike_others(update: RunUpdate, site: str, now: PlanAccepted) -> str | None:
    """The unlabelled set has to be everybody's; the first who is ready says what it is."""
    if now.n_unlabelled < 1:
        return f"{site}: shares no unlabelled instance. Give rows with an empty target, or --unlabelled FILE."
    known = update.recorded.accepted or {s: a for s, a in update.live.accepted.items() if s in update.live.ready}
    other = next((s for s in sorted(known) if s != site), None)
    if other is None:
        return None
    theirs = known[other]
    if now.n_unlabelled != theirs.n_unlabelled:
        return (
            f"{site}: {now.n_unlabelled} unlabelled instances, {other} has {theirs.n_unlabelled}. "
            "All sites list the same instances: compare the two id columns."
        )
    if now.ids_digest != theirs.ids_digest:
        return (
            f"{site}: {now.n_unlabelled} unlabelled instances as {other}, but their ids differ "
            f"(digest {now.ids_digest[:12]} against {theirs.ids_digest[:12]}). Compare the two id columns."
        )
    return None


def refused(update: RunUpdate, site: str, refusal: PlanRefused) -> None:
    """A site's policy, or its data, do not allow the plan."""
    exclude(update, site, Outcome.REFUSED, f"{site} refused the plan: {refusal.reason}")


# --- those who cannot stay ----------------------------------------------------------------------------------------


def dismiss(update: RunUpdate, site: str, outcome: Outcome, reason: str) -> None:
    """Not as it is now; it may come back mended."""
    update.gone(site)
    update.send(site, Dismissed(update.run.name, outcome, reason))
    update.notify(notices.SiteDismissed(update.run.name, site, reason, excluded=False))


def exclude(update: RunUpdate, site: str, outcome: Outcome, reason: str) -> None:
    """Never again in this run: go on without it where the plan allows, and end otherwise."""
    if update.live.phase is Phase.DELIVERING:
        dismiss(update, site, outcome, reason)
        delivery.not_waited_for(update, site)
        return
    _put_out(update, site, outcome, reason)
    recorded = update.recorded
    counted = recorded.participants or update.plan.sites
    if site not in counted:
        return  # it came late or came back, and nobody counts on it
    if (last := cannot_go_on_without(recorded)) is not None:
        delivery.end(update, last.outcome, last.reason)
    elif update.live.phase in (Phase.ASKING, Phase.STALLED):
        change_membership(update, [s for s in counted if s not in recorded.excluded])
    elif not update.run.awaited:
        send_plan(update) if update.live.phase is Phase.ENROLLING else begin(update)


def cannot_go_on_without(recorded: RunState) -> SiteExcluded | None:
    """The exclusion that ends the run by its plan; None where those who are left may go on."""
    terms, counted = recorded.plan.membership, recorded.participants or recorded.plan.sites
    out = [recorded.excluded[s] for s in recorded.excluded if s in counted]
    too_few = len(counted) - len(out) < terms.min_sites
    return out[-1] if out and (too_few or (recorded.participants and terms.on_dropout == "wait")) else None


def _put_out(update: RunUpdate, site: str, outcome: Outcome, reason: str) -> None:
    update.gone(site)
    update.record(SiteExcluded(site, outcome, reason))
    update.send(site, Dismissed(update.run.name, outcome, reason))
    update.notify(notices.SiteDismissed(update.run.name, site, reason, excluded=True))


def drop(update: RunUpdate, here: list[str]) -> None:
    """Go on with those who are here. The others may be taken back once they have answered; not for ever."""
    recorded, live, membership = update.recorded, update.live, update.plan.membership
    missing = [s for s in recorded.participants if s not in here]
    name = update.run.name
    update.notify(notices.GoingOnWithout(name, tuple(missing), "answer in time"))
    if live.ask is not None:
        update.change(trials={**live.trials, **{s: live.ask for s in missing if s in live.ready}})
    for site in missing:
        if recorded.returns.get(site, 0) >= membership.max_rejoins:
            reason = f"{site}: did not answer in time after it was taken back {membership.max_rejoins} times."
            _put_out(update, site, Outcome.STALLED, reason)
    change_membership(update, here)


def returning(update: RunUpdate) -> list[str]:
    """Who may be taken back at a round's end: proven by an answer, after a pause that doubles with each return."""
    recorded = update.recorded
    return [
        s
        for s in sorted(update.live.proven & update.live.ready)
        if s not in recorded.participants
        and (s not in recorded.dropped or recorded.question - recorded.dropped[s] >= 2 ** recorded.returns.get(s, 0))
    ]


# --- the membership -----------------------------------------------------------------------------------------------


def begin(update: RunUpdate) -> None:
    """Everybody who is waited for has accepted: the first question, or the one that was open."""
    recorded = update.recorded
    if recorded.computation is not None and not recorded.excluded.keys() & set(recorded.participants):
        rekey(update) if _other_keys(update) else ask_on(update)
    else:
        change_membership(update, counted_on(update))


def _other_keys(update: RunUpdate) -> list[str]:
    """Members that came back in another process, and so with another key than the attempt's roster has."""
    live, recorded = update.live, update.recorded
    here = [s for s in recorded.participants if s in live.accepted]
    return [s for s in here if live.accepted[s].key != recorded.accepted[s].key]


def ask_on(update: RunUpdate) -> None:
    """The next question; where none can be, this run ends, and no other of a federation that stands."""
    if (fault := questions.next_question(update)) is not None:
        delivery.end(update, Outcome.SITE_FAULT, fault)


def rekey(update: RunUpdate) -> None:
    """The same sites under the next attempt's number, with the keys that they have now.

    The state stays what it is, and the open question is asked of everybody again: the same question, the same answers,
    other masks.
    """
    recorded, live, changed = update.recorded, update.live, _other_keys(update)
    now = {s: live.accepted[s] for s in recorded.participants if s in live.accepted}
    record = MembershipChanged(
        attempt=recorded.attempt + 1,
        question=recorded.question,
        participants=recorded.participants,
        accepted={**recorded.accepted, **now},
        state=recorded.state.to_arrays(),
        returns=recorded.returns,
        dropped=recorded.dropped,
        affine=recorded.affine,
    )
    update.record(record)
    update.change(rostered=frozenset(), ask=None, asked=(), answers={})
    update.notify(notices.KeysChanged(update.run.name, recorded.attempt + 1, tuple(changed)))
    ask_on(update)


def counted_on(update: RunUpdate) -> list[str]:
    """Who is ready and need not prove that it answers: everybody, but those that were dropped because they did not."""
    return sorted(update.live.ready - update.recorded.dropped.keys())


def change_membership(update: RunUpdate, participants: list[str]) -> None:
    """Start the computation, or start it again from its models, with these sites; who is away has the round's time."""
    plan, recorded, live = update.plan, update.recorded, update.live
    members = tuple(sorted(participants))
    assert len(members) >= plan.membership.min_sites, f"{members} are fewer than {plan.membership.min_sites}"
    questions.hold_answers(update)
    warm: FinalTargets | None = None
    rounds, attempt = 0, 0
    if recorded.computation is not None:
        warm, rounds = recorded.models, recorded.computation.rounds(recorded.state)
        attempt = recorded.attempt + 1
    back = {s: recorded.returns.get(s, 0) + 1 for s in members if s in recorded.dropped}
    out = {s: recorded.question for s in recorded.participants if s not in members}
    agreed = {**recorded.accepted, **{s: live.accepted[s] for s in members if s in live.accepted}}
    computation = computation_of(plan, agreed, members)
    try:
        state = computation.start(agreed[members[0]].n_unlabelled, warm, rounds, recorded.affine.get(members))
    except UsageError as error:  # more instances than the plan has memory for
        delivery.end(update, Outcome.REFUSED, str(error))
        return
    changed = MembershipChanged(
        attempt=attempt,
        question=recorded.question,
        participants=members,
        accepted=agreed,
        state=state.to_arrays(),
        returns={**recorded.returns, **back},
        dropped={**{s: q for s, q in recorded.dropped.items() if s not in back}, **out},
        affine=recorded.affine,
    )
    update.record(changed)
    update.change(proven=update.live.proven - set(members), rostered=frozenset())
    update.notify(notices.MembersAre(update.run.name, attempt, members))
    ask_on(update)
