"""Who takes part in a run: joining, accepting the plan, being dropped, taken back, dismissed or excluded.

Handlers of a `Reaction`; the table that calls them is in machine.py.
"""

import math

from coordinator.machine import delivery, notices, questions
from coordinator.machine.computation import computation_of
from coordinator.machine.events import Expect
from coordinator.machine.phases import Phase, Turn
from coordinator.machine.records import MembershipChanged, SiteExcluded
from coordinator.machine.run import Reaction
from coordinator.machine.state import Recorded
from coreg_core.agreement.schedules.schedule import FinalTargets
from coreg_core.errors import UsageError
from coreg_core.protocol.messages import Dismissed, PlanAccepted, PlanRefused
from coreg_core.protocol.outcomes import Outcome

# --- sessions -----------------------------------------------------------------------------------------------------


def enrol(reaction: Reaction, site: str) -> None:
    """A session opened before the plan went out."""
    if _arrived(reaction, site) and not reaction.run.awaited:
        send_plan(reaction)


def invite(reaction: Reaction, site: str) -> None:
    """A session opened after the plan went out: here it is once more."""
    if _arrived(reaction, site):
        reaction.change(invited=reaction.live.invited | {site})
        reaction.send(site, reaction.plan)


def _arrived(reaction: Reaction, site: str) -> bool:
    if (exclusion := reaction.recorded.excluded.get(site)) is not None:
        reason = f"{site}: no longer in this run: {exclusion.reason}"
        reaction.send(site, Dismissed(reaction.run.name, exclusion.outcome, reason))
        reaction.notify(notices.SiteDismissed(reaction.run.name, site, reason, excluded=True))
        return False
    reaction.arrived(site)
    here, of = len(reaction.live.here), len(reaction.plan.sites)
    reaction.notify(notices.Joined(reaction.run.name, site, here, of))
    return True


def left(reaction: Reaction, site: str, reason: str, *, lost: bool) -> None:
    """A session ended; whoever is waited for still is, until the deadline."""
    if site in reaction.live.here:
        reaction.gone(site)
        reaction.notify(notices.Left(reaction.run.name, site, reason, lost))


def send_plan(reaction: Reaction) -> None:
    """Enough are here: each shall accept the plan, or refuse."""
    here = tuple(sorted(reaction.live.here))
    reaction.take(Turn.PLAN_SENT)
    reaction.change(invited=frozenset(here))
    reaction.notify(notices.PlanSent(reaction.run.name, here, reaction.run.clocks.plan))
    reaction.deadline(reaction.run.clocks.plan)
    for site in here:
        reaction.send(site, reaction.plan)


# --- the plan -----------------------------------------------------------------------------------------------------


def accepted(reaction: Reaction, site: str, acceptance: PlanAccepted) -> None:
    """A site agreed to the plan, before the rounds or in the middle of them."""
    if site in reaction.live.ready or not _agrees(reaction, site, acceptance):
        return
    live = reaction.live
    if not live.ready:  # it is the first who says how many instances there are
        rows, columns = reaction.plan.widest(acceptance.n_unlabelled)
        reaction.actions.append(Expect(reaction.run.name, rows, columns))
    reaction.change(accepted={**live.accepted, site: acceptance}, ready=live.ready | {site})
    reaction.notify(notices.PlanAcceptedBy(reaction.run.name, site))
    match reaction.live.phase:
        case Phase.PLANNING | Phase.RETURNING:
            if not reaction.run.awaited:
                begin(reaction)
        case Phase.ASKING | Phase.STALLED:
            if _other_keys(reaction):
                rekey(reaction)
            else:
                questions.put_to(reaction, site)
        case Phase.DELIVERING:
            delivery.send_end(reaction, site)
        case Phase.ENROLLING | Phase.DONE:
            raise AssertionError("the table lets no acceptance through here")


