r"""An agent as a function: its session, its runs and its operator's consent; an event in, a list of actions out.

Each run has a queue of messages and handles one at a time, so a run that factors delays no other run.
`site.Site` handles the content of messages. This module decides whether the site takes part, orders the messages,
and detects protocol violations of the coordinator. An agent of one run (``once``) ends with that run.
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
    FromSite,
    PlanRefused,
    Proposal,
    Rejected,
    Renewed,
    Step,
    ToSite,
)
from coreg_core.outcomes import Notice, Outcome
from coreg_core.plan import Plan, alignment_of, aligns_for
from site_agent.machine import notices

RunMessage: TypeAlias = Proposal | Step | Finished | Dismissed


@dataclass(frozen=True)
class SessionOpened:
    """A session is open: runs continue when their plans arrive again."""


@dataclass(frozen=True)
class SessionEnded:
    """The session ended; the coordinator sends unhandled messages again."""


@dataclass(frozen=True)
class MessageReceived:
    """A message from the coordinator, with a valid form. ``strangers``: a plan with keys that no operator has confirmed."""

    message: ToSite
    strangers: bool = False


@dataclass(frozen=True)
class Judged:
    """A plan was checked against policy, rows and ledger: a reason against it, or None. ``about``: a description by heading."""

    run: str
    reason: str | None
    about: Mapping[str, str] = field(default_factory=dict)
    for_now: bool = False  # it can join after a correction


@dataclass(frozen=True)
class Decided:
    """The operator's decision on the plan with this digest; ``about``: what the operator saw, or nothing if that was compared."""

    run: str
    approved: bool
    reason: str
    digest: str
    about: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Worked:
    """A message was handled, and its answers are sent."""

    message: RunMessage
    accepted: bool | None = None  # of a proposal; False also if the site leaves the run at a step
    reason: str = ""
    for_now: bool = False  # it can join after a correction
    breach: str | None = None  # of the protocol, by the coordinator
    models: int = 0  # files written at the end


Event: TypeAlias = SessionOpened | SessionEnded | MessageReceived | Judged | Decided | Worked


# --- actions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Say:
    """Send a message that needs no work."""

    message: FromSite


@dataclass(frozen=True)
class Judge:
    """Check a plan against policy, rows and ledger; `Judged` follows."""

    plan: Plan


@dataclass(frozen=True)
class AskOperator:
    """Ask the operator to approve a plan; `Decided` follows. ``about`` as in `Judged`, expires after ``seconds`` (0: never)."""

    plan: Plan
    about: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class Work:
    """Work on a message of this run and send the answers; `Worked` follows."""

    plan: Plan
    message: RunMessage


@dataclass(frozen=True)
class Countersign:
    """Store the coordinator's countersignature of the ledger's head."""

    receipt: Countersigned


@dataclass(frozen=True)
class Install:
    """Install the site's next certificate (PEM)."""

    certificate: str


@dataclass(frozen=True)
class Forget:
    """Drop the state of a run. ``keep_consent`` keeps the operator's decision for a run that can resume."""

    run: str
    keep_consent: bool


@dataclass(frozen=True)
class Notify:
    """Tell the operator."""

    notice: Notice


@dataclass(frozen=True)
class EndSession:
    """End the session; the agent dials again after a pause."""

    reason: str


@dataclass(frozen=True)
class Exit:
    """End the agent: with an error, or with the outcome of its one run."""

    error: CoregError | None = None
    outcome: Outcome | None = None
    run: str = ""


Action: TypeAlias = (
    Say | Judge | AskOperator | Work | Countersign | Install | Forget | Notify | EndSession | Exit
)


MAX_BEGUN = 10  # consecutive runs that began and did not finish
MAX_ALIGNMENTS = 3  # of one consent: a coordinator can restart in the middle of one
# A run with such an outcome can resume when its sites return. Its models are not kept.
RESUMABLE = (Outcome.STALLED, Outcome.TOO_FEW_SITES, Outcome.INTERRUPTED)


