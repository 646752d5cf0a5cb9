"""Membership of a run: sites join, offer, are dismissed, dropped or excluded.

A run distinguishes four sets of sites.

    plan.sites     the sites that the plan names
    here           connected sites that the run has not dismissed
    ready          sites of these that offered to take part, in this session
    participants   the members of the attempt, which is fixed while it lasts

**Before the first attempt** the plan goes to every connected site. Each answers with an offer, a
refusal, a question to its operator (`Approval`), or the message that its ids are not aligned yet.
An offer states how many shared instances the site has, and a digest of their ids. When no site is
awaited, the offers are compared. If they agree, the attempt begins. If they differ and the plan has
an alignment, another run aligns the ids, and the plan is sent again. Otherwise the majority stays,
and the others are dismissed with advice.

**Between attempts** a site that restarts has new keys, so it offers again, and the members' sums
need a new attempt. `propose` begins one. The plan's objective limits the number of attempts.

A site can leave in four ways:

    it is lost       its session ended; it is awaited until a timeout
    dismissed        it does not take part until it connects again with its fault corrected
    excluded         it takes no part in the rest of this run, and the others can go on
    dropped          it did not act in time, and the plan allows to continue without it

The plan decides whether the others can go on (`Run.may_drop`, `min_sites`). With secure aggregation
a change of members discloses the difference of two sums, which is the answer of the site that left.
So it needs `membership_changes`.

Operators decide in hours, machines in seconds. So the approval timeout starts only when operators
alone are awaited (`wait_for_operators`). A rehearsal follows the same way, and ends where the
attempt would begin.
"""

from collections.abc import Iterable, Mapping
from math import inf, isinf
from typing import TypeAlias

from coordinator.machine import notices
from coordinator.machine.events import Aligned, BeginRun, Breached, Expect, Received, SiteJoined
from coordinator.machine.notices import NoticeName
from coordinator.machine.records import AttemptBegan, InvalidTransition, Phase, Sites, Transition
from coordinator.machine.run import Run, RunUpdate, end, send_end
from coreg_core.messages import (
    UPGRADE,
    Approval,
    Dismissed,
    Hello,
    Offer,
    PlanRefused,
    Proposal,
    Step,
    Unaligned,
)
from coreg_core.outcomes import Outcome
from coreg_core.plan import QUESTIONS, alignment_of, is_on_demand

_BEGAN_AGAIN = "the coordinator restarted, or sites were missing"


# --- sessions -------------------------------------------------------------------------------------


def enrol(update: RunUpdate, event: SiteJoined) -> None:
    """A session opened before the plan went out."""
    if _arrived(update, event.hello) and not update.run.awaited:
        propose(update)


def invite(update: RunUpdate, event: SiteJoined) -> None:
    """A session opened after the plan was sent: send it again."""
    site = event.hello.site
    if _arrived(update, event.hello):
        update.change(invited=update.run.invited | {site})
        send_proposal(update, site)


def greet(update: RunUpdate, event: SiteJoined) -> None:
    """A session opened after the end."""
    if _arrived(update, event.hello):
        send_end(update, event.hello.site)


def _arrived(update: RunUpdate, hello: Hello) -> bool:
    run = update.run
    site = hello.site
    if site not in run.members:
        outcome, why = run.excluded.get(site, _began_without(site))
        dismiss(update, site, outcome, f"{site}: no longer in this run: {why}", excluded=True)
        return False
    if hello.plans < run.plan.number:  # its session stays for plans that it knows
        reason = (
            f"{site}: release {hello.release} does not know the terms of this plan. Upgrade it on"
            f" the site's machine: {UPGRADE}"
        )
        dismiss(update, site, Outcome.REFUSED, reason)
        return False
    update.arrived(site)
    update.tell(NoticeName.JOINED, site, here=len(update.run.here), of=len(run.plan.sites))
    return True


def _began_without(site: str) -> tuple[Outcome, str]:
    return Outcome.STALLED, f"{site}: the run began without this site."


# --- attempts -------------------------------------------------------------------------------------


def propose(update: RunUpdate, cause: str = _BEGAN_AGAIN, attempt: int | None = None) -> None:
    """Send the plan to all connected sites with a new attempt; ``cause``: what interrupted the last
    one.
    """
    run = update.run
    here = tuple(sorted(update.run.here))
    if attempt is None:
        attempt = run.attempt + (run.phase is not Phase.ENROLLING)
    most = 1 if is_on_demand(run.name) else run.plan.objective.attempts
    if attempt >= most:
        reason = f"{most} attempts were interrupted; the last one because {cause}"
        end(update, Outcome.STALLED, reason)
        return
    update.take(Transition.PROPOSED)
    nobody = frozenset[str]()
    update.change(attempt=attempt, invited=run.here, ready=nobody, unaligned=nobody)
    if run.participants:
        update.change(interrupted=cause)
    update.change(offers={}, steps={}, answers={}, approvals={})
    update.tell(NoticeName.PLAN_SENT, sites=here, seconds=run.timeouts.plan)
    update.restart_timer(run.timeouts.plan)
    for site in here:
        send_proposal(update, site)


