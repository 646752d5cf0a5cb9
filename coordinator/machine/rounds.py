"""The rounds of a run: taking answers, stepping the computation with their sum, and what to do when time is up.

Handlers of a `Reaction`; the table that calls them is in machine.py. Sums are taken in site order, whatever the order of
arrival. What questions and answers mean is the computation's business.
"""

from collections.abc import Mapping

import numpy as np

from coordinator.machine import delivery, membership, notices, questions, slow_links
from coordinator.machine.events import Flow
from coordinator.machine.phases import Phase, Turn
from coordinator.machine.records import Snapshot
from coordinator.machine.run import Reaction
from coordinator.machine.sums import Answer
from coreg_core.errors import BadData
from coreg_core.protocol.messages import Ask, Fault, Inquiry, Share
from coreg_core.protocol.outcomes import Outcome

SNAPSHOT_EVERY = 20  # questions: so many sums at most are replayed when a run is taken up again


# --- answers ------------------------------------------------------------------------------------------------------


def answered(reaction: Reaction, site: str, answer: Answer) -> None:
    """An answer came: of the open question, or of one that was asked on trial; anything else is late or repeated."""
    live = reaction.live
    ask = live.ask
    assert ask is not None
    if site not in live.ready:
        return  # not yet in the plan in this session; it will be asked again
    number = (answer.question, answer.attempt)
    trial = live.trials.get(site)
    if number == (ask.question, ask.attempt) and site in live.asked and site not in live.answers:
        if _usable(reaction, site, answer, ask):
            reaction.change(answers={**live.answers, site: answer})
            if not reaction.run.complete:
                go_on(reaction)
    elif trial is not None and number == (trial.question, trial.attempt) and _usable(reaction, site, answer, trial):
        if questions.asked_once(reaction, trial):
            questions.hold(reaction, trial, {site: answer})
        trials = {s: asked for s, asked in reaction.live.trials.items() if s != site}
        reaction.change(trials=trials, proven=reaction.live.proven | {site})
        go_on(reaction)


def _usable(reaction: Reaction, site: str, answer: Answer, ask: Ask | Inquiry) -> bool:
    computation = reaction.recorded.computation
    assert computation is not None
    reason = computation.fault(reaction.recorded.state, ask, answer)
    if reason is None:
        stated = reaction.live.accepted.get(site) or reaction.recorded.accepted[site]
        reason = computation.false(ask, answer, stated)
    if reason is None:
        return True
    membership.exclude(reaction, site, Outcome.SITE_FAULT, f"{site}: {reason}")
    return False


def faulted(reaction: Reaction, site: str, fault: Fault) -> None:
    """A site cannot or may not answer; a question that was meant for the session before does not count."""
    live = reaction.live
    numbers = {(a.question, a.attempt) for a in (live.ask, live.trials.get(site)) if a is not None}
    if site in live.ready and (fault.question, fault.attempt) in numbers:
        membership.exclude(reaction, site, Outcome.SITE_FAULT, f"{site}: {fault.reason}")


def go_on(reaction: Reaction) -> None:
    """A run that stalled goes on once enough have answered, where the plan can do without the others."""
    live, terms = reaction.live, reaction.plan.membership
    if live.phase is not Phase.STALLED or terms.on_lost != "continue":
        return  # asked after every answer: what follows looks at every site
    here = _not_awaited(reaction)
    here += [s for s in sorted(live.proven & live.ready) if s not in here]
    if len(here) >= terms.min_sites:
        membership.drop(reaction, here)


def _not_awaited(reaction: Reaction) -> list[str]:
    awaited = frozenset(reaction.run.awaited)
    return [s for s in reaction.recorded.participants if s in reaction.live.ready and s not in awaited]


def settle(reaction: Reaction) -> None:
    """Whatever happened: where everybody who was asked has answered, step; held answers may answer the next question too."""
    while reaction.live.phase in (Phase.ASKING, Phase.STALLED) and reaction.run.complete:
        _step(reaction)


def _too_large(reaction: Reaction, ask: Ask | Inquiry) -> None:
    """Whoever has the largest scalar cannot be meant; under masks nobody can tell who that is."""
    told = {site: max(map(abs, a.scalars)) for site, a in reaction.live.answers.items() if isinstance(a, Share)}
    what = f"to question {ask.question} are so large that their sum overflows. Check its features."
    if not told:
        delivery.end(reaction, Outcome.SITE_FAULT, f"some site's answers {what} Under masks it cannot be told whose.")
        return
    worst = max(sorted(told), key=lambda site: told[site])
    membership.exclude(reaction, worst, Outcome.SITE_FAULT, f"{worst}: its answers {what}")


def _step(reaction: Reaction) -> None:
    """The sum, what it shows, and what comes next."""
    live = reaction.live
    assert live.ask is not None
    ask, recorded = live.ask, reaction.recorded
    assert recorded.computation is not None
    try:
        taken = recorded.computation.step_of(ask, [live.answers[site] for site in live.asked], recorded.state)
    except BadData as error:
        delivery.end(reaction, Outcome.SITE_FAULT, f"question {ask.question}: {error}")
        return
    if not np.isfinite(taken.scalars).all():  # finite ones whose sum is none
        _too_large(reaction, ask)
        return
    try:
        reaction.record(taken)
    except BadData as error:  # all the sites together have too little; nobody is at fault
        delivery.end(reaction, Outcome.REFUSED, str(error))
        return
    except (ArithmeticError, np.linalg.LinAlgError, ValueError) as error:  # no honest sites' sum does this
        reason = f"the sum of the answers to question {ask.question} cannot be used ({error})."
        delivery.end(reaction, Outcome.SITE_FAULT, reason)
        return
    recorded = reaction.recorded
    assert recorded.computation is not None
    reaction.notify(
        notices.QuestionAnswered(
            reaction.run.name, ask.question, ask.attempt, taken.answered, recorded.progress, taken.phase
        )
    )
    questions.release(reaction, ask)
    reaction.change(ask=None, asked=(), answers={})
    if (end := recorded.outcome) is not None:
        delivery.end(reaction, *end)
        return
    if recorded.computation.snapshots and recorded.question % SNAPSHOT_EVERY == 0:
        reaction.record(Snapshot(recorded.question, recorded.state.to_arrays(), recorded.affine))
    if back := membership.returning(reaction):  # at a round's end, never in its middle
        membership.regroup(reaction, [*recorded.participants, *back])
    else:
        membership.ask_on(reaction)


# --- time ---------------------------------------------------------------------------------------------------------


def out_of_time(reaction: Reaction, flows: Mapping[str, Flow]) -> None:
    """Not everybody answered within the round's time, and nothing of theirs is on its way: go on without, or wait."""
    if slow_links.waits(reaction, flows):
        return
    terms, here = reaction.plan.membership, _not_awaited(reaction)
    if terms.on_lost == "continue" and len(here) >= terms.min_sites:
        membership.drop(reaction, here)
        return
    missing = reaction.run.awaited
    reaction.take(Turn.STALLED)
    reaction.notify(notices.Stalled(reaction.run.name, missing, reaction.run.clocks.stall))
    reaction.deadline(reaction.run.clocks.stall)