class Stage(Enum):
    """How far this site has come with a run."""

    NEW = "plan received"
    JUDGED = "checking the plan"
    WAITING = "waiting for approval"
    ACTIVE = "answering"
    OVER = "ending"  # the run ended while a worker handles one of its messages; removed when the worker is done


UNDECIDED = (Stage.NEW, Stage.JUDGED, Stage.WAITING)


@dataclass(frozen=True)
class ActiveRun:
    """A run whose plan was received; ``busy`` while a worker handles one of its messages. ``proposal``: the latest."""

    proposal: Proposal
    stage: Stage = Stage.NEW
    inbox: tuple[RunMessage, ...] = ()
    busy: bool = False
    answered: bool = False
    alignments: int = 0  # of ids, for this run
    approved: Mapping[str, str] = field(
        default_factory=dict
    )  # what the operator saw, until it is compared

    @property
    def plan(self) -> Plan:
        return self.proposal.plan


# --- events -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Agent:
    """The state; see the module's docstring."""

    once: bool = False
    ask_first: bool = False  # the operator approves each run; one with unconfirmed keys always
    connected: bool = False
    runs: Mapping[str, ActiveRun] = field(default_factory=dict)
    held: Mapping[str, Proposal] = field(
        default_factory=dict
    )  # alignments by the runs that need them
    begun: int = 0  # runs that were answered and not finished


def handle(agent: Agent, event: Event) -> tuple[Agent, list[Action]]:
    """Handle one event."""
    match event:
        case SessionOpened():
            return replace(agent, connected=True), []
        case SessionEnded():
            runs = {
                n: replace(r, inbox=(), busy=False)
                for n, r in agent.runs.items()
                if r.stage is not Stage.OVER
            }
            return replace(agent, runs=runs, held={}, connected=False), []
        case MessageReceived(message, strangers):
            return _heard(agent, message, strangers=strangers)
        case Judged():
            return _judged(agent, event)
        case Decided():
            return _decided(agent, event)
        case Worked():
            return _worked(agent, event)
        case _:
            assert_never(event)


# --- messages -----------------------------------------------------------------------------------------------------


def _heard(agent: Agent, message: ToSite, *, strangers: bool = False) -> tuple[Agent, list[Action]]:
    match message:
        case Rejected(reason, final):
            text = f"the coordinator refused this session: {reason}"
            return agent, [Exit(Refused(text)) if final or agent.once else EndSession(text)]
        case Countersigned():
            return agent, [Countersign(message)]
        case Renewed(certificate):
            return agent, [Install(certificate)]
        case Proposal(run, _, plan) if run != plan.run:
            return agent, [_breach(f"proposed run {run} with the plan of run {plan.run}.")]
        case Proposal():
            return _proposed(agent, message, ask=strangers)
        case Finished() | Dismissed() | Step() if _is_known(agent, message.run):
            return _queue(agent, message.run, message)
        case Finished():
            return _unknown_end(_no_longer_waits(agent, message.run), message)
        case Dismissed():
            over = _is_idle(agent) and not aligns_for(message.run)
            return _no_longer_waits(agent, message.run), [Exit(_dismissal(message))] if over else []
        case Step():
            return agent, [_breach(f"sent a step of run {message.run} without a plan.")]


def _unknown_end(agent: Agent, message: Finished) -> tuple[Agent, list[Action]]:
    """The end of a run without a plan here: an earlier process of this agent took part, or none did."""
    actions: list[Action] = [Say(Fetched(message.run))]
    if _is_idle(agent) and not aligns_for(message.run):
        actions.append(
            Notify(notices.run_over(None, message.run, message.outcome, message.reason, 0))
        )
        actions.append(Exit(outcome=message.outcome, run=message.run))
    return agent, actions


