r"""An agent as a function: its session, its runs and its operator's consent.

An event in, a list of actions out (`session_events`). A run passes through stages:

    NEW → JUDGED → WAITING → NEW → ACTIVE → removed          WAITING: for the operator
                                             OVER            while a worker has one of its messages

Each run has a queue of messages and handles one at a time, so a run that factors delays no other.
`site.SiteMachine` handles their content. This module decides whether the site takes part, orders
the messages, and bounds what a coordinator can cause: a message that no honest one sends ends the
session, never the agent, and so do too many plans that come to nothing. An agent of one run
(``once``) ends with that run.

A run whose ids are aligned first has two plans here: its own, and that of the alignment, which
needs no consent of its own. If the alignment's plan arrives before the consent to the run, it is
held until then.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeAlias, assert_never

from coreg_core.errors import BadData, CoregError, LeftBehind, Refused
from coreg_core.messages import (
    Approval,
    Countersigned,
    Dismissed,
    Fetched,
    Finished,
    PlanRefused,
    Proposal,
    Rejected,
    Renewed,
    Step,
    ToSite,
    Wanted,
)
from coreg_core.outcomes import Outcome
from coreg_core.plan import Plan, aligns_for, is_on_demand
from site_agent.machine import notices
from site_agent.machine.admission import aligns, objection
from site_agent.machine.session_events import (
    Action,
    Asked,
    AskOperator,
    Countersign,
    Decided,
    EndSession,
    Event,
    Exit,
    Forget,
    Install,
    Judge,
    MessageReceived,
    Notify,
    PlanJudged,
    RunMessage,
    Say,
    SessionEnded,
    SessionOpened,
    Work,
    Worked,
    WorkMessage,
)

MAX_INBOX = 8  # messages of a run that wait; an honest coordinator sends one, and the run's end
# In a row: plans that are refused, and ends of runs that this site does not know. Each leaves a
# line in the ledger. Not counted is what another member can cause: that this site left at a step.
MAX_USELESS = 100
MAX_PROPOSED = 16  # of a run in a session: an honest coordinator repeats it for attempts
MOST_REFUSED = 1000  # runs whose end is still to come
MOST_REASON = 1000  # characters of a coordinator's reason that are kept, in log and history
# Seconds before an agent dials again: an operator has to act first. After a breach they grow.
REFUSED_PAUSE = 30.0
LONGEST_PAUSE = 600.0
# A run with such an outcome can resume when its sites return. Its models are not kept.
RESUMABLE = (Outcome.STALLED, Outcome.TOO_FEW_SITES, Outcome.INTERRUPTED)


class Stage(Enum):
    """How far this site has come with a run."""

    NEW = "plan received"
    JUDGED = "checking the plan"
    WAITING = "waiting for approval"
    ACTIVE = "answering"
    OVER = "ending"  # the run ended while a worker handles one of its messages


UNDECIDED = (Stage.NEW, Stage.JUDGED, Stage.WAITING)


@dataclass(frozen=True)
class ActiveRun:
    """A run whose plan was received; ``proposal``: the latest."""

    proposal: Proposal
    stage: Stage = Stage.NEW
    inbox: tuple[WorkMessage, ...] = ()
    busy: bool = False  # while a worker handles one of its messages
    proposed: int = 1  # in this session
    unsaid: bool = False  # its operator approved while there was no session
    alignments: int = 0  # of ids, for this run
    approved: Mapping[str, str] = field(default_factory=dict)  # what the operator saw, to compare

    @property
    def plan(self) -> Plan:
        return self.proposal.plan

    @property
    def begun(self) -> bool:
        """Whether the site takes part."""
        return self.stage is Stage.ACTIVE


@dataclass(frozen=True)
class Agent:
    """The state; see the module's docstring."""

    once: bool = False
    ask_first: bool = False  # the operator approves each run; one with unconfirmed keys always
    connected: bool = False
    runs: Mapping[str, ActiveRun] = field(default_factory=dict)
    held: Mapping[str, Proposal] = field(default_factory=dict)  # alignments, by the run above
    useless: int = 0  # messages that came to nothing, less plans that did not (`MAX_USELESS`)
    asked: int = 0  # runs of standing plans that this site asked for and that may not begin
    renewed: bool = False  # a next certificate came in this session
    refused: tuple[str, ...] = ()  # runs that this site refused or left: their ends are no news

    def with_run(self, name: str, run: ActiveRun) -> "Agent":
        return replace(self, runs={**self.runs, name: run})

    def without_run(self, name: str) -> "Agent":
        """Without it and an alignment for it; it stays, as over, while a worker is busy with it."""
        held = {above: proposal for above, proposal in self.held.items() if above != name}
        agent = replace(self, held=held)
        run = self.runs.get(name)
        if run is not None and run.busy:
            return agent.with_run(name, replace(run, stage=Stage.OVER, inbox=()))
        return replace(agent, runs={n: r for n, r in self.runs.items() if n != name})

    def knows(self, name: str) -> bool:
        return name in self.runs and self.runs[name].stage is not Stage.OVER

    @property
    def idle(self) -> bool:
        """Whether it is an agent of one run that has no run now."""
        return self.once and not any(self.knows(name) for name in self.runs)


