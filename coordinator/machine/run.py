"""A run's state as one frozen value, the changes and actions of one event, and the end of the run.

A run is one computation of a plan by its sites. It goes through six phases (`records.Phase`):

    ENROLLING   sites connect
    PLANNING    connected sites have the plan, and offer to take part
    ASKING      the members of the attempt answer a step
    STALLED     a member did not answer in time
    ENDING      the run has an outcome, and connected sites receive it
    DONE        no site is awaited

The first phase lasts until every site of the plan is connected or the join timeout has passed. Then
PLANNING and ASKING can alternate: each interruption begins a new attempt with the same plan. The
table `records.TRANSITIONS` has every change of phase. dispatch.py has the handler of each event in
each phase.

Two rules keep the state small. First, nothing resumes: a new attempt begins the computation from
its beginning, so no phase has to reconstruct what an earlier one had computed. A killed process
loses this value, and what the store has (`records.Begun`) is enough to begin again with the same
sites. Second, a run has one timer. Each deadline has a token, and a deadline with an earlier token
has no effect. So a timer need not be stopped before its event.

A handler takes a `RunUpdate` and an event. It calls methods of the update, which replace the frozen
`Run` and append actions. The order of the actions matters: the driver writes a record before it
sends the message that follows it. So a crash between the two leaves a store that knows more than
the sites do, and never less.

Which sites are awaited is not stored. The property `awaited` computes it from the phase and from
the sets of sites that are here, ready, or have answered. So the timeouts, the status and the end of
a phase cannot disagree about it.

A dismissed site takes part again once it connects with its fault corrected. An excluded site takes
no part in the rest of the run (`membership`).
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from coordinator.machine import notices
from coordinator.machine.events import (
    Action,
    Breached,
    CountersignHead,
    DeadlinePassed,
    Finish,
    HeadCountersigned,
    Interrupted,
    NotifyObservers,
    Persist,
    Received,
    SendToSite,
    SetDeadline,
    SiteLost,
)
from coordinator.machine.notices import NoticeName
from coordinator.machine.records import (
    Ended,
    Phase,
    Record,
    Sites,
    Timeouts,
    Transition,
    next_phase,
)
from coreg_core.messages import Answer, Fetched, Finished, Leaving, Offer, Step, ToSite
from coreg_core.outcomes import Notice, Outcome
from coreg_core.plan import Plan
from coreg_core.shapes import Shape

_APPROVE = "approve"
Shapes: TypeAlias = Mapping[str, Shape]  # of each kind of question, the bound of an answer


@dataclass(frozen=True)
class Run:
    """One run: see the module's docstring."""

    plan: Plan
    timeouts: Timeouts
    phase: Phase = Phase.ENROLLING
    token: int = 0  # of the current timer
    attempt: int = 0  # its number, counted from 0: planned, proposed or active
    participants: Sites = ()  # of the last attempt that began, in site order
    # Sites that take no part in the rest of the run, and why.
    excluded: Mapping[str, tuple[Outcome, str]] = field(default_factory=dict)
    interrupted: str = ""  # why the attempt before was interrupted; "" if none was
    done: int = 0  # steps over all attempts
    here: frozenset[str] = frozenset()  # connected sites that the run has not dismissed
    invited: frozenset[str] = frozenset()  # sites that received the plan before the first attempt
    ready: frozenset[str] = frozenset()  # sites that offered to take part in this session
    unaligned: frozenset[str] = frozenset()  # sites that can take part once the ids are aligned
    aligning: bool = False  # another run aligns the ids for this one
    aligned: bool = False  # ... and has done so
    offers: Mapping[str, Offer] = field(default_factory=dict)  # to this attempt
    shapes: Shapes = field(default_factory=dict)  # of this attempt's answers, by question
    steps: Mapping[str, Step] = field(default_factory=dict)  # the open step, by site
    answers: Mapping[str, Answer] = field(default_factory=dict)
    # Sites that ask their operator; whether approved.
    approvals: Mapping[str, bool] = field(default_factory=dict)
    operators: bool = False  # the current timer is for the approvals of operators
    # Why a site does not take part, until it connects again.
    dismissed: Mapping[str, str] = field(default_factory=dict)
    ending: tuple[Outcome, str] | None = None
    fetched: frozenset[str] = frozenset()  # sites that have the end
    signing: frozenset[str] = frozenset()  # sites whose `Fetched` is being countersigned
    # Sites whose `Fetched` came in this session: each signed head is kept, so one counts.
    heard: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        return self.plan.run

    @property
    def members(self) -> Sites:
        """Sites that can take part from now on, in site order: all of the plan until the first
        attempt begins.
        """
        return _without(self.participants or self.plan.sites, self.excluded)

    @property
    def may_drop(self) -> bool:
        """Whether the run can continue without one of its participants.

        Two masked sums that differ by one site tell that site's answer. So masked runs continue
        only if the plan has ``membership_changes``.
        """
        plan = self.plan
        return plan.membership.on_dropout == "continue" and (
            not plan.masked or plan.privacy.membership_changes
        )

    @property
    def awaited(self) -> Sites:
        """Sites that are awaited now, in site order."""
        match self.phase:
            case Phase.ENROLLING:
                return _without(self.members, self.here)
            case Phase.PLANNING:
                if self.aligning:
                    return ()
                return self._not_ready
            case Phase.ASKING | Phase.STALLED:
                return _without(self.participants, self.answers)
            case Phase.ENDING:
                # A site whose ledger head is being signed is awaited even if its session ended.
                awaited = self.signing | (self.here - self.fetched)
                return tuple(s for s in self.members if s in awaited)
            case Phase.DONE:
                return ()

    @property
    def _not_ready(self) -> Sites:
        """Sites whose offer is awaited.

        Before the first attempt these are invited sites, or all members if too few are invited.
        After it they are all members.
        """
        expected = self.members
        if not self.participants:
            invited = tuple(s for s in self.members if s in self.invited)
            if len(invited) >= self.plan.membership.min_sites:
                expected = invited
        return _without(expected, self.ready | self.unaligned)

    @property
    def unapproved(self) -> Sites:
        """Awaited sites whose operators have not decided, in site order."""
        return tuple(s for s in self.awaited if self.approvals.get(s) is False)

    @property
    def waiting(self) -> str:
        """What the run waits for, as one sentence: the alignment of ids, or the awaited sites and
        their tasks. Empty if it waits for nothing.
        """
        if self.phase is Phase.PLANNING and self.aligning:
            return "waiting for the alignment of ids"
        sites_by_task = dict[str, list[str]]()
        for site in self.awaited:
            sites_by_task.setdefault(self._task_of(site), []).append(site)
        parts = []
        for task, sites in sites_by_task.items():
            listed = ", ".join(sites)
            if task == _APPROVE:
                parts.append(f"approval by {listed}")
            else:
                parts.append(f"{listed} to {task}")
        if parts:
            return f"waiting for {' and for '.join(parts)}"
        return ""

    def _task_of(self, site: str) -> str:
        """What an awaited site has to do next."""
        if site in self.dismissed:
            return f"correct this: {self.dismissed[site].rstrip('.')}"
        if site not in self.here:
            return "connect"
        if self.approvals.get(site) is False:
            return _APPROVE
        match self.phase:
            case Phase.ENROLLING | Phase.PLANNING:
                return "check the plan and factor its data"
            case Phase.ENDING:
                return "receive the end of the run"
            case _:
                return "answer"