def _proposed(agent: Agent, proposal: Proposal, *, ask: bool) -> tuple[Agent, list[Action]]:
    plan = proposal.plan
    known = agent.runs.get(plan.run)
    if (
        known is not None and known.stage is Stage.OVER
    ):  # begins again when the work on the earlier one is done
        return _with(agent, plan.run, replace(known, inbox=(proposal,))), []
    if known is not None and known.plan != plan:
        return _refuse(agent, plan, "the plan changed in the middle of the run.")
    received, above = Notify(notices.plan_received(plan)), agent.runs.get(aligns_for(plan.run))
    if known is not None:  # another attempt, or a new session of the same one
        agent, actions = _queue(
            _with(agent, plan.run, replace(known, proposal=proposal)), plan.run, proposal
        )
    elif above is not None and above.stage in UNDECIDED and _aligns(above.plan, plan):
        return replace(agent, held={**agent.held, above.plan.run: proposal}), []
    elif (reason := _objection(agent, plan)) is not None:
        agent, actions = _refuse(agent, plan, reason)
    elif ask or (agent.ask_first and not aligns_for(plan.run)):
        agent, actions = _with(agent, plan.run, ActiveRun(proposal, Stage.JUDGED)), [Judge(plan)]
    else:
        if above is not None:
            agent = _with(agent, above.plan.run, replace(above, alignments=above.alignments + 1))
        agent, actions = _queue(_with(agent, plan.run, ActiveRun(proposal)), plan.run, proposal)
    return agent, [received, *actions]


def _is_agreed(agent: Agent, plan: Plan) -> bool:
    """Whether it aligns the ids of a run that this site takes part in, as that run's plan says."""
    run = agent.runs.get(aligns_for(plan.run))
    if run is None or run.stage is not Stage.ACTIVE or run.alignments >= MAX_ALIGNMENTS:
        return False
    return _aligns(run.plan, plan)


def _aligns(above: Plan, plan: Plan) -> bool:
    """Whether a plan aligns the ids as the plan above it says: on the same column, for its sites or some of them."""
    return above.align is not None and plan == replace(alignment_of(above, 0), run=plan.run)


def _release(agent: Agent, name: str) -> tuple[Agent, list[Action]]:
    """Handle the alignment that waited for the consent to this run."""
    if (held := agent.held.get(name)) is None:
        return agent, []
    agent = replace(agent, held={run: other for run, other in agent.held.items() if run != name})
    return _proposed(agent, held, ask=False)


def _objection(agent: Agent, plan: Plan) -> str | None:
    others = [run.plan for run in agent.runs.values()]
    threads = {other.iteration.threads for other in others}
    if plan.objective.needs == "ids" and not _is_agreed(agent, plan):
        return (
            "an alignment of ids belongs to a run that this site takes part in, and happens once."
        )
    if aligns_for(plan.run) and plan.objective.needs != "ids":
        return f"run {plan.run} has the name of an alignment of ids, and is none."
    if agent.once and others and not aligns_for(plan.run):
        return f"this site takes part in run {others[0].run}. It takes part in one run at a time."
    if threads - {plan.iteration.threads}:
        return f"threads = {plan.iteration.threads}: an open run of this site uses {min(threads)}, which cannot change."
    if agent.begun >= MAX_BEGUN:
        return f"{agent.begun} consecutive runs began here and did not finish. The site's operator can restart the agent."
    return None


def _refuse(
    agent: Agent, plan: Plan, reason: str, *, for_now: bool = False
) -> tuple[Agent, list[Action]]:
    told = notices.dismissed if for_now else notices.refused
    refused: list[Action] = [
        Notify(told(plan.run, plan.study, reason)),
        Say(PlanRefused(plan.run, reason, for_now)),
    ]
    return _without(agent, plan.run), [
        *refused,
        *_refuse_held(agent, plan.run, reason, for_now=for_now),
        Forget(plan.run, keep_consent=False),
    ]


def _refuse_held(agent: Agent, name: str, reason: str, *, for_now: bool) -> list[Action]:
    return (
        [Say(PlanRefused(held.run, reason, for_now))]
        if (held := agent.held.get(name)) is not None
        else []
    )


# --- consent ------------------------------------------------------------------------------------------------------


