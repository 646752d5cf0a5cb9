"""Both real machines with a network between them that hypothesis controls: whatever it does, nothing wrong comes out.

The network keeps what a real one keeps: messages of one session in order, in both directions, and nothing of a session
that was replaced. Everything else is up to the rules: how far each message has got, who is lost and when, which answers
come twice or late, when time runs out, when the coordinator or an agent is killed.
"""

from collections import deque
from functools import cache
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tiny import SCHEDULES, TIMEOUTS, make_plan, make_site, resumption_of, undisturbed

from coordinator.events import (
    DeadlinePassed,
    Event,
    Finish,
    Membership,
    Persist,
    Received,
    Record,
    Reject,
    Send,
    SetDeadline,
    SiteJoined,
    SiteLost,
    StepTaken,
)
from coordinator.machine import Coordinator
from coordinator.phases import TRANSITIONS, Phase
from coreg_core.messages import Ask, Finished, FromSite, Leaving, Plan, Prediction, Rejected, ToSite
from coreg_core.rounds.schedule import Stop
from site_agent.machine import Site

NAMES = ("a", "b", "c", "d")
TOLERANCE = 1e-4  # of the predictions, certified: what two converged runs may differ by, twice
PATIENCE = 5000  # events in which a run that is left in peace has to end


def plan_of(sites: tuple[str, ...], on_lost: str, schedule: str) -> Plan:
    return make_plan(
        sites=sites, on_lost=on_lost, schedule=schedule, tolerance=1e-3, prediction_tolerance=TOLERANCE, coupling=(0.2,)
    )


@cache
def reference(schedule: str, participants: tuple[str, ...]) -> dict[str, Finished]:
    """The models of an undisturbed run of these sites."""
    return undisturbed(plan_of(participants, "wait", schedule)).models


