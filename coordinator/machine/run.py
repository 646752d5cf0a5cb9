"""A run's state as one frozen value: recorded (`RunState`), and of this process (`Volatile`).

A kill loses `Volatile`: open sessions, answers to the open step, the timer. No result depends on it, since sites reconnect and
continue from the last sum that all of them have. `RunUpdate` collects the changes and actions of one event.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from coordinator.machine.events import Action, Finish, Notify, Persist, Send, SetDeadline
from coordinator.machine.notices import Notice
from coordinator.machine.phases import Phase, Timeouts, Transition, next_phase
from coordinator.machine.records import Record
from coordinator.machine.state import RunState, after
from coreg_core.protocol.messages import Answer, Offer, Step, ToSite
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan

_APPROVE = "approve"


@dataclass(frozen=True)
class Volatile:
    """The state that is lost with the process and restored by reconnecting sites."""

    phase: Phase
    token: int = 0  # of the current timer
    here: frozenset[str] = frozenset()  # connected sites that the run has not dismissed
    ready: frozenset[str] = frozenset()  # of those, the sites that offered to take part in this session
    invited: frozenset[str] = frozenset()  # sites that received the plan before the first step
    attempt: int = 0  # proposed or active
    offers: Mapping[str, Offer] = field(default_factory=dict)  # to this attempt
    steps: Mapping[str, Step] = field(default_factory=dict)  # the open step, by site
    answers: Mapping[str, Answer] = field(default_factory=dict)
    approvals: Mapping[str, bool] = field(default_factory=dict)  # sites that ask their operator; whether approved
    operators: bool = False  # the current timer is for the approvals of operators
    # Why a site does not take part, until it connects again, or is asked again in its open session (``aside``).
    dismissed: Mapping[str, str] = field(default_factory=dict)
    aside: frozenset[str] = frozenset()
    late: frozenset[str] = frozenset()  # sites that did not answer in time and are not awaited in the next attempt
    proven: frozenset[str] = frozenset()  # sites outside the membership that have answered or offered again
    ending: tuple[Outcome, str] | None = None
    receivers: tuple[str, ...] = ()  # sites to which the end is sent
    fetched: frozenset[str] = frozenset()  # sites that have it, or are not awaited


@dataclass(frozen=True)
class Run:
    """One run: see the module's docstring."""

    recorded: RunState
    live: Volatile
    timeouts: Timeouts

    @property
    def plan(self) -> Plan:
        return self.recorded.plan

    @property
    def name(self) -> str:
        return self.recorded.plan.run

    @property
    def phase(self) -> Phase:
        return self.live.phase

    @property
    def awaited(self) -> tuple[str, ...]:
        """Sites that are awaited now, in site order."""
        live, recorded = self.live, self.recorded
        wanted = [s for s in self.plan.sites if s not in recorded.excluded]
        match live.phase:
            case Phase.ENROLLING:
                return tuple(s for s in wanted if s not in live.here)
            case Phase.PLANNING:
                # Members, or before the first attempt the invited sites; all sites if these are too few.
                members = (frozenset(recorded.participants) or live.invited) | live.proven
                came = [s for s in wanted if s in members and s not in live.late]
                counted = came if len(came) >= self.plan.membership.min_sites else wanted
                return tuple(s for s in counted if s not in live.ready)
            case Phase.RETURNING:
                return tuple(s for s in recorded.participants if s in wanted and s not in live.ready)
            case Phase.ASKING | Phase.STALLED:
                return tuple(s for s in recorded.participants if s not in live.answers)
            case Phase.DELIVERING:
                fetched = live.fetched | recorded.fetched
                return tuple(s for s in live.receivers if s not in fetched)
            case Phase.DONE:
                return ()

    @property
    def unapproved(self) -> tuple[str, ...]:
        """Awaited sites whose operators have not decided, in site order."""
        return tuple(s for s in self.awaited if self.live.approvals.get(s) is False)

    @property
    def waiting(self) -> str:
        """The awaited sites and their tasks as one sentence; empty if no site is awaited."""
        live, tasks = self.live, dict[str, list[str]]()
        if live.phase in (Phase.ENROLLING, Phase.RETURNING, Phase.PLANNING):
            work = "check the plan and factor its data"
        else:
            work = "answer" if live.phase in (Phase.ASKING, Phase.STALLED) else "fetch the result"
        for site in self.awaited:
            if site in live.dismissed:
                task = f"correct this: {live.dismissed[site].rstrip('.')}"
            elif site not in live.here:
                task = "connect"
            else:
                task = _APPROVE if live.approvals.get(site) is False else work
            tasks.setdefault(task, []).append(site)
        parts = [
            f"approval by {', '.join(sites)}" if task == _APPROVE else f"{', '.join(sites)} to {task}"
            for task, sites in tasks.items()
        ]
        return f"waiting for {' and for '.join(parts)}" if parts else ""

    @property
    def complete(self) -> bool:
        """Whether all sites have answered. It only counts, since it runs after every answer of many sites."""
        return len(self.live.answers) == len(self.recorded.participants)


class RunUpdate:
    """The changes of one event to a run. Handlers call these methods; `run` and `actions` are the result."""

    def __init__(self, run: Run):
        self.run, self.actions = run, list[Action]()

    @property
    def recorded(self) -> RunState:
        """The recorded state so far."""
        return self.run.recorded

    @property
    def live(self) -> Volatile:
        """The state of this process so far."""
        return self.run.live

    @property
    def plan(self) -> Plan:
        return self.run.plan

    def change(self, **changes: Any) -> None:
        self.run = replace(self.run, live=replace(self.run.live, **changes))

    def record(self, record: Record) -> None:
        """Change the recorded state, and write the record before the next action."""
        self.run = replace(self.run, recorded=after(self.run.recorded, record))
        self.actions.append(Persist(self.run.name, record))

    def take(self, turn: Transition) -> None:
        self.change(phase=next_phase(self.live.phase, turn))

    def send(self, site: str, message: ToSite) -> None:
        self.actions.append(Send(site, message))

    def notify(self, notice: Notice) -> None:
        self.actions.append(Notify(notice))

    def deadline(self, seconds: float, *, operators: bool = False) -> None:
        self.change(token=self.live.token + 1, operators=operators)
        self.actions.append(SetDeadline(self.run.name, self.live.token, seconds))

    def finish(self, turn: Transition, outcome: Outcome, reason: str) -> None:
        self.take(turn)
        self.actions.append(Finish(self.run.name, outcome, reason))

    # --- connected sites ------------------------------------------------------------------------------------------

    def arrived(self, site: str) -> None:
        """A new session opened: the site must offer again."""
        self.gone(site)
        live = self.live
        others = {name: reason for name, reason in live.dismissed.items() if name != site}
        self.change(here=live.here | {site}, dismissed=others)

    def gone(self, site: str) -> None:
        """The site's session ended, or the site was dismissed."""
        live, left = self.live, {site}
        self.change(here=live.here - left, ready=live.ready - left, proven=live.proven - left, aside=live.aside - left)