def _judged(agent: Agent, judged: Judged) -> tuple[Agent, list[Action]]:
    name = judged.run
    if (run := agent.runs.get(name)) is None or run.stage is not Stage.JUDGED:
        return agent, []
    if judged.reason is not None:  # the policy's refusal needs no decision of the operator
        return _refuse(agent, run.plan, judged.reason, for_now=judged.for_now)
    if run.approved and run.approved == judged.about:
        return _accepted(agent, run)
    again = [Notify(notices.asked_again(name, run.plan.study))] if run.approved else []
    asked = AskOperator(run.plan, judged.about, run.proposal.approval)
    waits = replace(run, stage=Stage.WAITING, approved={})
    return _with(agent, name, waits), [*again, asked, Say(Approval(name, False))]


def _decided(agent: Agent, decided: Decided) -> tuple[Agent, list[Action]]:
    if (run := agent.runs.get(decided.run)) is None or run.stage is not Stage.WAITING:
        return agent, []
    if (
        run.plan.digest != decided.digest
    ):  # the coordinator exchanged the plan; its own question follows
        return agent, []
    if not decided.approved:
        return _refuse(agent, run.plan, decided.reason or "its operator refused it.")
    if not decided.about:
        return _accepted(agent, run)
    # The table, or what this site answered, can have changed since the operator was asked.
    return _with(agent, decided.run, replace(run, stage=Stage.JUDGED, approved=decided.about)), [
        Judge(run.plan)
    ]


def _accepted(agent: Agent, run: ActiveRun) -> tuple[Agent, list[Action]]:
    name, actions = run.plan.run, list[Action]()
    agent = _with(agent, name, replace(run, stage=Stage.NEW, approved={}))
    if agent.connected:  # otherwise the coordinator sends the plan again
        agent, actions = _queue(agent, name, run.proposal)
        actions = [Say(Approval(name, True)), *actions]
    return agent, [Notify(notices.approved(name, run.plan.study)), *actions]


# --- work ---------------------------------------------------------------------------------------------------------


def _queue(agent: Agent, name: str, message: RunMessage) -> tuple[Agent, list[Action]]:
    """Append a message to a run's inbox."""
    run = agent.runs[name]
    if isinstance(message, Dismissed) or (
        isinstance(message, Finished) and run.stage is not Stage.ACTIVE
    ):
        return _end_unworked(agent, run, message)
    if run.stage in (Stage.JUDGED, Stage.WAITING):
        if isinstance(
            message, Proposal
        ):  # a new session or attempt, and the operator has not decided yet
            return agent, [Say(Approval(name, False))] if run.stage is Stage.WAITING else []
        return agent, [_breach(f"sent a step of run {name}, whose plan this site did not accept.")]
    return _next(_with(agent, name, replace(run, inbox=(*run.inbox, message))), name)


def _next(agent: Agent, name: str) -> tuple[Agent, list[Action]]:
    run = agent.runs[name]
    if run.busy or not (
        run.inbox and agent.connected
    ):  # the coordinator sends the plan again in the next session
        return agent, []
    message, *rest = run.inbox
    actions: list[Action] = [Work(run.plan, message)]
    begun = agent.begun
    if isinstance(message, Step):
        begun += not run.answered
        run = replace(run, answered=True)
    return _with(
        replace(agent, begun=begun), name, replace(run, inbox=tuple(rest), busy=True)
    ), actions


