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
(`standing.Wishes`). An interruption of either leaves nothing to begin again: what needs it asks
again.

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
    Notify,
    QueueChanged,
    QueueRead,
    ReadQueue,
    Received,
    Reconfigured,
    Reject,
    Rested,
    Revoked,
    RunEvent,
    Send,
    SiteJoined,
    SiteLost,
    Submitted,
)
from coordinator.machine.notices import NoticeName, notice
from coordinator.machine.records import NOT_BEGUN, Begun, Phase, Sites, Timeouts
from coordinator.machine.run import Run, RunUpdate
from coordinator.machine.standing import QUICK, Wishes
from coreg_core.messages import PROTOCOL_VERSION, Finished, FromSite, Hello, Leaving, Wanted
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
        known = {*under_way, *self.starting}
        return replace(self, waiting=tuple(plan for plan in waiting if plan.run not in known))

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
        begun = {each.plan.run: each.plan for each in starts}
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
class Federation:
    """Open sessions by site, and runs by name.

    A simulation has no scheduler and ends with its first runs.
    """

    timeouts: Timeouts = field(default_factory=Timeouts)
    sites: Sites = ()
    scheduler: Scheduler | None = None
    sessions: Mapping[str, Hello] = field(default_factory=dict)
    runs: Mapping[str, Run] = field(default_factory=dict)
    wishes: Wishes = field(default_factory=Wishes)
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


# The federation after an event, and the actions that follow.
Reaction: TypeAlias = tuple[Federation, list[Action]]


def begin(plan: Plan, timeouts: Timeouts, begun: Begun = NOT_BEGUN) -> Reaction:
    """One run without a scheduler, for simulations: new, or an unfinished one that begins again."""
    return _put_in(Federation(timeouts), plan, begun)


def handle(federation: Federation, event: Event) -> Reaction:
    """Handle one event."""
    federation, actions = _HANDLERS[type(event)](federation, event)
    # Most messages are answers, which change no phase.
    if federation.scheduler is not None and (federation.moved or not isinstance(event, Received)):
        federation, more = _settle(federation)
        actions += more
    return federation, actions


# --- runs and the scheduler -----------------------------------------------------------------------


def _interrupted(federation: Federation, event: Interrupted) -> Reaction:
    return _tell(replace(federation, stopping=True), federation.runs, event)


def _draining(federation: Federation, _event: Draining) -> Reaction:
    under_way = [run.name for run in federation.computing]
    return _tell(replace(federation, stopping=True), under_way, Interrupted())


def _queue_changed(federation: Federation, _event: QueueChanged) -> Reaction:
    return federation, [ReadQueue()]


def _queue_read(federation: Federation, event: QueueRead) -> Reaction:
    if federation.scheduler is not None:
        queue = federation.scheduler.with_queue(event.waiting, federation.runs)
        federation = replace(federation, scheduler=queue)
    return _cancel(federation, event.cancelled)


def _submitted(federation: Federation, event: Submitted) -> Reaction:
    run = event.plan.run
    if federation.scheduler is not None:
        federation = replace(federation, scheduler=federation.scheduler.started(run))
    if federation.stopping or run in federation.runs:
        return federation, []  # it is in the store: the next process begins it again
    if missing := _too_few(federation, event):
        return federation, missing
    return _put_in(federation, event.plan, event.begun)


def _too_few(federation: Federation, event: Submitted) -> list[Action]:
    """Of a run that sites asked for: its end for these, if too few others are connected.

    The others do not hear of it.
    """
    plan = event.plan
    missing = [site for site in plan.sites if site not in federation.sessions]
    if not event.askers or len(plan.sites) - len(missing) >= plan.membership.min_sites:
        return []
    end = Outcome.TOO_FEW_SITES, f"{', '.join(missing)} not connected"
    askers = sorted(set(event.askers) & set(plan.sites) & federation.sessions.keys())
    return [CloseRun(plan, *end), *(Send(site, Finished(plan.run, *end)) for site in askers)]


def _rested(federation: Federation, event: Rested) -> Reaction:
    return replace(federation, wishes=federation.wishes.rested(event.study)), []


