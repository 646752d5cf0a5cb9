"""A coordinator that serves, without its process: the federation with its scheduler, a store that
is a dictionary, agents.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any

from machine.tiny import TIMEOUTS, TinySite, begun_by, bits, hello, make_site, site_with

from coordinator.machine.events import (
    Action,
    BeginRun,
    CloseRun,
    CountersignHead,
    DeadlinePassed,
    Event,
    Finish,
    HeadCountersigned,
    NotifyObservers,
    Persist,
    QueueChanged,
    QueueRead,
    ReadQueue,
    Received,
    Reject,
    SendToSite,
    SetDeadline,
    SiteJoined,
    Submitted,
)
from coordinator.machine.federation import FederationState, Scheduler, handle
from coordinator.machine.records import HeadSigned, Record, StepDone
from coreg_core.messages import (
    Countersigned,
    Dismissed,
    Fetched,
    Finished,
    FromSite,
    Hello,
    Proposal,
    Rejected,
    ToSite,
    Unaligned,
)
from coreg_core.objectives.alignment import Alignment
from coreg_core.plan import Plan, next_alignment
from site_agent.machine.alignment import IdList
from site_agent.machine.results import AlignmentResult

SITES = ("a", "b", "c")


class AgentOfRuns:
    """An agent that takes part in several runs, with a `SiteMachine` for each.

    ``has`` is what it stored of the runs whose computation ended; ``shared`` the ``ids`` that an
    alignment found.
    """

    def __init__(self, name: str):
        self.name = name
        self.runs = dict[str, TinySite]()
        self.has = dict[str, Any]()
        self.ids = ("ann", "bob", name)
        self.shared = tuple[str, ...]()
        self.policy = None

    def hello(self) -> Hello:
        return hello(self.name)

    def handle(self, message: ToSite) -> list[FromSite]:
        run = getattr(message, "run", None)
        if isinstance(message, Rejected) or run is None:
            return []
        if run not in self.runs:
            if not isinstance(message, Proposal):
                if isinstance(message, Finished):
                    return [Fetched(run)]
                return []
            if message.plan.align is not None and not self.shared:
                return [Unaligned(run)]
            own = IdList(self.ids, "no instance yet", self.name.encode())
            aligns = isinstance(message.plan.objective, Alignment)
            self.runs[run] = (
                site_with(self.name, own, self.policy) if aligns else make_site(self.name)
            )
        site = self.runs[run]
        answers = site.handle(message)
        if (found := bits(site.result)) is not None:
            self.has[run] = found
        if isinstance(site.result, AlignmentResult):
            self.shared = site.result.ids
        if isinstance(message, Finished | Dismissed):
            del self.runs[run]
        return answers


class Service:
    """The federation and its agents, wired by a queue of events; actions of the store are carried
    out at once.
    """

    def __init__(self, *, max_concurrent_runs: int = 4, **scheduler: Any):
        self.federation = FederationState(
            TIMEOUTS, SITES, Scheduler(max_concurrent_runs, **scheduler)
        )
        self.agents = {name: AgentOfRuns(name) for name in SITES}
        self.events: deque[Event] = deque()
        self.queue: list[Plan] = []
        self.records: dict[str, list[Record]] = {}
        self.closed: dict[str, CloseRun] = {}
        self.finished: dict[str, Finish] = {}
        self.ends: dict[tuple[str, str], Finished] = {}  # the last end that each was sent
        self.deadlines: dict[str, SetDeadline] = {}
        self.notices: list[Any] = []
        self.rejected: dict[str, str] = {}

    def tell(self, *events: Event) -> "Service":
        self.events.extend(events)
        while self.events:
            self.one()
        return self

    def one(self) -> list[Action]:
        self.federation, actions = handle(self.federation, self.events.popleft())
        for action in actions:
            self.carry_out(action)
        return actions

    def carry_out(self, action: Action) -> None:
        match action:
            case SendToSite(name, message):
                if isinstance(message, Finished):
                    self.ends[message.run, name] = message
                self.events.extend(
                    Received(name, answer) for answer in self.agents[name].handle(message)
                )
            case Persist(run, record):
                self.records.setdefault(run, []).append(record)
            case Finish(run):
                self.finished[run] = action
                self.deadlines.pop(run, None)
            case SetDeadline(run):
                self.deadlines[run] = action
            case Reject(name, reason):
                self.rejected[name] = reason
            case NotifyObservers(notice):
                self.notices.append(notice)
            case ReadQueue():
                self.events.append(QueueRead(tuple(self.queue)))
            case BeginRun(plan):
                self.begin(plan)
            case CloseRun(plan):
                self.closed[plan.run] = action
            case CountersignHead(name, fetched):
                receipt = Countersigned(fetched.run, fetched.head, "now", "05", "06")
                signed = HeadSigned(name, fetched.signature, "04", receipt)
                self.events.append(HeadCountersigned(fetched.run, signed))

    def begin(self, plan: Plan) -> None:
        self.queue = [queued for queued in self.queue if queued != plan]
        while plan.run in self.finished:  # as the store names it
            plan = next_alignment(plan)
        begun = begun_by(self.records.get(plan.run, ()))
        self.events.append(Submitted(plan, begun))

    # --- what happens -----------------------------------------------------------------------------

    def submit(self, *plans: Plan) -> "Service":
        self.queue += plans
        return self.tell(QueueChanged())

    def joined(self, *names: str) -> "Service":
        return self.tell(
            *(SiteJoined(self.agents[name].hello(), "2027-01-01") for name in names or SITES)
        )

    def out_of_time(self, run: str) -> "Service":
        return self.tell(DeadlinePassed(run, self.deadlines[run].token))

    def bits(self, run: str) -> dict[str, Any]:
        return {name: agent.has[run] for name, agent in self.agents.items() if run in agent.has}

    def states(self) -> Mapping[str, Any]:
        return {name: run.phase for name, run in self.federation.runs.items()}


def until_answered(service: Service, step: int = 0) -> Service:
    """Until this step is answered; messages after it are on their way."""
    while not any(
        isinstance(record, StepDone) and record.number == step
        for records in service.records.values()
        for record in records
    ):
        service.one()
    return service


def holding_back(agent: AgentOfRuns, kind: type[ToSite]) -> list[FromSite]:
    """The agent's answers to messages of that kind, which are on their way for a while."""
    held = list[FromSite]()
    handle = agent.handle

    def late(message: ToSite) -> list[FromSite]:
        answered = handle(message)
        if not isinstance(message, kind):
            return answered
        held.extend(answered)
        return []

    agent.handle = late  # type: ignore[method-assign]
    return held