Transition: TypeAlias = tuple[Agent, list[Action]]  # the next state, and what the daemon does


def handle(agent: Agent, event: Event) -> Transition:
    """Handle one event."""
    match event:
        case SessionOpened():
            return replace(agent, connected=True, renewed=False), []
        case SessionEnded():
            runs = {
                name: replace(run, inbox=(), busy=False, proposed=0)
                for name, run in agent.runs.items()
                if run.stage is not Stage.OVER
            }
            return replace(agent, runs=runs, held={}, connected=False), []
        case MessageReceived(message, strangers, agreed):
            return _received(agent, message, strangers=strangers, agreed=agreed)
        case Asked(study):
            asked = agent.asked + agent.connected
            return replace(agent, asked=asked), [Say(Wanted(study))] if agent.connected else []
        case PlanJudged():
            return _judged(agent, event)
        case Decided():
            return _decided(agent, event)
        case Worked():
            return _worked(agent, event)
        case _:
            assert_never(event)


# --- messages -----------------------------------------------------------------------------------


def _received(
    agent: Agent, message: ToSite, *, strangers: bool = False, agreed: bool = False
) -> Transition:
    if isinstance(message, Finished | Dismissed | Rejected):
        message = replace(message, reason=message.reason[:MOST_REASON])
    match message:
        case Rejected():
            return agent, [_rejected(agent, message)]
        case Countersigned():
            return agent, [Countersign(message)]
        case Renewed(certificate):
            if agent.renewed:
                return agent, [breach(agent, "it sent two next certificates.")]
            return replace(agent, renewed=True), [Install(certificate)]
        case Proposal(run, _, plan) if run != plan.run:
            return agent, [breach(agent, f"it proposed run {run} with the plan of run {plan.run}.")]
        case Proposal():
            return _proposed(agent, message, ask=strangers, agreed=agreed)
        case Finished() | Dismissed() | Step():
            known = agent.runs.get(message.run)
            if known is not None and known.stage is not Stage.OVER:
                return _queue(agent, message.run, message)
            if not isinstance(message, Step):
                return _unknown_end(agent, message)
            text = f"it sent a step of run {message.run} without a plan."
            return agent, [breach(agent, text)]


def _rejected(agent: Agent, rejected: Rejected) -> EndSession | Exit:
    text = f"the coordinator refused this session: {rejected.reason}"
    if agent.once:
        return Exit(Refused(text))
    # Two agents of one site replace each other, less and less often.
    return EndSession(text, REFUSED_PAUSE, LONGEST_PAUSE if rejected.final else REFUSED_PAUSE)


def breach(agent: Agent, what: str) -> EndSession | Exit:
    """What no honest coordinator sends: it ends the session, and an agent of one run."""
    text = f"the coordinator broke the protocol: {what} No answer was sent."
    if agent.once:
        return Exit(Refused(text))
    return EndSession(text, REFUSED_PAUSE, LONGEST_PAUSE)


def _counted(agent: Agent, actions: list[Action]) -> Transition:
    """Count a message that came to nothing; too many end the session."""
    agent = replace(agent, useless=agent.useless + 1)
    if agent.useless < MAX_USELESS:
        return agent, actions
    # The count goes on over sessions, else a coordinator that reconnects is never slowed down.
    text = f"it sent {agent.useless} plans or ends of runs that came to nothing here."
    return replace(agent, useless=0), [*actions, breach(agent, text)]


