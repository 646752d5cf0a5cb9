"""The steps of a run: each answer is checked, and all of them together are the next step.

A step asks every member of the attempt the same question. The members step the solver themselves,
on the same opened sums, so the coordinator asks and adds without understanding either. A step is
complete when every member has answered. Then three things happen, in this order:

1. The answers' reports are compared. All members report the same round, the same question and the
   same figures, since all of them compute the same. A different report means that a site computes
   otherwise or does not follow the plan. The run ends, and its reason names the minority.
2. The step is recorded, with the figures of the report.
3. The words of the answers are added modulo 2⁶⁴, and each part goes to its receiver. Sum and parts
   are the next step. If the report has an outcome, the run ends instead.

The coordinator cannot read answers. But the plan and the members' offers bound what one of them
contains: how many words, and a part of how many bytes for whom (`coreg_core.plan.Plan.shape`). So
a member that sends more, or to someone else, is named before any other site hears of it.

A member that does not answer within `round` is dropped where the plan allows it. Otherwise the run
stalls: it waits `stall` seconds for the member to come back. A member that reconnects in time
offers again with the same keys, and receives the open step again. An answer to an earlier attempt
or step has no effect, so messages that were under way at a restart do no harm.

A fault of what a site received blames no one: another site sent it, under encryption, and the
coordinator cannot tell which.
"""

from collections.abc import Mapping

import numpy as np

from coordinator.machine import membership, notices
from coordinator.machine.events import DeadlinePassed, Persist, Received
from coordinator.machine.records import Phase, Sites, StepDone, Transition
from coordinator.machine.run import RunUpdate, Shapes, end
from coreg_core.messages import Answer, Fault, Part, Report, Step, Words
from coreg_core.outcomes import Outcome
from coreg_core.shapes import SEAL_BYTES, TAG_WORDS, Shape

NOTHING = Shape()


def answered(update: RunUpdate, event: Received[Answer]) -> None:
    """Handle an answer to the open step.

    A site that has not offered in this session receives the step again.
    """
    run = update.run
    site = event.site
    answer = event.message
    step = run.steps.get(site)
    if site not in run.ready or site in run.answers or step is None:
        return
    if (answer.attempt, answer.step) != (step.attempt, step.step):
        return
    fault = answer_fault(run.shapes, run.participants, site, answer, tagged=run.plan.masked)
    if fault is not None:
        membership.exclude(update, site, Outcome.SITE_FAULT, f"{site}: {fault}.")
        return
    update.change(answers={**run.answers, site: answer})
    if len(update.run.answers) == len(run.participants):
        _step(update)
    elif run.phase is Phase.STALLED and not run.here & set(update.run.awaited):
        _drop_missing(update)  # a missing site that is back has its time to answer


def faulted(update: RunUpdate, event: Received[Fault]) -> None:
    """A site reports a fault, of its own or of what it received. That of an earlier attempt is old.

    Which site sent what another could not use is not known: the run ends, and blames no one.
    """
    run = update.run
    site = event.site
    fault = event.message
    if site not in run.ready or site not in run.steps or fault.attempt != run.attempt:
        return
    if fault.received:
        reason = f"{fault.reason.removesuffix('.')} (found by {site}, which received it)"
        end(update, Outcome.SITE_FAULT, reason)
        return
    membership.exclude(update, site, Outcome.SITE_FAULT, f"{site}: {fault.reason}")


def _step(update: RunUpdate) -> None:
    """Record the step, then end the run or send the next step."""
    run = update.run
    answers = run.answers
    report = answers[run.participants[0]].report
    if (fault := disagreement(report, answers)) is not None:
        end(update, Outcome.SITE_FAULT, fault)
        return
    count = 0
    for answer in answers.values():
        count += answer.summed is not None or bool(answer.parts)
    kind = run.plan.objective.questions.get(report.question)
    phase = "" if kind is None else kind.phase
    done = StepDone(run.done, run.attempt, count, report, phase)
    update.actions.append(Persist(run.plan.run, done))
    update.change(done=run.done + 1)
    if report.outcome:
        end(update, Outcome[report.outcome], report.reason)
        return
    step = next(iter(run.steps.values())).step + 1
    update.ask(next_steps(run.plan.run, run.attempt, step, run.participants, answers))


def _drop_missing(update: RunUpdate) -> bool:
    """Begin the next attempt without the sites that have not answered, if the plan allows it and
    enough remain.
    """
    missing = update.run.awaited
    present = len(update.run.members) - len(missing)
    if not membership.go_on_without(update, missing, present, "answer in time"):
        return False
    membership.propose(update, f"{', '.join(missing)} did not answer in time")
    return True


def out_of_time(update: RunUpdate, _event: DeadlinePassed) -> None:
    """Sites did not answer within ``round``: continue without them, or wait."""
    if _drop_missing(update):
        return
    update.take(Transition.STALLED)
    update.notify(
        notices.stalled(
            update.run.name, update.run.awaited, update.run.waiting, update.run.timeouts.stall
        )
    )
    update.restart_timer(update.run.timeouts.stall)


def not_back(update: RunUpdate, _event: DeadlinePassed) -> None:
    """Sites did not come back within ``stall``."""
    if not _drop_missing(update):
        names = ", ".join(update.run.awaited)
        end(
            update,
            Outcome.STALLED,
            f"{names} did not reconnect within {update.run.timeouts.stall:g} s",
        )


