"""What an answer may contain: checked before the coordinator copies anything of it.

The coordinator cannot read answers. But the plan and the members' offers bound what one of them
contains: how many words, and a part of how many bytes for whom (`coreg_core.plan.Plan.shape`). So
a member that sends more, or to someone else, is named before any other site hears of it.
"""

from collections.abc import Mapping

import numpy as np

from coreg_core.messages import Answer, Part, Report, Step, Words
from coreg_core.objectives.setting import SEAL_BYTES, TAG_WORDS, Shape
from coreg_core.outcomes import Outcome
from coreg_core.plan import Plan


def answer_fault(
    plan: Plan, members: tuple[str, ...], shared: int, site: str, answer: Answer
) -> str | None:
    """Why this answer of a member is not one that the plan allows, or None.

    ``shared``: the number of shared instances in all offers of the attempt.
    """
    report = answer.report
    if report.asked and report.asked not in members:
        return f"it reports a question to {report.asked}, which is no member of this attempt"
    if report.outcome and report.outcome not in Outcome.__members__:
        return f"it reports an unknown outcome, {report.outcome!a}"
    if report.outcome:
        shape: Shape | None = Shape()
    else:
        shape = plan.shape(report.question, shared, members)
    if shape is None:
        return f"it answers a question that the plan does not have ({report.question!a})"
    if report.asked and report.asked != site:
        shape = Shape()  # another site answers
    return _payload_fault(answer, shape, site, members, masked=plan.masked)


def _payload_fault(
    answer: Answer, shape: Shape, site: str, members: tuple[str, ...], *, masked: bool
) -> str | None:
    what = f"its answer to step {answer.step} ({answer.report.question or 'the end'})"
    words = 0 if answer.summed is None else len(answer.summed.values)
    most = shape.summed + TAG_WORDS if masked and shape.summed else shape.summed
    if words > most:
        return f"{what} has {words} words, where at most {most} are summed"
    receivers = [part.receiver for part in answer.parts]
    if len(set(receivers)) < len(receivers):
        return f"{what} has {len(receivers)} parts, of which several are for the same receiver"
    for part in answer.parts:
        if part.sender != site:
            return f"{what} has a part that names {part.sender} as its sender"
        allowed = _allowed(shape, part, site, members)
        size = len(part.data) - SEAL_BYTES
        if size > allowed:
            whom = part.receiver or "all members"
            return f"{what} has a part of {size} bytes for {whom}, where at most {allowed} fit"
    return None


def _allowed(shape: Shape, part: Part, site: str, members: tuple[str, ...]) -> int:
    """The most bytes of a part; below 0: no such part may be sent."""
    if not part.receiver:
        return shape.to_all or -SEAL_BYTES - 1
    if part.receiver == site or part.receiver not in members:
        return -SEAL_BYTES - 1
    return shape.to_each.get(part.receiver, -SEAL_BYTES - 1)


def disagreement(answers: Mapping[str, Answer]) -> str | None:
    """Why these answers contradict each other; None if they agree.

    Names the minority, which is no proof of its fault.
    """
    reports = {site: answer.report for site, answer in answers.items()}
    if others := _minority(reports):
        return (
            f"{', '.join(others)}: reports something else about the computation than the other "
            "sites. A site computes differently from the others, or does not follow the plan."
        )
    report = next(iter(reports.values()))
    lengths = {
        site: 0 if answer.summed is None else len(answer.summed.values)
        for site, answer in answers.items()
        if not report.asked or site == report.asked
    }
    if others := _minority(lengths):
        listed = ", ".join(f"{site}: {lengths[site]} words" for site in others)
        return f"answers of different lengths: {listed}; the other sites sent another number."
    return None


def _minority(values: Mapping[str, object]) -> list[str]:
    """The sites whose value is not the most frequent one."""
    kinds = dict[object, list[str]]()
    for site, value in values.items():
        kinds.setdefault(value, []).append(site)
    usual = max(kinds.values(), key=len)
    return [site for site in values if site not in usual]


def next_steps(run: str, attempt: int, step: int, answers: Mapping[str, Answer]) -> dict[str, Step]:
    """The next step of each site: the sum, and the parts for it and for all."""
    words = _sum([answer.summed for answer in answers.values() if answer.summed is not None])
    to_all = list[Part]()
    to_each: dict[str, list[Part]] = {}
    for answer in answers.values():
        for part in answer.parts:
            if part.receiver:
                to_each.setdefault(part.receiver, []).append(part)
            else:
                to_all.append(part)
    common = Step(run, attempt, step, (), words, tuple(to_all))  # one message is encoded once
    return {
        site: Step(run, attempt, step, (), words, (*to_all, *to_each[site]))
        if site in to_each
        else common
        for site in answers
    }


def _sum(rows: list[Words]) -> Words | None:
    """The words of all, modulo 2⁶⁴."""
    if not rows:
        return None
    total = rows[0].values.copy()
    for row in rows[1:]:
        np.add(total, row.values, out=total)
    return Words(total)


def phase_of(plan: Plan, report: Report) -> str:
    """The part of the run that a report belongs to, as an operator reads it."""
    kind = plan.objective.questions.get(report.question)
    return "" if kind is None else kind.phase