def _unknown_end(agent: Agent, message: Finished | Dismissed) -> Transition:
    """The end of a run without a plan here: an earlier process took part, or none did."""
    actions = list[Action]()
    over = agent.idle and not aligns_for(message.run)
    agent = _no_longer_waits(agent, message.run)
    expected = message.run in agent.refused
    agent = replace(agent, refused=tuple(run for run in agent.refused if run != message.run))
    wanted = is_on_demand(message.run) and agent.asked > 0
    if wanted:
        agent = replace(agent, asked=agent.asked - 1)
    if isinstance(message, Dismissed):
        # Before the plan came: this release does not know it, for example.
        reason: Action = Notify(notices.dismissed(message.run, "", message.reason))
        actions.append(Exit(_dismissal(message)) if over else reason)
        return (agent, actions) if expected else _counted(agent, actions)
    actions.append(Say(Fetched(message.run)))
    if wanted:
        ended = notices.run_over(None, message.run, message.outcome, message.reason, 0)
        return agent, [*actions, Notify(ended)]
    if over:
        ended = notices.run_over(None, message.run, message.outcome, message.reason, 0)
        actions.append(Notify(ended))
        actions.append(Exit(outcome=message.outcome, run=message.run))
    return (agent, actions) if expected else _counted(agent, actions)


def _no_longer_waits(agent: Agent, name: str) -> Agent:
    """Drop a plan that waits for the work of an earlier one, or for a consent: it ended too."""
    held = {above: plan for above, plan in agent.held.items() if plan.run != name}
    agent = replace(agent, held=held)
    if name not in agent.runs:
        return agent
    return agent.with_run(name, replace(agent.runs[name], inbox=()))


# --- plans --------------------------------------------------------------------------------------


def _proposed(agent: Agent, proposal: Proposal, *, ask: bool, agreed: bool = False) -> Transition:
    """(1) a run that is known, (2) an alignment before its run, (3) refused, (4) a new run."""
    plan = proposal.plan
    # (1)
    run = agent.runs.get(plan.run)
    if run is not None:
        return _proposed_again(agent, run, proposal)
    # (2)
    above = agent.runs.get(aligns_for(plan.run))
    if above is not None and above.stage in UNDECIDED and aligns(above.plan, plan):
        return replace(agent, held={**agent.held, above.plan.run: proposal}), []
    # (3)
    received = Notify(notices.plan_received(plan))
    reason = objection(agent, proposal)
    if reason is not None:
        agent, actions = _refuse(agent, plan, reason)
        return agent, [received, *actions]
    # (4)
    if ask or (agent.ask_first and not agreed and not aligns_for(plan.run)):
        agent = agent.with_run(plan.run, ActiveRun(proposal, Stage.JUDGED))
        return agent, [received, Judge(plan)]
    if above is not None:
        counted = replace(above, alignments=above.alignments + 1)
        agent = agent.with_run(above.plan.run, counted)
    agent, actions = _queue(agent.with_run(plan.run, ActiveRun(proposal)), plan.run, proposal)
    return agent, [received, *actions]


def _proposed_again(agent: Agent, run: ActiveRun, proposal: Proposal) -> Transition:
    """The plan of a run that this agent has: of another attempt, session or process."""
    plan = proposal.plan
    if run.stage is Stage.OVER:
        # It begins again when the work on the earlier one is done.
        return agent.with_run(plan.run, replace(run, inbox=(proposal,))), []
    if run.plan != plan:
        return _refuse(agent, plan, "the plan changed in the middle of the run.")
    proposed = run.proposed + 1
    if proposed > MAX_PROPOSED:
        return agent, [breach(agent, f"it proposed run {plan.run} {proposed} times in a session.")]
    said = [Say(Approval(plan.run, True))] if run.unsaid else []
    run = replace(run, proposal=proposal, proposed=proposed, unsaid=False)
    agent, actions = _queue(agent.with_run(plan.run, run), plan.run, proposal)
    return agent, [Notify(notices.plan_received(plan, again=True)), *said, *actions]