def send_proposal(update: RunUpdate, site: str) -> None:
    run = update.run
    approval = update.run.timeouts.approval
    update.send(
        site, Proposal(run.name, run.attempt, run.plan, 0.0 if isinf(approval) else approval)
    )


def approval(update: RunUpdate, event: Received[Approval]) -> None:
    """A site asks its operator, or its operator approved.

    After the approval it factors, under a new plan timeout.
    """
    site = event.site
    message = event.message
    run = update.run
    earlier = run.approvals.get(site)
    if (earlier, message.given) not in ((None, False), (False, True)) or site in run.ready:
        # a site repeats its message in every session; each counts once, so the wait has an end
        return
    update.change(approvals={**run.approvals, site: message.given})
    if message.given:
        update.tell(NoticeName.APPROVED, site)
        if not run.aligning:
            update.restart_timer(run.timeouts.plan)
    elif not wait_for_operators(update):
        _notify_operators(update)


def wait_for_operators(update: RunUpdate) -> bool:
    """Start the approval timeout if operators alone are awaited. True if it was started."""
    run = update.run
    if run.operators or False not in run.approvals.values():
        # first, since this runs after every offer and the rest is linear in the number of sites
        return False
    if not run.unapproved or run.unapproved != run.awaited:
        return False
    _notify_operators(update)
    update.restart_timer(run.timeouts.approval, operators=True)
    return True


def _notify_operators(update: RunUpdate) -> None:
    run = update.run
    given = run.ready | {site for site, yes in run.approvals.items() if yes}
    of = len(given | {*run.awaited})
    update.tell(
        NoticeName.APPROVAL_AWAITED,
        sites=run.unapproved,
        approved=len(given),
        of=of,
        seconds=run.timeouts.approval,
    )


def offered(update: RunUpdate, event: Received[Offer]) -> None:
    """A site offers to take part, before the first step or between steps."""
    run = update.run
    site = event.site
    offer = event.message
    if offer.attempt > run.attempt:
        propose(
            update, f"{site} had already taken part in attempt {offer.attempt}", offer.attempt + 1
        )
        return
    if offer.attempt < run.attempt or site in run.ready or not _agrees(update, site, offer):
        return
    earlier = run.offers.get(site)
    update.change(offers={**run.offers, site: offer}, ready=run.ready | {site})
    update.tell(NoticeName.PLAN_ACCEPTED, site)
    if run.phase is Phase.PLANNING:
        begin_if_complete(update)
    elif earlier != offer:
        update.tell(NoticeName.KEYS_CHANGED, site, attempt=run.attempt + 1)
        propose(update, f"{site} restarted")
    elif site not in run.answers:
        update.send(site, run.steps[site])


def _agrees(update: RunUpdate, site: str, offer: Offer) -> bool:
    run = update.run
    if (offer.plan_digest, offer.site) != (run.plan.digest, site):
        exclude(
            update,
            site,
            Outcome.SITE_FAULT,
            f"{site} accepted a different plan from the one that was sent.",
        )
        return False
    if run.plan.masked and not (offer.key and offer.signature):
        exclude(
            update,
            site,
            Outcome.SITE_FAULT,
            f"{site} accepted a plan with secure aggregation without keys.",
        )
        return False
    if offer.n_unlabelled < 1:
        reason = (
            f"{site}: shares no unlabelled instance. Give rows with an empty target, or"
            " --unlabelled FILE."
        )
        dismiss(update, site, Outcome.REFUSED, reason)
        return False
    if not run.participants:
        return True  # `begin_if_complete` compares all offers of the first attempt
    kinds = _kinds({**{s: run.offers[s] for s in run.ready}, site: offer})
    if len(kinds) > 1:
        dismiss(update, site, Outcome.REFUSED, _difference(kinds))
    return len(kinds) == 1


_Kind: TypeAlias = tuple[int, str]  # number and digest of the shared instances


def _kinds(offers: Mapping[str, Offer]) -> dict[_Kind, list[str]]:
    """The sites of each kind of offer."""
    kinds: dict[_Kind, list[str]] = {}
    for site in sorted(offers):
        kinds.setdefault((offers[site].n_unlabelled, offers[site].ids_digest), []).append(site)
    return kinds