# --- what an answer may contain ------------------------------------------------------------------


def answer_fault(
    shapes: Shapes, members: Sites, site: str, answer: Answer, *, tagged: bool
) -> str | None:
    """Why this answer of a member is not one that the plan allows, or None.

    ``shapes``: the bound of each kind of question. ``tagged``: sums have a tag.
    """
    report = answer.report
    if report.asked and report.asked not in members:
        return f"it reports a question to {report.asked}, which is no member of this attempt"
    shape = NOTHING  # at the end, and of a site that is not asked
    if report.outcome:
        if report.outcome not in Outcome.__members__:
            return f"it reports an unknown outcome, {report.outcome!a}"
    elif report.question not in shapes:
        return f"it answers a question that the plan does not have ({report.question!a})"
    elif report.asked in ("", site):
        shape = shapes[report.question]
    if answer.summed is not None:
        words = len(answer.summed.values)
        if not shape.summed:
            return f"{_named(answer)} has {words} words, where none are summed"
        most = shape.summed + (TAG_WORDS if tagged else 0)
        if words > most:
            return f"{_named(answer)} has {words} words, where at most {most} are summed"
    if answer.parts:
        return _part_fault(answer, shape, site, members)
    return None


def _named(answer: Answer) -> str:
    return f"its answer to step {answer.step} ({answer.report.question or 'the end'})"


def _part_fault(answer: Answer, shape: Shape, site: str, members: Sites) -> str | None:
    what = _named(answer)
    receivers = {part.receiver for part in answer.parts}
    if len(receivers) < len(answer.parts):
        return f"{what} has {len(answer.parts)} parts, of which several are for the same receiver"
    for part in answer.parts:
        if part.sender != site:
            return f"{what} has a part that names {part.sender} as its sender"
        allowed = _allowed(shape, part, site, members)
        size = len(part.data) - SEAL_BYTES
        whom = part.receiver or "all members"
        if allowed is None:
            return f"{what} has a part of {size} bytes for {whom}, where none is sent"
        if size > allowed:
            return f"{what} has a part of {size} bytes for {whom}, where at most {allowed} fit"
    return None


def _allowed(shape: Shape, part: Part, site: str, members: Sites) -> int | None:
    """The most bytes of a part; None: no such part may be sent."""
    if not part.receiver:
        return shape.to_all or None
    if part.receiver == site or part.receiver not in members:
        return None
    return shape.to_each.get(part.receiver)


# --- all answers --------------------------------------------------------------------------------


def disagreement(report: Report, answers: Mapping[str, Answer]) -> str | None:
    """Why these answers contradict each other; None if they agree. ``report``: of one of them.

    Names the minority, which is no proof of its fault; of two equal halves it names both.
    """
    lengths = dict[str, int]()
    same = True
    for site, answer in answers.items():
        same = same and answer.report == report
        if not report.asked or site == report.asked:
            lengths[site] = 0 if answer.summed is None else len(answer.summed.values)
    if same and len(set(lengths.values())) == 1:
        return None
    differing = _minority({site: answer.report for site, answer in answers.items()})
    if differing:
        what = "reports something else about the computation than the other sites"
        if len(differing) == len(answers):
            what = "report different things about the computation"
        who = ", ".join(differing)
        return f"{who}: {what}. A site computes differently, or does not follow the plan."
    return _of_lengths(lengths)


def _of_lengths(lengths: Mapping[str, int]) -> str:
    differing = _minority(lengths)
    listed = ", ".join(f"{site}: {lengths[site]} words" for site in differing)
    if len(differing) < len(lengths):
        listed += "; the other sites sent another number"
    return f"answers of different lengths: {listed}."


def _minority(values: Mapping[str, object]) -> list[str]:
    """The sites whose value is not the most frequent one; all of them at a tie."""
    kinds = dict[object, list[str]]()
    for site in sorted(values):
        kinds.setdefault(values[site], []).append(site)
    largest = max(map(len, kinds.values()))
    usual = [sites for sites in kinds.values() if len(sites) == largest]
    if len(usual) > 1:
        return sorted(values)
    return [site for site in sorted(values) if site not in usual[0]]


def next_steps(
    run: str, attempt: int, step: int, members: Sites, answers: Mapping[str, Answer]
) -> dict[str, Step]:
    """The next step of each site: the sum modulo 2⁶⁴, and the parts for it and for all."""
    total: np.ndarray | None = None
    to_all = list[Part]()
    to_each = dict[str, list[Part]]()
    for site in members:
        answer = answers[site]
        if answer.summed is not None:
            if total is None:
                total = np.zeros_like(answer.summed.values)
            np.add(total, answer.summed.values, out=total)
        for part in answer.parts:
            if part.receiver:
                to_each.setdefault(part.receiver, []).append(part)
            else:
                to_all.append(part)
    words = None if total is None else Words(total)
    common = Step(run, attempt, step, summed=words, parts=tuple(to_all))
    steps = dict.fromkeys(members, common)  # one message is encoded once
    for site, own in to_each.items():
        steps[site] = Step(run, attempt, step, summed=words, parts=(*to_all, *own))
    return steps