def _release(agent: Agent, name: str) -> Transition:
    """Handle the alignment that waited for the consent to this run."""
    if (held := agent.held.get(name)) is None:
        return agent, []
    others = {run: other for run, other in agent.held.items() if run != name}
    return _proposed(replace(agent, held=others), held, ask=False)


def _refuse(agent: Agent, plan: Plan, reason: str, *, for_now: bool = False) -> Transition:
    notice, *rest = _refusal(agent, plan, reason, for_now=for_now)
    answer = Say(PlanRefused(plan.run, reason, for_now))
    return _counted(_without_refused(agent, plan.run), [notice, answer, *rest])


def _without_refused(agent: Agent, run: str) -> Agent:
    refused = (*agent.refused, run)[-MOST_REFUSED:]
    return replace(agent.without_run(run), refused=refused)


def _refusal(agent: Agent, plan: Plan, reason: str, *, for_now: bool) -> list[Action]:
    """What a refused run leaves to do; an alignment held for it is refused with it."""
    notice = notices.dismissed if for_now else notices.refused
    actions: list[Action] = [Notify(notice(plan.run, plan.study, reason))]
    held = agent.held.get(plan.run)
    if held is not None:
        actions.append(Say(PlanRefused(held.run, reason, for_now)))
    actions.append(Forget(plan.run, keep_consent=False))
    return actions


# --- consent ------------------------------------------------------------------------------------


def _judged(agent: Agent, judged: PlanJudged) -> Transition:
    name = judged.run
    if (run := agent.runs.get(name)) is None or run.stage is not Stage.JUDGED:
        return agent, []
    if judged.reason is not None:  # the policy's refusal needs no decision of the operator
        return _refuse(agent, run.plan, judged.reason, for_now=judged.for_now)
    if run.approved and run.approved == judged.about:
        return _accepted(agent, run)
    actions: list[Action] = [
        AskOperator(run.plan, judged.about, run.proposal.approval),
        Say(Approval(name, False)),
    ]
    if run.approved:
        actions.insert(0, Notify(notices.asked_again(name, run.plan.study)))
    return agent.with_run(name, replace(run, stage=Stage.WAITING, approved={})), actions


def _decided(agent: Agent, decided: Decided) -> Transition:
    name = decided.run
    if (run := agent.runs.get(name)) is None or run.stage is not Stage.WAITING:
        return agent, []
    if run.plan.digest != decided.digest:  # the plan was exchanged; its own question follows
        return agent, []
    if not decided.approved:
        return _refuse(agent, run.plan, decided.reason or "its operator refused it.")
    if not decided.about:
        return _accepted(agent, run)
    # The table, or what this site answered, can have changed since the operator was asked.
    again = replace(run, stage=Stage.JUDGED, approved=decided.about)
    return agent.with_run(name, again), [Judge(run.plan)]


def _accepted(agent: Agent, run: ActiveRun) -> Transition:
    name = run.plan.run
    unsaid = not agent.connected
    agent = agent.with_run(name, replace(run, stage=Stage.NEW, approved={}, unsaid=unsaid))
    actions: list[Action] = [Notify(notices.approved(name, run.plan.study))]
    if agent.connected:  # otherwise the coordinator sends the plan again
        agent, more = _queue(agent, name, run.proposal)
        actions += [Say(Approval(name, True)), *more]
    return agent, actions


# --- work ---------------------------------------------------------------------------------------


def _queue(agent: Agent, name: str, message: RunMessage) -> Transition:
    """Append a message to a run's inbox."""
    run = agent.runs[name]
    if isinstance(message, Dismissed):
        return _end_unworked(agent, run, message)
    if isinstance(message, Finished) and run.stage is not Stage.ACTIVE:
        return _end_unworked(agent, run, message)
    if run.stage in (Stage.JUDGED, Stage.WAITING):
        if not isinstance(message, Proposal):
            text = f"it sent a step of run {name}, whose plan this site did not accept."
            return agent, [breach(agent, text)]
        # A new session or attempt, and the operator has not decided yet.
        return agent, [Say(Approval(name, False))] if run.stage is Stage.WAITING else []
    if len(run.inbox) >= MAX_INBOX:
        text = f"it sent {MAX_INBOX} messages of run {name} before this site could answer one."
        return agent, [breach(agent, text)]
    return _next(agent.with_run(name, replace(run, inbox=(*run.inbox, message))), name)


