"""Both real machines with a network between them that hypothesis controls: whatever it does, nothing wrong comes out.

The network keeps what a real one keeps: messages of one session in order, in both directions, and nothing of a session
that was replaced. Everything else is up to the rules: how far each message has got, who is lost and when, which answers
come twice or late, when time runs out, when the coordinator or an agent is killed.
"""

from collections import deque
from functools import cache

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from machine.tiny import SCHEDULES, Machine, make_plan, make_site, restarted, undisturbed

from coordinator.machine.events import (
    Action,
    DeadlinePassed,
    Event,
    Expect,
    Finish,
    Persist,
    Received,
    Reject,
    Send,
    SetDeadline,
    SiteJoined,
    SiteLost,
)
from coordinator.machine.phases import TRANSITIONS, Phase
from coordinator.machine.records import MembershipChanged, Record, StepTaken
from coordinator.machine.state import resume
from coreg_core.agreement.columns import Column
from coreg_core.numerics.arrays import Arr
from coreg_core.protocol.messages import Ask, Dismissed, Finished, FromSite, Leaving, Prediction, Rejected, ToSite
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan
from site_agent.machine.site import Site

NAMES = ("a", "b", "c", "d")
TOLERANCE = 1e-4  # of the predictions, certified: what two converged runs may differ by, twice
PATIENCE = 5000  # events in which a run that is left in peace has to end


def plan_of(sites: tuple[str, ...], on_dropout: str, schedule: str) -> Plan:
    return make_plan(
        sites=sites,
        on_dropout=on_dropout,
        schedule=schedule,
        tolerance=1e-3,
        prediction_tolerance=TOLERANCE,
        coupling=(0.2,),
    )


@cache
def reference(schedule: str, participants: tuple[str, ...]) -> dict[str, Finished]:
    """The models of an undisturbed run of these sites."""
    return undisturbed(plan_of(participants, "wait", schedule)).models


