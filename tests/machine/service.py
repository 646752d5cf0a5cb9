"""A coordinator that serves, without its process: the federation with its scheduler, a store that is a dictionary, agents."""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from machine.tiny import TIMEOUTS, hello, make_site, restarted

from coordinator.machine import events as e
from coordinator.machine.federation import Federation, handle
from coordinator.machine.records import Closed, HeadSigned, Record
from coordinator.machine.scheduler import Scheduler
from coreg_core.protocol.messages import Countersigned, Dismissed, Fetched, Finished, FromSite, Hello, Rejected, ToSite
from coreg_core.protocol.plan import Plan
from site_agent.machine.agent import RESUMABLE
from site_agent.machine.site import Site

SITES = ("a", "b", "c")


class AgentOfRuns:
    """An agent that takes part in several runs, with a `Site` for each; it answers the plan of a run that it has by `Fetched`."""

    def __init__(self, name: str):
        self.name, self.runs, self.has = name, dict[str, Site](), set[str]()
        self.ledger = dict[str, Site]()

    def hello(self) -> Hello:
        return hello(self.name)

    def handle(self, message: ToSite) -> list[FromSite]:
        run = getattr(message, "run", None)
        if isinstance(message, Rejected) or run is None:
            return []
        if isinstance(message, Plan) and run in self.has:
            return [Fetched(run)]
        if run not in self.runs:
            if not isinstance(message, Plan):
                return [Fetched(run)] if isinstance(message, Finished) and message.targets is None else []
            self.runs[run] = self.ledger.pop(run, None) or make_site(self.name)
            self.runs[run].hello()
        answers = self.runs[run].handle(message)
        if isinstance(message, Finished | Dismissed):
            self.ledger[run] = restarted(self.runs.pop(run))
            if isinstance(message, Finished) and message.targets is not None and message.outcome not in RESUMABLE:
                self.has.add(run)
        return answers


class Service:
    """The federation and its agents, wired by a queue of events; actions of the store are carried out at once.

    ``deaf`` are agents to which nothing arrives; ``damaged`` runs have records that cannot be read.
    """

    def __init__(self, *, max_concurrent_runs: int = 4, **scheduler: Any):
        self.federation = Federation(TIMEOUTS, SITES, Scheduler(max_concurrent_runs, **scheduler))
        self.agents = {name: AgentOfRuns(name) for name in SITES}
        self.events: deque[e.Event] = deque()
        self.queue: list[Plan] = []
        self.records: dict[str, list[Record]] = {}
        self.damaged, self.deaf = set[str](), set[str]()
        self.closed: dict[str, e.CloseRun] = {}
        self.finished: dict[str, e.Finish] = {}
        self.models: dict[tuple[str, str], Finished] = {}
        self.deadlines: dict[str, e.SetDeadline] = {}
        self.notices: list[Any] = []
        self.rejected: dict[str, str] = {}

    def tell(self, *events: e.Event) -> "Service":
        self.events.extend(events)
        while self.events:
            self.one()
        return self

    def one(self) -> list[e.Action]:
        self.federation, actions = handle(self.federation, self.events.popleft())
        for action in actions:
            self.carry_out(action)
        return actions

    def carry_out(self, action: e.Action) -> None:
        match action:
            case e.Send(name, message) if name not in self.deaf:
                if isinstance(message, Finished):
                    self.models[message.run, name] = message
                self.events.extend(e.Received(name, answer) for answer in self.agents[name].handle(message))
            case e.Persist(run, record):
                self.records.setdefault(run, []).append(record)
            case e.Finish(run):
                self.finished[run] = action
                self.deadlines.pop(run, None)
            case e.SetDeadline(run):
                self.deadlines[run] = action
            case e.Reject(name, reason):
                self.rejected[name] = reason
            case e.Notify(notice):
                self.notices.append(notice)
            case e.ReadQueue():
                self.events.append(e.QueueRead(tuple(self.queue)))
            case e.BeginRun(plan):
                self.queue.remove(plan)
                self.events.append(e.Submitted(plan))
            case e.LoadRun(plan, on_demand):
                self.events.append(self.loaded(plan, on_demand=on_demand))
            case e.CloseRun(plan):
                self.closed[plan.run] = action
            case e.Countersign(name, fetched):
                receipt = Countersigned(fetched.run, fetched.head, "now", "05", "06")
                signed = HeadSigned(name, fetched.signature, "04", receipt)
                self.events.append(e.HeadCountersigned(fetched.run, signed))

    def loaded(self, plan: Plan, *, on_demand: bool) -> e.Event:
        if plan.run in self.damaged:
            return e.Unusable(plan.run, "the state is missing")
        return e.Submitted(plan, tuple(self.records.get(plan.run, ())), on_demand)

    # --- what happens ---------------------------------------------------------------------------------------------

    def submit(self, *plans: Plan) -> "Service":
        self.queue += plans
        return self.tell(e.QueueChanged())

    def joined(self, *names: str) -> "Service":
        return self.tell(*(e.SiteJoined(self.agents[name].hello(), "2027-01-01") for name in names or SITES))

    def lost(self, *names: str) -> "Service":
        return self.tell(*(e.SiteLost(name, "gone") for name in names))

    def out_of_time(self, run: str) -> "Service":
        return self.tell(e.DeadlinePassed(run, self.deadlines[run].token))

    def restarted(self, plans: Iterable[Plan], **scheduler: Any) -> "Service":
        """Another process on the same store; agents are who they are, and not connected."""
        again = Service(unfinished=tuple(plans), **scheduler)
        again.agents, again.records, again.damaged = self.agents, self.records, self.damaged
        return again

    def bits(self, run: str) -> dict[str, Any]:
        return {name: (m.outcome, m.columns, m.targets) for (r, name), m in sorted(self.models.items()) if r == run}

    def is_closed(self, run: str) -> bool:
        return Closed() in self.records[run]

    def states(self) -> Mapping[str, Any]:
        return {name: run.phase for name, run in self.federation.runs.items()}