def _without(sites: Sites, others: Container[str]) -> Sites:
    return tuple(s for s in sites if s not in others)


class RunUpdate:
    """The changes of one event to a run.

    Handlers call these methods; `run` and `actions` are the result.
    """

    def __init__(self, run: Run):
        self.run = run
        self.actions = list[Action]()

    def change(self, **changes: Any) -> None:
        self.run = replace(self.run, **changes)

    def record(self, record: Record) -> None:
        """Write the record before the next action."""
        self.actions.append(Persist(self.run.name, record))

    def take(self, turn: Transition) -> None:
        self.change(phase=next_phase(self.run.phase, turn))

    def send(self, site: str, message: ToSite) -> None:
        self.actions.append(SendToSite(site, message))

    def tell(self, kind: NoticeName, site: str = "", **fields: Any) -> None:
        """Notify observers of this run's event."""
        self.notify(notices.notice(kind, self.run.name, site, **fields))

    def notify(self, notice: Notice) -> None:
        self.actions.append(NotifyObservers(notice))

    def ask(self, steps: Mapping[str, Step]) -> None:
        """Send the next step to every participant that is ready.

        The others receive it once they have offered again (`membership.offered`).
        """
        if self.run.phase is not Phase.ASKING:
            self.take(Transition.ASKED)
        self.change(steps=steps, answers={})
        self.restart_timer(self.run.timeouts.round)
        for site, step in steps.items():
            if site in self.run.ready:
                self.send(site, step)

    def restart_timer(self, seconds: float, *, operators: bool = False) -> None:
        """The run's only timer, with a new token: a deadline of the earlier one has no effect."""
        self.change(token=self.run.token + 1, operators=operators)
        self.actions.append(SetDeadline(self.run.name, self.run.token, seconds))

    def finish(self, turn: Transition, outcome: Outcome, reason: str) -> None:
        self.take(turn)
        self.actions.append(Finish(self.run.name, outcome, reason))

    def arrived(self, site: str) -> None:
        """A new session opened. The site's earlier offer and dismissal are void."""
        self.remove_session(site)
        dismissed = {name: reason for name, reason in self.run.dismissed.items() if name != site}
        self.change(here=self.run.here | {site}, dismissed=dismissed)

    def remove_session(self, site: str) -> None:
        """The site's session ended, or the site was dismissed."""
        run = self.run
        site_alone = {site}
        self.change(
            here=run.here - site_alone,
            ready=run.ready - site_alone,
            unaligned=run.unaligned - site_alone,
            heard=run.heard - site_alone,
        )


