"""The steps of a run: collect answers, add their words, handle timeouts.

Handlers of a `RunUpdate`; the table that calls them is in dispatch.py. The coordinator cannot interpret the words. It adds
them, forwards the parts that sites encrypt for each other, and compares the heads.
"""

from collections import Counter

import numpy as np

from coordinator.machine import delivery, membership, notices
from coordinator.machine.events import DeadlinePassed, Received
from coordinator.machine.phases import Phase, Transition
from coordinator.machine.records import StepDone
from coordinator.machine.run import RunUpdate
from coreg_core.protocol.messages import Answer, Fault, Part, Report, Step
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.words import Words


def answered(update: RunUpdate, event: Received[Answer]) -> None:
    """Handle an answer to the open step, or a late one, which shows that a dropped site is connected."""
    live, site, answer = update.live, event.site, event.message
    if site not in live.ready:
        return  # it has not offered in this session; the step will be sent again
    open_step = live.steps.get(site)
    if open_step is None or (answer.attempt, answer.step) != (open_step.attempt, open_step.step):
        if site not in update.recorded.participants:
            update.change(proven=live.proven | {site})
            go_on(update)
        return
    if site in live.answers:
        return
    if answer.head.site != site:
        membership.exclude(
            update, site, Outcome.SITE_FAULT, f"{site}: answered in the name of {answer.head.site[:40]}."
        )
        return
    update.change(answers={**live.answers, site: answer})
    if not update.run.complete:
        go_on(update)


def faulted(update: RunUpdate, event: Received[Fault]) -> None:
    """A site reports a fault. A fault of an earlier attempt is ignored."""
    live, site, fault = update.live, event.site, event.message
    open_step = live.steps.get(site)
    if site in live.ready and open_step is not None and fault.attempt == open_step.attempt:
        membership.exclude(update, site, Outcome.SITE_FAULT, f"{site}: {fault.reason}")


def go_on(update: RunUpdate) -> None:
    """Continue a stalled run if enough sites have answered and the plan allows dropout."""
    live, terms = update.live, update.plan.membership
    if live.phase is not Phase.STALLED or terms.on_dropout != "continue":
        return  # first, since this runs after every answer and the rest is linear in the number of sites
    here = _not_awaited(update)
    if len(here) + len(membership.returning(update)) >= terms.min_sites:
        membership.drop(update, here)


def _not_awaited(update: RunUpdate) -> list[str]:
    awaited = frozenset(update.run.awaited)
    return [s for s in update.recorded.participants if s in update.live.ready and s not in awaited]


def settle(update: RunUpdate) -> None:
    """After each event: if all sites have answered, send the next step."""
    if update.live.phase in (Phase.ASKING, Phase.STALLED) and update.run.complete:
        _step(update)


def _step(update: RunUpdate) -> None:
    """Record the step, then end the run, begin a new attempt or send the next step."""
    recorded, sites = update.recorded, update.recorded.participants
    answers = [update.live.answers[site] for site in sites]
    if (fault := _disagreement(answers)) is not None:
        delivery.end(update, Outcome.SITE_FAULT, fault)
        return
    number, summed = recorded.steps, sum(answer.words is not None for answer in answers)
    report = answers[0].report  # equal states give equal reports
    update.record(StepDone(number, recorded.attempt, summed, report))
    update.notify(notices.StepAnswered(update.run.name, number, recorded.attempt, summed, report))
    if report.outcome:
        heads = tuple(answer.head for answer in answers)
        delivery.end(update, Outcome[report.outcome], report.reason, heads)
    elif membership.returning(update):
        membership.propose(update)
    else:
        membership.ask(update, _next(update, answers, report))


def _disagreement(answers: list[Answer]) -> str | None:
    """Why these answers contradict each other; None if they agree. Names the minority, which is not proof of its fault."""
    for kind in ("chain", "state"):
        counts = Counter(getattr(answer.head, kind) for answer in answers)
        if len(counts) > 1:
            usual = counts.most_common(1)[0][0]
            others = ", ".join(answer.head.site for answer in answers if getattr(answer.head, kind) != usual)
            what = (
                "have a different log of this run" if kind == "chain" else "computed a different state from equal sums"
            )
            return f"{others}: {what}. A site computes differently from the others, or does not follow the plan."
    ends = {answer.head.site: answer.report.outcome for answer in answers}
    if len(set(ends.values())) > 1:
        return f"the sites do not agree whether the run has ended: {', '.join(f'{s}: {e or chr(45)}' for s, e in ends.items())}."
    if ends and (end := next(iter(ends.values()))) and end not in Outcome.__members__:
        return f"unknown outcome {end[:40]!r}."
    added = {
        answer.head.site: len(answer.words.values) - answer.passed for answer in answers if answer.words is not None
    }
    if len(set(added.values())) > 1 or min(added.values(), default=0) < 0:
        return f"answers of different lengths: {', '.join(f'{s}: {n} words' for s, n in added.items())}."
    return None


def _next(update: RunUpdate, answers: list[Answer], report: Report) -> dict[str, Step]:
    """The next step of each site: the parts that other sites encrypted for it, the sum, and the words of each site beyond it."""
    rows = [(answer.words.values, answer.passed) for answer in answers if answer.words is not None]
    words: Words | None = None
    if rows:
        apart = [(row[: len(row) - passed], row[len(row) - passed :]) for row, passed in rows]
        total = apart[0][0].copy()
        for row, _ in apart[1:]:
            np.add(total, row, out=total)
        passed_on = [row for _, row in apart if len(row)]
        words = Words(np.concatenate([total, *passed_on]) if passed_on else total)
    parts: dict[str, list[Part]] = {site: [] for site in update.recorded.participants}
    for answer in answers:
        sender = answer.head.site
        for part in answer.parts:
            for site in parts if not part.site else (part.site,) if part.site in parts else ():
                if site != sender:
                    parts[site].append(Part(sender, part.data))
    heads = tuple(answer.head for answer in answers) if report.verified else ()
    before = next(iter(update.live.steps.values()))
    name, attempt, step = update.run.name, before.attempt, before.step + 1
    if not any(parts.values()):  # one message, so that it is encoded once
        return dict.fromkeys(parts, Step(name, attempt, step, heads=heads, words=words))
    return {site: Step(name, attempt, step, (), tuple(mine), heads, words) for site, mine in parts.items()}


# --- time ---------------------------------------------------------------------------------------------------------


def out_of_time(update: RunUpdate, _event: DeadlinePassed) -> None:
    """Sites did not answer within ``round``: continue without them, or wait."""
    terms, here = update.plan.membership, _not_awaited(update)
    if terms.on_dropout == "continue" and len(here) >= terms.min_sites:
        membership.drop(update, here)
        return
    missing = update.run.awaited
    update.take(Transition.STALLED)
    update.notify(notices.Stalled(update.run.name, missing, update.run.timeouts.stall))
    update.deadline(update.run.timeouts.stall)