def _next(agent: Agent, name: str) -> Transition:
    run = agent.runs[name]
    if run.busy or not run.inbox or not agent.connected:  # the plan comes again in the next session
        return agent, []
    message, *rest = run.inbox
    return agent.with_run(name, replace(run, inbox=tuple(rest), busy=True)), [Work(message)]


def _worked(agent: Agent, worked: Worked) -> Transition:
    """(1) a run that is over, (2) its end, (3) this site left it, (4) its next message."""
    message = worked.message
    if (run := agent.runs.get(message.run)) is None:
        return agent, []
    run = replace(run, busy=False)
    agent = agent.with_run(message.run, run)
    # (1)
    if run.stage is Stage.OVER:
        agent = agent.without_run(message.run)
        again = list[Action]()
        if run.inbox:
            agent, again = _received(agent, run.inbox[0])
        return agent, [Forget(message.run, keep_consent=True), *again]
    # (2)
    if isinstance(message, Finished) and worked.accepted is not False:
        return _finished(agent, run, message, worked.models)
    # (3)
    if worked.accepted is False:
        return _left(agent, run, worked)
    # (4)
    held = list[Action]()
    if worked.accepted:
        # One good plan does not pay for a hundred others.
        agent = replace(agent, useless=max(0, agent.useless - 1))
        agent = agent.with_run(message.run, replace(run, stage=Stage.ACTIVE))
        agent, held = _release(agent, message.run)
    agent, actions = _next(agent, message.run)
    return agent, [*held, *actions]


def _finished(agent: Agent, run: ActiveRun, message: Finished, models: int) -> Transition:
    name = run.plan.run
    outcome = message.outcome
    actions: list[Action] = [
        Notify(notices.run_over(run.plan, name, outcome, message.reason, models)),
        Forget(name, keep_consent=outcome in RESUMABLE),
    ]
    if agent.once and not aligns_for(name):
        actions.append(Exit(outcome=outcome, run=name))
    return agent.without_run(name), actions


def _left(agent: Agent, run: ActiveRun, worked: Worked) -> Transition:
    """This site refused the plan, or left the run at a step."""
    plan = run.plan
    actions = _refusal(agent, plan, worked.reason, for_now=worked.for_now)
    if agent.once and isinstance(worked.message, Finished) and not aligns_for(plan.run):
        actions.append(Exit(Refused(worked.reason)))  # nothing more comes of its one run
    agent = _without_refused(agent, plan.run)
    if isinstance(worked.message, Proposal):
        agent, actions = _counted(agent, actions)
    for waiting in run.inbox:  # another site refused first: the end waits here, and comes once
        if isinstance(waiting, Finished):
            agent, more = _received(agent, waiting)
            actions += more
    return agent, actions


def _end_unworked(agent: Agent, run: ActiveRun, message: Finished | Dismissed) -> Transition:
    """The end of a run that this site did not accept, or that continues without it."""
    plan = run.plan
    once = agent.once and not aligns_for(plan.run)
    forget = Forget(plan.run, message.outcome in RESUMABLE)
    actions = list[Action]()
    if isinstance(message, Finished):
        over = notices.run_over(plan, plan.run, message.outcome, message.reason, 0)
        actions += [Say(Fetched(plan.run)), Notify(over), forget]
        if once:
            actions.append(Exit(outcome=message.outcome, run=plan.run))
    elif once:  # the error says it
        actions += [forget, Exit(_dismissal(message))]
    else:
        actions += [Notify(notices.dismissed(plan.run, plan.study, message.reason)), forget]
    agent = agent.without_run(plan.run)
    if run.stage is Stage.ACTIVE:
        return agent, actions
    return _counted(agent, actions)


def _dismissal(message: Dismissed) -> CoregError:
    kinds = {Outcome.SITE_FAULT: BadData, Outcome.STALLED: LeftBehind}
    kind = kinds.get(message.outcome, Refused)
    return kind(f"this site does not take part in run {message.run}: {message.reason}")