def _difference(kinds: Mapping[_Kind, list[str]]) -> str:
    """How shared instances of these sites differ, and what to do."""
    at = {kind: ", ".join(sites) for kind, sites in kinds.items()}
    if len({number for number, _ in kinds}) > 1:
        what = "; ".join(f"{kind[0]} at {names}" for kind, names in at.items())
        todo = (
            "Remove align = false from [alignment], so that each run aligns the ids; or compare the"
            " id columns."
        )
        what = (
            f"the sites list different numbers of shared instances: {what}. All sites must list the"
            f" same. {todo}"
        )
    else:
        digest = "; ".join(f"{kind[1][:12]} at {names}" for kind, names in at.items())
        what = (
            f"the ids of the {min(kinds)[0]} shared instances differ (digests: {digest}). Compare"
            " the id columns."
        )
    return f"{what} Then restart these agents."


def agreeing(update: RunUpdate) -> list[str]:
    """The ready sites, if their offers agree.

    Otherwise the majority or none; the others are dismissed.
    """
    run = update.run
    kinds = _kinds({site: run.offers[site] for site in run.ready})
    if len(kinds) < 2:
        return sorted(run.ready)
    kept = next((sites for sites in kinds.values() if 2 * len(sites) > len(run.ready)), [])
    for site in sorted(run.ready - set(kept)):
        dismiss(update, site, Outcome.REFUSED, _difference(kinds))
    return kept


def unaligned(update: RunUpdate, event: Received[Unaligned]) -> None:
    """A site knows no alignment of its ids with the others."""
    run = update.run
    site = event.site
    if run.plan.align is None:
        exclude(
            update,
            site,
            Outcome.SITE_FAULT,
            f"{site} asks for an alignment of ids, which the plan does not have.",
        )
        return
    if run.participants or run.aligned or is_on_demand(run.name):
        reason = (
            f"{site}: its ids are not those that were aligned for this run. Restore its table, and"
            " restart its agent."
        )
        dismiss(update, site, Outcome.REFUSED, reason)
        return
    update.change(unaligned=run.unaligned | {site})
    begin_if_complete(update)


def must_align(run: Run) -> bool:
    """Whether the ids have to be aligned before the first attempt, by what the sites said so
    far.
    """
    if run.plan.align is None or run.participants or run.aligned or is_on_demand(run.name):
        return False
    return bool(run.unaligned) or len(_kinds({site: run.offers[site] for site in run.ready})) > 1


def align(update: RunUpdate) -> None:
    """Start the run that aligns the ids, of all sites of the plan: counts with and without a site
    would name it.
    """
    run = update.run
    if missing := sorted({*run.plan.sites} - (run.ready | run.unaligned)):
        reason = (
            f"the ids are not aligned yet, which needs all sites of the plan: {', '.join(missing)}"
            " did not come"
        )
        end(update, Outcome.TOO_FEW_SITES, reason)
        return
    update.change(aligning=True)
    update.restart_timer(inf)
    update.tell(NoticeName.ALIGNING, sites=run.plan.sites)
    update.actions.append(BeginRun(alignment_of(run.plan, run.attempt)))


def aligned(update: RunUpdate, event: Aligned) -> None:
    """The ids are aligned, or cannot be."""
    if not update.run.aligning:
        return
    update.change(aligning=False, aligned=True)
    if event.outcome.good:
        propose(update, "the ids were aligned", update.run.attempt)
    else:
        end(
            update,
            event.outcome,
            f"the ids could not be aligned: {event.reason or event.outcome.value}",
        )


def refused(update: RunUpdate, event: Received[PlanRefused]) -> None:
    """A site's policy or data do not allow the plan."""
    if event.message.for_now:
        dismiss(update, event.site, Outcome.REFUSED, f"{event.site}: {event.message.reason}")
        return
    reason = f"{event.site} refused the plan: {event.message.reason}"
    if interrupted := update.run.interrupted:
        reason = f"{reason.removesuffix('.')}. The attempt before was interrupted: {interrupted}"
    exclude(update, event.site, Outcome.REFUSED, reason)


def begin_if_complete(update: RunUpdate) -> None:
    """Begin the attempt if no site is awaited and enough sites have offered."""
    run = update.run
    if run.aligning:
        return
    if run.plan.rehearsal and run.excluded and not run.awaited:
        rehearsed(update)
    elif not run.awaited and len(run.ready | run.unaligned) >= run.plan.membership.min_sites:
        if must_align(run):
            align(update)
        elif run.plan.rehearsal:
            rehearsed(update)
        elif len(kept := agreeing(update)) == len(run.ready):
            begin(update, kept)
    else:
        wait_for_operators(update)


