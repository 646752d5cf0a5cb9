"""A run's state as one frozen value: what it remembers (`RunState`) and what is going on in this process (`Volatile`).

`Volatile` is what a kill may lose: open sessions, answers to the open step, the timer. Sites join again and go on from the
last sum that all of them have, so nothing that decides is lost with it. `RunUpdate` is the work of one event on such a value: the
state so far, and the actions so far.
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


@dataclass(frozen=True)
class Volatile:
    """What is going on: lost with the process, and found again."""

    phase: Phase
    token: int = 0  # of the timer that counts
    here: frozenset[str] = frozenset()  # sites whose session is open and that this run still wants
    ready: frozenset[str] = frozenset()  # of those, who offered to take part in this session
    invited: frozenset[str] = frozenset()  # who was sent the plan before the first step
    attempt: int = 0  # that is proposed, or under way
    offers: Mapping[str, Offer] = field(default_factory=dict)  # to this attempt
    steps: Mapping[str, Step] = field(default_factory=dict)  # the open step, by site
    answers: Mapping[str, Answer] = field(default_factory=dict)
    approvals: Mapping[str, bool] = field(default_factory=dict)  # sites that ask their operator; whether approved
    deadline: float = 0.0  # seconds of the timer that counts
    operators: bool = False  # that timer is for the approvals of operators
    late: frozenset[str] = frozenset()  # who did not answer in time, and is not awaited in the next attempt
    proven: frozenset[str] = frozenset()  # sites outside the membership that are heard of again
    ending: tuple[Outcome, str] | None = None
    receivers: tuple[str, ...] = ()  # who gets the end
    fetched: frozenset[str] = frozenset()  # and has it, or is not waited for


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
        """Who is waited for now, in site order."""
        live, recorded = self.live, self.recorded
        wanted = [s for s in self.plan.sites if s not in recorded.excluded]
        match live.phase:
            case Phase.ENROLLING:
                return tuple(s for s in wanted if s not in live.here)
            case Phase.PLANNING:
                # Members, or before there are any whom the plan went to; everybody, where these are too few.
                members = frozenset(recorded.participants) or live.invited
                came = [s for s in wanted if s in members | live.proven and s not in live.late]
                counted = came if len(came) >= self.plan.membership.min_sites else wanted
                return tuple(s for s in counted if s not in live.ready)
            case Phase.RETURNING:
                return tuple(s for s in recorded.participants if s in wanted and s not in live.ready)
            case Phase.ASKING | Phase.STALLED:
                return tuple(s for s in recorded.participants if s not in live.answers)
            case Phase.DELIVERING:
                return tuple(s for s in live.receivers if s not in live.fetched | recorded.fetched)
            case Phase.DONE:
                return ()

    @property
    def unapproved(self) -> tuple[str, ...]:
        """Awaited sites whose operators have not decided, in site order."""
        return tuple(s for s in self.awaited if self.live.approvals.get(s) is False)

    @property
    def complete(self) -> bool:
        """Everybody has answered. Counted, since it is looked at after every answer: sites are many."""
        return len(self.live.answers) == len(self.recorded.participants)


class RunUpdate:
    """What one event makes of a run. Handlers change it through these methods; `run` and `actions` are the result."""

    def __init__(self, run: Run):
        self.run, self.actions = run, list[Action]()

    @property
    def recorded(self) -> RunState:
        """What the run remembers by now."""
        return self.run.recorded

    @property
    def live(self) -> Volatile:
        """What is going on by now."""
        return self.run.live

    @property
    def plan(self) -> Plan:
        return self.run.plan

    def change(self, **changes: Any) -> None:
        self.run = replace(self.run, live=replace(self.run.live, **changes))

    def record(self, record: Record) -> None:
        """Remember it, and write it down before the next action is taken."""
        self.run = replace(self.run, recorded=after(self.run.recorded, record))
        self.actions.append(Persist(self.run.name, record))

    def take(self, turn: Transition) -> None:
        self.change(phase=next_phase(self.live.phase, turn))

    def send(self, site: str, message: ToSite) -> None:
        self.actions.append(Send(site, message))

    def notify(self, notice: Notice) -> None:
        self.actions.append(Notify(notice))

    def deadline(self, seconds: float, *, operators: bool = False) -> None:
        self.change(token=self.live.token + 1, deadline=seconds, operators=operators)
        self.actions.append(SetDeadline(self.run.name, self.live.token, seconds))

    def finish(self, turn: Transition, outcome: Outcome, reason: str) -> None:
        self.take(turn)
        self.actions.append(Finish(self.run.name, outcome, reason))

    # --- who is here ----------------------------------------------------------------------------------------------

    def arrived(self, site: str) -> None:
        """A session of its own opened; it offers anew."""
        self.change(here=self.live.here | {site}, ready=self.live.ready - {site}, proven=self.live.proven - {site})

    def gone(self, site: str) -> None:
        """Its session ended, or it is not wanted any more."""
        live = self.live
        self.change(here=live.here - {site}, ready=live.ready - {site}, proven=live.proven - {site})