def _call(federation: Federation) -> Reaction:
    """Begin the runs of standing plans that sites wait for."""
    computing = {run.plan.study for run in federation.computing if is_on_demand(run.name)}
    wishes, actions = federation.wishes.call(computing)
    return replace(federation, wishes=wishes), [*actions]


def _cancelled(federation: Federation, event: Cancelled) -> Reaction:
    return _cancel(federation, {event.run: event.reason})


def _deadline_passed(federation: Federation, event: DeadlinePassed) -> Reaction:
    run = federation.runs.get(event.run)
    if run is None or run.token != event.token:
        return federation, []  # the timer was restarted while its event was queued
    return _tell(federation, [event.run], event)


def _of_one_run(federation: Federation, event: HeadCountersigned | Aligned) -> Reaction:
    return _tell(federation, [event.run] if event.run in federation.runs else [], event)


def _put_in(federation: Federation, plan: Plan, begun: Begun) -> Reaction:
    """Begin a run. Open sessions join it at once."""
    timeouts = QUICK if is_on_demand(plan.run) else federation.timeouts
    run, actions = begin_run(plan, timeouts, begun)
    federation = replace(federation, runs={**federation.runs, run.name: run})
    for site in sorted(federation.sessions):
        if site in plan.sites:
            federation, more = _tell(federation, [run.name], SiteJoined(federation.sessions[site]))
            actions += more
    return federation, actions


def _settle(federation: Federation) -> Reaction:
    """Remove finished runs, and start the runs that can start."""
    actions = list[Action]()
    federation = replace(federation, moved=False)
    over = [run for run in federation.runs.values() if run.phase is Phase.DONE]
    if over:
        federation = replace(
            federation, runs={n: r for n, r in federation.runs.items() if r.phase is not Phase.DONE}
        )
    for run in over:
        if (above := aligns_for(run.name)) in federation.runs:
            end = run.ending or (Outcome.INTERRUPTED, "")
            federation, more = _tell(federation, [above], Aligned(above, *end))
            actions += more
    if federation.stopping:
        return federation, actions
    assert federation.scheduler is not None
    plan, starts = federation.scheduler.start([run.plan for run in federation.computing])
    federation, called = _call(replace(federation, scheduler=plan))
    return federation, [*actions, *starts, *called]


def _cancel(federation: Federation, reasons: Mapping[str, str]) -> Reaction:
    """Cancel these runs, and the runs that align the ids for them."""
    actions = list[Action]()
    reasons = {
        run: reasons[above] for run in federation.runs if (above := aligns_for(run)) in reasons
    } | {**reasons}
    if federation.scheduler is not None:
        plan, closed = federation.scheduler.cancel(reasons)
        federation = replace(federation, scheduler=plan)
        actions.extend(closed)
    for run in sorted(reasons.keys() & federation.runs.keys()):
        federation, more = _tell(federation, [run], Cancelled(run, reasons[run]))
        actions += more
    return federation, actions


# --- sessions -------------------------------------------------------------------------------------


def _joined(federation: Federation, joined: SiteJoined) -> Reaction:
    hello = joined.hello
    site = hello.site
    if reason := _objection(federation, hello):
        # The rejected session has already replaced the site's earlier one.
        federation, actions = _ended(federation, SiteLost(site, "its session was replaced"))
        return federation, [
            Reject(site, reason),
            Notify(notice(NoticeName.SESSION_REJECTED, site=site, reason=reason)),
            *actions,
        ]
    federation = replace(federation, sessions={**federation.sessions, site: hello})
    opened: list[Action] = []
    if federation.scheduler is not None:
        opened.append(Notify(notices.session_opened(site, hello.release, joined.until)))
    federation, actions = _tell(federation, _runs_of(federation, site), joined)
    return federation, [*opened, *actions]


def _objection(federation: Federation, hello: Hello) -> str | None:
    site = hello.site
    if hello.protocol != PROTOCOL_VERSION:
        return (
            f"{site}: uses protocol {hello.protocol}, this coordinator {PROTOCOL_VERSION}. "
            "Install the same release of coreg-federation on both sides."
        )
    if federation.done:
        return f"{site}: run {', '.join(federation.runs)} is over."
    listed = sorted(
        {s for run in federation.runs.values() for s in run.plan.sites} | set(federation.sites)
    )
    if site not in listed:
        return (
            f"{site}: not in this federation's list of sites ({', '.join(listed)}). The"
            " coordinator's operator adds it to `sites` of federation.toml, and reloads."
        )
    return None


