"""The rounds of a run: taking answers, stepping the computation with their sum, and what to do when time is up.

Handlers of a `RunUpdate`; the table that calls them is in machine.py. Sums are taken in site order, whatever the order of
arrival. What questions and answers mean is the computation's business.
"""

from collections.abc import Mapping

import numpy as np

from coordinator.machine import delivery, membership, notices, questions, slow_links
from coordinator.machine.events import Flow
from coordinator.machine.phases import Phase, Transition
from coordinator.machine.records import Snapshot
from coordinator.machine.run import RunUpdate
from coordinator.machine.sums import Answer
from coreg_core.errors import BadData
from coreg_core.protocol.messages import Ask, Fault, Inquiry, Share
from coreg_core.protocol.outcomes import Outcome

SNAPSHOT_EVERY = 20  # questions: so many sums at most are replayed when a run is taken up again


# --- answers ------------------------------------------------------------------------------------------------------


def answered(update: RunUpdate, site: str, answer: Answer) -> None:
    """An answer came: of the open question, or of one that was asked on trial; anything else is late or repeated."""
    live = update.live
    ask = live.ask
    assert ask is not None
    if site not in live.ready:
        return  # not yet in the plan in this session; it will be asked again
    number = (answer.question, answer.attempt)
    trial = live.trials.get(site)
    if number == (ask.question, ask.attempt) and site in live.asked and site not in live.answers:
        if _usable(update, site, answer, ask):
            update.change(answers={**live.answers, site: answer})
            if not update.run.complete:
                go_on(update)
    elif trial is not None and number == (trial.question, trial.attempt) and _usable(update, site, answer, trial):
        if questions.reusable(update, trial):
            questions.hold(update, trial, {site: answer})
        trials = {s: asked for s, asked in update.live.trials.items() if s != site}
        update.change(trials=trials, proven=update.live.proven | {site})
        go_on(update)


def _usable(update: RunUpdate, site: str, answer: Answer, ask: Ask | Inquiry) -> bool:
    computation = update.recorded.computation
    assert computation is not None
    reason = computation.fault(update.recorded.state, ask, answer)
    if reason is None:
        stated = update.live.accepted.get(site) or update.recorded.accepted[site]
        reason = computation.false(ask, answer, stated)
    if reason is None:
        return True
    membership.exclude(update, site, Outcome.SITE_FAULT, f"{site}: {reason}")
    return False


def faulted(update: RunUpdate, site: str, fault: Fault) -> None:
    """A site cannot or may not answer; a question that was meant for the session before does not count."""
    live = update.live
    numbers = {(a.question, a.attempt) for a in (live.ask, live.trials.get(site)) if a is not None}
    if site in live.ready and (fault.question, fault.attempt) in numbers:
        membership.exclude(update, site, Outcome.SITE_FAULT, f"{site}: {fault.reason}")


def go_on(update: RunUpdate) -> None:
    """A run that stalled goes on once enough have answered, where the plan can do without the others."""
    live, terms = update.live, update.plan.membership
    if live.phase is not Phase.STALLED or terms.on_dropout != "continue":
        return  # asked after every answer: what follows looks at every site
    here = _not_awaited(update)
    here += [s for s in sorted(live.proven & live.ready) if s not in here]
    if len(here) >= terms.min_sites:
        membership.drop(update, here)


def _not_awaited(update: RunUpdate) -> list[str]:
    awaited = frozenset(update.run.awaited)
    return [s for s in update.recorded.participants if s in update.live.ready and s not in awaited]


def settle(update: RunUpdate) -> None:
    """Whatever happened: where everybody who was asked has answered, step; held answers may answer the next question too."""
    while update.live.phase in (Phase.ASKING, Phase.STALLED) and update.run.complete:
        _step(update)


def _too_large(update: RunUpdate, ask: Ask | Inquiry) -> None:
    """Whoever has the largest scalar cannot be meant; under masks nobody can tell who that is."""
    told = {site: max(map(abs, a.scalars)) for site, a in update.live.answers.items() if isinstance(a, Share)}
    what = f"to question {ask.question} are so large that their sum overflows. Check its features."
    if not told:
        delivery.end(update, Outcome.SITE_FAULT, f"some site's answers {what} Under masks it cannot be told whose.")
        return
    worst = max(sorted(told), key=lambda site: told[site])
    membership.exclude(update, worst, Outcome.SITE_FAULT, f"{worst}: its answers {what}")


def _step(update: RunUpdate) -> None:
    """The sum, what it shows, and what comes next."""
    live = update.live
    assert live.ask is not None
    ask, recorded = live.ask, update.recorded
    assert recorded.computation is not None
    try:
        taken = recorded.computation.step_of(ask, [live.answers[site] for site in live.asked], recorded.state)
    except BadData as error:
        delivery.end(update, Outcome.SITE_FAULT, f"question {ask.question}: {error}")
        return
    if not np.isfinite(taken.scalars).all():  # finite ones whose sum is none
        _too_large(update, ask)
        return
    try:
        update.record(taken)
    except BadData as error:  # all the sites together have too little; nobody is at fault
        delivery.end(update, Outcome.REFUSED, str(error))
        return
    except (ArithmeticError, np.linalg.LinAlgError, ValueError) as error:  # no honest sites' sum does this
        reason = f"the sum of the answers to question {ask.question} cannot be used ({error})."
        delivery.end(update, Outcome.SITE_FAULT, reason)
        return
    recorded = update.recorded
    assert recorded.computation is not None
    update.notify(
        notices.QuestionAnswered(
            update.run.name, ask.question, ask.attempt, taken.answered, recorded.progress, taken.phase
        )
    )
    questions.release(update, ask)
    update.change(ask=None, asked=(), answers={})
    if (end := recorded.outcome) is not None:
        delivery.end(update, *end)
        return
    if recorded.computation.snapshots and recorded.question % SNAPSHOT_EVERY == 0:
        update.record(Snapshot(recorded.question, recorded.state.to_arrays(), recorded.affine))
    if back := membership.returning(update):  # at a round's end, never in its middle
        membership.change_membership(update, [*recorded.participants, *back])
    else:
        membership.ask_on(update)


# --- time ---------------------------------------------------------------------------------------------------------


def out_of_time(update: RunUpdate, flows: Mapping[str, Flow]) -> None:
    """Not everybody answered within the round's time, and nothing of theirs is on its way: go on without, or wait."""
    if slow_links.waits(update, flows):
        return
    terms, here = update.plan.membership, _not_awaited(update)
    if terms.on_dropout == "continue" and len(here) >= terms.min_sites:
        membership.drop(update, here)
        return
    missing = update.run.awaited
    update.take(Transition.STALLED)
    update.notify(notices.Stalled(update.run.name, missing, update.run.timeouts.stall))
    update.deadline(update.run.timeouts.stall)