class Network(RuleBasedStateMachine):
    @initialize(
        count=st.integers(2, 4), on_lost=st.sampled_from(["wait", "continue"]), schedule=st.sampled_from(SCHEDULES)
    )
    def begin(self, count: int, on_lost: str, schedule: str) -> None:
        self.plan = plan_of(NAMES[:count], on_lost, schedule)
        self.sites: dict[str, Site] = {name: make_site(name) for name in self.plan.sites}
        self.down: dict[str, deque[ToSite]] = {}  # what is on its way to the site, for each open session
        self.up: dict[str, deque[FromSite]] = {}  # what is on its way from it
        self.events: deque[Event] = deque()  # emitted by the transport, not yet taken by the driver
        self.sent: dict[str, list[Prediction]] = {name: [] for name in self.sites}
        self.records: list[Record] = []
        self.models: dict[str, Finished] = {}
        self.labels: dict[tuple[str, int], set[tuple[int, str]]] = {}
        self.end: Finish | None = None
        self.boot()

    def boot(self) -> None:
        self.token = 0
        self.machine = Coordinator(self.plan, TIMEOUTS, resumption_of(self.records))
        self.carry_out(self.machine.start())

    # --- the driver -----------------------------------------------------------------------------------------------

    def carry_out(self, actions: list[Any]) -> None:
        for action in actions:
            assert self.end is None, f"{action} after the end"
            match action:
                case Send(site, message):
                    if site in self.down:
                        self.down[site].append(message)
                case Reject(site, reason):
                    if site in self.down:
                        self.sites[site].handle(Rejected(reason))
                        self.close(site)
                case Persist(record):
                    self.records.append(record)
                case SetDeadline(token, _):
                    assert token > self.token
                    self.token = token
                case Finish():
                    self.end = action

    def take(self, event: Event) -> None:
        before = self.machine.phase
        self.carry_out(self.machine.handle(event))
        assert self.machine.phase in TRANSITIONS[before][type(event)] | {before}

    def close(self, site: str) -> None:
        self.down.pop(site, None)
        self.up.pop(site, None)

    # --- the rules ------------------------------------------------------------------------------------------------

    pick = st.integers(0, 3)

    def open(self, pick: int) -> str | None:
        names = sorted(self.down)
        return names[pick % len(names)] if names else None

    @precondition(lambda self: self.end is None)
    @rule(pick=pick)
    def join(self, pick: int) -> None:
        """Or rejoin: a session that is open is replaced without an event."""
        name = self.plan.sites[pick % len(self.plan.sites)]
        self.down[name], self.up[name] = deque(), deque()
        self.events.append(SiteJoined(self.sites[name].hello()))

    @precondition(lambda self: self.end is None and self.events)
    @rule()
    def take_next_event(self) -> None:
        self.take(self.events.popleft())

    @precondition(lambda self: any(self.down.values()))
    @rule(pick=pick)
    def deliver(self, pick: int) -> None:
        """The next message reaches a site, which answers."""
        names = sorted(name for name, queue in self.down.items() if queue)
        name = names[pick % len(names)]
        message = self.down[name].popleft()
        answers = self.sites[name].handle(message)
        self.watch(name, message, answers)
        self.up[name].extend(answers)

    @precondition(lambda self: any(self.up.values()))
    @rule(pick=pick)
    def answer(self, pick: int) -> None:
        """The next message of a site reaches the coordinator's transport."""
        names = sorted(name for name, queue in self.up.items() if queue)
        name = names[pick % len(names)]
        message = self.up[name].popleft()
        self.events.append(Received(name, message))
        if isinstance(message, Prediction):
            self.sent[name].append(message)
        if isinstance(message, Leaving):
            self.close(name)

    @precondition(lambda self: self.down)
    @rule(pick=pick, age=st.integers(1, 5))
    def answer_again(self, pick: int, age: int) -> None:
        """The last answer twice, or one of long ago."""
        name = self.open(pick)
        if name is not None and self.sent[name]:
            self.events.append(Received(name, self.sent[name][-min(age, len(self.sent[name]))]))

    @precondition(lambda self: self.down)
    @rule(pick=pick)
    def lose(self, pick: int) -> None:
        name = self.open(pick)
        assert name is not None
        self.close(name)
        self.events.append(SiteLost(name, "its stream ended"))

    @rule(pick=pick)
    def restart_an_agent(self, pick: int) -> None:
        """Killed and started again on the same data; it has not dialled yet."""
        name = self.plan.sites[pick % len(self.plan.sites)]
        self.sites[name] = make_site(name)
        if name in self.down:
            self.close(name)
            self.events.append(SiteLost(name, "its stream ended"))

    @precondition(lambda self: self.end is None)
    @rule()
    def deadline(self) -> None:
        self.take(DeadlinePassed(self.token))

    @precondition(lambda self: self.end is None)
    @rule(ago=st.integers(1, 3))
    def dropped_timer(self, ago: int) -> None:
        phase = self.machine.phase
        self.take(DeadlinePassed(self.token - ago))
        assert self.machine.phase is phase

    @precondition(lambda self: self.end is None)
    @rule()
    def kill_the_coordinator(self) -> None:
        """What was persisted is all that is left; every session ends with it."""
        for name in tuple(self.down):
            self.close(name)
        self.events.clear()
        self.boot()

    @rule(steps=st.integers(1, 80))
    def peace(self, steps: int) -> None:
        """For a while everything arrives."""
        for _ in range(steps):
            if not self.advance():
                return

    # --- what holds -----------------------------------------------------------------------------------------------

    def advance(self) -> bool:
        """One thing that can happen without anybody's fault; False when all is quiet."""
        if self.end is None and self.events:
            self.take_next_event()
        elif any(self.up.values()):
            self.answer(0)
        elif any(self.down.values()):
            self.deliver(0)
        else:
            return False
        return True

    def watch(self, name: str, message: ToSite, answers: list[FromSite]) -> None:
        match message:
            case Ask(attempt=attempt, round=round_, part="affine") if isinstance(answers[0], Prediction):
                asked = self.labels.setdefault((name, attempt), set())
                asked.add((round_, message.targets.digest))
                if self.plan.schedule == "conjugate-gradients":
                    assert len(asked) == 1, "labels leave a site once an attempt"
            case Finished():
                self.models[name] = message

    @invariant()
    def only_the_network_is_at_fault(self) -> None:
        """Every site is honest and unchanged here: none is ever blamed."""
        if hasattr(self, "machine"):
            assert not self.machine._excluded
            assert self.end is None or self.end.stop not in (Stop.SITE_FAULT, Stop.REFUSED, Stop.INTERRUPTED)

    @invariant()
    def an_answered_question_is_never_counted_twice(self) -> None:
        taken = [r.round for r in getattr(self, "records", []) if isinstance(r, StepTaken)]
        assert taken == list(range(len(taken)))

    def teardown(self) -> None:
        """Left in peace, with every site dialling in, the run ends; and where it converged, it did so rightly."""
        if not hasattr(self, "machine"):
            return
        for _ in range(PATIENCE):
            if self.end is not None:
                break
            if not self.advance():
                away = [n for n in self.plan.sites if n not in self.down and n not in self.machine._fetched]
                if away:
                    self.join(self.plan.sites.index(away[0]))
                else:
                    self.deadline()
        assert self.end is not None, f"still {self.machine.phase}"
        assert self.machine.phase is Phase.DONE
        if self.end.stop is Stop.CONVERGED:
            self.models_are_right()

    def models_are_right(self) -> None:
        memberships = [r for r in self.records if isinstance(r, Membership)]
        participants = tuple(sorted(memberships[-1].participants))
        expected = reference(self.plan.schedule, participants)
        undisturbed_throughout = len(memberships) == 1
        for name in participants:
            if name not in self.models or self.models[name].targets is None:
                continue
            mine, theirs = self.models[name], expected[name]
            if undisturbed_throughout:
                assert (mine.weights, mine.targets) == (theirs.weights, theirs.targets)
                continue
            site = make_site(name)
            site.handle(self.plan)
            predictions = []
            for model in (mine, theirs):
                assert model.targets is not None
                assert site.view is not None
                predictions.append(site.view.respond(model.targets.values, np.array(model.weights), "affine"))
            assert np.linalg.norm(predictions[0] - predictions[1]) <= 2 * TOLERANCE


TestNetwork = Network.TestCase
TestNetwork.settings = settings(max_examples=100, stateful_step_count=50)