def _received(federation: Federation, received: Received[FromSite]) -> Reaction:
    site = received.site
    if site not in federation.sessions:
        return federation, []
    match received.message:
        case Leaving() as leaving:
            return _ended(federation, Received(site, leaving))
        case Hello():
            reason = f"{site} sent Hello twice in one session."
            federation, actions = _ended(federation, Breached(site, reason))
            return federation, [Reject(site, reason), *actions]
        case Wanted(study):
            if federation.scheduler is None or federation.stopping:
                return federation, []
            return _call(replace(federation, wishes=federation.wishes.wish(site, study)))
        case message:
            run = federation.runs.get(message.run)
            heard = (
                run is not None and site in run.here
            )  # not a site that it dismissed, or whose session it never saw
            return _tell(federation, [message.run] if heard else [], received)


def _ended(federation: Federation, event: SiteLost | Breached | Received[Leaving]) -> Reaction:
    site = event.site
    if site not in federation.sessions:
        return federation, []  # it was rejected or replaced
    sessions = {name: hello for name, hello in federation.sessions.items() if name != site}
    federation = replace(federation, sessions=sessions)
    federation, actions = _tell(federation, _runs_of(federation, site), event)
    if federation.scheduler is not None:
        reason = event.message.reason if isinstance(event, Received) else event.reason
        actions.append(Notify(notice(NoticeName.SESSION_ENDED, site=site, reason=reason)))
    return federation, actions


def _access_refused(federation: Federation, event: AccessRefused) -> Reaction:
    return federation, [Notify(notices.access_denied(event.name, event.reason))]


def _revoked(federation: Federation, event: Revoked) -> Reaction:
    return _expel(federation, event.site, event.reason)


def _expel(federation: Federation, site: str, reason: str) -> Reaction:
    if site not in federation.sessions:
        return federation, []
    federation, actions = _ended(federation, SiteLost(site, reason))
    return federation, [
        Reject(site, reason),
        Notify(notice(NoticeName.SESSION_REJECTED, site=site, reason=reason)),
        *actions,
    ]


def _reconfigured(federation: Federation, event: Reconfigured) -> Reaction:
    assert federation.scheduler is not None
    plan = replace(federation.scheduler, max_concurrent_runs=event.max_concurrent_runs)
    federation = replace(federation, scheduler=plan, sites=event.sites)
    actions = list[Action]()
    for site in sorted(federation.sessions.keys() - set(event.sites)):
        federation, more = _expel(
            federation, site, f"{site}: no longer in this federation's list of sites."
        )
        actions += more
    return federation, actions


def _runs_of(federation: Federation, site: str) -> list[str]:
    return [name for name, run in federation.runs.items() if site in run.plan.sites]


def _tell(
    federation: Federation, runs: Iterable[str], event: "RunEvent | Received[FromSite]"
) -> Reaction:
    kind = type(event.message) if isinstance(event, Received) else type(event)
    changed = dict(federation.runs)
    actions = list[Action]()
    moved = federation.moved
    for name in list(runs):
        update = RunUpdate(changed[name])
        phase = update.run.phase
        TABLE[kind][phase](update, event)
        changed[name] = update.run
        moved = moved or update.run.phase is not phase
        actions += update.actions
    return replace(federation, runs=changed, moved=moved), actions


# The handler of each class of event.
_HANDLERS: Mapping[type, Callable[[Federation, Any], Reaction]] = {
    SiteJoined: _joined,
    Received: _received,
    SiteLost: _ended,
    Breached: _ended,
    AccessRefused: _access_refused,
    DeadlinePassed: _deadline_passed,
    Interrupted: _interrupted,
    Draining: _draining,
    QueueChanged: _queue_changed,
    QueueRead: _queue_read,
    Submitted: _submitted,
    Rested: _rested,
    Cancelled: _cancelled,
    HeadCountersigned: _of_one_run,
    Aligned: _of_one_run,
    Revoked: _revoked,
    Reconfigured: _reconfigured,
}
_EVENTS = {get_origin(kind) or kind for kind in get_args(Event)}
assert _HANDLERS.keys() == _EVENTS, "every event has its handler"