def session_ended(update: RunUpdate, event: Received[Leaving] | SiteLost | Breached) -> None:
    """By `Leaving`, lost, or broken off by the coordinator. The site can connect again."""
    if event.site not in update.run.here:
        return
    update.remove_session(event.site)
    if isinstance(event, Received):
        reason = event.message.reason
        lost = False
    else:
        reason = event.reason
        lost = True
    update.notify(notices.left(update.run.name, event.site, reason, lost=lost))


# --- the end --------------------------------------------------------------------------------------
# A site has stored its result before its last answer, so `Finished` only tells the end. A site that
# is away now receives it in the greeting of its next session.


def end(update: RunUpdate, outcome: Outcome, reason: str) -> None:
    """Record the outcome, and send it to connected sites."""
    run = update.run
    update.record(Ended(outcome, reason))
    update.take(Transition.ENDED)
    update.notify(notices.run_ended(run.name, outcome, reason))
    update.change(ending=(outcome, reason), steps={}, answers={})
    for site in sorted(update.run.here):
        send_end(update, site)
    if update.run.awaited:
        update.restart_timer(run.timeouts.round)
    else:
        close(update)


def send_end(update: RunUpdate, site: str) -> None:
    assert update.run.ending is not None
    update.send(site, Finished(update.run.name, *update.run.ending))


def fetched(update: RunUpdate, event: Received[Fetched]) -> None:
    """A site has received the end. If it took part, it sent the signed head of its ledger: the last
    entry, which stands for all before it. The site is awaited until that is countersigned.
    """
    if event.site in update.run.heard:
        return
    update.change(heard=update.run.heard | {event.site})
    has_signed_head = bool(event.message.signature)
    if event.site in update.run.participants and has_signed_head:
        update.change(signing=update.run.signing | {event.site})
        update.actions.append(CountersignHead(event.site, event.message))
    else:
        _mark_fetched(update, event.site)


def countersigned(update: RunUpdate, event: HeadCountersigned) -> None:
    """The answer to the head of a site's ledger.

    A countersignature is recorded before the site receives it. Without one the ledger is doubtful,
    and its reason is told.
    """
    site = event.signed.site
    receipt = event.signed.receipt
    if receipt.signature:
        update.record(event.signed)
    if receipt.reason:
        update.tell(NoticeName.LEDGER_DOUBTFUL, site, reason=receipt.reason)
    update.send(site, event.signed.message)
    update.change(signing=update.run.signing - {site})
    _mark_fetched(update, site)


def _mark_fetched(update: RunUpdate, site: str) -> None:
    update.change(fetched=update.run.fetched | {site})
    _close_if_complete(update)


def session_ended_at_end(update: RunUpdate, event: Received[Leaving] | SiteLost | Breached) -> None:
    """A site whose session ended is not awaited."""
    session_ended(update, event)
    _close_if_complete(update)


def interrupted_at_end(update: RunUpdate, _event: Interrupted) -> None:
    """The operator stops the process. The outcome stays."""
    assert update.run.ending is not None
    update.finish(Transition.INTERRUPTED, *update.run.ending)


def _close_if_complete(update: RunUpdate) -> None:
    if not update.run.awaited:
        close(update)


def close(update: RunUpdate, _event: DeadlinePassed | None = None) -> None:
    """Finish: every site has the end, or the time to fetch it has passed."""
    assert update.run.ending is not None
    update.finish(Transition.CLOSED, *update.run.ending)