def _agrees(reaction: Reaction, site: str, acceptance: PlanAccepted) -> bool:
    if acceptance.plan_digest != reaction.plan.digest:
        exclude(reaction, site, Outcome.SITE_FAULT, f"{site} accepted another plan than the one it was sent.")
        return False
    if reaction.plan.masked and not acceptance.key:
        exclude(reaction, site, Outcome.SITE_FAULT, f"{site} accepted a plan of sums without a key for its masks.")
        return False
    stated = (acceptance.bound, acceptance.squared_norm, acceptance.rounding)
    if not all(0 <= number < math.inf for number in stated):
        told = f"{site}: bound, squared norm and rounding are finite numbers of at least 0."
        exclude(reaction, site, Outcome.SITE_FAULT, told)
        return False
    if (reason := _unlike_before(reaction, site, acceptance) or _unlike_others(reaction, site, acceptance)) is not None:
        dismiss(reaction, site, Outcome.REFUSED, reason)
        return False
    return True


def _unlike_before(reaction: Reaction, site: str, now: PlanAccepted) -> str | None:
    earlier = reaction.recorded.accepted.get(site) or reaction.live.accepted.get(site)
    # Before the first question nothing was computed with what a site had, so it may come back with something else.
    alike = earlier is not None and earlier.without_key == now.without_key
    if earlier is None or alike or reaction.recorded.computation is None:
        return None
    what = "thread count" if earlier.threads != now.threads else "data (or how they are preprocessed)"
    return (
        f"{site}: came back with another {what} than it joined with, so its answers no longer fit this run. "
        "Start its agent with what it had, or start a new run (--new)."
    )


def _unlike_others(reaction: Reaction, site: str, now: PlanAccepted) -> str | None:
    """The unlabelled set has to be everybody's; the first who is ready says what it is."""
    if now.n_unlabelled < 1:
        return f"{site}: shares no unlabelled instance. Give rows with an empty target, or --unlabelled FILE."
    known = reaction.recorded.accepted or {s: a for s, a in reaction.live.accepted.items() if s in reaction.live.ready}
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


def refused(reaction: Reaction, site: str, refusal: PlanRefused) -> None:
    """A site's policy, or its data, do not allow the plan."""
    exclude(reaction, site, Outcome.REFUSED, f"{site} refused the plan: {refusal.reason}")


# --- those who cannot stay ----------------------------------------------------------------------------------------


def dismiss(reaction: Reaction, site: str, outcome: Outcome, reason: str) -> None:
    """Not as it is now; it may come back mended."""
    reaction.gone(site)
    reaction.send(site, Dismissed(reaction.run.name, outcome, reason))
    reaction.notify(notices.SiteDismissed(reaction.run.name, site, reason, excluded=False))


def exclude(reaction: Reaction, site: str, outcome: Outcome, reason: str) -> None:
    """Never again in this run: go on without it where the plan allows, and end otherwise."""
    if reaction.live.phase is Phase.DELIVERING:
        dismiss(reaction, site, outcome, reason)
        delivery.not_waited_for(reaction, site)
        return
    _put_out(reaction, site, outcome, reason)
    recorded = reaction.recorded
    counted = recorded.participants or reaction.plan.sites
    if site not in counted:
        return  # it came late or came back, and nobody counts on it
    if (last := cannot_go_on_without(recorded)) is not None:
        delivery.end(reaction, last.outcome, last.reason)
    elif reaction.live.phase in (Phase.ASKING, Phase.STALLED):
        regroup(reaction, [s for s in counted if s not in recorded.excluded])
    elif not reaction.run.awaited:
        send_plan(reaction) if reaction.live.phase is Phase.ENROLLING else begin(reaction)


def cannot_go_on_without(recorded: Recorded) -> SiteExcluded | None:
    """The exclusion that ends the run by its plan; None where those who are left may go on."""
    terms, counted = recorded.plan.membership, recorded.participants or recorded.plan.sites
    out = [recorded.excluded[s] for s in recorded.excluded if s in counted]
    too_few = len(counted) - len(out) < terms.min_sites
    return out[-1] if out and (too_few or (recorded.participants and terms.on_lost == "wait")) else None


