"""The agent as a function: a table of cases. tests/storm has whatever a coordinator and an operator
can do.
"""

from dataclasses import replace

import pytest
from machine.tiny import make_plan, sealed

from coreg_core.messages import (
    MOST_OPEN,
    Countersigned,
    Dismissed,
    Finished,
    LedgerHead,
    Proposal,
    Rejected,
    Renewed,
    Step,
)
from coreg_core.objectives.alignment import Alignment
from coreg_core.outcomes import Outcome
from coreg_core.plan import alignment_of
from site_agent.machine.agent import (
    MAX_INBOX,
    MAX_PROPOSED,
    MAX_USELESS,
    MOST_REASON,
    Agent,
    handle,
)
from site_agent.machine.session_events import (
    Asked,
    Decided,
    EndSession,
    Exit,
    Forget,
    MessageReceived,
    Notify,
    PlanJudged,
    Say,
    SessionEnded,
    SessionOpened,
    Work,
    Worked,
)


def proposal(run="r", attempt=0, **changes):
    return Proposal(run, attempt, make_plan(run=run, **changes))


PLAN = proposal()
DIGEST = PLAN.plan.digest


def step(run="r", number=0):
    return Step(run, 0, number)


def finished(outcome=Outcome.STALLED, run="r"):
    return Finished(run, outcome, "why")


def dismissed(outcome=Outcome.STALLED, run="r"):
    return Dismissed(run, outcome, "why")


def brief(action):
    """An action in a few words: cases compare whole lists of them."""
    match action:
        case Say(message):
            words = f"say {type(message).__name__}"
            if getattr(message, "for_now", False):
                words += " for now"
            return words
        case Work(message):
            return f"work on {type(message).__name__}"
        case Notify(notice):
            return f"notify {notice.name}"
        case Forget(_, keep_consent):
            if keep_consent:
                return "forget, but for the consent"
            return "forget"
        case EndSession(reason):
            return f"end session: {reason}"
        case Exit(error=None, outcome=None):
            return "exit"
        case Exit(error=None, outcome=outcome):
            return f"exit {outcome.name}"
        case Exit(error=error):
            return f"exit {type(error).__name__}: {error}"
        case _:
            return type(action).__name__


def after(*events, **agent):
    """The agent after these events, messages among them, and what it does at the last."""
    state = Agent(**agent)
    actions = []
    for event in (SessionOpened(), *events):
        known = (SessionOpened, SessionEnded, Asked, PlanJudged, Decided, Worked, MessageReceived)
        if not isinstance(event, known):
            event = MessageReceived(event)
        state, actions = handle(state, event)
    return state, "; ".join(map(brief, actions))


PLANNED = [PLAN, Worked(PLAN, accepted=True)]  # accepted and idle
ASKED = [PLAN, PlanJudged("r", None)]  # put to the operator
ASKS = {"ask_first": True}
ONCE = {"once": True}
BROKE = "end session: the coordinator broke the protocol: it "
NOTHING = " No answer was sent."
USELESS = f"sent {MAX_USELESS} plans or ends of runs that came to nothing here.{NOTHING}"
# Plans that end before this site takes part, one less than it takes.
ENDED_EARLY = [
    event
    for n in range(MAX_USELESS - 1)
    for event in (
        proposal(f"r{n}"),
        dismissed(run=f"r{n}"),
        Worked(proposal(f"r{n}"), accepted=True),
    )
]

MEMBERS = ("0a", "0b", "0c")  # their keys
ABOVE = Proposal(
    "r",
    0,
    replace(sealed(make_plan(run="r", min_sites=3)), align=Alignment()),
    keys=MEMBERS,
)
ALIGN = Proposal("r-ids-0", 0, alignment_of(ABOVE.plan, 0), keys=MEMBERS)
OTHER_COLUMN = replace(ALIGN, plan=replace(ALIGN.plan, id="name"))
ALIGNED = Finished("r-ids-0", Outcome.CONVERGED, "")
TAKEN = [ABOVE, Worked(ABOVE, accepted=True)]
APPROVED = [ABOVE, PlanJudged("r", None), Decided("r", True, "", ABOVE.plan.digest), TAKEN[1]]

ON_DEMAND = replace(ABOVE, run="r-ask-1", plan=replace(ABOVE.plan, run="r-ask-1"))
ALIGN_NOW = Proposal("r-ask-1-ids-0", 0, alignment_of(ON_DEMAND.plan, 0), keys=MEMBERS)
NO_RUN = Finished("r-ask-1", Outcome.TOO_FEW_SITES, "south not connected")
REFUSES = "notify plan; notify refused; say PlanRefused; forget"


