"""Whatever order sessions, losses, kills, timers and messages come in: who is left ends on the bits of an undisturbed run.

A network as the transport's contract has it: messages of a session keep their order, those of a session that is over are lost,
and everything else happens whenever it likes. A mask serves once, and so does the number of an attempt.
"""

from collections import deque
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from machine.tiny import Machine, begun_by, bits, make_plan, make_sites, restarted, sealed, undisturbed

from coordinator.machine import events as e
from coordinator.machine.records import AttemptBegan, Ended, Record
from coreg_core import messages as m
from coreg_core.objectives.agreement import Agreement
from coreg_core.outcomes import Outcome
from coreg_core.plan import Plan
from site_agent.identity.run_keys import AttemptSeal
from site_agent.machine.agent import RESUMABLE
from site_agent.machine.site import Site

NAMES = ("a", "b", "c", "d")
PATIENCE = 5000  # events in which a run that is left in peace has to end


def plan_of(sites: tuple[str, ...], on_dropout: str, secure: bool) -> Plan:
    least = len(sites) if on_dropout == "wait" else 2
    few = {"tolerance": 1e-3, "prediction_tolerance": 0.03, "coupling": (0.3,)}
    plan = make_plan(sites=sites, min_sites=least, on_dropout=on_dropout, **few)
    return sealed(plan) if secure else plan


@cache
def expected(sites: tuple[str, ...]) -> dict[str, Any]:
    """Of a run of these sites in which nothing goes wrong; keys change no bit."""
    return undisturbed(plan_of(sites, "wait", False)).bits


