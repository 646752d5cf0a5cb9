"""The operator's decisions on plans: asked at the terminal, or by `coreg-agent approve` through the
agent's store.

An approval confirms the eight words that were shown with the question, and no others. A decision
counts for the plan that it was made on: if the plan, the keys or what the operator saw has changed,
the question is put again.
"""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from coreg_core.errors import CoregError
from coreg_core.messages import Proposal
from coreg_core.objectives.scoring import Scoring
from coreg_core.outcomes import Notice
from coreg_core.plan import Plan, is_on_demand
from coreg_wire.clock import timestamp
from coreg_wire.identity.invitation import same_words
from site_agent.consent.memory import Memory
from site_agent.identity.members import Members
from site_agent.machine import notices
from site_agent.machine.session_events import AskOperator, Decided
from site_agent.service.console import COMPARE, EIGHT_WORDS, Terminal
from site_agent.service.identity_in_use import KeysInUse
from site_agent.service.state_store import Decision, StateStore

DECISION_SECONDS = 1.0  # between two looks for a decision
CHANGED = "its plan or the keys of its members changed after its operator was asked."


def news_of(request: Mapping[str, Any]) -> str:
    """Which members' keys a pending request has that are not confirmed, as it shows them."""
    shown = str(request["about"][EIGHT_WORDS])
    return shown.removeprefix(f"{request['words']} (").removesuffix(f"). {COMPARE}")


@dataclass(eq=False)
class Approvals:
    """See the module's docstring. ``proposal`` gives the latest one of an open run."""

    state: StateStore | None
    terminal: Terminal | None
    memory: Memory
    in_use: KeysInUse
    proposal: Callable[[str], Proposal | None]
    notify: Callable[[Notice], None]
    # One at a time: a request that is being written cannot outlive the end of its run.
    _turn: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "requests"))

    @property
    def members(self) -> Members | None:
        return self.in_use.members

    def has_strangers(self, proposal: Proposal) -> bool:
        """Whether the plan comes with keys that no operator has confirmed."""
        if self.members is None or not proposal.plan.masked:
            return False
        return not self.members.settled(self.members.keys_of(proposal))

    def is_agreed(self, plan: Plan) -> bool:
        """Whether a site asked for this run of a standing plan, which the operator approved once.

        Another run of the plan can align other ids, so the operator is asked about it.
        """
        terms = plan.objective
        stands = isinstance(terms, Scoring) and terms.standing and is_on_demand(plan.run)
        return stands and plan.digest in self.memory.agreed

    async def ask(self, question: AskOperator) -> Decided | CoregError:
        """The decision, or the error that ends the agent. It can take days: cancel the task if the
        run ends.
        """
        plan = question.plan
        news = ""
        words = ""
        if self.members is not None:
            keys = self._keys_of(plan.run)
            news = self.members.news(keys)
            words = self.members.words(keys) if news else ""
        if self.terminal is not None:
            answer = await self.terminal.decide(plan, question.about, words, news)
            if isinstance(answer, CoregError):
                return answer
            await self._note(plan, answer)
            seen = replace(answer, digest=plan.digest, about=question.about)
            return await self._decided(plan, seen)
        assert self.state is not None, "an agent that serves"
        decision = await asyncio.to_thread(self.state.decision, plan.run)
        if decision is not None and self._shown(plan, decision) not in ({}, question.about):
            await self.in_turn(self.state.clear, plan.run)  # it was on what has changed
            decision = None
        if decision is None or decision.digest != plan.digest:
            about = dict(question.about)
            if words:
                about[EIGHT_WORDS] = f"{words} ({news}). {COMPARE}"  # see `news_of`
            request = self.state.request_approval
            if not await self.in_turn(request, plan, about, question.seconds, words):
                return await self._decided(plan, Decision(False, CHANGED, digest=plan.digest))
            self.notify(notices.waiting_for_approval(plan.run, plan.study))
            decision = await self._awaited(self.state, plan.run)
        await self.in_turn(self.state.close_request, plan.run)
        await self._note(plan, decision)
        return await self._decided(plan, decision)

    async def _awaited(self, state: StateStore, run: str) -> Decision:
        while True:
            decision = await asyncio.to_thread(state.decision, run)
            if decision is not None:
                return decision
            await asyncio.sleep(DECISION_SECONDS)

    async def forget(self, run: str, *, keep_consent: bool) -> None:
        """Remove the request of a run that is over."""
        if self.state is not None:
            forget = self.state.close_request if keep_consent else self.state.clear
            await self.in_turn(forget, run)

    async def in_turn(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._turn, work, *arguments)

    def _keys_of(self, run: str) -> dict[str, str]:
        """The members' keys in the latest proposal of a run."""
        proposal = self.proposal(run)
        if proposal is None or self.members is None:
            return {}
        return self.members.keys_of(proposal)

    async def _decided(self, plan: Plan, decision: Decision) -> Decided:
        keys = self._keys_of(plan.run)
        members = self.members
        if decision.approved and members is not None and plan.masked and members.news(keys):
            if same_words(decision.words, members.words(keys)):
                await asyncio.to_thread(members.confirm, keys)
            else:
                decision = Decision(False, CHANGED, digest=decision.digest)
        self.memory.deciding[plan.run] = plan.digest
        shown = self._shown(plan, decision)
        return Decided(plan.run, decision.approved, decision.reason, decision.digest, shown)

    async def _note(self, plan: Plan, decision: Decision) -> None:
        """Write a person's decision into the ledger, once."""
        if not decision.by or decision.noted:
            return
        about = {
            "by": decision.by,
            "approved": decision.approved,
            "decided": decision.at or timestamp(),
            "shown": dict(decision.about),
        }
        await asyncio.to_thread(self.memory.note_decision, plan, about)
        if self.state is not None:
            await self.in_turn(self.state.mark_noted, plan.run)

    def _shown(self, plan: Plan, decision: Decision) -> dict[str, str]:
        """What the operator saw; nothing of an approval that counted, which is in the ledger.

        The run itself changes it.
        """
        counted = (plan.run, plan.digest) in self.memory.approved
        shown = {} if counted else decision.about
        return {heading: text for heading, text in shown.items() if heading != EIGHT_WORDS}