def replaced(number):
    run = f"r-ids-{number}"
    return Proposal(run, 0, replace(ALIGN.plan, run=run), keys=MEMBERS)


def ended(number):
    """An alignment of the run from its plan to its end."""
    over = Finished(f"r-ids-{number}", Outcome.CONVERGED, "")
    return [replaced(number), Worked(replaced(number), accepted=True), over, Worked(over)]


CASES = {
    "a plan is worked on": ([PLAN], {}, "notify plan; work on Proposal"),
    "a step waits while another is worked on": ([*PLANNED, step(), step("r", 1)], {}, ""),
    "and is worked on when that is done": (
        [*PLANNED, step(), step("r", 1), Worked(step())],
        {},
        "work on Step",
    ),
    "a run is forgotten where a step shows that this site does not go on": (
        [*PLANNED, step(), Worked(step(), accepted=False, reason="another machine")],
        {},
        "notify refused; forget",
    ),
    "a run that ended meanwhile ends an agent of one run": (
        [*PLANNED, step(), finished(), Worked(step(), accepted=False, reason="opened often")],
        ONCE,
        "notify refused; forget; say Fetched; notify run_over; exit STALLED",
    ),
    "the consent to a run that stalled stays": (
        [*PLANNED, finished(), Worked(finished())],
        {},
        "notify run_over; forget, but for the consent",
    ),
    "an agent of one run ends with it": (
        [*PLANNED, finished(), Worked(finished())],
        ONCE,
        "notify run_over; forget, but for the consent; exit STALLED",
    ),
    "another plan under the same name is refused": (
        [*PLANNED, proposal(federation="another")],
        {},
        "notify refused; say PlanRefused; forget",
    ),
    "a plan with another number of threads is refused": (
        [*PLANNED, proposal("s", threads=2)],
        {},
        "notify plan; notify refused; say PlanRefused; forget",
    ),
    "runs that a member spoils stop no later one": (
        [
            event
            for n in range(2 * MAX_USELESS)
            for event in (
                proposal(f"r{n}"),
                Worked(proposal(f"r{n}"), accepted=True),
                step(f"r{n}"),
                Worked(step(f"r{n}"), accepted=False, reason="its offer is not signed"),
                finished(run=f"r{n}"),
            )
        ],
        {},
        "say Fetched",
    ),
    # --- consent
    "a plan is judged before the operator is asked": ([PLAN], ASKS, "notify plan; Judge"),
    "a run that a site asked for aligns no ids": (
        [ON_DEMAND, Worked(ON_DEMAND, accepted=True), ALIGN_NOW],
        {},
        "notify plan; notify refused; say PlanRefused; forget",
    ),
    "a request for scores is sent while there is a session": ([Asked("now")], {}, "say Wanted"),
    "and not without one": ([SessionEnded(), Asked("now")], {}, ""),
    "the end of a run that could not begin is told": (
        [Asked("now"), NO_RUN],
        {},
        "say Fetched; notify run_over",
    ),
    "a standing plan that was approved in another run is not asked about": (
        [MessageReceived(PLAN, agreed=True)],
        ASKS,
        "notify plan; work on Proposal",
    ),
    "but with new keys of members it is": (
        [MessageReceived(PLAN, strangers=True, agreed=True)],
        ASKS,
        "notify plan; Judge",
    ),
    "the operator is asked about a plan that the policy allows": (
        ASKED,
        ASKS,
        "AskOperator; say Approval",
    ),
    "and not about one that it refuses": (
        [PLAN, PlanJudged("r", "max_rounds")],
        ASKS,
        "notify refused; say PlanRefused; forget",
    ),
    "a run waits for a table that can be mended": (
        [PLAN, PlanJudged("r", "a fault", for_now=True)],
        ASKS,
        "notify dismissed; say PlanRefused for now; forget",
    ),
    "an approved plan is worked on": (
        [*ASKED, Decided("r", True, "", DIGEST)],
        ASKS,
        "notify approved; say Approval; work on Proposal",
    ),
    "and is worked on once there": (
        [
            *ASKED,
            SessionEnded(),
            Decided("r", True, "", DIGEST),
            SessionOpened(),
            PLAN,
            Worked(PLAN, accepted=True),
        ],
        ASKS,
        "",
    ),
    "a plan that comes again while the operator thinks is pending still": (
        [*ASKED, SessionEnded(), SessionOpened(), PLAN],
        ASKS,
        "notify plan; say Approval",
    ),
    "a plan that the operator refuses is refused": (
        [*ASKED, Decided("r", False, "not this one", DIGEST)],
        ASKS,
        "notify refused; say PlanRefused; forget",
    ),
    "a run that ends before it was approved is over": (
        [*ASKED, finished()],
        ASKS,
        "say Fetched; notify run_over; forget, but for the consent",
    ),
    "a plan with unconfirmed keys is put to the operator": (
        [MessageReceived(PLAN, strangers=True)],
        {},
        "notify plan; Judge",
    ),
    # --- alignments of ids
    "the alignment of an approved run needs no approval": (
        [*APPROVED, ALIGN],
        ASKS,
        "notify plan; work on Proposal",
    ),
    "on another column it is refused": ([*APPROVED, OTHER_COLUMN], ASKS, REFUSES),
    "without its run it is refused": ([ALIGN], {}, REFUSES),
    "a run that has the name of an alignment is refused": (
        [*TAKEN, proposal("r-ids-0")],
        {},
        REFUSES,
    ),
    "one consent is for few alignments": (
        [*TAKEN, *(each for n in range(3) for each in ended(n)), replaced(3)],
        {},
        REFUSES,
    ),
    "a decision on another plan has no effect": (
        [*ASKED, Decided("r", True, "", "another")],
        ASKS,
        "",
    ),
    "and with keys that nobody confirmed": (
        [*APPROVED, MessageReceived(ALIGN, strangers=True)],
        ASKS,
        "notify plan; Judge",
    ),
    "an alignment waits until its run is decided": ([ABOVE, ALIGN], ONCE, ""),
    "and is worked on after that": (
        [ABOVE, ALIGN, Worked(ABOVE, accepted=True)],
        ONCE,
        "notify plan; work on Proposal",
    ),
    "and is refused with it": (
        [ABOVE, ALIGN, Worked(ABOVE, accepted=False, reason="no")],
        {},
        "notify refused; say PlanRefused; forget",
    ),
    "one of a session that ended comes again": (
        [ABOVE, ALIGN, SessionEnded(), SessionOpened(), ABOVE, Worked(ABOVE, accepted=True)],
        ONCE,
        "",
    ),
    "its end is not that of an agent of one run": (
        [*TAKEN, ALIGN, Worked(ALIGN, accepted=True), ALIGNED, Worked(ALIGNED)],
        ONCE,
        "notify run_over; forget",
    ),
    "nor is its dismissal": (
        [*TAKEN, ALIGN, Worked(ALIGN, accepted=True), dismissed(run="r-ids-0")],
        ONCE,
        "notify dismissed; forget, but for the consent",
    ),
    # --- ends
    "a run that goes on without this site is forgotten": (
        [*PLANNED, dismissed(Outcome.SITE_FAULT)],
        {},
        "notify dismissed; forget",
    ),
    "an agent of one run ends when it is dismissed": (
        [*PLANNED, dismissed(Outcome.SITE_FAULT)],
        ONCE,
        "forget; exit BadData: this site does not take part in run r: why",
    ),
    "and ends an agent of one run": (
        [finished()],
        ONCE,
        "say Fetched; notify run_over; exit STALLED",
    ),
    "the end of another run does not end an agent of one run": (
        [*PLANNED, finished(run="s")],
        ONCE,
        "say Fetched",
    ),
    "an agent of one run whose run is being ended ends with the dismissal": (
        [PLAN, proposal(federation="another"), dismissed()],
        ONCE,
        "exit LeftBehind: this site does not take part in run r: why",
    ),
    "but for an agent of one run": (
        [dismissed()],
        ONCE,
        "exit LeftBehind: this site does not take part in run r: why",
    ),
    "a run that ends while its plan is worked on is over at once": (
        [PLAN, finished()],
        {},
        "say Fetched; notify run_over; forget, but for the consent",
    ),
    "and forgotten again when that is done": (
        [PLAN, finished(), Worked(PLAN, accepted=True)],
        {},
        "forget, but for the consent",
    ),
    "and is worked on then": (
        [PLAN, dismissed(), PLAN, Worked(PLAN, accepted=True)],
        {},
        "forget, but for the consent; notify plan; work on Proposal",
    ),
    # --- breaches
    "a step of an unknown run": (
        [step()],
        {},
        f"{BROKE}sent a step of run r without a plan.{NOTHING}",
    ),
    "a step before the consent": (
        [*ASKED, step()],
        ASKS,
        f"{BROKE}sent a step of run r, whose plan this site did not accept.{NOTHING}",
    ),
    "and of an agent of one run": (
        [step()],
        ONCE,
        "exit Refused: the coordinator broke the protocol:"
        f" it sent a step of run r without a plan.{NOTHING}",
    ),
    "more messages of a run than wait": (
        [*PLANNED, *(step(number=n) for n in range(MAX_INBOX + 2))],
        {},
        f"{BROKE}sent {MAX_INBOX} messages of run r before this site could answer one.{NOTHING}",
    ),
    "a second next certificate": (
        [Renewed("pem"), Renewed("pem")],
        {},
        f"{BROKE}sent two next certificates.{NOTHING}",
    ),
    "a plan of another run": (
        [replace(PLAN, run="s")],
        {},
        f"{BROKE}proposed run s with the plan of run r.{NOTHING}",
    ),
    "ends of runs that come to nothing": (
        [finished(run=f"r{n}") for n in range(MAX_USELESS)],
        {},
        f"say Fetched; {BROKE}{USELESS}",
    ),
    "and dismissals": (
        [dismissed(run=f"r{n}") for n in range(MAX_USELESS)],
        {},
        f"notify dismissed; {BROKE}{USELESS}",
    ),
    "and plans that end before this site takes part": (
        [
            *ENDED_EARLY,
            PLAN,
            dismissed(),
        ],
        {},
        f"notify dismissed; forget, but for the consent; {BROKE}{USELESS}",
    ),
    "one good plan among them": (
        [
            *ENDED_EARLY,
            proposal("good"),
            Worked(proposal("good"), accepted=True),
            proposal("s"),
            dismissed(run="s"),
            Worked(proposal("s"), accepted=True),
            PLAN,
            dismissed(),
        ],
        {},
        f"notify dismissed; forget, but for the consent; {BROKE}{USELESS}",
    ),
    "plans that are refused": (
        [*PLANNED, *(proposal(f"r{n}", threads=2) for n in range(MAX_USELESS))],
        {},
        f"{REFUSES}; {BROKE}{USELESS}",
    ),
    "also those of several sessions": (
        [
            *PLANNED,
            *(proposal(f"r{n}", threads=2) for n in range(MAX_USELESS - 1)),
            SessionEnded(),
            SessionOpened(),
            proposal("s", threads=2),
        ],
        {},
        f"{REFUSES}; {BROKE}{USELESS}",
    ),
    "an approval without a session is said in the next one": (
        [
            *ASKED,
            SessionEnded(),
            Decided("r", True, "", PLAN.plan.digest),
            SessionOpened(),
            PLAN,
        ],
        ASKS,
        "notify plan; say Approval; work on Proposal",
    ),
    "a plan that is repeated in a session": (
        [*ASKED, *[PLAN] * MAX_PROPOSED],
        ASKS,
        f"{BROKE}proposed run r {MAX_PROPOSED + 1} times in a session.{NOTHING}",
    ),
    "and not in many sessions of a flaky link": (
        [*ASKED, *[SessionEnded(), SessionOpened(), PLAN] * (2 * MAX_USELESS)],
        ASKS,
        "notify plan; say Approval",
    ),
    "the ends of runs that this site refused": (
        [
            *PLANNED,
            *(
                event
                for n in range(MAX_USELESS - 1)
                for event in (proposal(f"r{n}", threads=2), dismissed(run=f"r{n}"))
            ),
        ],
        {},
        "notify dismissed",
    ),
    "more open runs than an agent has": (
        [proposal(f"r{n}") for n in range(MOST_OPEN + 1)],
        {},
        REFUSES,
    ),
    # --- sessions
    "a session that is refused for good, too": (
        [Rejected("replaced", final=True)],
        {},
        "end session: the coordinator refused this session: replaced",
    ),
    "a session that is refused ends, and is dialled again": (
        [Rejected("not listed")],
        {},
        "end session: the coordinator refused this session: not listed",
    ),
    "or the agent has one run": (
        [Rejected("not listed")],
        ONCE,
        "exit Refused: the coordinator refused this session: not listed",
    ),
    "a countersignature is written": (
        [Countersigned("r", LedgerHead(), "", "", "")],
        {},
        "Countersign",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_an_agent_does(case):
    events, agent, expected = CASES[case]
    assert after(*events, **agent)[1] == expected


def test_the_text_of_a_plan_is_for_its_first_proposal():
    texts = list[str]()
    state = Agent()
    for event in (SessionOpened(), MessageReceived(PLAN), MessageReceived(PLAN)):
        state, actions = handle(state, event)
        texts += [action.notice.text for action in actions if isinstance(action, Notify)]
    first, second = texts
    assert first.startswith("plan of run r: ")
    assert second == ""


def test_of_a_long_reason_a_part_is_kept():
    long = Finished("r", Outcome.STALLED, "x" * 10_000)
    _, actions = handle(after(PLAN)[0], MessageReceived(long))
    [notice] = [action.notice for action in actions if isinstance(action, Notify)]
    assert len(notice.fields["reason"]) == MOST_REASON