class Network(RuleBasedStateMachine):
    @initialize(count=st.integers(2, 4), kind=st.sampled_from([("wait", False), ("wait", True), ("continue", False)]))
    def begin(self, count: int, kind: tuple[str, bool]) -> None:
        self.plan = plan_of(NAMES[:count], *kind)
        self.sites: dict[str, Site] = make_sites(self.plan.sites)
        self.down: dict[str, deque[m.ToSite]] = {}  # what is on its way to a site, for each open session
        self.up: dict[str, deque[m.FromSite]] = {}
        self.events: deque[e.Event] = deque()  # emitted by the transport, not yet taken by the driver
        self.records: list[Record] = []
        self.has: dict[str, Any] = {}  # the models on each site's disk
        self.masked: dict[tuple[Any, ...], bytes] = {}
        self.end: e.Finish | None = None
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(AttemptSeal, "mask", self.masking(AttemptSeal.mask))
        self.boot()

    def masking(self, honest: Any) -> Any:
        def mask(seal: AttemptSeal, context: bytes, words: Any, answering: Any) -> Any:
            used = (seal.site, seal.key, context)
            assert self.masked.setdefault(used, words.tobytes()) == words.tobytes(), "two numbers under one mask"
            return honest(seal, context, words, answering)

        return mask

    def boot(self) -> None:
        if self.records and isinstance(ended := self.records[-1], Ended):
            self.end = e.Finish(self.plan.run, ended.outcome, ended.reason)
            return
        self.token, self.expects = 0, False
        self.machine = Machine(self.plan, begun=begun_by(self.records))
        self.carry_out(self.machine.start())

    # --- the driver -----------------------------------------------------------------------------------------------

    def carry_out(self, actions: list[e.Action]) -> None:
        for action in actions:
            assert self.end is None, f"{action} after the end"
            match action:
                case e.Send(site, message) if site in self.down:
                    assert self.expects or not isinstance(message, m.Step), "words of which nobody said how many"
                    self.down[site].append(message)
                case e.Reject(site, reason):
                    raise AssertionError(f"{site} was rejected: {reason}")
                case e.Expect():
                    self.expects = True
                case e.Persist(_, record):
                    self.records.append(record)
                case e.SetDeadline(_, token, _):
                    assert token > self.token
                    self.token = token
                case e.Finish():
                    self.end = action

    def arrives(self, name: str, message: m.ToSite) -> list[m.FromSite]:
        """As an agent has it: the result is on its disk before its last answer leaves, and a run that is over is forgotten."""
        site = self.sites[name]
        if isinstance(message, m.Finished) and name in self.has and site.result is None:
            answers: list[m.FromSite] = [m.Fetched(message.run)]  # an earlier process of this agent stored it
        else:
            answers = site.handle(message)
        assert site.breach is None, site.breach
        assert not any(isinstance(said, m.Fault | m.PlanRefused) for said in answers), answers
        if (found := bits(site.result)) is not None:
            self.has[name] = found
        if isinstance(message, m.Finished | m.Dismissed):
            assert message.outcome in (Outcome.CONVERGED, *RESUMABLE), "every site is honest"
            self.sites[name] = restarted(site)
        return answers

    # --- the rules ------------------------------------------------------------------------------------------------

    pick = st.integers(0, 3)

    @precondition(lambda self: self.end is None)
    @rule(pick=pick)
    def join(self, pick: int) -> None:
        """Or rejoin: a session that is open is replaced without an event."""
        name = self.plan.sites[pick % len(self.plan.sites)]
        self.down[name], self.up[name] = deque(), deque()
        self.events.append(e.SiteJoined(self.sites[name].hello()))

    @precondition(lambda self: self.end is None and self.events)
    @rule()
    def take_next_event(self) -> None:
        self.carry_out(self.machine.handle(self.events.popleft()))

    @precondition(lambda self: any(self.down.values()))
    @rule(pick=pick)
    def deliver(self, pick: int) -> None:
        """The next message reaches a site, which answers."""
        names = sorted(name for name, queue in self.down.items() if queue)
        name = names[pick % len(names)]
        self.up[name].extend(self.arrives(name, self.down[name].popleft()))

    @precondition(lambda self: any(self.up.values()))
    @rule(pick=pick)
    def answer(self, pick: int) -> None:
        """The next message of a site reaches the coordinator's transport."""
        names = sorted(name for name, queue in self.up.items() if queue)
        name = names[pick % len(names)]
        self.events.append(e.Received(name, self.up[name].popleft()))

    @precondition(lambda self: self.down)
    @rule(pick=pick, said=st.booleans())
    def lose(self, pick: int, said: bool) -> None:
        """Or its operator stops it, and it says so; whatever it had on its way arrives then."""
        name = sorted(self.down)[pick % len(self.down)]
        self.events.extend(e.Received(name, message) for message in self.up[name] if said)
        self.events.append(e.Received(name, m.Leaving("stopped")) if said else e.SiteLost(name, "its stream ended"))
        self.close(name)

    def close(self, name: str) -> None:
        self.down.pop(name, None)
        self.up.pop(name, None)

    @rule(pick=pick)
    def restart_an_agent(self, pick: int) -> None:
        """Killed and started again on the same data; it has not dialled yet."""
        name = self.plan.sites[pick % len(self.plan.sites)]
        self.sites[name] = restarted(self.sites[name])
        if name in self.down:
            self.close(name)
            self.events.append(e.SiteLost(name, "its stream ended"))

    @precondition(lambda self: self.end is None)
    @rule()
    def deadline(self) -> None:
        self.carry_out(self.machine.handle(self.machine.deadline))

    @precondition(lambda self: self.end is None)
    @rule(actions=st.integers(0, 5))
    def kill_the_coordinator(self, actions: int) -> None:
        """In the middle of what an event made it do, or between two. What was persisted is all that is left."""
        if self.events:
            self.carry_out(self.machine.handle(self.events.popleft())[:actions])
        if self.end is None:
            for name in tuple(self.down):
                self.close(name)
            self.events.clear()
            self.boot()

    @rule(steps=st.integers(1, 80))
    def peace(self, steps: int) -> None:
        """For a while everything arrives."""
        any(not self.advance() for _ in range(steps))

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

    # --- what holds -----------------------------------------------------------------------------------------------

    @property
    def attempts(self) -> list[AttemptBegan]:
        return [record for record in self.records if isinstance(record, AttemptBegan)]

    @invariant()
    def nobody_is_blamed_and_no_attempt_gains_a_site(self) -> None:
        if hasattr(self, "machine"):
            assert {outcome for outcome, _ in self.machine.run.excluded.values()} <= {Outcome.STALLED}
            assert self.end is None or self.end.outcome in (Outcome.CONVERGED, *RESUMABLE)
            for before, after in pairwise(self.attempts):
                assert before.attempt < after.attempt < Agreement.attempts
                assert set(before.participants) >= set(after.participants)

    def teardown(self) -> None:
        """Left in peace, with every site dialling in, the run ends, and rightly."""
        if not hasattr(self, "machine"):
            return
        try:
            for _ in range(PATIENCE):
                if self.end is not None:
                    break
                if not self.advance():
                    away = [n for n in self.plan.sites if n not in self.down]
                    self.join(self.plan.sites.index(away[0])) if away else self.deadline()
            assert self.end is not None, f"still {self.machine.phase}"
            while self.advance():
                pass
            if self.end.outcome is Outcome.CONVERGED:
                members = self.attempts[-1].participants
                assert {name: self.has.get(name) for name in members} == expected(members)
            else:
                assert isinstance(self.records[-1], Ended)
        finally:
            self.patch.undo()


TestNetwork = Network.TestCase
TestNetwork.settings = settings(max_examples=100, stateful_step_count=50)
