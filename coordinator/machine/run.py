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
    attempt: int = 0  # the next one, proposed or active
    participants: Sites = ()  # of the last attempt that began, in site order
    # For the rest of the run, and why.
    excluded: Mapping[str, tuple[Outcome, str]] = field(default_factory=dict)
    interrupted: str = ""  # what ended the attempt before
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
        """Whether the run can continue without one of its participants."""
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
                asked = self.signing | self.here - self.fetched
                return tuple(s for s in self.members if s in asked)
            case Phase.DONE:
                return ()

    @property
    def _not_ready(self) -> Sites:
        """Sites whose offer is awaited.

        Before the first attempt these are invited sites, or all sites if too few are invited.
        """
        came = tuple(s for s in self.members if self.participants or s in self.invited)
        counted = came if len(came) >= self.plan.membership.min_sites else self.members
        return _without(counted, self.ready | self.unaligned)

    @property
    def unapproved(self) -> Sites:
        """Awaited sites whose operators have not decided, in site order."""
        return tuple(s for s in self.awaited if self.approvals.get(s) is False)

    @property
    def waiting(self) -> str:
        """The awaited sites and their tasks as one sentence; empty if no site is awaited."""
        tasks = dict[str, list[str]]()
        if self.phase in (Phase.ENROLLING, Phase.PLANNING):
            work = "check the plan and factor its data"
        else:
            work = "receive the end of the run" if self.phase is Phase.ENDING else "answer"
        for site in self.awaited:
            if site in self.dismissed:
                task = f"correct this: {self.dismissed[site].rstrip('.')}"
            elif site not in self.here:
                task = "connect"
            else:
                task = _APPROVE if self.approvals.get(site) is False else work
            tasks.setdefault(task, []).append(site)
        if self.aligning:
            return "waiting for the alignment of ids"
        parts = [
            (
                f"approval by {', '.join(sites)}"
                if task == _APPROVE
                else f"{', '.join(sites)} to {task}"
            )
            for task, sites in tasks.items()
        ]
        if parts:
            return f"waiting for {' and for '.join(parts)}"
        return ""


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
        """Send the next step to every connected participant.

        The others receive it when they reconnect.
        """
        if self.run.phase is not Phase.ASKING:
            self.take(Transition.ASKED)
        self.change(steps=steps, answers={}, token=self.run.token + 1, operators=False)
        run = self.run
        self.actions.append(SetDeadline(run.plan.run, run.token, run.timeouts.round))
        for site, step in steps.items():
            if site in run.ready:
                self.actions.append(SendToSite(site, step))

    def deadline(self, seconds: float, *, operators: bool = False) -> None:
        self.change(token=self.run.token + 1, operators=operators)
        self.actions.append(SetDeadline(self.run.name, self.run.token, seconds))

    def finish(self, turn: Transition, outcome: Outcome, reason: str) -> None:
        self.take(turn)
        self.actions.append(Finish(self.run.name, outcome, reason))

    def arrived(self, site: str) -> None:
        """A new session opened: the site must offer again."""
        self.gone(site)
        others = {name: reason for name, reason in self.run.dismissed.items() if name != site}
        self.change(here=self.run.here | {site}, dismissed=others)

    def gone(self, site: str) -> None:
        """The site's session ended, or the site was dismissed."""
        run = self.run
        left = {site}
        self.change(here=run.here - left, ready=run.ready - left, unaligned=run.unaligned - left)


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
        update.deadline(run.timeouts.round)
    else:
        close(update)


def send_end(update: RunUpdate, site: str) -> None:
    assert update.run.ending is not None
    update.send(site, Finished(update.run.name, *update.run.ending))


def fetched(update: RunUpdate, event: Received[Fetched]) -> None:
    """A site has received the end. The head of its ledger is countersigned first."""
    if event.site in update.run.participants and event.message.signature:
        # Once it is signed, the site can leave.
        update.change(signing=update.run.signing | {event.site})
        update.actions.append(CountersignHead(event.site, event.message))
    else:
        _has_fetched(update, event.site)


def countersigned(update: RunUpdate, event: HeadCountersigned) -> None:
    """The head of a site's ledger is recorded before the site receives its countersignature."""
    site = event.signed.site
    receipt = event.signed.receipt
    if receipt.signature:
        update.record(event.signed)
    if receipt.reason:
        update.tell(NoticeName.LEDGER_DOUBTFUL, site, reason=receipt.reason)
    update.send(site, event.signed.message)
    update.change(signing=update.run.signing - {site})
    _has_fetched(update, site)


def _has_fetched(update: RunUpdate, site: str) -> None:
    update.change(fetched=update.run.fetched | {site})
    _close_if_complete(update)


def left(update: RunUpdate, event: Received[Leaving] | SiteLost | Breached) -> None:
    """A session ended. The site is not awaited."""
    departed(update, event)
    _close_if_complete(update)


def departed(update: RunUpdate, event: Received[Leaving] | SiteLost | Breached) -> None:
    if event.site in update.run.here:
        update.gone(event.site)
        reason = event.message.reason if isinstance(event, Received) else event.reason
        update.notify(
            notices.left(update.run.name, event.site, reason, lost=not isinstance(event, Received))
        )


def interrupted_at_end(update: RunUpdate, _event: Interrupted) -> None:
    """The operator stops the process. The outcome stays."""
    assert update.run.ending is not None
    update.finish(Transition.INTERRUPTED, *update.run.ending)


def _close_if_complete(update: RunUpdate) -> None:
    if not update.run.awaited:
        close(update)


def close(update: RunUpdate, _event: DeadlinePassed | None = None) -> None:
    """No site is awaited, or no longer."""
    assert update.run.ending is not None
    update.finish(Transition.CLOSED, *update.run.ending)