class Network(RuleBasedStateMachine):
    @initialize(
        count=st.integers(2, 4), on_dropout=st.sampled_from(["wait", "continue"]), schedule=st.sampled_from(SCHEDULES)
    )
    def begin(self, count: int, on_dropout: str, schedule: str) -> None:
        self.plan = plan_of(NAMES[:count], on_dropout, schedule)
        self.sites: dict[str, Site] = {name: make_site(name) for name in self.plan.sites}
        self.down: dict[str, deque[ToSite]] = {}  # what is on its way to the site, for each open session
        self.up: dict[str, deque[FromSite]] = {}  # what is on its way from it
        self.plans: set[str] = set()  # sites whose open session has the plan
        self.events: deque[Event] = deque()  # emitted by the transport, not yet taken by the driver
        self.sent: dict[str, list[Prediction]] = {name: [] for name in self.sites}
        self.records: list[Record] = []
        self.models: dict[str, Finished] = {}
        self.labels: set[tuple[str, tuple[Column, ...]]] = set()  # label-bearing answers that this coordinator has
        self.end: Finish | None = None
        self.boot()

    def boot(self) -> None:
        self.token = 0
        self.expected = False
        self.labels.clear()
        self.machine = Machine(self.plan, records=self.records)
        self.carry_out(self.machine.start())

    # --- the driver -----------------------------------------------------------------------------------------------

    def carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            assert self.end is None, f"{action} after the end"
            match action:
                case Send(site, message):
                    if isinstance(message, Ask | Finished) and message.targets is not None:
                        assert self.expected, "a vector of which nobody has said how many rows it has"
                    if isinstance(message, Ask) and self.bears_labels(message):
                        assert (site, message.columns) not in self.labels, "labels are asked of a site once"
                    if isinstance(message, Plan):
                        self.plans.add(site)
                    # The transport keeps from a session what was meant for the one before it.
                    if site in self.down and not (isinstance(message, Ask) and site not in self.plans):
                        self.down[site].append(message)
                case Reject(site, reason):
                    if site in self.down:
                        self.sites[site].handle(Rejected(reason))
                        self.close(site)
                case Expect(_, rows, columns):
                    assert (rows, columns) == (6, 1)
                    self.expected = True
                case Persist(_, record):
                    self.records.append(record)
                case SetDeadline(_, token, _):
                    assert token > self.token
                    self.token = token
                case Finish():
                    self.end = action

    def take(self, event: Event) -> None:
        before = self.machine.phase
        open_before = self.machine.run.live
        actions = self.machine.handle(event)
        match event:  # an answer that was waited for is known from here on
            case Received(site, Prediction(question=question, attempt=attempt)) if site in open_before.ready:
                for asked in (open_before.ask, open_before.trials.get(site)):
                    if asked is None or (asked.question, asked.attempt) != (question, attempt):
                        continue
                    if self.bears_labels(asked):
                        self.labels.add((site, asked.columns))
        self.carry_out(actions)
        assert self.machine.phase in reachable(before) | {before}

    def bears_labels(self, ask: Ask) -> bool:
        return ask.part == "affine" and self.plan.iteration.name == "conjugate-gradients"

    def close(self, site: str) -> None:
        self.down.pop(site, None)
        self.up.pop(site, None)
        self.plans.discard(site)

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
        self.plans.discard(name)
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
        self.watch(name, message)
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

    @precondition(lambda self: self.down)
    @rule(pick=pick)
    def leave(self, pick: int) -> None:
        """Its operator stops it, and it says so; whatever it had on its way arrives."""
        name = self.open(pick)
        assert name is not None
        self.events.extend(Received(name, message) for message in self.up[name])
        self.close(name)
        self.events.append(Received(name, Leaving("stopped by its operator")))

    @rule(pick=pick)
    def restart_an_agent(self, pick: int) -> None:
        """Killed and started again on the same data, with its ledger; it has not dialled yet."""
        name = self.plan.sites[pick % len(self.plan.sites)]
        self.sites[name] = restarted(self.sites[name])
        if name in self.down:
            self.close(name)
            self.events.append(SiteLost(name, "its stream ended"))

    @precondition(lambda self: self.end is None)
    @rule()
    def deadline(self) -> None:
        self.take(DeadlinePassed(self.plan.run, self.token))

    @precondition(lambda self: self.end is None)
    @rule(ago=st.integers(1, 3))
    def dropped_timer(self, ago: int) -> None:
        phase = self.machine.phase
        self.take(DeadlinePassed(self.plan.run, self.token - ago))
        assert self.machine.phase is phase

    @precondition(lambda self: self.end is None)
    @rule()
    def kill_the_coordinator(self) -> None:
        """What was persisted is all that is left; every session ends with it."""
        self.die()

    @precondition(lambda self: self.end is None and self.events)
    @rule(actions=st.integers(0, 5))
    def kill_the_coordinator_in_the_middle(self, actions: int) -> None:
        """Of what an event made it do, so many actions are done."""
        self.carry_out(self.machine.handle(self.events.popleft())[:actions])
        if self.end is None:
            self.die()

    def die(self) -> None:
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

    def watch(self, name: str, message: ToSite) -> None:
        match message:
            case Finished():
                self.models[name] = message
            case Dismissed(outcome=outcome):
                assert outcome is Outcome.STALLED, (
                    "an honest site is sent away for being late too often, and for nothing else"
                )

    @invariant()
    def only_the_network_is_at_fault(self) -> None:
        """Every site is honest and unchanged here: none is ever blamed, and none has anything to blame."""
        if hasattr(self, "machine"):
            excluded = self.machine.run.recorded.excluded.values()
            assert {e.outcome for e in excluded} <= {Outcome.STALLED}
            assert not any(site.breach for site in self.sites.values())
            blamed = (Outcome.SITE_FAULT, Outcome.REFUSED, Outcome.INTERRUPTED)
            assert self.end is None or self.end.outcome not in blamed

    @invariant()
    def an_answered_question_is_never_counted_twice(self) -> None:
        taken = [r.question for r in getattr(self, "records", []) if isinstance(r, StepTaken)]
        assert taken == list(range(len(taken)))

    @invariant()
    def a_sum_of_labels_that_is_known_is_never_taken_again(self) -> None:
        if not hasattr(self, "machine") or self.plan.iteration.name != "conjugate-gradients":
            return
        summed, members = [], ()
        for record in self.records:
            match record:
                case MembershipChanged(participants=participants):
                    members = participants
                case StepTaken(part="affine"):
                    summed.append(members)
        assert len(summed) == len(set(summed))

    @invariant()
    def what_is_remembered_is_what_is_on_record(self) -> None:
        if hasattr(self, "machine"):
            mine, theirs = self.machine.run.recorded, resume(self.plan, self.records)
            for name in ("accepted", "excluded", "participants", "returns", "dropped", "attempt", "question", "affine"):
                assert getattr(mine, name) == getattr(theirs, name), name

    def teardown(self) -> None:
        """Left in peace, with every site dialling in, the run ends; and where it converged, it did so rightly."""
        if not hasattr(self, "machine"):
            return
        for _ in range(PATIENCE):
            if self.end is not None:
                break
            if not self.advance():
                away = [n for n in self.awaited_later() if n not in self.down]
                if away:
                    self.join(self.plan.sites.index(away[0]))
                else:
                    self.deadline()
        assert self.end is not None, f"still {self.machine.phase}"
        assert self.machine.phase is Phase.DONE
        if self.end.outcome is Outcome.CONVERGED:
            self.models_are_right()

    def awaited_later(self) -> list[str]:
        run = self.machine.run
        has_it = run.live.fetched | run.recorded.fetched | run.recorded.excluded.keys()
        return [n for n in self.plan.sites if n not in has_it]

    def models_are_right(self) -> None:
        memberships = [r for r in self.records if isinstance(r, MembershipChanged)]
        participants = memberships[-1].participants
        expected = reference(self.plan.iteration.name, participants)
        undisturbed_throughout = len(memberships) == 1
        for name in participants:
            if name not in self.models or self.models[name].targets is None:
                continue
            mine, theirs = self.models[name], expected[name]
            if undisturbed_throughout:
                assert (mine.columns, mine.targets) == (theirs.columns, theirs.targets)
                continue
            difference = self.predictions(name, mine) - self.predictions(name, theirs)
            assert np.linalg.norm(difference) <= 2 * TOLERANCE

    def predictions(self, name: str, model: Finished) -> Arr:
        site = make_site(name)
        site.handle(self.plan)
        assert model.targets is not None
        assert site.view is not None
        return site.view.respond(model.targets.values, np.array([c.weight for c in model.columns]), "affine")


def reachable(phase: Phase) -> set[Phase]:
    """By one event, which may take several turns: the last answer ends a run whose sites have all gone."""
    after = set(TRANSITIONS[phase].values())
    return after | {target for middle in after for target in TRANSITIONS[middle].values()}


TestNetwork = Network.TestCase
TestNetwork.settings = settings(max_examples=100, stateful_step_count=50)