def _put_out(reaction: Reaction, site: str, outcome: Outcome, reason: str) -> None:
    reaction.gone(site)
    reaction.record(SiteExcluded(site, outcome, reason))
    reaction.send(site, Dismissed(reaction.run.name, outcome, reason))
    reaction.notify(notices.SiteDismissed(reaction.run.name, site, reason, excluded=True))


def drop(reaction: Reaction, here: list[str]) -> None:
    """Go on with those who are here. The others may be taken back once they have answered; not for ever."""
    recorded, live, membership = reaction.recorded, reaction.live, reaction.plan.membership
    missing = [s for s in recorded.participants if s not in here]
    name = reaction.run.name
    reaction.notify(notices.GoingOnWithout(name, tuple(missing), "answer in time"))
    if live.ask is not None:
        reaction.change(trials={**live.trials, **{s: live.ask for s in missing if s in live.ready}})
    for site in missing:
        if recorded.returns.get(site, 0) >= membership.most_returns:
            reason = f"{site}: did not answer in time after it was taken back {membership.most_returns} times."
            _put_out(reaction, site, Outcome.STALLED, reason)
    regroup(reaction, here)


def returning(reaction: Reaction) -> list[str]:
    """Who may be taken back at a round's end: proven by an answer, after a pause that doubles with each return."""
    recorded = reaction.recorded
    return [
        s
        for s in sorted(reaction.live.proven & reaction.live.ready)
        if s not in recorded.participants
        and (s not in recorded.dropped or recorded.question - recorded.dropped[s] >= 2 ** recorded.returns.get(s, 0))
    ]


# --- the membership -----------------------------------------------------------------------------------------------


def begin(reaction: Reaction) -> None:
    """Everybody who is waited for has accepted: the first question, or the one that was open."""
    recorded = reaction.recorded
    if recorded.computation is not None and not recorded.excluded.keys() & set(recorded.participants):
        rekey(reaction) if _other_keys(reaction) else ask_on(reaction)
    else:
        regroup(reaction, counted_on(reaction))


def _other_keys(reaction: Reaction) -> list[str]:
    """Members that came back in another process, and so with another key than the attempt's roster has."""
    live, recorded = reaction.live, reaction.recorded
    here = [s for s in recorded.participants if s in live.accepted]
    return [s for s in here if live.accepted[s].key != recorded.accepted[s].key]


def ask_on(reaction: Reaction) -> None:
    """The next question; where none can be, this run ends, and no other of a federation that stands."""
    if (fault := questions.next_question(reaction)) is not None:
        delivery.end(reaction, Outcome.SITE_FAULT, fault)


def rekey(reaction: Reaction) -> None:
    """The same sites under the next attempt's number, with the keys that they have now.

    The state stays what it is, and the open question is asked of everybody again: the same question, the same answers,
    other masks.
    """
    recorded, live, changed = reaction.recorded, reaction.live, _other_keys(reaction)
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
    reaction.record(record)
    reaction.change(rostered=frozenset(), ask=None, asked=(), answers={})
    reaction.notify(notices.KeysChanged(reaction.run.name, recorded.attempt + 1, tuple(changed)))
    ask_on(reaction)


def counted_on(reaction: Reaction) -> list[str]:
    """Who is ready and need not prove that it answers: everybody, but those that were dropped because they did not."""
    return sorted(reaction.live.ready - reaction.recorded.dropped.keys())


def regroup(reaction: Reaction, participants: list[str]) -> None:
    """Start the computation, or start it again from its models, with these sites; who is away has the round's time."""
    plan, recorded, live = reaction.plan, reaction.recorded, reaction.live
    members = tuple(sorted(participants))
    assert len(members) >= plan.membership.min_sites, f"{members} are fewer than {plan.membership.min_sites}"
    questions.hold_answers(reaction)
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
        delivery.end(reaction, Outcome.REFUSED, str(error))
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
    reaction.record(changed)
    reaction.change(proven=reaction.live.proven - set(members), rostered=frozenset())
    reaction.notify(notices.MembersAre(reaction.run.name, attempt, members))
    ask_on(reaction)