def rehearsed(update: RunUpdate) -> None:
    """End a rehearsal with what each site said: no site is asked for an answer."""
    run = update.run
    offers = {site: run.offers[site] for site in sorted(run.ready)}
    answers = [
        f"{site} would take part, with {offer.n_unlabelled} shared instances"
        for site, offer in offers.items()
    ]
    answers += [
        f"{site} accepts the plan before its ids are aligned" for site in sorted(run.unaligned)
    ]
    answers += [reason.removesuffix(".") for _, reason in run.excluded.values()]
    heard = run.ready | run.unaligned | run.excluded.keys()
    answers += [f"{site} has not answered" for site in run.plan.sites if site not in heard]
    kinds = _kinds(offers)
    if len(kinds) > 1:
        answers.append(_difference(kinds).removesuffix("."))
    outcome = Outcome.REFUSED if run.excluded or len(kinds) > 1 else Outcome.REHEARSED
    end(update, outcome, f"a rehearsal, without any answer about rows: {'; '.join(answers)}")


def begin(update: RunUpdate, participants: Iterable[str]) -> None:
    """Begin an attempt with these sites, which have offered, and send the roster to each.

    It has no other sites.
    """
    run = update.run
    members = tuple(sorted(participants))
    if len(members) < run.plan.membership.min_sites:
        raise InvalidTransition(f"{members} are fewer than {run.plan.membership.min_sites}.")
    update.record(AttemptBegan(run.attempt, members))
    update.change(participants=members)
    for site in sorted(run.here - set(members)):
        dismiss(update, site, *_began_without(site), excluded=True)
    if members != run.participants:
        update.notify(notices.members_are(run.name, run.attempt, members))
    roster = tuple(run.offers[s] for s in members)
    # Memory is granted for what all offers agree on.
    shared = roster[0].n_unlabelled
    room = run.plan.most_bytes(shared, members)
    update.actions.append(Expect(run.name, room))
    kinds = {kind: run.plan.shape(kind, shared, members) for kind in QUESTIONS}
    shapes = {kind: shape for kind, shape in kinds.items() if shape is not None}
    update.change(shapes=shapes)
    update.ask(dict.fromkeys(members, Step(run.name, run.attempt, 0, roster)))


# --- dismissal, exclusion, dropout ----------------------------------------------------------------


def dismiss(
    update: RunUpdate, site: str, outcome: Outcome, reason: str, *, excluded: bool = False
) -> None:
    """Dismiss the site: permanently (``excluded``), or until it reconnects with the fault
    corrected.
    """
    run = update.run
    update.remove_session(site)
    approvals = {name: given for name, given in run.approvals.items() if name != site}
    update.change(dismissed={**run.dismissed, site: reason}, approvals=approvals)
    update.send(site, Dismissed(run.name, outcome, reason))
    update.tell(NoticeName.SITE_DISMISSED, site, reason=reason, excluded=excluded)


def breached(update: RunUpdate, event: Breached) -> None:
    if event.site in update.run.here:
        exclude(
            update,
            event.site,
            Outcome.SITE_FAULT,
            f"{event.site} broke the protocol: {event.reason}",
        )


def exclude(update: RunUpdate, site: str, outcome: Outcome, reason: str) -> None:
    """Exclude the site from this run permanently.

    Continue without it if the plan allows, otherwise end the run.
    """
    update.change(excluded={**update.run.excluded, site: (outcome, reason)})
    dismiss(update, site, outcome, reason, excluded=True)
    run = update.run
    if run.plan.rehearsal and run.phase is Phase.PLANNING:  # the others say what they would do
        begin_if_complete(update)
    elif len(run.members) < run.plan.membership.min_sites or (
        run.participants and not run.may_drop
    ):
        end(update, outcome, reason)
    elif run.phase is Phase.PLANNING:
        begin_if_complete(update)
    else:
        propose(update, reason)


def go_on_without(update: RunUpdate, missing: Sites, remaining: int, what: str) -> bool:
    """Continue without the sites that did not do ``what``, if the plan allows it and enough remain;
    else False.
    """
    run = update.run
    if remaining < run.plan.membership.min_sites or (run.participants and not run.may_drop):
        return False
    update.tell(NoticeName.GOING_ON_WITHOUT, sites=missing, what=what)
    if run.participants:
        out = {site: (Outcome.STALLED, f"{site}: did not {what}.") for site in missing}
        update.change(excluded={**run.excluded, **out})
        for site in sorted(run.here & out.keys()):
            dismiss(update, site, *out[site], excluded=True)
    return True