def _worked(agent: Agent, worked: Worked) -> tuple[Agent, list[Action]]:
    message = worked.message
    if (run := agent.runs.get(message.run)) is None:
        return agent, []
    plan, run = run.plan, replace(run, busy=False)
    agent = _with(agent, plan.run, run)
    if worked.breach is not None:
        return agent, [_breach(worked.breach)]
    if run.stage is Stage.OVER:
        agent, again = _without(agent, plan.run), list[Action]()
        if run.inbox:
            agent, again = _heard(agent, run.inbox[0])
        return agent, [Forget(plan.run, keep_consent=True), *again]
    if isinstance(message, Finished) and worked.accepted is not False:
        outcome = message.outcome
        over = notices.run_over(plan, plan.run, outcome, message.reason, worked.models)
        actions: list[Action] = [Forget(plan.run, keep_consent=outcome in RESUMABLE)]
        if agent.once and not aligns_for(plan.run):
            actions.append(Exit(outcome=outcome, run=plan.run))
        return _without(replace(agent, begun=0), plan.run), [Notify(over), *actions]
    if worked.accepted is False:
        told = notices.dismissed if worked.for_now else notices.refused
        refused: list[Action] = [Notify(told(plan.run, plan.study, worked.reason))]
        refused += [
            *_refuse_held(agent, plan.run, worked.reason, for_now=worked.for_now),
            Forget(plan.run, keep_consent=False),
        ]
        # Nothing more comes of its one run.
        if agent.once and isinstance(message, Finished) and not aligns_for(plan.run):
            refused.append(Exit(Refused(worked.reason)))
        agent, ended = _without(agent, plan.run), list[Action]()
        for waiting in (
            run.inbox
        ):  # another site refused first: the run's end waits here, and does not come again
            if isinstance(waiting, Finished):
                agent, ended = _heard(agent, waiting)
        return agent, [*refused, *ended]
    if worked.accepted:
        agent, held = _release(_with(agent, plan.run, replace(run, stage=Stage.ACTIVE)), plan.run)
        agent, actions = _next(agent, plan.run)
        return agent, [*held, *actions]
    return _next(agent, plan.run)


def _end_unworked(
    agent: Agent, run: ActiveRun, message: Finished | Dismissed
) -> tuple[Agent, list[Action]]:
    """The end of a run that this site did not accept, or that continues without it."""
    plan = run.plan
    keep, once = message.outcome in RESUMABLE, agent.once and not aligns_for(plan.run)
    if isinstance(message, Finished):
        over = notices.run_over(plan, plan.run, message.outcome, message.reason, 0)
        actions: list[Action] = [Say(Fetched(plan.run)), Notify(over), Forget(plan.run, keep)]
        if once:
            actions.append(Exit(outcome=message.outcome, run=plan.run))
        return _without(agent, plan.run), actions
    actions = [Forget(plan.run, keep)]
    if once:  # the error says it
        actions.append(Exit(_dismissal(message)))
    else:
        actions.insert(0, Notify(notices.dismissed(plan.run, plan.study, message.reason)))
    return _without(agent, plan.run), actions


def _dismissal(message: Dismissed) -> CoregError:
    kinds = {Outcome.SITE_FAULT: BadData, Outcome.STALLED: LeftBehind}
    return kinds.get(message.outcome, Refused)(
        f"this site does not take part in run {message.run}: {message.reason}"
    )


def _breach(what: str) -> Exit:
    return Exit(Refused(f"the coordinator broke the protocol: it {what} No answer was sent."))


def _is_known(agent: Agent, name: str) -> bool:
    return name in agent.runs and agent.runs[name].stage is not Stage.OVER


def _is_idle(agent: Agent) -> bool:
    """Whether it is an agent of one run that has no run now. With a run, it ends when the run ends."""
    return agent.once and not any(_is_known(agent, name) for name in agent.runs)


def _no_longer_waits(agent: Agent, name: str) -> Agent:
    """Drop a plan that waits for the work of an earlier one, or for a consent: it has ended too."""
    agent = replace(
        agent, held={above: plan for above, plan in agent.held.items() if plan.run != name}
    )
    return _with(agent, name, replace(agent.runs[name], inbox=())) if name in agent.runs else agent


def _with(agent: Agent, name: str, run: ActiveRun) -> Agent:
    return replace(agent, runs={**agent.runs, name: run})


def _without(agent: Agent, name: str) -> Agent:
    agent = replace(
        agent, held={above: plan for above, plan in agent.held.items() if above != name}
    )
    run = agent.runs.get(name)
    if run is not None and run.busy:
        return _with(agent, name, replace(run, stage=Stage.OVER, inbox=()))
    return replace(agent, runs={other: run for other, run in agent.runs.items() if other != name})
