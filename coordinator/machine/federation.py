"""Sessions, runs and the scheduler of a coordinator as a pure function: an event in, a list of
actions out.

A **session** is one stream of a site. It begins with `Hello`, ends with `Leaving` or with its loss,
and carries any number of runs. A site has one session: a second one replaces the first. A **run**
receives the session events of its sites, and the messages that name it. The federation routes them;
dispatch.py has what a run does with them.

The **scheduler** has the runs that are not active. Three lists are enough:

    unfinished   runs that an earlier process left; they begin again first
    waiting      the queue of the store, in order
    starting     runs that were requested from the store, which has not answered yet

A run is in one of these, or active, or over. The store owns the queue, because other processes
write to it. So the scheduler asks for a run (`BeginRun`) and counts it as starting until the store
has answered (`Submitted`). Without this third list, a run could begin twice, or a queue that was
read in between could show it again. Runs overlap up to `max_concurrent_runs`, and only with the
same number of threads: another number changes the bits of sums.

Two kinds of runs begin by themselves. An alignment of ids begins for a run that waits for it, and
its end is an event of that run (`Aligned`). A run of a standing plan begins when a site asks for it
(`standing.StudyRequests`). An interruption of either leaves nothing to begin again: what needs it
asks again.

After every event that can change a phase, `_settle` removes the runs that are over and starts those
that can start. Only the last answer of a run changes its phase, so `moved` spares this work for
most messages.

The process ends in three ways. *Interrupted* leaves every run unfinished at once. *Draining* starts
no run, and lets runs that have an outcome send it. A federation without a queue is `done` when its
runs are. After it is done, it accepts no session.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, get_args, get_origin

from coordinator.machine import notices
from coordinator.machine.dispatch import TABLE
from coordinator.machine.dispatch import begin as begin_run
from coordinator.machine.events import (
    AccessRefused,
    Action,
    Aligned,
    BeginRun,
    Breached,
    Cancelled,
    CloseRun,
    DeadlinePassed,
    Draining,
    Event,
    HeadCountersigned,
    Interrupted,
    NotifyObservers,
    QueueChanged,
    QueueRead,
    ReadQueue,
    Received,
    Reconfigured,
    Reject,
    Rested,
    Revoked,
    RunEvent,
    RunForgotten,
    SendToSite,
    SiteJoined,
    SiteLost,
    Submitted,
)
from coordinator.machine.notices import NoticeName, notice
from coordinator.machine.records import NOT_BEGUN, Begun, Phase, Sites, Timeouts
from coordinator.machine.run import Run, RunUpdate
from coordinator.machine.standing import QUICK, StudyRequests
from coreg_core.messages import (
    OLDEST_PROTOCOL,
    PROTOCOL_VERSION,
    UPGRADE,
    Finished,
    FromSite,
    Hello,
    Leaving,
    Wanted,
)
from coreg_core.outcomes import Outcome
from coreg_core.plan import Plan, aligns_for, is_on_demand


@dataclass(frozen=True)
class Scheduler:
    """Runs that are not active.

    Only runs with the same number of threads overlap, since another changes the bits of sums.
    """

    max_concurrent_runs: int  # runs that compute at once
    exit_when_idle: bool = False  # the process ends when no run is left to start
    unfinished: tuple[Plan, ...] = ()  # runs that an earlier process left, in order
    waiting: tuple[Plan, ...] = ()  # the queue, in order
    starting: Mapping[str, Plan] = field(default_factory=dict)  # requested from the store

    @property
    def idle(self) -> bool:
        """Whether no run is left to start."""
        return not (self.unfinished or self.waiting or self.starting)

    def with_queue(self, waiting: Iterable[Plan], under_way: Collection[str]) -> "Scheduler":
        """Take over the queue, without runs that have started since."""
        begun = {*under_way, *self.starting}
        return replace(self, waiting=tuple(plan for plan in waiting if plan.run not in begun))

    def start(self, computing: Iterable[Plan]) -> "tuple[Scheduler, list[BeginRun]]":
        """The runs that start now, in order. ``computing`` are the active runs."""
        starts = list[BeginRun]()
        active = [*computing, *self.starting.values()]
        for plan in (*self.unfinished, *self.waiting):
            threads = {other.iteration.threads for other in active}
            if len(active) >= self.max_concurrent_runs or not threads <= {plan.iteration.threads}:
                break
            active.append(plan)
            starts.append(BeginRun(plan))
        if not starts:
            return self, starts
        begun = {begin.plan.run: begin.plan for begin in starts}
        return replace(self._without(begun), starting={**self.starting, **begun}), starts

    def started(self, run: str) -> "Scheduler":
        """The store has answered: the run is active."""
        return replace(
            self, starting={name: plan for name, plan in self.starting.items() if name != run}
        )

    def cancel(self, reasons: Mapping[str, str]) -> "tuple[Scheduler, list[CloseRun]]":
        """Close the runs to cancel that are not active."""
        plans = [plan for plan in (*self.unfinished, *self.waiting) if plan.run in reasons]
        return self._without(reasons), [
            CloseRun(plan, Outcome.CANCELLED, reasons[plan.run]) for plan in plans
        ]

    def _without(self, runs: Collection[str]) -> "Scheduler":
        unfinished, waiting = (
            tuple(plan for plan in plans if plan.run not in runs)
            for plans in (self.unfinished, self.waiting)
        )
        return replace(self, unfinished=unfinished, waiting=waiting)


@dataclass(frozen=True)
class FederationState:
    """Open sessions by site, and runs by name.

    A simulation has no scheduler and ends with its first runs.
    """

    timeouts: Timeouts = field(default_factory=Timeouts)
    sites: Sites = ()
    scheduler: Scheduler | None = None
    sessions: Mapping[str, Hello] = field(default_factory=dict)
    runs: Mapping[str, Run] = field(default_factory=dict)
    wishes: StudyRequests = field(default_factory=StudyRequests)
    stopping: bool = False
    moved: bool = False  # whether the phase of a run has changed since runs were last started

    @property
    def done(self) -> bool:
        """Whether no run is active and none will start."""
        plan = self.scheduler
        ends = plan is None or self.stopping or (plan.exit_when_idle and plan.idle)
        return ends and all(run.phase is Phase.DONE for run in self.runs.values())

    @property
    def computing(self) -> list[Run]:
        """The active runs, without those that have ended."""
        return [run for run in self.runs.values() if run.phase not in (Phase.ENDING, Phase.DONE)]


# The state after an event, and the actions that follow.
Reaction: TypeAlias = tuple[FederationState, list[Action]]


def begin(plan: Plan, timeouts: Timeouts, begun: Begun = NOT_BEGUN) -> Reaction:
    """One run without a scheduler, for simulations: new, or an unfinished one that begins again."""
    update = FederationUpdate(FederationState(timeouts))
    update.put_in(plan, begun)
    return update.state, update.actions


def handle(state: FederationState, event: Event) -> Reaction:
    update = FederationUpdate(state)
    _HANDLERS[type(event)](update, event)
    # Most messages are answers, which change no phase.
    if update.state.moved or not isinstance(event, Received):
        update.settle()
    return update.state, update.actions


class FederationUpdate:
    """The changes of one event to a federation; `state` and `actions` are the result.

    Each event has its method (`_HANDLERS`).
    """

    def __init__(self, state: FederationState):
        self.state = state
        self.actions = list[Action]()

    def change(self, **changes: Any) -> None:
        self.state = replace(self.state, **changes)

    def tell(self, runs: Iterable[str], event: "RunEvent | Received[FromSite]") -> None:
        """Let these runs handle the event."""
        kind = type(event.message) if isinstance(event, Received) else type(event)
        changed = dict(self.state.runs)
        moved = self.state.moved
        for name in list(runs):
            update = RunUpdate(changed[name])
            phase = update.run.phase
            TABLE[kind][phase](update, event)
            changed[name] = update.run
            moved = moved or update.run.phase is not phase
            self.actions += update.actions
        self.change(runs=changed, moved=moved)

    # --- runs and the scheduler -------------------------------------------------------------------

    def interrupted(self, event: Interrupted) -> None:
        self.change(stopping=True)
        self.tell(self.state.runs, event)

    def draining(self, _event: Draining) -> None:
        self.change(stopping=True)
        self.tell([run.name for run in self.state.computing], Interrupted())

    def queue_changed(self, _event: QueueChanged) -> None:
        self.actions.append(ReadQueue())

    def queue_read(self, event: QueueRead) -> None:
        if self.state.scheduler is not None:
            queue = self.state.scheduler.with_queue(event.waiting, self.state.runs)
            self.change(scheduler=queue)
        self.cancel(event.cancelled)

    def submitted(self, event: Submitted) -> None:
        run = event.plan.run
        if self.state.scheduler is not None:
            self.change(scheduler=self.state.scheduler.started(run))
        if self.state.stopping or run in self.state.runs:
            return  # it is in the store: the next process begins it again
        if not self._ended_at_once(event):
            self.put_in(event.plan, event.begun)

    def _ended_at_once(self, event: Submitted) -> bool:
        """End a run that sites asked for if too few others are connected. Only the askers hear."""
        plan = event.plan
        missing = [site for site in plan.sites if site not in self.state.sessions]
        if not event.askers or len(plan.sites) - len(missing) >= plan.membership.min_sites:
            return False
        end = Outcome.TOO_FEW_SITES, f"{', '.join(missing)} not connected"
        askers = sorted(set(event.askers) & set(plan.sites) & self.state.sessions.keys())
        self.actions.append(CloseRun(plan, *end))
        self.actions += [SendToSite(site, Finished(plan.run, *end)) for site in askers]
        return True

    def rested(self, event: Rested) -> None:
        self.change(wishes=self.state.wishes.rested(event.study))

    def run_forgotten(self, event: RunForgotten) -> None:
        self.change(wishes=self.state.wishes.forgotten(event.sites))

    def call(self) -> None:
        """Begin the runs of standing plans that sites wait for."""
        computing = {run.plan.study for run in self.state.computing if is_on_demand(run.name)}
        wishes, calls = self.state.wishes.call(computing)
        self.change(wishes=wishes)
        self.actions += calls

    def cancelled(self, event: Cancelled) -> None:
        self.cancel({event.run: event.reason})

    def deadline_passed(self, event: DeadlinePassed) -> None:
        run = self.state.runs.get(event.run)
        if run is not None and run.token == event.token:  # else the timer was restarted meanwhile
            self.tell([event.run], event)

    def of_one_run(self, event: HeadCountersigned | Aligned) -> None:
        if event.run in self.state.runs:
            self.tell([event.run], event)

    def put_in(self, plan: Plan, begun: Begun) -> None:
        """Begin a run. Open sessions join it at once."""
        timeouts = QUICK if is_on_demand(plan.run) else self.state.timeouts
        run, actions = begin_run(plan, timeouts, begun)
        self.change(runs={**self.state.runs, run.name: run})
        self.actions += actions
        for site in sorted(self.state.sessions):
            if site in plan.sites:
                self.tell([run.name], SiteJoined(self.state.sessions[site]))

    def settle(self) -> None:
        """Remove finished runs, and start the runs that can start."""
        if self.state.scheduler is None:
            return
        over = [run for run in self.state.runs.values() if run.phase is Phase.DONE]
        names = {run.name for run in over}
        kept = {name: run for name, run in self.state.runs.items() if name not in names}
        self.change(runs=kept, moved=False)
        for run in over:
            self.on_demand_ended(run)
            if (above := aligns_for(run.name)) in kept:
                end = run.ending or (Outcome.INTERRUPTED, "")
                self.tell([above], Aligned(above, *end))
        if not self.state.stopping:
            plans = [run.plan for run in self.state.computing]
            scheduler, starts = self.state.scheduler.start(plans)
            self.change(scheduler=scheduler)
            self.actions += starts
            self.call()

    def on_demand_ended(self, run: Run) -> None:
        """A study whose runs fail rests longer, if sites ask for them."""
        if is_on_demand(run.name):
            good = run.ending is not None and run.ending[0].good
            self.change(wishes=self.state.wishes.ended(run.plan.study, good=good))

    def cancel(self, reasons: Mapping[str, str]) -> None:
        """Cancel these runs, and the runs that align the ids for them."""
        above = {run: aligns_for(run) for run in self.state.runs}
        reasons = {run: reasons[its] for run, its in above.items() if its in reasons} | {**reasons}
        if self.state.scheduler is not None:
            scheduler, closed = self.state.scheduler.cancel(reasons)
            self.change(scheduler=scheduler)
            self.actions += closed
        for run in sorted(reasons.keys() & self.state.runs.keys()):
            self.tell([run], Cancelled(run, reasons[run]))

    # --- sessions ---------------------------------------------------------------------------------

    def joined(self, event: SiteJoined) -> None:
        hello = event.hello
        if reason := self._objection(hello):
            # The rejected session has already replaced the site's earlier one.
            self._reject(hello.site, reason, "its session was replaced")
            return
        if hello.site in self.state.sessions and event.address:
            replaced = notice(NoticeName.SESSION_REPLACED, site=hello.site, address=event.address)
            self.actions.append(NotifyObservers(replaced))
        self.change(sessions={**self.state.sessions, hello.site: hello})
        if self.state.scheduler is not None:
            opened = notices.session_opened(hello.site, hello.release, event.until)
            self.actions.append(NotifyObservers(opened))
        self.tell(self._runs_of(hello.site), event)

    def _objection(self, hello: Hello) -> str | None:
        site = hello.site
        state = self.state
        if hello.protocol < OLDEST_PROTOCOL:
            return (
                f"{site}: its release {hello.release} is too old for this coordinator. Upgrade it"
                f" on the site's machine: {UPGRADE}"
            )
        if hello.protocol > PROTOCOL_VERSION:
            return (
                f"{site}: its release {hello.release} is newer than the coordinator's. The"
                f" coordinator is upgraded first: {UPGRADE}"
            )
        if state.done:
            return f"{site}: run {', '.join(state.runs)} is over."
        listed = set(state.sites).union(*(run.plan.sites for run in state.runs.values()))
        if site not in listed:
            return (
                f"{site}: not in this federation's list of sites ({', '.join(sorted(listed))}). The"
                " coordinator's operator adds it to `sites` of federation.toml, and reloads."
            )
        return None

    def _reject(self, site: str, reason: str, lost: str) -> None:
        """Send the site the reason, and end its session; ``lost``: what its runs hear."""
        self.actions.append(Reject(site, reason))
        self.actions.append(
            NotifyObservers(notice(NoticeName.SESSION_REJECTED, site=site, reason=reason))
        )
        self.ended(SiteLost(site, lost))

    def received(self, event: Received[FromSite]) -> None:
        site = event.site
        if site not in self.state.sessions:
            return
        match event.message:
            case Leaving() as leaving:
                self.ended(Received(site, leaving))
            case Hello():
                reason = f"{site} sent Hello twice in one session."
                self.actions.append(Reject(site, reason))
                self.ended(Breached(site, reason))
            case Wanted(study):
                if self.state.scheduler is not None and not self.state.stopping:
                    self.change(wishes=self.state.wishes.wish(site, study))
                    self.call()
            case message:
                run = self.state.runs.get(message.run)
                # not of a site that the run dismissed, or whose session it never saw
                if run is not None and site in run.here:
                    self.tell([message.run], event)

    def ended(self, event: SiteLost | Breached | Received[Leaving]) -> None:
        site = event.site
        if site not in self.state.sessions:
            return  # it was rejected or replaced
        sessions = {name: hello for name, hello in self.state.sessions.items() if name != site}
        self.change(sessions=sessions)
        self.tell(self._runs_of(site), event)
        if self.state.scheduler is not None:
            reason = event.message.reason if isinstance(event, Received) else event.reason
            self.actions.append(
                NotifyObservers(notice(NoticeName.SESSION_ENDED, site=site, reason=reason))
            )

    def access_refused(self, event: AccessRefused) -> None:
        self.actions.append(NotifyObservers(notices.access_denied(event.name, event.reason)))

    def revoked(self, event: Revoked) -> None:
        if event.site in self.state.sessions:
            self._reject(event.site, event.reason, event.reason)

    def reconfigured(self, event: Reconfigured) -> None:
        assert self.state.scheduler is not None
        scheduler = replace(self.state.scheduler, max_concurrent_runs=event.max_concurrent_runs)
        self.change(scheduler=scheduler, sites=event.sites)
        for site in sorted(self.state.sessions.keys() - set(event.sites)):
            reason = f"{site}: no longer in this federation's list of sites."
            self._reject(site, reason, reason)

    def _runs_of(self, site: str) -> list[str]:
        return [name for name, run in self.state.runs.items() if site in run.plan.sites]


# The method that handles each class of event.
_HANDLERS: Mapping[type, Callable[[FederationUpdate, Any], None]] = {
    SiteJoined: FederationUpdate.joined,
    Received: FederationUpdate.received,
    SiteLost: FederationUpdate.ended,
    Breached: FederationUpdate.ended,
    AccessRefused: FederationUpdate.access_refused,
    DeadlinePassed: FederationUpdate.deadline_passed,
    Interrupted: FederationUpdate.interrupted,
    Draining: FederationUpdate.draining,
    QueueChanged: FederationUpdate.queue_changed,
    QueueRead: FederationUpdate.queue_read,
    Submitted: FederationUpdate.submitted,
    Rested: FederationUpdate.rested,
    RunForgotten: FederationUpdate.run_forgotten,
    Cancelled: FederationUpdate.cancelled,
    HeadCountersigned: FederationUpdate.of_one_run,
    Aligned: FederationUpdate.of_one_run,
    Revoked: FederationUpdate.revoked,
    Reconfigured: FederationUpdate.reconfigured,
}
_EVENTS = {get_origin(kind) or kind for kind in get_args(Event)}
assert _HANDLERS.keys() == _EVENTS, "every event has its handler"
