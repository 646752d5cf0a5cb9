"""The steps of a run: collect answers, add their words, handle timeouts.

Handlers of a `RunUpdate`; the table that calls them is in dispatch.py. The coordinator cannot interpret the words. It adds
them, forwards the parts that sites encrypt for each other, and compares the reports.
"""

from collections import Counter
from collections.abc import Mapping

import numpy as np

from coordinator.machine import ending, membership, notices
from coordinator.machine.events import DeadlinePassed, Received
from coordinator.machine.records import Phase, StepDone, Transition
from coordinator.machine.run import Run, RunUpdate
from coreg_core.protocol.messages import Answer, Fault, Part, Step, Words
from coreg_core.protocol.outcomes import Outcome


def answered(update: RunUpdate, event: Received[Answer]) -> None:
    """Handle an answer to the open step. A site that has not offered in this session receives the step again."""
    run, site, answer = update.run, event.site, event.message
    step = run.steps.get(site)
    if site not in run.ready or site in run.answers or step is None:
        return
    if (answer.attempt, answer.step) != (step.attempt, step.step):
        return
    update.change(answers={**run.answers, site: answer})
    if update.run.complete:
        _step(update)
    elif run.phase is Phase.STALLED and not run.here & set(update.run.awaited):
        _drop_missing(update)  # a missing site that is back has its time to answer


def faulted(update: RunUpdate, event: Received[Fault]) -> None:
    """A site reports a fault. A fault of an earlier attempt is ignored."""
    run, site, fault = update.run, event.site, event.message
    if site in run.ready and site in run.steps and fault.attempt == run.attempt:
        membership.exclude(update, site, Outcome.SITE_FAULT, f"{site}: {fault.reason}")


def _step(update: RunUpdate) -> None:
    """Record the step, then end the run or send the next step."""
    run = update.run
    answers = {site: run.answers[site] for site in run.participants}
    if (fault := _disagreement(answers)) is not None:
        ending.end(update, Outcome.SITE_FAULT, fault)
        return
    summed = sum(answer.words is not None for answer in answers.values())
    report = answers[run.participants[0]].report
    update.record(StepDone(run.done, run.attempt, summed, report))
    update.notify(notices.step_answered(run.name, run.done, run.attempt, summed, report))
    update.change(done=run.done + 1)
    if report.outcome:
        ending.end(update, Outcome[report.outcome], report.reason)
    else:
        membership.ask(update, _next(run, answers))


def _disagreement(answers: Mapping[str, Answer]) -> str | None:
    """Why these answers contradict each other; None if they agree. Names the minority, which is not proof of its fault."""
    counts = Counter(answer.report for answer in answers.values())
    [(usual, _), *unusual] = counts.most_common()
    if unusual:
        others = ", ".join(site for site, answer in answers.items() if answer.report != usual)
        return (
            f"{others}: reports something else about the computation than the other sites. A site computes differently from the "
            "others, or does not follow the plan."
        )
    if usual.outcome and usual.outcome not in Outcome.__members__:
        return f"unknown outcome {usual.outcome[:40]!r}."
    added = {s: len(answer.words.values) - answer.passed for s, answer in answers.items() if answer.words is not None}
    if len(set(added.values())) > 1 or min(added.values(), default=0) < 0:
        return f"answers of different lengths: {', '.join(f'{s}: {n} words' for s, n in added.items())}."
    return None


def _next(run: Run, answers: Mapping[str, Answer]) -> dict[str, Step]:
    """The next step of each site: the parts that other sites encrypted for it, the sum, and the words of each site beyond it."""
    rows = [(answer.words.values, answer.passed) for answer in answers.values() if answer.words is not None]
    words: Words | None = None
    if rows:
        apart = [(row[: len(row) - passed], row[len(row) - passed :]) for row, passed in rows]
        total = apart[0][0].copy()
        for row, _ in apart[1:]:
            np.add(total, row, out=total)
        passed_on = [row for _, row in apart if len(row)]
        words = Words(np.concatenate([total, *passed_on]) if passed_on else total)
    parts: dict[str, list[Part]] = {site: [] for site in answers}
    for sender, answer in answers.items():
        for part in answer.parts:
            for site in parts if not part.site else (part.site,) if part.site in parts else ():
                if site != sender:
                    parts[site].append(Part(sender, part.data))
    step = next(iter(run.steps.values())).step + 1
    if not any(parts.values()):  # one message, so that it is encoded once
        return dict.fromkeys(parts, Step(run.name, run.attempt, step, words=words))
    return {site: Step(run.name, run.attempt, step, (), tuple(mine), words) for site, mine in parts.items()}


# --- time ---------------------------------------------------------------------------------------------------------


def _drop_missing(update: RunUpdate) -> bool:
    """Begin the next attempt without the sites that have not answered, if the plan allows it and enough remain."""
    missing, members = update.run.awaited, update.run.members
    if not membership.go_on_without(update, missing, len(members) - len(missing), "answer in time"):
        return False
    membership.propose(update, f"{', '.join(missing)} did not answer in time")
    return True


def out_of_time(update: RunUpdate, _event: DeadlinePassed) -> None:
    """Sites did not answer within ``round``: continue without them, or wait."""
    if _drop_missing(update):
        return
    update.take(Transition.STALLED)
    update.notify(notices.stalled(update.run.name, update.run.awaited, update.run.timeouts.stall))
    update.deadline(update.run.timeouts.stall)


def not_back(update: RunUpdate, _event: DeadlinePassed) -> None:
    """Sites did not come back within ``stall``."""
    if not _drop_missing(update):
        names = ", ".join(update.run.awaited)
        ending.end(update, Outcome.STALLED, f"{names} did not reconnect within {update.run.timeouts.stall:g} s")
